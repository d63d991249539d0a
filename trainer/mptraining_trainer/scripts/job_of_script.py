"""Generation of Keras and precision policy for a script, read from its text before Keras is imported.

The client writes `keras: Legacy` into jobs that it submits. The operator, which resolves a job of `kubectl apply`, has
no access to the code: there `keras: Auto` may have become Keras 3 for a script that only tf_keras can run.

Under mixed_float16 Keras 3 divides gradients by a scale by which only its own `train_step` multiplies the loss. A step
of the script's own would train with gradients near zero: it gets a policy that needs no scale.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Mapping
from pathlib import Path

from mptraining_api.keras_2.source_code import detect_in_source
from mptraining_api.launch import SOURCE_FOLDER
from mptraining_api.programs.source_text import imported_modules, nodes
from mptraining_api.resolve.precision import ASKED_FOR
from mptraining_api.resolved_job import ResolvedJob
from mptraining_trainer.host import native_bfloat16
from mptraining_trainer.numerics.recovery import job_with_policy, policy_without_scaling
from mptraining_trainer.report.telemetry import Notify
from mptraining_trainer.scripts.old_names import old_mixed_precision

_SCALED_BY = ("scale_loss", "LossScaleOptimizer", "super().train_step")


def scales_its_loss(text: str) -> bool:
    """Return whether the text of a training step calls Keras' loss scaling, or Keras' own step."""
    return any(word in text for word in _SCALED_BY)


def job_of_script(job: ResolvedJob, environment: Mapping[str, str], notice: Notify) -> ResolvedJob:
    """Return the job with `keras: Legacy` for a script of Keras 2 code under Auto, and without mixed_float16 for one
    with a training step of its own under Keras 3; else the job unchanged.

    `notice` reports the changes, and lines that enable mixed precision by obsolete names.
    """
    script = job.program.script
    if script is None:
        return job
    path = Path(environment.get(SOURCE_FOLDER, ".")) / script.path
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        # `run_script` reports the error.
        return job
    for old in old_mixed_precision(text):
        notice("OldMixedPrecision", f"{script.path}:{old.line}: {old.name}. {old.change}", level="Warning")
    job = _with_keras(job, script.path, text, notice)
    step = None if job.keras == "Legacy" or job.precision.policy != "mixed_float16" else _own_step(path, text)
    if step is None:
        return job
    policy = policy_without_scaling(job, native_bfloat16=native_bfloat16())
    notice("LossNotScaled", f"{policy} instead of mixed_float16: {step}, whose loss is not scaled", level="Warning")
    return job_with_policy(job, policy)


def _with_keras(job: ResolvedJob, path: str, text: str, notice: Notify) -> ResolvedJob:
    code = detect_in_source(text)
    if job.keras == "Legacy" or not code.needs_legacy:
        return job
    more = f", and {len(code.keras_2) - 1} more" if len(code.keras_2) > 1 else ""
    because = f"{path} is written for Keras 2: {code.keras_2[0]}{more}"
    if any(choice.field == "spec.keras" and choice.because == ASKED_FOR for choice in job.choices):
        notice("Keras2Code", f"{because}; the job asks for keras: Keras3, which is kept", level="Warning")
        return job
    if importlib.util.find_spec("tf_keras") is None:
        notice("Keras2Code", f"{because}; tf-keras is not installed here, so Keras 3 is kept", level="Warning")
        return job
    notice("KerasLegacy", f"keras: Legacy (tf_keras) is chosen: {because}. keras: Keras3 in the job keeps Keras 3")
    return job.model_copy(update={"keras": "Legacy"})


def _own_step(path: Path, text: str) -> str | None:
    """Return the training step that the script, or a module below its folder that it imports, has of its own, or None.

    A program that calls Keras' loss scaling, or Keras' own step, has none.
    """
    texts, waiting = {path: text}, [text]
    while waiting:
        for name in imported_modules(waiting.pop()):
            module = path.parent / f"{name.replace('.', '/')}.py"
            if module not in texts and module.is_file():
                texts[module] = module.read_text(encoding="utf-8", errors="replace")
                waiting.append(texts[module])
    if any(map(scales_its_loss, texts.values())):
        return None
    for file, source in texts.items():
        for node in nodes(source):
            if isinstance(node, ast.FunctionDef) and node.name == "train_step":
                return f"{file.name}:{node.lineno} has its own train_step"
            if isinstance(node, ast.Attribute) and node.attr == "GradientTape":
                return f"{file.name}:{node.lineno} has its own training loop"
    return None
