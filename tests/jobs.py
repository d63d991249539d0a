"""Jobs of tests, from their YAML."""

from __future__ import annotations

from mptraining_api.spec import MPTrainingJob
from mptraining_api.validation.job_text import read_job_text


def parsed_job(text: str) -> MPTrainingJob:
    """Return the job in a text, as `MPTrainingJob.load` that in a file. Raises InvalidSpec."""
    return MPTrainingJob.parse_written(read_job_text(text, file="job"))
