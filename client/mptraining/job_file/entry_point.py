"""The function `module:name` that a job names, looked for in the local source folder without importing anything."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator, Sequence
from pathlib import Path

from mptraining.job_file.paths import absolute_path
from mptraining_api.problems import InvalidSpec, Problem, nearest
from mptraining_api.validation.mistakes import value_at

_WHERE = "spec.program.function.entryPoint"


def check_entry_point(spec: object, folder: Path, *, here: bool) -> list[Problem]:
    """Return the mistake in the entry point of the job's `spec`; `folder` is the folder of the job file.

    With `here` the job will run on this machine. Otherwise the code may be in an image or an archive, so a missing
    module is a mistake only if the folder has other modules and the job names neither image nor source.
    """
    entry_point = value_at(spec, ("program", "function", "entryPoint"))
    if not isinstance(entry_point, str) or entry_point.count(":") != 1:
        return []
    below = Path(absolute_path("source", folder))
    has_source = value_at(spec, ("source",)) is not None
    root = below if has_source and below.is_dir() else folder
    name, _, function = entry_point.partition(":")
    is_elsewhere = (has_source and root == folder) or value_at(spec, ("podTemplate",)) is not None
    found = _find(root, name.split("."))
    if isinstance(found, Path):
        return _check_function(found, name, function)
    is_local = here or (not is_elsewhere and any(_modules(root)))
    if found is None or not is_local or _is_installed(name):
        return []
    return [found]


def _find(root: Path, parts: Sequence[str]) -> Path | InvalidSpec | None:
    """Return the file of the module; the mistake if there is none; None if it has no source text."""
    folder = root
    for number, part in enumerate(parts, 1):
        is_last = number == len(parts)
        if is_last and (folder / f"{part}.py").is_file():
            return folder / f"{part}.py"
        if any(folder.glob(f"{part}.*.so")) or any(folder.glob(f"{part}.*.pyd")):
            return None
        if not (folder / part).is_dir():
            near = nearest(part, sorted(_modules(folder)))
            return InvalidSpec(
                _WHERE,
                f"no module {'.'.join(parts[:number])!r} (searched {folder})",
                next_step=near or "Put the code there, or into an installed package.",
            )
        folder /= part
    package = folder / "__init__.py"
    return package if package.is_file() else None


def _modules(folder: Path) -> Iterator[str]:
    """Yield the names of the modules and packages in the folder."""
    for path in folder.glob("*"):
        if path.stem.isidentifier() and (path.suffix == ".py" or (path / "__init__.py").is_file()):
            yield path.stem


def _is_installed(name: str) -> bool:
    """Return whether the package is installed here; a package without a dot is not imported for that."""
    try:
        return importlib.util.find_spec(name.partition(".")[0]) is not None
    except (ImportError, ValueError):
        return False


def _check_function(file: Path, module: str, function: str) -> list[Problem]:
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError, OSError) as error:
        line = f":{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        message = error.msg if isinstance(error, SyntaxError) else str(error)
        return [InvalidSpec(_WHERE, f"{module!r} cannot be imported: {message} (at {file.name}{line})")]
    names = set(_bound(tree.body))
    if function in names or "*" in names or "__getattr__" in names:
        return []
    functions = sorted(_functions(tree.body))
    hint = nearest(function, functions) or f"It has {', '.join(functions) or 'no functions'}."
    return [InvalidSpec(_WHERE, f"module {module!r} has no {function!r}", next_step=hint)]


def _functions(body: Sequence[ast.stmt]) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            yield node.name


def _bound(body: Sequence[ast.AST]) -> Iterator[str]:
    """Yield the names that statements bind in the module itself: not those inside functions and classes."""
    for node in body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                yield from (each.asname or each.name.partition(".")[0] for each in aliases)
            case ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.Global(names=names):
                yield from names
            case _:
                yield from _bound(list(ast.iter_child_nodes(node)))
