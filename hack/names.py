"""Names that carry no meaning in the product: `python -m hack.names`, with `-v` every place."""

from __future__ import annotations

import ast
import builtins
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from hack.structure import PRODUCT, files

# Role-less variables that the design reviews name.
VAGUE = {"each", "found", "one", "own", "told", "said", "look", "beside", "place", "stranger", "wanted"}
BUILTINS = {name for name in vars(builtins) if name.islower() and not name.startswith("_")}


def bound(node: ast.AST) -> Iterator[str]:
    """Yield the variables and parameters that a node binds; attributes and keywords are not counted."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, ast.arg):
        yield node.arg


def main(verbose: bool) -> None:
    counts: Counter[str] = Counter()
    modules = list(files(*PRODUCT, suffix=".py"))
    for module in modules:
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
            for name in bound(node):
                if name in VAGUE | BUILTINS:
                    counts[name] += 1
                    if verbose:
                        print(f"{module}:{node.lineno}: {name}")  # type: ignore[attr-defined]
    for kind, names in (("vague", VAGUE), ("shadow a built-in", BUILTINS)):
        left = [(name, count) for name, count in counts.most_common() if name in names]
        print(f"{kind}: {sum(count for _, count in left)}:", ", ".join(f"{name} {count}" for name, count in left))
    named = [path for path in modules if not path.stem.startswith("__")]
    by_name = sorted((path.stem, package_of(path), path) for path in named)
    for (stem, package), group in groupby(by_name, key=lambda item: item[:2]):
        paths = [str(path.parent.name) for _, _, path in group]
        if len(paths) > 1:
            print(f"{package}: {len(paths)} modules {stem}.py: in {', '.join(paths)}")


def package_of(module: Path) -> str:
    return next(part for part in module.parts if part.startswith("mptraining"))


if __name__ == "__main__":
    main("-v" in sys.argv)
