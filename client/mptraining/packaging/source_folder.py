"""Which files of a folder are shipped: all but what an ignore file and a few habits of developers leave out."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from mptraining.packaging.package import IGNORE_FILE, SourceFile, refuse_size
from mptraining_api.problems import InvalidProgram

# What no job needs, and secrets that no job should get this way. A line `!name` in the ignore file takes one back.
ALWAYS_IGNORED = (
    ".git/",
    ".hg/",
    ".svn/",
    "__pycache__/",
    "*.py[cod]",
    ".ipynb_checkpoints/",
    ".venv/",
    "venv/",
    "node_modules/",
    "*.egg-info/",
    ".mypy_cache/",
    ".pytest_cache/",
    ".ruff_cache/",
    ".tox/",
    ".cache/",
    ".idea/",
    ".vscode/",
    ".DS_Store",
    # Colab's own examples, 55 MB.
    "/sample_data/",
    # Run folders of local jobs.
    "/runs/",
    ".env",
    ".netrc",
    ".ssh/",
    ".aws/",
    ".kube/",
    ".config/",
    ".gnupg/",
    "*.pem",
    "*.key",
)


def read_folder(folder: Path) -> tuple[list[SourceFile], list[str]]:
    """The files below `folder` that are to be shipped, and notes about what was passed over.

    Links to files are followed. Raises InvalidProgram for a folder that is not there, a file that cannot be read, and
    for more than a package takes.
    """
    if not folder.is_dir():
        raise InvalidProgram("source", f"no folder {str(folder)!r}", expected="the folder with the program's code")
    notes: list[str] = []
    found = dict(_walk(folder, notes))
    sizes = {}
    for path, file in found.items():
        try:
            sizes[path] = file.stat().st_size
        except OSError as error:
            raise _unreadable(file, error) from error
    refuse_size(sizes)
    return [read_file(file, path) for path, file in sorted(found.items())], notes


def read_file(file: Path, path: str) -> SourceFile:
    """One file, to be shipped as `path`. Raises InvalidProgram when it cannot be read."""
    try:
        return SourceFile(path, file.read_bytes(), executable=os.access(file, os.X_OK))
    except OSError as error:
        raise _unreadable(file, error) from error


def _walk(folder: Path, notes: list[str]) -> Iterator[tuple[str, Path]]:
    """(path, file) of everything that is not ignored. An ignored folder is not even looked into: it may be huge."""
    from pathspec import GitIgnoreSpec

    try:
        spec = GitIgnoreSpec.from_lines([*ALWAYS_IGNORED, *_own_lines(folder)])
    except ValueError as error:
        raise InvalidProgram(IGNORE_FILE, str(error), expected="lines in .gitignore's syntax") from error
    for parent, folders, names in os.walk(folder):
        below = Path(parent).relative_to(folder)
        kept = []
        for name in sorted(folders):
            path = (below / name).as_posix()
            if spec.match_file(f"{path}/"):
                continue
            if Path(parent, name).is_symlink():
                notes.append(f"{path}/ is a link to a folder, which is not followed")
                continue
            kept.append(name)
        folders[:] = kept
        for name in sorted(names):
            path = (below / name).as_posix()
            file = Path(parent, name)
            if spec.match_file(path) or path == IGNORE_FILE:
                continue
            # Sockets and pipes would block; a link whose file is gone has nothing to ship.
            if file.is_file():
                yield path, file
            else:
                notes.append(f"{path} is no file, and is not shipped")


def _own_lines(folder: Path) -> list[str]:
    try:
        return (folder / IGNORE_FILE).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(folder / IGNORE_FILE, error) from error


def _unreadable(file: Path, error: Exception) -> InvalidProgram:
    why = getattr(error, "strerror", None) or "not a text file"
    return InvalidProgram(str(file), f"cannot be read: {why}", next_step=f"Mend it, or name it in {IGNORE_FILE}.")
