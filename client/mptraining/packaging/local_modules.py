"""Which modules of a folder a program imports, so that they are shipped with it and the rest of the folder is not."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from mptraining.packaging.package import SourceFile
from mptraining.packaging.source_folder import read_file, read_folder


def imported_files(text: str, folder: Path) -> list[SourceFile]:
    """The files of `folder` that the program imports, directly or by way of each other; a package as a whole."""
    files: dict[str, SourceFile] = {}
    seen: set[str] = set()
    waiting = list(_imported(text))
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        for file in _module(name, folder):
            files[file.path] = file
            if file.path.endswith(".py"):
                waiting += _imported(file.content.decode("utf-8", "replace"))
    return sorted(files.values(), key=lambda file: file.path)


def _module(name: str, folder: Path) -> list[SourceFile]:
    single, package = folder / f"{name}.py", folder / name
    if single.is_file():
        return [read_file(single, single.name)]
    # Without an __init__.py too; but a folder of data of that name has no module in it.
    if package.is_dir() and any(package.rglob("*.py")):
        inside, _ = read_folder(package)
        return [SourceFile(f"{name}/{file.path}", file.content, file.executable) for file in inside]
    return []


def _imported(text: str) -> Iterator[str]:
    """The first parts of the names of imported modules. What is no Python imports nothing."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                for alias in node.names:
                    yield alias.name.partition(".")[0]
            case ast.ImportFrom(module=str(module), level=0):
                yield module.partition(".")[0]
