"""Keras generation of a job with `keras: Auto`, detected from the source of its program.

Keras 3 is the default, and a program for Keras 2 would fail there with an error of Keras. For such a program
`keras: Legacy` is written into the job, with a note that names the line. `spec={"keras": "Keras3"}` overrides it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from mptraining.packaging.package import Package, SourceFile, build_package
from mptraining_api.keras_2.source_code import (
    KerasCode,
    Sign,
    detect_in_image,
    detect_in_requirements,
    detect_in_source,
)
from mptraining_api.programs.source_text import imported_modules

# Matches a requirement line without a version. keras-tuner 1.4 and later accept only models of the installed `keras`
# package, which is Keras 3.
_TUNER = re.compile(r"^[ \t]*(?:keras[-_.]?tuner)(?=[ \t]*(?:#|;|$))", re.MULTILINE | re.IGNORECASE)
_OLDER_TUNER = "keras-tuner<1.4"
_CELL = re.compile(r"# %% (.+, cell \d+)")
# Texts of files by path: each is read only if the path is asked for, and None if there is no such file.
_Texts = Callable[[str], str | None]


def with_keras(
    document: Mapping[str, Any], package: Package, *, image: str | None = None
) -> tuple[dict[str, Any], Package, list[str]]:
    """Return the job (with `keras: Legacy` if its program needs it), its package, and notes for the user.

    `image` is the container image that the program was written for, if the user names one.
    """
    files = {file.path: file.content for file in package.files}

    def text(path: str) -> str | None:
        return files[path].decode("utf-8", "replace") if path in files else None

    job, notes = _with_detected_keras(document, text, requirements=package.requirements, image=image)
    if job["spec"].get("keras") == "Legacy":
        package, about_tuner = _with_older_tuner(package)
        notes += about_tuner
    return job, package, notes


def _with_older_tuner(package: Package) -> tuple[Package, list[str]]:
    """Pin keras-tuner to a release that accepts tf_keras models, if the requirements name it without a version."""
    files = {file.path: file for file in package.files}
    before = files.get(package.requirements or "")
    text = "" if before is None else _TUNER.sub(_OLDER_TUNER, before.content.decode("utf-8", "replace"))
    if before is None or text.encode() == before.content:
        return package, []
    files[before.path] = SourceFile.of_text(before.path, text)
    pinned = build_package(files.values(), program=package.program, requirements=before.path, notes=package.notes)
    return pinned, [f"{before.path}: {_OLDER_TUNER} is installed, since later releases take models of Keras 3 alone"]


def with_keras_of_folder(document: Mapping[str, Any], folder: Path) -> tuple[dict[str, Any], list[str]]:
    """Return the job and notes like `with_keras`, for a program in `folder` that is not packaged."""

    def text(path: str) -> str | None:
        file = folder / path
        return file.read_text(encoding="utf-8", errors="replace") if file.is_file() else None

    source = document["spec"].get("source") or {}
    return _with_detected_keras(document, text, requirements=source.get("requirements"))


def _with_detected_keras(
    document: Mapping[str, Any], texts: _Texts, *, requirements: str | None, image: str | None = None
) -> tuple[dict[str, Any], list[str]]:
    spec = document["spec"]
    if spec.get("keras", "Auto") != "Auto":
        return dict(document), []
    # The code of each file, and its text.
    codes = [(path, text, detect_in_source(text)) for path, text in _modules(spec.get("program") or {}, texts)]
    if requirements and (text := texts(requirements)) is not None:
        codes.append((requirements, text, detect_in_requirements(text)))
    codes.append(("", "", detect_in_image(image)))
    if os.environ.get("TF_USE_LEGACY_KERAS", "").lower() in ("1", "true"):
        sign = Sign(0, "TF_USE_LEGACY_KERAS in the environment", "tf.keras is tf_keras here")
        codes.append(("", "", KerasCode((sign,))))
    whole = sum((code for _, _, code in codes), KerasCode())
    signs = [_located(sign, path, text) for path, text, code in codes for sign in code.keras_2]
    if not signs:
        return dict(document), []
    first = f"{signs[0]}, and {len(signs) - 1} more" if len(signs) > 1 else signs[0]
    if whole.needs_legacy:
        ignored = [_located(sign, path, text) for path, text, code in codes for sign in code.ignored]
        note = f"keras: Legacy (tf_keras) is chosen: the program is written for Keras 2: {first}"
        return {**document, "spec": {**spec, "keras": "Legacy"}}, [note, *ignored]
    if whole.imports_keras:
        step = "it imports keras itself, which is Keras 3: import it from tensorflow, for which keras: Legacy is chosen"
        return dict(document), [f"the program is written for Keras 2: {first}; {step}"]
    return dict(document), []


def _located(sign: Sign, path: str, text: str) -> str:
    """Return the text of the sign with its file and line, or with its notebook cell."""
    if not sign.line:
        return f"{sign.code} ({sign.why})"
    where, line = path, sign.line
    for above, above_text in enumerate(reversed(text.splitlines()[: sign.line])):
        if cell := _CELL.fullmatch(above_text):
            where, line = cell[1], above
            break
    return f"{where}, line {line}: {sign.code} ({sign.why})"


def _modules(program: Mapping[str, Any], texts: _Texts) -> Iterator[tuple[str, str]]:
    """Yield path and text of the file that the trainer runs first, and of the modules that it imports, also indirectly.

    A module without text is not part of the program.
    """
    waiting: list[str] = []
    if "script" in program:
        waiting = [str(program["script"]["path"])]
    elif "function" in program:
        waiting = [str(program["function"]["entryPoint"]).partition(":")[0].replace(".", "/") + ".py"]
    seen: set[str] = set()
    while waiting:
        path = waiting.pop()
        text = None if path in seen else texts(path)
        seen.add(path)
        if text is None:
            continue
        yield path, text
        for folder in {PurePosixPath(path).parent, PurePosixPath()}:
            for name in imported_modules(text):
                base = (folder / name.replace(".", "/")).as_posix()
                waiting += [f"{base}.py", f"{base}/__init__.py"]
