"""The program of the jobs of `make hardware-gke`: the measurements, with their results in the job's run folder."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from mptraining_api import launch
from mptraining_api.resolved_job import ResolvedJob
from mptraining_records.storage import storage


def main(arguments: list[str]) -> None:
    """Run `python -m hardware` to its end; exit with its code."""
    job = ResolvedJob.model_validate_json(Path(os.environ[launch.JOB_FILE]).read_text(encoding="utf-8"))
    if job.output is None:
        sys.exit("spec.output.uri is missing: the results would be lost")
    with tempfile.TemporaryDirectory(prefix="hardware-") as folder:
        places = ["--folder", folder, "--page", f"{folder}/hardware.md"]
        publish = ["--publish", storage.join(job.output, "hardware.json")]
        command = [sys.executable, "-m", "hardware", *places, *publish, *arguments]
        # The package is beside this file, wherever the source was unpacked.
        sys.exit(subprocess.run(command, cwd=Path(__file__).parents[1], check=False).returncode)


if __name__ == "__main__":
    main(sys.argv[1:])
