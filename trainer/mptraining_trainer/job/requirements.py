"""Installation of a source's requirements within the image's packages, with an optional cache of what was installed.

The image's packages stay unchanged and count as installed; a requirement of another version fails, because TensorFlow
and everything measured with it come from the image. TensorFlow counts as installed under the name of any variant
(`tensorflow-cpu`, `tensorflow-tpu`).
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
from mptraining_storage import local
from mptraining_trainer.report.secrets import SecretValues

# The cache folder. Users set it in podTemplate.env and mount a volume there.
CACHE_VARIABLE = "MPTRAINING_PACKAGES_CACHE"

_FILE_OPTIONS = ("-r", "--requirement", "-c", "--constraint")


def cache_path(folder: Path, requirements: Path, constraints: str) -> Path | None:
    """Return the cache folder of these requirements, or None if their text does not determine their content.

    A path in the source does not, since the files there may change under the same name.
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
        # pip's own message about the file is better.
        return None
    return folder / digest.hexdigest()


def save_to_cache(packages: Path, cached: Path) -> None:
    """Copy installed packages to the cache. A failure is only written to stderr: the job has what it needs."""
    unfinished = cached.with_name(f".{cached.name}.{socket.gethostname()}-{os.getpid()}.part")
    try:
        cached.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(packages, unfinished)
        unfinished.rename(cached)
    except OSError as error:
        # Another worker may have filled the cache first, which is no error.
        if not cached.is_dir():
            sys.stderr.write(f"{CACHE_VARIABLE}: the packages could not be cached: {error}\n")
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _lines(file: Path, seen: set[Path]) -> Iterator[str]:
    """Yield the lines that pip would read, including those of the files that the file names."""
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
    """Install the requirements of the file `requirements` below `source` into the folder `packages`, replacing it.

    Returns True if they came from `cache` (see `cache_path`); otherwise they are installed and copied there. pip's own
    variables (PIP_INDEX_URL, ...) set index, proxy and certificates. Raises InvalidSpec if the file does not exist,
    InvalidProgram with pip's error line; pip's whole output is on stderr.
    """
    file = source / requirements
    if not file.is_file() or not file.resolve().is_relative_to(source.resolve()):
        known = sorted(path.name for path in source.glob("*.txt"))
        hint = nearest(requirements, known) or f"The source has {', '.join(known) or 'no .txt files'}."
        raise InvalidSpec(_WHERE, f"no file {requirements!r} in the source", next_step=hint)
    known_here = _versions()
    cached = cache_path(cache, file, _constraints(known_here)) if cache is not None else None
    local.delete_folder(packages)
    if cached is not None and cached.is_dir():
        with local.translate_errors(cached):
            shutil.copytree(cached, packages)
        return True
    local.make_folder(packages)
    # The scratch folder is on the same disk as the packages, so that they are renamed and not copied.
    with tempfile.TemporaryDirectory(dir=packages.parent, prefix=".pip-") as scratch:
        prefix = Path(scratch, "prefix")
        _pip(file, source, prefix, Path(scratch), known_here)
        for package in sorted(prefix.glob("lib*/python*/site-packages/*")):
            shutil.move(package, packages / package.name)
    if cached is not None:
        save_to_cache(packages, cached)
    return False


def _versions() -> dict[str, str]:
    """Return the versions of the installed distributions by normalized name."""
    return {
        re.sub(r"[-_.]+", "-", distribution.name).lower(): distribution.version
        for distribution in importlib.metadata.distributions()
        if distribution.name
    }


def _constraints(versions: dict[str, str]) -> str:
    return "".join(f"{name}=={version}\n" for name, version in sorted(versions.items()))


def _pip(file: Path, source: Path, prefix: Path, scratch: Path, known: dict[str, str]) -> None:
    versions = dict(known)
    path = [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
    variant = next(
        (name for name in sorted(versions) if name.startswith(f"{_TENSORFLOW}-") and _is_tensorflow(name)), None
    )
    if variant and _TENSORFLOW not in versions:
        versions[_TENSORFLOW] = versions[variant]
        path.append(str(_write_tensorflow_metadata(scratch, versions[variant])))
    constraints = scratch / "constraints.txt"
    constraints.write_text(_constraints(versions), "utf-8")
    # The warnings would not be read, and the search for conflicts among installed packages takes most of pip's time.
    warnings = ["--no-warn-conflicts", "--no-warn-script-location"]
    options = ["--disable-pip-version-check", "--no-input", "--no-cache-dir", *warnings]
    # --prefix counts installed packages; --target does not.
    places = ["--prefix", str(prefix), "--constraint", str(constraints), "--requirement", str(file.resolve())]
    done = subprocess.run(  # noqa: S603 - the job decides what pip installs
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
        sys.stderr.write(SecretValues.from_environment(os.environ).redact(done.stdout))
        step = "Correct the file, or build the packages into an image and name it in spec.podTemplate.image."
        raise InvalidProgram(_WHERE, f"pip: {_error_line(done.stdout)}", next_step=step)


def _pip_command() -> list[str]:
    """Return the command of this environment's pip, or of a pip on the PATH that installs for this environment."""
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    pip = shutil.which("pip")
    if pip is None:
        step = "Install pip there, or the packages themselves, and leave out requirements."
        raise InvalidProgram(_WHERE, "the image has no pip to install them with", next_step=step)
    return [pip, "--python", sys.executable]


def _is_tensorflow(name: str) -> bool:
    """Return whether the distribution is TensorFlow itself and not one of the packages around it."""
    return name.removeprefix(f"{_TENSORFLOW}-") in ("cpu", "tpu", "gpu", "intel", "rocm", "macos", "cpu-aws")


def _write_tensorflow_metadata(scratch: Path, version: str) -> Path:
    """Write metadata by which pip finds a distribution `tensorflow` of that version; return the folder."""
    folder = scratch / "known" / f"{_TENSORFLOW}-{version}.dist-info"
    folder.mkdir(parents=True)
    Path(folder, "METADATA").write_text(f"Metadata-Version: 2.1\nName: {_TENSORFLOW}\nVersion: {version}\n", "utf-8")
    return folder.parent


def _error_line(output: str) -> str:
    """Return the line with the cause: after a version conflict pip's last line is about something else."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    conflicts = [line for line in errors if line.startswith("Cannot install")]
    if conflicts:
        asked = [line for line in lines if line.startswith("The user requested")]
        return " ".join([*conflicts[:1], *(f"{line};" for line in asked)]).rstrip(";")
    return (errors or lines or ["no output"])[-1]
