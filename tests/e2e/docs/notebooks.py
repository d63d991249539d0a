"""A notebook, run by a real Jupyter kernel: its cells, and each output with its time."""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbformat
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

KERNEL = "notebook"


@dataclass(frozen=True)
class Shown:
    """An output of a cell: the cell's number, seconds since the notebook began, its text or HTML."""

    cell: int
    seconds: float
    text: str


@dataclass
class Ran:
    """A notebook that was run, in `path`, and all of its outputs in order; an output that is replaced counts again."""

    path: Path
    shown: list[Shown] = field(default_factory=list)

    def text(self, cell: int | None = None) -> str:
        """Return the output of one cell, or of all cells."""
        return "\n".join(each.text for each in self.shown if cell in (None, each.cell))

    def seconds(self, pattern: str) -> float:
        """Return when the pattern appeared for the first time. Fails if it never did."""
        found = next((each.seconds for each in self.shown if re.search(pattern, each.text)), None)
        assert found is not None, f"nothing like {pattern!r} was shown:\n{self.text()}"
        return found


def run(folder: Path, *cells: str, python: Path, environment: dict[str, str], seconds: int = 900) -> Ran:
    """Write the cells to `folder`/notebook.ipynb and run them there with that Python, each within `seconds`.

    Raises nbclient's CellExecutionError for a cell that raises.
    """
    path = folder / "notebook.ipynb"
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
    nbformat.write(notebook, path)
    specs = folder / ".kernels"
    (specs / KERNEL).mkdir(parents=True)
    spec = {
        "argv": [str(python), "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        "display_name": "Python",
        "language": "python",
        "env": {**environment, "IPYTHONDIR": str(folder / ".ipython")},
    }
    (specs / KERNEL / "kernel.json").write_text(json.dumps(spec))
    ran = Ran(path)
    began = time.monotonic()

    class Heard(NotebookClient):
        def process_message(self, msg: dict[str, Any], cell: Any, cell_index: int) -> Any:
            content = msg["content"]
            told = content.get("text") or "\n".join(
                str(content.get("data", {}).get(kind, "")) for kind in ("text/html", "text/plain")
            )
            if told.strip():
                ran.shown.append(Shown(cell_index, time.monotonic() - began, told))
            return super().process_message(msg, cell, cell_index)

    kernels = KernelSpecManager(kernel_dirs=[str(specs)], ensure_native_kernel=False)
    manager = AsyncKernelManager(kernel_name=KERNEL, kernel_spec_manager=kernels)
    client = Heard(
        notebook, km=manager, timeout=seconds, startup_timeout=seconds, resources={"metadata": {"path": str(folder)}}
    )
    try:
        # It did not create the manager itself, so it needs an explicit shutdown.
        client.execute(cleanup_kc=True)
    finally:
        nbformat.write(notebook, path)
    return ran
