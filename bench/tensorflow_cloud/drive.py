"""One program of tensorflow-cloud's in a separate process, as its user starts it.

python drive.py script FILE [ARGUMENTS]       python -m mptraining.colab --here FILE [ARGUMENTS]
python drive.py notebook FILE                 its cells in IPython's shell, after the one line
python drive.py submit FILE                   the script with a cluster that only writes its job to job.json
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any


def notebook(file: str) -> int:
    """Run all cells, as `Run all` does up to the first error. Returns the number of cells that failed."""
    from IPython.core.interactiveshell import InteractiveShell

    os.environ["JPY_SESSION_NAME"] = str(Path(file).resolve())
    shell: Any = InteractiveShell.instance()
    shell.run_cell("import mptraining.colab; mptraining.colab.run_here()", store_history=True)
    if os.environ.get("OF_COLAB"):
        shell.run_cell("import google.colab", store_history=True)
    cells = json.loads(Path(file).read_text(encoding="utf-8"))["cells"]
    codes = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    for number, source in enumerate(codes, start=1):
        if "do_shutdown" in source:
            # It restarts the kernel to use packages that pip has installed.
            continue
        done = shell.run_cell(source, store_history=True)
        if not done.success:
            error = done.error_in_exec or done.error_before_exec
            print(f"CELL {number}: {type(error).__name__}: {error}", flush=True)
            return 1
    return 0


def submit(file: str, *arguments: str) -> None:
    from mptraining import colab
    from mptraining.cluster import submit as cluster_submit

    class Job(dict[str, Any]):
        warnings = ()

        def logs(self, **_: Any) -> None: ...

    def recorded(document: Any, **_: Any) -> Job:
        checked = cluster_submit.check(document)
        with Path("job.json").open("a", encoding="utf-8") as out:
            out.write(json.dumps(checked.resolved.model_dump(mode="json")) + "\n")
        return Job(job_id=document["metadata"]["name"], docker_image=None)

    cluster_submit.submit = recorded  # type: ignore[assignment]
    colab.main([file, *arguments])


def main() -> None:
    kind, *words = sys.argv[1:]
    if kind == "script":
        from mptraining import colab

        colab.main(["--here", *words])
    elif kind == "submit":
        submit(*words)
    else:
        sys.exit(notebook(words[0]))


if __name__ == "__main__":
    main()
