"""Package of the program that the user names: a script, a notebook, or a function.

| entry point                     | packaged files                                                              |
|---------------------------------|-----------------------------------------------------------------------------|
| script or notebook file         | the file with its folder, or with the given folder                          |
| the running notebook            | its cells, and the modules in the current folder that they import           |
| function of a module            | the folder from which the module is imported                                |
| function of a notebook, script  | the function with its dependencies, and the modules that these import       |
"""

from __future__ import annotations

import ast
import inspect
import re
import secrets
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from mptraining.packaging.functions import check_function_name, extract_function
from mptraining.packaging.keras_choice import with_keras
from mptraining.packaging.notebooks import Notebook, ipython_shell, notebook_to_program, read_notebook, running_notebook
from mptraining.packaging.package import IGNORE_FILE, Package, SourceFile, build_package, read_file, read_folder
from mptraining.packaging.requirements import FILE_OPTIONS, without_never_installed
from mptraining_api.accelerators import canonical_name
from mptraining_api.model import Model
from mptraining_api.problems import ArgumentPlace, InvalidProgram, Problem, nearest
from mptraining_api.programs.source_text import imported_modules
from mptraining_api.spec import API_VERSION, KIND


def imported_files(text: str, folder: Path) -> list[SourceFile]:
    """Return the files of `folder` that the program imports, directly or indirectly; packages as a whole."""
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
    # A namespace package has no __init__.py; a data folder of the same name has no .py file at all.
    if package.is_dir() and any(package.rglob("*.py")):
        inside, _ = read_folder(package)
        return [SourceFile(f"{name}/{file.path}", file.content, file.executable) for file in inside]
    return []


def _imported(text: str) -> Iterator[str]:
    """Yield the top-level names of the imported modules; nothing if `text` is not valid Python."""
    return (name.partition(".")[0] for name in imported_modules(text))


# The argument that names the program.
ENTRY_POINT = ArgumentPlace("entry_point", "TARGET")
# The generated file that merges the user's requirements file with a notebook's pip commands.
REQUIREMENTS = "requirements-of-the-job.txt"
NOTEBOOK_MODULE = "notebook_program"
# Pod names append attempt, index and a random suffix to the job's name (`mptraining_api.spec.JOB_NAME`).
_MOST_LETTERS = 50


def ship_file(
    file: Path, *, folder: Path | None = None, requirements: Path | None = None, arguments: Sequence[str] = ()
) -> Package:
    """Package a script or notebook file with its folder, or with `folder`. Raises InvalidProgram."""
    root, path = located(file, folder)
    files, notes = read_folder(root)
    lines: tuple[str, ...] = ()
    if file.suffix == ".ipynb":
        made = notebook_to_program(read_notebook(file))
        files = [source for source in files if source.path != path]
        path = f"{path.removesuffix('.ipynb')}_notebook.py"
        files.append(SourceFile.of_text(path, made.text))
        lines, notes = made.requirements, [*notes, *made.notes]
    elif path not in {source.path for source in files}:
        raise InvalidProgram(str(file), "is left out of the package", next_step=f"Add !/{path} to {IGNORE_FILE}.")
    return _packed(files, _script(path, arguments), root, requirements, lines, notes)


def located(file: Path, folder: Path | None) -> tuple[Path, str]:
    """Return the root of the code, `folder` or that of the file, and the file's path in it. Raises InvalidProgram."""
    root, absolute = (folder or file.parent).resolve(), file.resolve()
    if not absolute.is_file():
        raise _no_file(file)
    if not absolute.is_relative_to(root):
        raise InvalidProgram(ENTRY_POINT, f"{file} is not in the folder {root}", expected="a file inside it")
    return root, absolute.relative_to(root).as_posix()


def ship_running_notebook(
    *, folder: Path | None = None, requirements: Path | None = None, arguments: Sequence[str] = ()
) -> Package:
    """Package the running notebook with the modules that it imports from the current folder, or with `folder`."""
    made = notebook_to_program(running_notebook())
    path = f"{NOTEBOOK_MODULE}.py"
    files, notes, root = _files_for(made.text, folder)
    files.append(SourceFile.of_text(path, made.text))
    return _packed(files, _script(path, arguments), root, requirements, made.requirements, [*notes, *made.notes])


def ship_entry_point(entry_point: str, *, folder: Path | None = None, requirements: Path | None = None) -> Package:
    """Package a function `module:name` with the folder that its module is imported from (default: the current one)."""
    root = (folder or Path()).resolve()
    module = entry_point.partition(":")[0].replace(".", "/")
    if not (root / f"{module}.py").is_file() and not (root / module / "__init__.py").is_file():
        known = [path.relative_to(root).with_suffix("").as_posix().replace("/", ".") for path in root.glob("*.py")]
        hint = nearest(module.replace("/", "."), known) or "Name the folder that holds the module."
        raise InvalidProgram(ENTRY_POINT, f"no module {module.replace('/', '.')!r} in {root}", next_step=hint)
    files, notes = read_folder(root)
    return _packed(files, {"function": {"entryPoint": entry_point}}, root, requirements, (), notes)


