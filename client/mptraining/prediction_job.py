"""The job of `mptj predict`: a prediction of a trained model, here or on a cluster."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from mptraining.runs.files import stored_document
from mptraining_api import run_folder
from mptraining_api.resolved_job import ResolvedAccelerator, ResolvedJob
from mptraining_api.spec import API_VERSION, KIND

# Fields of a job's data section that describe records, whatever they are for.
OF_RECORDS = ("features", "label", "labels", "sampleWeight", "preprocess")


def prediction_document(
    model: str,
    records: Sequence[str],
    *,
    name: str | None = None,
    accelerator: Mapping[str, Any],
    workers: int | None = None,
    prediction: Mapping[str, Any],
    data: Mapping[str, Any] | None = None,
    skip_bad: int | None = None,
    output: str,
) -> dict[str, Any]:
    """Return the document of the job; `prediction` has further fields of `program.prediction`, None for absent ones.

    `data` is the data section of a job file, whose description of the records is taken.
    """
    section: dict[str, Any] = {"predict": list(records)}
    section |= {key: data[key] for key in OF_RECORDS if data is not None and data.get(key) is not None}
    if skip_bad is not None:
        section["badRecords"] = {"action": "Skip", "maxSkipped": skip_bad}
    elif data is not None and data.get("badRecords"):
        section["badRecords"] = data["badRecords"]
    given = {key: value for key, value in prediction.items() if value is not None}
    program = {"prediction": {"model": model, **given}}
    return document(
        name or job_name(model), accelerator=accelerator, workers=workers, program=program, data=section, output=output
    )


def document(name: str, *, output: str, workers: int | None = None, **sections: Mapping[str, Any]) -> dict[str, Any]:
    spec = {**sections, "output": {"uri": output}, **({"workers": workers} if workers is not None else {})}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}, "spec": spec}


def job_name(model: str) -> str:
    """Return a name for the job: `predict-` and the name of the model's file or folder, as far as names allow it."""
    parts = [part for part in model.rstrip("/").split("/") if part != "model"]
    stem = re.sub(r"[^a-z0-9]+", "-", parts[-1].removesuffix(".keras").lower()) if parts else ""
    return f"predict-{stem}"[:50].strip("-")


def accelerator_of(model: str) -> dict[str, Any]:
    """Return the accelerator of the run that the model is of; a CPU for another model, and for a damaged job.json.

    Raises StorageUnavailable and InvalidData if a bucket cannot be read.
    """
    folders = (model, model.rstrip("/").removesuffix(f"/{run_folder.MODEL}"))
    job = next(filter(None, (stored_document(folder, run_folder.JOB, ResolvedJob) for folder in folders)), None)
    return accelerator_document(job.accelerator) if job is not None else {"type": "cpu"}


def stored_prediction(folder: str) -> ResolvedJob | None:
    """Return the job of a run folder if it is a prediction; None for other runs, and for a damaged job.json.

    Raises StorageUnavailable and InvalidData if a bucket cannot be read.
    """
    job = stored_document(folder, run_folder.JOB, ResolvedJob)
    return job if job is not None and job.program.prediction is not None else None


def accelerator_document(accelerator: ResolvedAccelerator) -> dict[str, Any]:
    """Return the accelerator section that asks for the same; for one that fell back to a CPU, the first one."""
    if accelerator.asked_for is not None:
        return {"type": accelerator.asked_for}
    if accelerator.kind == "cpu":
        return {"type": "cpu"}
    if accelerator.kind == "tpu":
        return {"type": accelerator.type, "topology": accelerator.topology}
    return {"type": accelerator.type, "countPerWorker": accelerator.count_per_worker}
