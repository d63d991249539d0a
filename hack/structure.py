"""Figures of the repository's structure: `python hack/structure.py [--json]`.

Of the product's packages: modules, folders, the largest folder, median and longest module, modules that one other
module alone imports; and lines of product, tests and docs. `__init__.py` files count as lines, not as modules.
"""

from __future__ import annotations

import argparse
import ast
import json
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
# Folders with the product's packages, and those with what tests it.
PRODUCT = ("api", "operator", "trainer", "client")
TESTS = ("tests", "parity")


def modules(root: Path) -> dict[str, Path]:
    """The product's modules by their dotted names."""
    found = {}
    for part in PRODUCT:
        for file in sorted((root / part).rglob("*.py")):
            if file.stem != "__init__":
                found[".".join(file.relative_to(root / part).with_suffix("").parts)] = file
    return found


def imported(file: Path, package: str) -> Iterator[str]:
    """Dotted names that a file imports: modules, and what is imported from them as if it were a module."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.rsplit(".", node.level - 1)[0] if node.level else ""
            module = ".".join(part for part in (base, node.module or "") if part)
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def importers(known: dict[str, Path]) -> dict[str, set[str]]:
    """For each module those that import it."""
    found: dict[str, set[str]] = defaultdict(set)
    for name, file in known.items():
        for other in imported(file, name.rpartition(".")[0]):
            if other in known and other != name:
                found[other].add(name)
    return found


def lines(files: Iterable[Path]) -> int:
    """Lines of some files."""
    return sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)


def figures(root: Path) -> dict[str, int | float | str]:
    """The figures by name."""
    known = modules(root)
    sizes = {name: lines([file]) for name, file in known.items()}
    folders = Counter(file.parent for file in known.values())
    largest, most = folders.most_common(1)[0]
    longest = max(sizes, key=lambda name: sizes[name])
    used = importers(known)
    texts = [*(root / "docs").rglob("*.md"), *root.glob("*.md")]
    return {
        "modules": len(known),
        "folders": len(folders),
        "largest folder": f"{largest.relative_to(root)} ({most})",
        "folders above 15 modules": sum(count > 15 for count in folders.values()),
        "median module, lines": statistics.median(sizes.values()),
        "longest module, lines": f"{longest} ({sizes[longest]})",
        "modules with one importer": sum(len(used[name]) == 1 for name in known),
        "lines of product": lines(file for part in PRODUCT for file in (root / part).rglob("*.py")),
        "lines of tests": lines(file for part in TESTS for file in (root / part).rglob("*.py")),
        "lines of docs": lines(texts),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python hack/structure.py", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object in place of a table")
    found = figures(ROOT)
    if parser.parse_args().json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name:28} {value}")


if __name__ == "__main__":
    main()