# The script that calls a function. In the processes that the function starts, nothing is called.
_CALL = """\
if __name__ == "__main__":
    from mptraining_trainer.job.function_call import returning

    with returning() as returned:
        from {module} import {name}

        returned.value = {name}({arguments})
"""


def function_job(
    function: Callable[..., Any],
    *,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    accelerator: str | Model | Mapping[str, Any] = "cpu",
    workers: int | None = None,
    name: str | None = None,
    output: str | None = None,
    folder: str | None = None,
    requirements: str | None = None,
    spec: Mapping[str, Any] | None = None,
) -> tuple[dict[str, Any], Package]:
    """Return the job that calls the function, and its package; prints notes on the package. Raises Problem.

    The arguments are those of `mptraining.submit`.
    """
    shipped = ship_function(
        function,
        folder=Path(folder) if folder is not None else None,
        requirements=Path(requirements) if requirements is not None else None,
        call=", ".join(
            [*map(_source_of, args), *(f"{key}={_source_of(value)}" for key, value in (kwargs or {}).items())]
        ),
    )
    machine = accelerator.to_document() if isinstance(accelerator, Model) else accelerator
    decided = {
        "accelerator": {"type": canonical_name(machine)} if isinstance(machine, str) else dict(machine),
        **({} if workers is None else {"workers": workers}),
        "program": dict(shipped.program),
        # Its exception is a result, as its value is; lost machines have a budget of their own.
        "runPolicy": {"backoffLimit": 0},
        **({} if output is None else {"output": {"uri": output}}),
    }
    metadata = {"name": name or job_name(function.__name__, secrets.token_hex(3))}
    document = {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": merge(decided, spec or {})}
    document, package, about_keras = with_keras(document, shipped)
    for note in (*package.notes, *about_keras):
        print(f"note: {note}")
    return document, package


# The arguments of a function's job by the fields that they fill.
_ARGUMENTS = {
    "metadata.name": "name",
    "spec.accelerator.type": "accelerator",
    "spec.workers": "workers",
    "spec.output.uri": "output",
}


def refuse_unknown(call: str, arguments: Iterable[str], callee: Callable[..., Any]) -> None:
    """Raise TypeError if `call` was given an argument that `callee`, which takes them, does not have."""
    known = inspect.signature(callee).parameters
    for name in arguments:
        if name not in known:
            raise TypeError(f"{call}() takes no argument {name!r}. {nearest(name, known)}".rstrip(". "))


@contextmanager
def function_arguments_named() -> Iterator[None]:
    """In the block, name the fields of a function's job by the arguments of `function_job` in the problems raised."""
    try:
        yield
    except Problem as problem:
        raise problem.renamed(lambda location: _ARGUMENTS.get(str(location), location)) from None


def _source_of(value: object) -> str:
    """Return an argument as Python source. Raises InvalidProgram for one that is no literal."""
    text = repr(value)
    with suppress(ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        if ast.literal_eval(text) == value:
            return text
    step = "Give numbers, texts, lists, tuples and mappings, and make other objects in the function."
    shown = text if len(text) <= 80 else f"{text[:77]}..."
    raise InvalidProgram(
        "args", f"{shown} of type {type(value).__name__}", expected="literals of Python", next_step=step
    )


def job_name(stem: str, token: str) -> str:
    """Return a DNS label from `stem` (invalid characters replaced, truncated) and the suffix `token`."""
    words = re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")
    if not words or not words[0].isalpha():
        words = f"job-{words}".rstrip("-")
    return f"{words[: _MOST_LETTERS - len(token) - 1].rstrip('-')}-{token}"


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Merge `over` into `base` recursively; None removes a field."""
    result = dict(base)
    for key, value in over.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(result.get(key), Mapping):
            result[key] = merge(result[key], value)
        else:
            result[key] = value
    return result


def ship_function(
    function: Callable[..., Any],
    *,
    folder: Path | None = None,
    requirements: Path | None = None,
    call: str | None = None,
) -> Package:
    """Package a function that returns a model, or with `call`, the source of its arguments, one that trains.

    The latter is called by a generated script, and its value is kept for the job's `result`. The package holds
    the source as text. Raises InvalidProgram for a lambda, a nested function, and a function of an installed package.
    """
    check_function_name(function)
    name, module = function.__qualname__, function.__module__
    text, where = "", ""
    lines: tuple[str, ...] = ()
    notes: list[str] = []
    if module == "__main__":
        text, where, lines, notes = _main_program()
        text = extract_function(text, name, where)
        module = NOTEBOOK_MODULE
        files, folder_notes, root = _files_for(text, folder)
        notes = [*notes, *folder_notes]
        files.append(SourceFile.of_text(f"{module}.py", text))
    else:
        root = (folder or _import_root(function)).resolve()
        files, notes = read_folder(root)
    if call is None:
        return _packed(files, {"function": {"entryPoint": f"{module}:{name}"}}, root, requirements, lines, notes)
    starter = f"run_{name}.py"
    files.append(SourceFile.of_text(starter, _CALL.format(module=module, name=name, arguments=call)))
    return _packed(files, _script(starter, ()), root, requirements, lines, notes)


def _main_program() -> tuple[str, str, tuple[str, ...], list[str]]:
    """Return text, name, requirement lines and notes of the running notebook or script."""
    if ipython_shell() is not None:
        notebook: Notebook = running_notebook()
        made = notebook_to_program(notebook)
        return made.text, notebook.name, made.requirements, list(made.notes)
    file = getattr(sys.modules["__main__"], "__file__", None)
    if file is None:
        step = "Put it into a file, and name the function by module:name."
        raise InvalidProgram(ENTRY_POINT, "the function was typed into a prompt", next_step=step)
    return Path(file).read_text(encoding="utf-8"), Path(file).name, (), []


def _import_root(function: Callable[..., Any]) -> Path:
    """Return the folder from which the function's module is imported. Raises InvalidProgram for site-packages."""
    module = sys.modules[function.__module__]
    file = getattr(module, "__file__", None)
    if file is None or {"site-packages", "dist-packages"} & set(Path(file).parts):
        where = function.__module__
        step = f"Name it in a requirements file, and call it from a function of your own, or ship a copy of {where}."
        raise InvalidProgram(ENTRY_POINT, f"{where} is an installed package, which is not shipped", next_step=step)
    above = function.__module__.count(".") + (Path(file).name == "__init__.py")
    return Path(file).resolve().parents[above]


def _files_for(text: str, folder: Path | None) -> tuple[list[SourceFile], list[str], Path]:
    """Return files, notes and root for a program without a file: `folder`, or its imports from the current folder."""
    if folder is not None:
        files, notes = read_folder(folder.resolve())
        return files, notes, folder.resolve()
    here = Path.cwd()
    return imported_files(text, here), [], here


def _packed(
    files: Iterable[SourceFile],
    program: Mapping[str, Any],
    root: Path,
    requirements: Path | None,
    lines: tuple[str, ...],
    notes: Iterable[str],
) -> Package:
    # A generated file, which comes last, replaces one of the folder.
    ready = {file.path: file for file in files}
    requirements_path, requirements_notes = _requirements(ready, root, requirements, lines)
    return build_package(
        ready.values(), program=program, requirements=requirements_path, notes=[*notes, *requirements_notes]
    )


def _requirements(
    ready: dict[str, SourceFile], root: Path, file: Path | None, lines: tuple[str, ...]
) -> tuple[str | None, list[str]]:
    """Return the path of the job's requirements file, and notes; add the file to `ready` if it must be written."""
    text, path = "", REQUIREMENTS
    notes: list[str] = []
    if file is not None:
        absolute = file.resolve()
        if not absolute.is_file():
            raise InvalidProgram(
                ArgumentPlace("requirements", "--requirements"),
                f"no file {str(file)!r}",
                expected="a requirements file of pip's",
            )
        shipped = read_file(absolute, absolute.name)
        text, notes = without_never_installed(shipped.content.decode("utf-8", "replace"))
        inside = absolute.relative_to(root).as_posix() if absolute.is_relative_to(root) else None
        if inside and not notes and not lines:
            ready[inside] = SourceFile(inside, shipped.content)
            return inside, []
        if inside:
            # The generated file is in the same folder, because pip resolves `-r` and `-c` relative to it.
            path = str(Path(inside).with_name(REQUIREMENTS).as_posix())
    text += "".join(f"{line}\n" for line in lines)
    for line in lines:
        option, _, name = line.partition(" ")
        if option in FILE_OPTIONS and name not in ready and (root / name).is_file():
            ready[name] = read_file(root / name, name)
    if not text.strip():
        return None, notes
    ready[path] = SourceFile.of_text(path, text)
    return path, notes


def _script(path: str, arguments: Sequence[str]) -> dict[str, Any]:
    return {"script": {"path": path, **({"arguments": list(arguments)} if arguments else {})}}


def _no_file(file: Path) -> InvalidProgram:
    known = [path.name for pattern in ("*.py", "*.ipynb") for path in file.parent.glob(pattern)]
    hint = nearest(file.name, known) or (f"There are: {', '.join(sorted(known))}." if known else "")
    return InvalidProgram(ENTRY_POINT, f"no file {str(file)!r}", expected="a .py or .ipynb file", next_step=hint)
