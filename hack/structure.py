"""The size of the tree against its budgets: `python hack/structure.py`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
PRODUCT = ("api", "operator", "trainer", "client")
TOOLING = ("hack", "examples", "charts", ".ci", "Makefile", "Dockerfile")
CODE = {".py", ".sh", ".go", ".mk", ".js", ".css", ".html", ".tpl", ""}


def files(*parts: str, suffix: str = "") -> Iterator[Path]:
    for part in parts:
        path = ROOT / part
        for file in [path] if path.is_file() else sorted(path.rglob(f"*{suffix}")):
            if file.is_file() and "__pycache__" not in file.parts:
                yield file


def lines(paths: Iterable[Path]) -> int:
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


def fields(schema: object) -> int:
    """Count the properties of a schema, at any depth."""
    if isinstance(schema, list):
        return sum(map(fields, schema))
    if not isinstance(schema, dict):
        return 0
    return len(schema.get("properties", ())) + sum(map(fields, schema.values()))


def figures() -> Iterator[tuple[str, int, int]]:
    """Yield name, value and budget."""
    yield "product, lines of Python", lines(files(*PRODUCT, suffix=".py")), 58_000
    yield "board, lines of JavaScript", lines(files("client", suffix=".js")), 1_700
    tooling = (path for path in files(*TOOLING) if path.suffix in CODE)
    yield "tooling, lines of code", lines(tooling), 8_000
    yield "tests, lines of Python", lines(files("tests", suffix=".py")), 55_000
    yield "tests, lines of golden YAML", lines(files("tests/golden", suffix=".yaml")), 8_000
    documents = [*files("docs", suffix=".md"), *ROOT.glob("*.md")]
    yield "documents, lines", lines(documents), 5_500
    yield "documents, kB", sum(path.stat().st_size for path in documents) // 1000, 330
    crd = ROOT / "charts" / "mptraining" / "files" / "crd.yaml"
    yield "CRD of the job, kB", crd.stat().st_size // 1000, 110
    schema = yaml.safe_load(crd.read_text(encoding="utf-8"))["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    yield "CRD of the job, fields", fields(schema["properties"]), 230
    chart = ROOT / "charts" / "mptraining"
    values = re.findall(r"^\| [\w.]+ \|", (chart / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    yield "chart, values", len(values) - 1, 80
    written = json.loads((chart / "values.schema.json").read_text(encoding="utf-8"))
    yield "chart, lines of the schema", len(json.dumps(written, indent=2).splitlines()), 400
    visible = [path for path in ROOT.iterdir() if path.is_dir() and path.name[0] != "." and path.name != "build"]
    yield "folders at the top", sum(any(path.iterdir()) for path in visible), 11
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    yield "targets that make help prints", len(re.findall(r"^[a-z-]+:.*##", makefile, re.MULTILINE)), 15


if __name__ == "__main__":
    for name, value, most in figures():
        print(f"{name:32} {value:8,} {'of' if value <= most else 'OVER'} {most:,}")
