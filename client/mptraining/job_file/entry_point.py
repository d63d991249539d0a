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
    module, _, function = str(value_at(spec, ("program", "function", "entryPoint"))).partition(":")
    parts = module.split(".")
    if not function or ":" in function or not all(part.isidentifier() for part in parts):
        return [], []
    has_source = value_at(spec, ("source",)) is not None
    below = Path(absolute_path("source", folder))
    is_shipped = has_source and below.is_dir()
    root = below if is_shipped else folder
    file = _find(root, parts)
    if here and isinstance(file, Problem):
        in_working_directory = _find(Path.cwd(), parts)
        file = file if isinstance(in_working_directory, Problem) else in_working_directory
    is_found = isinstance(file, Path)
    problem, is_read = _check_function(file, module, function) if isinstance(file, Path) else (file, False)
    if problem is None or (not is_found and _is_installed(module)):
        return [], []
    if here or (is_shipped and is_read):
        return [problem], []
    is_elsewhere = has_source or any(value_at(spec, (field,)) is not None for field in ("podTemplate", "runtime"))
    if not is_shipped and (is_elsewhere or not any(_modules(root))):
        return [], []
    return [], [f"{_WHERE}: {problem.found}, which is no mistake if the image has it. {problem.next_step}".rstrip()]


def _find(root: Path, parts: Sequence[str]) -> Path | InvalidSpec | None:
    """Return the file of the module; the mistake if there is none; None if it has no source text."""
    folder = root
    for number, part in enumerate(parts, 1):
        file, package = folder / f"{part}.py", folder / part / "__init__.py"
        # As in Python, a package comes before a module, and a module before a folder without __init__.py.
        if package.is_file():
            file = package
        elif any(path.suffix in (".so", ".pyd", ".pyc") for path in folder.glob(f"{part}.*")):
            return None
        if file.is_file() and number == len(parts):
            return file
        name = ".".join(parts[:number])
        if file.is_file() and file != package:
            return InvalidSpec(_WHERE, f"{name!r} is not a package, but {file}", expected=f"a folder {folder / part}")
        if not (folder / part).is_dir():
            step = nearest(part, sorted(_modules(folder))) or "Put the code there, or into an installed package."
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


def _check_function(file: Path, module: str, function: str) -> tuple[InvalidSpec | None, bool]:
    """Return the mistake if the module has no such function, and whether this machine's Python can read the module."""
    try:
        tree = parse_source(file.read_bytes())
    except (SyntaxError, ValueError, OSError) as error:
        line = f":{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        message = error.msg if isinstance(error, SyntaxError) else str(error)
        return InvalidSpec(_WHERE, f"{module!r} cannot be imported: {message} (at {file.name}{line})"), False
    names = set(_names(tree)) if tree else {function}
    if function in names or "*" in names or _DYNAMIC & names:
        return None, True
    defined = (node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)) if tree else ()
    functions = sorted(name for name in defined if not name.startswith("_"))
    hint = nearest(function, functions) or f"It has {', '.join(functions) or 'no functions'}."
    return InvalidSpec(_WHERE, f"module {module!r} has no {function!r}", next_step=hint), True


def _names(tree: ast.Module) -> Iterator[str]:
    """Yield the names that occur anywhere in the module; a function that it binds is one of them."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.FunctionDef(name=name):
                yield name
            case ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                yield from (alias.asname or alias.name.partition(".")[0] for alias in aliases)
