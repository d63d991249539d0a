"""Keras generation of a job with `keras: Auto`, detected from the source of its program.

Keras 3 is the default, and a program for Keras 2 would fail there with an error of Keras. For such a program
`keras: Legacy` is written into the job, with a note that names the line. `spec={"keras": "Keras3"}` overrides it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
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


def with_keras(
    document: Mapping[str, Any], package: Package, *, image: str | None = None
) -> tuple[dict[str, Any], Package, list[str]]:
    """Return the job (with `keras: Legacy` if its program needs it), its package, and notes for the user.

    `image` is the container image that the program was written for, if the user names one.
    """
    files = {file.path: file.content for file in package.files}
    texts = _Texts(files.__contains__, files.__getitem__)
    made, notes = _with_detected_keras(document, texts, requirements=package.requirements, image=image)
    if made["spec"].get("keras") == "Legacy":
        package, about_tuner = _with_older_tuner(package)
        notes += about_tuner
    return made, package, notes


def _with_older_tuner(shipped: Package) -> tuple[Package, list[str]]:
    """Pin keras-tuner to a release that accepts tf_keras models, if the requirements name it without a version."""
    files = {file.path: file for file in shipped.files}
    if shipped.requirements is None or shipped.requirements not in files:
        return shipped, []
    before = files[shipped.requirements]
    text = _TUNER.sub(_OLDER_TUNER, before.content.decode("utf-8", "replace"))
    if text.encode() == before.content:
        return shipped, []
    files[before.path] = SourceFile.of_text(before.path, text)
    made = build_package(
        files.values(), program=shipped.program, requirements=shipped.requirements, notes=shipped.notes
    )
    return made, [f"{before.path}: {_OLDER_TUNER} is installed, since later releases take models of Keras 3 alone"]


def with_keras_of_folder(document: Mapping[str, Any], folder: Path) -> tuple[dict[str, Any], list[str]]:
    """Return the job and notes like `with_keras`, for a program in `folder` that is not packaged."""
    texts = _Texts(lambda path: (folder / path).is_file(), lambda path: (folder / path).read_bytes())
    source = document["spec"].get("source") or {}
    return _with_detected_keras(document, texts, requirements=source.get("requirements"))


@dataclass(frozen=True)
class _Texts:
    """Text of files by path; a file is read only on access."""

    known: Callable[[str], bool]
    content: Callable[[str], bytes]

    def __contains__(self, path: str) -> bool:
        return self.known(path)

    def __getitem__(self, path: str) -> str:
        return self.content(path).decode("utf-8", "replace")


def _with_detected_keras(
    document: Mapping[str, Any], texts: _Texts, *, requirements: str | None, image: str | None = None
) -> tuple[dict[str, Any], list[str]]:
    spec = dict(document["spec"])
    if spec.get("keras", "Auto") != "Auto":
        return dict(document), []
    found = [(path, detect_in_source(texts[path])) for path in _modules(spec.get("program") or {}, texts)]
    if requirements and requirements in texts:
        found.append((requirements, detect_in_requirements(texts[requirements])))
    found.append(("", detect_in_image(image)))
    if os.environ.get("TF_USE_LEGACY_KERAS", "").lower() in ("1", "true"):
        found.append(("", KerasCode((Sign(0, "TF_USE_LEGACY_KERAS in the environment", "tf.keras is tf_keras here"),))))
    whole = sum((code for _, code in found), KerasCode())
    signs = [_located(sign, path, texts) for path, code in found for sign in code.keras_2]
    if not signs:
        return dict(document), []
    more = f", and {len(signs) - 1} more" if len(signs) > 1 else ""
    if whole.needs_legacy:
        ignored = [_located(sign, path, texts) for path, code in found for sign in code.ignored]
        note = f"keras: Legacy (tf_keras) is chosen: the program is written for Keras 2: {signs[0]}{more}"
        return {**document, "spec": {**spec, "keras": "Legacy"}}, [note, *ignored]
    if whole.imports_keras:
        step = "it imports keras itself, which is Keras 3: import it from tensorflow, for which keras: Legacy is chosen"
        return dict(document), [f"the program is written for Keras 2: {signs[0]}{more}; {step}"]
    return dict(document), []


def _located(sign: Sign, path: str, texts: _Texts) -> str:
    """Return the text of the sign with its file and line, or with its notebook cell."""
    if not sign.line:
        return f"{sign.found} ({sign.why})"
    for above, line in enumerate(reversed(texts[path].splitlines()[: sign.line])):
        cell = _CELL.fullmatch(line)
        if cell:
            return f"{cell[1]}, line {above}: {sign.found} ({sign.why})"
    return f"{path}, line {sign.line}: {sign.found} ({sign.why})"


def _first_file(program: Mapping[str, Any]) -> str | None:
    """Return the path of the file that the trainer runs first."""
    if "script" in program:
        return str(program["script"]["path"])
    if "function" in program:
        return str(program["function"]["entryPoint"]).partition(":")[0].replace(".", "/") + ".py"
    return None


def _modules(program: Mapping[str, Any], texts: _Texts) -> Iterator[str]:
    """Yield the paths of the program's file and of the modules in `texts` that it imports, also indirectly."""
    waiting = [_first_file(program)]
    seen: set[str] = set()
    while waiting:
        path = waiting.pop()
        if path is None or path in seen or path not in texts:
            continue
        seen.add(path)
        yield path
        for folder in {PurePosixPath(path).parent, PurePosixPath()}:
            for name in imported_modules(texts[path]):
                base = (folder / name.replace(".", "/")).as_posix()
                waiting += [f"{base}.py", f"{base}/__init__.py"]
