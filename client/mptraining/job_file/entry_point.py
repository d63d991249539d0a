"""The function `module:name` that a job names, looked for in the local source folder without importing anything."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator, Sequence
from pathlib import Path

from mptraining.job_file.paths import absolute_path
from mptraining_api.problems import InvalidSpec, Problem, nearest
from mptraining_api.programs.source_text import parse_source
from mptraining_api.validation.mistakes import value_at

_WHERE = "spec.program.function.entryPoint"
# A module that uses one of these may have functions that its statements do not show.
_DYNAMIC = {"__dict__", "__getattr__", "exec", "globals", "locals", "modules", "setattr", "vars"}


def check_entry_point(spec: object, folder: Path, *, here: bool) -> tuple[list[Problem], list[str]]:
    """Return mistakes in the entry point of the job's `spec`, and notes; `folder` is the folder of the job file.

    With `here` the job will run on this machine, where Python searches the working directory too. On a cluster the
    code may be in an image: only a function that is missing from a module of the folder `source` is a mistake.
    """
    entry_point = value_at(spec, ("program", "function", "entryPoint"))
    if not isinstance(entry_point, str) or entry_point.count(":") != 1:
        return [], []
    name, _, function = entry_point.partition(":")
    parts = name.split(".")
    if not all(part.isidentifier() for part in parts):
        return [], []
    below = Path(absolute_path("source", folder))
    has_source = value_at(spec, ("source",)) is not None
    is_shipped = has_source and below.is_dir()
    root = below if is_shipped else folder
    found = _find(root, parts)
    if here and isinstance(found, Problem):
        in_working_directory = _find(Path.cwd(), parts)
        found = found if isinstance(in_working_directory, Problem) else in_working_directory
    tree = _parse(found, name) if isinstance(found, Path) else found
    problem = _missing_function(tree, name, function) if isinstance(tree, ast.Module) else tree
    if problem is None or (isinstance(found, Problem) and _is_installed(name)):
        return [], []
    if here or (is_shipped and isinstance(tree, ast.Module)):
        return [problem], []
    is_elsewhere = has_source or any(value_at(spec, (field,)) is not None for field in ("podTemplate", "runtime"))
    if not is_shipped and (is_elsewhere or not any(_modules(root))):
        return [], []
    return [], [f"{_WHERE}: {problem.found}, which is no mistake if the image has it. {problem.next_step}".rstrip()]


def _find(root: Path, parts: Sequence[str]) -> Path | InvalidSpec | None:
    """Return the file of the module; the mistake if there is none; None if it has no source text."""
    folder = root
    for number, part in enumerate(parts, 1):
        name, is_last = ".".join(parts[:number]), number == len(parts)
        file, package = folder / f"{part}.py", folder / part / "__init__.py"
        # As in Python, a package comes before a module, and a module before a folder without __init__.py.
        if package.is_file():
            if is_last:
                return package
        elif any(path.suffix in (".so", ".pyd", ".pyc") for path in folder.glob(f"{part}.*")):
            return None
        elif file.is_file():
            if is_last:
                return file
            return InvalidSpec(_WHERE, f"{name!r} is not a package, but {file}", expected=f"a folder {folder / part}")
        elif not (folder / part).is_dir():
            near = nearest(part, sorted(_modules(folder)))
            step = near or "Put the code there, or into an installed package."
            return InvalidSpec(_WHERE, f"no module {name!r} (searched {folder})", next_step=step)
        folder /= part
    return None


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


def _parse(file: Path, module: str) -> ast.Module | InvalidSpec | None:
    """Return the statements of the file; the mistake if this machine's Python cannot read them; None if unknown."""
    try:
        return parse_source(file.read_bytes())
    except (SyntaxError, ValueError, OSError) as error:
        line = f":{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        message = error.msg if isinstance(error, SyntaxError) else str(error)
        return InvalidSpec(_WHERE, f"{module!r} cannot be imported: {message} (at {file.name}{line})")


def _missing_function(tree: ast.Module, module: str, function: str) -> InvalidSpec | None:
    names = set(_bound(tree))
    if function in names or "*" in names or _DYNAMIC & set(_used(tree)):
        return None
    functions = sorted(
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
    )
    hint = nearest(function, functions) or f"It has {', '.join(functions) or 'no functions'}."
    return InvalidSpec(_WHERE, f"module {module!r} has no {function!r}", next_step=hint)


def _used(tree: ast.Module) -> Iterator[str]:
    """Yield the names and attributes that occur anywhere in the module."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.FunctionDef(name=name):
                yield name


def _bound(tree: ast.Module) -> Iterator[str]:
    """Yield the names that statements bind in the module: of functions and classes only those declared global."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
                yield from (each for inner in ast.walk(node) if isinstance(inner, ast.Global) for each in inner.names)
                continue
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                yield from (each.asname or each.name.partition(".")[0] for each in aliases)
            case ast.Name(id=name, ctx=ast.Store()):
                yield name
        waiting += ast.iter_child_nodes(node)
