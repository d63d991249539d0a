"""The Python blocks of README and guides that call `tfc.run`, each as a script beside the README's mnist_example.py."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

from bench.tensorflow_cloud.programs import Program

_BLOCK = re.compile(r"^[ ]*```python\n(.*?)^[ ]*```", re.MULTILINE | re.DOTALL)
DOCUMENTS = (
    "README.md",
    "g3doc/guides/run_guide.md",
    "g3doc/guides/distribution_strategies.md",
)


def snippets(checkout: Path, work: Path) -> Iterator[Program]:
    """Write them into folders of their own under `work`; a block without imports has those of the previous one."""
    readme = [dedent(block) for block in _BLOCK.findall((checkout / "README.md").read_text(encoding="utf-8"))]
    example = next(block for block in readme if "mnist.load_data" in block)
    cell: dict[str, object] = {
        "cell_type": "code",
        "source": example,
        "metadata": {},
        "outputs": [],
        "execution_count": None,
    }
    notebook = json.dumps({"cells": [cell], "nbformat": 4, "nbformat_minor": 5, "metadata": {}})
    seen: set[str] = set()
    for document in DOCUMENTS:
        blocks = [dedent(block) for block in _BLOCK.findall((checkout / document).read_text(encoding="utf-8"))]
        for number, block in enumerate(blocks, start=1):
            if "tfc.run(" not in block or block in seen:
                continue
            seen.add(block)
            folder = work / "snippets" / f"{Path(document).stem}_{number}"
            folder.mkdir(parents=True, exist_ok=True)
            head = "" if "import tensorflow_cloud" in block else "import tensorflow_cloud as tfc\n"
            (folder / "scale_mnist.py").write_text(head + block, encoding="utf-8")
            (folder / "mnist_example.py").write_text(example, encoding="utf-8")
            (folder / "mnist_example.ipynb").write_text(notebook, encoding="utf-8")
            (folder / "requirements.txt").write_text("tensorflow-datasets\n", encoding="utf-8")
            arguments = re.findall(r"COMMON_MACHINE_CONFIGS\[.(\w+).\]|(entry_point=\S+?)[,)]", block)
            words = " ".join(sorted({each for pair in arguments for each in pair if each}))
            title = f"{Path(document).stem}, block {number}: {words}"
            # A few seconds each; the first of them, and the one that submits itself, train.
            trains = block.count("\n") > 12 or number <= 3
            yield Program(str(folder / "scale_mnist.py"), "script" if trains else "submit", str(folder), title=title)
