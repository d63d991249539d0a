"""Installs a source's requirements beside the image's own packages, without touching those.

What the image has stays as it is and counts as installed; a requirement that wants another version of it fails, for
TensorFlow and all that was measured with it come from there. TensorFlow counts as installed whatever its variant is
called (`tensorflow-cpu`, `tensorflow-tpu`).
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from mptraining_api.problems import InvalidProgram, InvalidSpec, nearest
from mptraining_records.storage import local
from mptraining_trainer.reporting.secrets import SecretValues

# The folder, a setting for people: podTemplate.env, with a volume mounted there.
FOLDER = "MPTRAINING_PACKAGES_CACHE"

_FILE_OPTIONS = ("-r", "--requirement", "-c", "--constraint")


def place(folder: Path, requirements: Path, constraints: str) -> Path | None:
    """Where these requirements are, or would be, kept; None for those whose text does not say what they are.

    Such are paths in the source, since the files there may change under the same name.
    """
    digest = hashlib.sha256()
    for text in (sys.version, platform.machine(), constraints):
        digest.update(f"{text}\0".encode())
    try:
        for line in _lines(requirements, seen=set()):
            if _is_local(line):
                return None
            digest.update(f"{line}\n".encode())
    except (OSError, UnicodeDecodeError):
        # pip says it better.
        return None
    return folder / digest.hexdigest()


def keep(packages: Path, kept: Path) -> None:
    """Copies installed packages there. What goes wrong is said on stderr alone: the job has what it needs."""
    unfinished = kept.with_name(f".{kept.name}.{socket.gethostname()}-{os.getpid()}.part")
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(packages, unfinished)
        unfinished.rename(kept)
    except OSError as error:
        # Another worker that was quicker is no mishap.
        if not kept.is_dir():
            sys.stderr.write(f"{FOLDER}: the packages could not be kept: {error}\n")
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _lines(file: Path, seen: set[Path]) -> Iterator[str]:
    """The lines that pip would read, those of files that are named in the file too."""
    seen.add(file.resolve())
    for raw in file.read_text(encoding="utf-8").splitlines():
        line = raw.partition(" #")[0].strip()
        if not line or line.startswith("#"):
            continue
        yield line
        option, _, name = line.replace("=", " ", 1).partition(" ")
        if option in _FILE_OPTIONS and "://" not in name:
            inner = file.parent / name.strip()
            if inner.resolve() not in seen:
                yield from _lines(inner, seen)


def _is_local(line: str) -> bool:
    option, _, rest = line.replace("=", " ", 1).partition(" ")
    if option in _FILE_OPTIONS:
        return False
    if option in ("-e", "--editable"):
        return "://" not in rest or "file:" in rest
    if option in ("-f", "--find-links"):
        return "://" not in rest or rest.strip().startswith("file:")
    if "://" in line:
        return "file:" in line
    return "/" in line or line.startswith(".")


_WHERE = "spec.source.requirements"
_TENSORFLOW = "tensorflow"


def install(requirements: str, source: Path, packages: Path, *, cache: Path | None = None) -> bool:
    """Installs what the file `requirements` below `source` lists into the folder `packages`, replacing it.

    With `cache` (see `package_cache`) they are taken from there, or kept there; returns whether they were taken.
    Index, proxy and certificates are pip's own variables (PIP_INDEX_URL, ...). Raises InvalidSpec when there is no
    such file, InvalidProgram with pip's last words, whose whole output is on stderr.
    """
    file = source / requirements
    if not file.is_file() or not file.resolve().is_relative_to(source.resolve()):
        known = sorted(each.name for each in source.glob("*.txt"))
        hint = nearest(requirements, known) or f"The source has {', '.join(known) or 'no .txt files'}."
        raise InvalidSpec(_WHERE, f"no file {requirements!r} in the source", next_step=hint)
    known_here = _versions()
    kept = place(cache, file, _constraints(known_here)) if cache is not None else None
    local.delete_folder(packages)
    if kept is not None and kept.is_dir():
        with local.explained(kept):
            shutil.copytree(kept, packages)
        return True
    local.make_folder(packages)
    # On the disk of the packages, so that they are renamed and not copied.
    with tempfile.TemporaryDirectory(dir=packages.parent, prefix=".pip-") as scratch:
        prefix = Path(scratch, "prefix")
        _pip(file, source, prefix, Path(scratch), known_here)
        for found in sorted(prefix.glob("lib*/python*/site-packages/*")):
            shutil.move(found, packages / found.name)
    if kept is not None:
        keep(packages, kept)
    return False


def _versions() -> dict[str, str]:
    """What this environment has, by normal names."""
    return {_normal(each.name): each.version for each in importlib.metadata.distributions() if each.name}


def _constraints(versions: dict[str, str]) -> str:
    return "".join(f"{name}=={version}\n" for name, version in sorted(versions.items()))


def _pip(file: Path, source: Path, prefix: Path, scratch: Path, known: dict[str, str]) -> None:
    versions = dict(known)
    path = [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
    variant = next((name for name in sorted(versions) if name.startswith(f"{_TENSORFLOW}-") and _is_it(name)), None)
    if variant and _TENSORFLOW not in versions:
        versions[_TENSORFLOW] = versions[variant]
        path.append(str(_stand_in(scratch, versions[variant])))
    constraints = scratch / "constraints.txt"
    constraints.write_text(_constraints(versions), "utf-8")
    # Its warnings would not be seen, and looking for conflicts among what is installed takes most of pip's time.
    warnings = ["--no-warn-conflicts", "--no-warn-script-location"]
    options = ["--disable-pip-version-check", "--no-input", "--no-cache-dir", *warnings]
    # --prefix, other than --target, counts what is installed already.
    places = ["--prefix", str(prefix), "--constraint", str(constraints), "--requirement", str(file.resolve())]
    done = subprocess.run(  # noqa: S603 - what pip installs is the job's own business
        [*_pip_command(), "install", *options, *places],
        cwd=source,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        text=True,
        errors="replace",
    )
    if done.returncode != 0:
        sys.stderr.write(SecretValues.from_environment(os.environ).hide(done.stdout))
        step = "Mend the file, or build the packages into an image and name it in spec.podTemplate.image."
        raise InvalidProgram(_WHERE, f"pip: {_last_words(done.stdout)}", next_step=step)


def _pip_command() -> list[str]:
    """This environment's own pip, or one beside it that installs for this environment: images have but that."""
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    found = shutil.which("pip")
    if found is None:
        step = "Install pip there, or the packages themselves, and leave out requirements."
        raise InvalidProgram(_WHERE, "the image has no pip to install them with", next_step=step)
    return [found, "--python", sys.executable]


def _is_it(name: str) -> bool:
    """Whether the distribution is TensorFlow itself, not one of the many packages around it."""
    return name.removeprefix(f"{_TENSORFLOW}-") in ("cpu", "tpu", "gpu", "intel", "rocm", "macos", "cpu-aws")


def _stand_in(scratch: Path, version: str) -> Path:
    """A folder that tells pip of a distribution `tensorflow` of that version."""
    folder = scratch / "known" / f"{_TENSORFLOW}-{version}.dist-info"
    folder.mkdir(parents=True)
    Path(folder, "METADATA").write_text(f"Metadata-Version: 2.1\nName: {_TENSORFLOW}\nVersion: {version}\n", "utf-8")
    return folder.parent


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _last_words(output: str) -> str:
    """The line that says why: the last one is about something else after a conflict of versions."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    conflicts = [line for line in errors if line.startswith("Cannot install")]
    if conflicts:
        asked = [line for line in lines if line.startswith("The user requested")]
        return " ".join([*conflicts[:1], *(f"{line};" for line in asked)]).rstrip(";")
    return (errors or lines or ["it said nothing"])[-1]
