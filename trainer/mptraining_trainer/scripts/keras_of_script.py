"""Generation of Keras for a script, read from its text before Keras is imported.

The client writes `keras: Legacy` into jobs that it submits. The operator, which resolves a job of `kubectl apply`, has
no access to the code: there `keras: Auto` may have become Keras 3 for a script that only tf_keras can run.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path

from mptraining_api.keras_2.source_code import detect_in_source
from mptraining_api.launch import SOURCE_FOLDER
from mptraining_api.resolve.precision import ASKED_FOR
from mptraining_api.resolved_job import ResolvedJob
from mptraining_trainer.reporting.telemetry import Notify
from mptraining_trainer.scripts.old_names import old_mixed_precision


def with_keras_of_script(job: ResolvedJob, environment: Mapping[str, str], notice: Notify) -> ResolvedJob:
    """Return the job with `keras: Legacy` for a script of Keras 2 code under Auto; else the job unchanged.

    `notice` reports the change, and lines that enable mixed precision by obsolete names.
    """
    script = job.program.script
    if script is None:
        return job
    try:
        text = (Path(environment.get(SOURCE_FOLDER, ".")) / script.path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        # `run_script` reports the error.
        return job
    for old in old_mixed_precision(text):
        notice("OldMixedPrecision", f"{script.path}:{old.line}: {old.found}. {old.change}", level="Warning")
    code = detect_in_source(text)
    if job.keras == "Legacy" or not code.needs_legacy:
        return job
    more = f", and {len(code.keras_2) - 1} more" if len(code.keras_2) > 1 else ""
    because = f"{script.path} is written for Keras 2: {code.keras_2[0]}{more}"
    if any(each.field == "spec.keras" and each.because == ASKED_FOR for each in job.choices):
        notice("Keras2Code", f"{because}; the job asks for keras: Keras3, which is kept", level="Warning")
        return job
    if importlib.util.find_spec("tf_keras") is None:
        notice("Keras2Code", f"{because}; tf-keras is not installed here, so Keras 3 is kept", level="Warning")
        return job
    notice("KerasLegacy", f"keras: Legacy (tf_keras) is chosen: {because}. keras: Keras3 in the job keeps Keras 3")
    return job.model_copy(update={"keras": "Legacy"})
