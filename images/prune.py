"""Remove from a build stage what its packages carry but an image never loads; the Dockerfile calls it.

    python prune.py packages FOLDER [--sourceless]   prunes site-packages and compiles them
    python prune.py root FOLDER VENV                 copies the interpreter, VENV and the libraries that they load, and
                                                     records Debian's packages that own them
    python prune.py project FOLDER VENV PACKAGE ...  compiles and copies these packages of the project alone

Needs nothing but Python and ldd. The same input gives the same bytes: files are visited in order, and compiled modules
name the hash of their source, not its time, which a reproducible image sets to a constant.
"""

from __future__ import annotations

import argparse
import compileall
import os
import py_compile
import re
import shutil
import struct
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from importlib.util import cache_from_source
from pathlib import Path
from py_compile import PycInvalidationMode

# By glob below site-packages. What is listed is for people who build against a package, or serves programs that no
# image starts; docs/security.md has the sizes.
UNUSED = (
    "**/tests",
    # C and C++ headers, static libraries and Cython's declarations: there is no compiler.
    "tensorflow/include",
    "pyarrow/include",
    "pyarrow/src",
    "**/*.a",
    "**/*.pxd",
    "**/*.pyx",
    "**/*.pxi",
    "**/*.pyi",
    "**/*.c",
    "**/*.h",
    "**/*.hpp",
    # TensorFlow asks for libclang to make its own sources; no module imports it.
    "clang",
    # A server of TensorBoard's pages; the trainer only writes their files.
    "tensorboard_data_server/bin",
    "tensorboard/webfiles.zip",
    # Arrow over gRPC, and Arrow's own tests.
    "pyarrow/*flight*",
    "pyarrow/_pyarrow_cpp_tests*",
    # The client for asyncio, half of the package.
    "kubernetes/aio",
)
# Generated modules, whose docstrings are twice as large as their code; nothing reads them at run time.
_WITHOUT_DOCSTRINGS = ("kubernetes",)
# Of the standard library: for people who develop, or for a terminal.
_UNUSED_STANDARD = (
    *("test", "idlelib", "lib2to3", "ensurepip", "tkinter", "turtledemo", "pydoc_data", "distutils", "__pycache__"),
    *("site-packages", "dist-packages", "config-*", "turtle.py", "_tkinter*", "_dbm*"),
    *("readline*", "_curses*", "_test*", "xx*", "LICENSE.txt"),
)
# What a program looks up by name: certificates, users, services, the name of the distribution.
_FILES = (
    *("/etc/passwd", "/etc/group", "/etc/nsswitch.conf", "/etc/services", "/etc/protocols", "/etc/ld.so.cache"),
    *("/etc/mime.types", "/etc/host.conf", "/etc/gai.conf"),
    *("/etc/ssl/openssl.cnf", "/etc/ssl/certs/ca-certificates.crt", "/usr/lib/ssl", "/etc/os-release"),
    *("/etc/debian_version", "/usr/lib/os-release"),
)
# glibc loads it by name, when a thread ends.
_LOADED_BY_NAME = ("libgcc_s.so.1",)
# What a package's script makes is in no list of files.
_GENERATED = {"ca-certificates": "/etc/ssl/certs/ca-certificates.crt"}
_DPKG = Path("/var/lib/dpkg")
_DOCUMENTS = Path("/usr/share/doc")
_LICENSES = Path("/usr/share/common-licenses")
# Debian merged them into /usr.
_LINKED = {"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64"}


def packages(folder: Path, *, sourceless: bool) -> None:
    """Prunes, strips and compiles what pip installed into `folder`; `sourceless` removes what was compiled."""
    removed: list[str] = []
    for pattern in UNUSED:
        for path in sorted(folder.glob(pattern)):
            # A package may have a public module of that name.
            if pattern == "**/tests" and path.parent == folder:
                continue
            removed += [each.name for each in (files(path) if path.is_dir() else [path]) if ".so" in each.name]
            remove(path)
    require_unused(folder, removed)
    share_copies(folder)
    for path in files(folder):
        if ".so" in path.name:
            drop_symbols(path)
    compile_all(folder, sourceless=sourceless)


def require_unused(folder: Path, removed: list[str]) -> None:
    """Raise SystemExit where a library that is left names a removed one, without which it cannot be loaded."""
    names = {f"\0{each}\0".encode(): each for each in removed}
    for path in files(folder) if names else ():
        if ".so" in path.name:
            content = path.read_bytes()
            for name, plain in names.items():
                if name in content:
                    raise SystemExit(f"prune.py: {path} loads {plain}, which UNUSED removes")


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def files(folder: Path) -> Iterator[Path]:
    """Regular files in the order of their names."""
    for parent, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = Path(parent, name)
            if not path.is_symlink():
                yield path


def share_copies(folder: Path) -> None:
    """Link libraries that a wheel has under two names, libarrow.so.2600 and libarrow.so.2600.1.0: zip has no links."""
    kept: dict[tuple[Path, str, int], Path] = {}
    for path in files(folder):
        if ".so" not in path.name:
            continue
        stem = path.name.partition(".so")[0]
        first = kept.setdefault((path.parent, stem, path.stat().st_size), path)
        if first is not path and first.read_bytes() == path.read_bytes():
            path.unlink()
            path.symlink_to(first.name)


def drop_symbols(path: Path) -> int:
    """Cut off what follows the loaded parts of an ELF file, the symbol table and the section headers.

    The dynamic loader reads program headers alone. Returns the number of bytes; 0 for what is no 64-bit ELF file.
    """
    # Opened for writing, a file of a lower layer would be copied into this one.
    with path.open("rb") as file:
        head = file.read(64)
        if head[:6] != b"\x7fELF\x02\x01":
            return 0
        start = struct.unpack_from("<Q", head, 32)[0]
        entry_size, count = struct.unpack_from("<HH", head, 54)
        file.seek(start)
        table = file.read(entry_size * count)
        ends = [start + len(table)]
        for number in range(count):
            offset, _, _, size = struct.unpack_from("<QQQQ", table, number * entry_size + 8)
            ends.append(offset + size)
        length = path.stat().st_size
        if max(ends) >= length:
            return 0
    with path.open("r+b") as file:
        # Where the section headers start, how many there are, which of them has their names: none.
        file.seek(40)
        file.write(bytes(8))
        file.seek(60)
        file.write(bytes(4))
        file.truncate(max(ends))
    return length - max(ends)


def compile_all(folder: Path, *, sourceless: bool) -> None:
    for path in files(folder):
        # A lower layer may have compiled it.
        if path.suffix != ".py" or Path(cache_from_source(str(path))).exists():
            continue
        # One file after the other, in one process: marshal's bytes depend on which strings are interned.
        made = compileall.compile_file(
            path,
            force=True,
            quiet=2,
            legacy=sourceless,
            invalidation_mode=PycInvalidationMode.UNCHECKED_HASH,
        )
        if made and path.relative_to(folder).parts[0] in _WITHOUT_DOCSTRINGS:
            without_docstrings(path, legacy=sourceless)
        # A template of a module, which is not Python yet, stays.
        if made and sourceless:
            path.unlink()


def without_docstrings(path: Path, *, legacy: bool) -> None:
    # Under the name of the plain compilation, which the interpreter looks for without -O.
    target = path.with_suffix(".pyc") if legacy else Path(cache_from_source(str(path)))
    py_compile.compile(
        str(path),
        cfile=str(target),
        doraise=True,
        optimize=2,
        invalidation_mode=PycInvalidationMode.UNCHECKED_HASH,
    )


def root(target: Path, venv: Path) -> None:
    """Copy into `target` what runs `venv`, which is copied too: no shell, no package manager, no set-uid program."""
    for link, real in _LINKED.items():
        if Path("/", link).is_symlink():
            (target / real).mkdir(parents=True, exist_ok=True)
            (target / link).symlink_to(real)
    (target / "tmp").mkdir(parents=True)
    (target / "tmp").chmod(0o1777)
    for folder in ("dev", "etc", "proc", "run", "sys", "var"):
        (target / folder).mkdir(exist_ok=True)
    for name in _FILES:
        put(Path(name), target)
    interpreter = Path(os.path.realpath(sys.executable))
    put(interpreter, target)
    for name in ("python3", "python"):
        link = interpreter.with_name(name)
        if link.is_symlink():
            put(link, target)
    standard = Path(sysconfig.get_path("stdlib"))
    inside = target / standard.relative_to("/")
    shutil.copytree(standard, inside, symlinks=True, ignore=shutil.ignore_patterns(*_UNUSED_STANDARD))
    put(venv, target)
    for path in sorted((target / venv.relative_to("/") / "bin").iterdir()):
        if not path.name.startswith("python"):
            remove(path)
    for path in sorted(libraries([interpreter, *files(inside), *files(venv)])):
        put(path, target)
    # The standard library's files have the names in Debian's lists until they are compiled.
    record_packages(target)
    compile_standard(inside, standard)


def compile_standard(inside: Path, standard: Path) -> None:
    for path in files(inside):
        if path.suffix == ".py":
            compileall.compile_file(
                path,
                force=True,
                quiet=2,
                legacy=True,
                ddir=str(standard / path.parent.relative_to(inside)),
                invalidation_mode=PycInvalidationMode.UNCHECKED_HASH,
            )
            path.unlink()


def record_packages(target: Path, dpkg: Path = _DPKG, documents: Path = _DOCUMENTS) -> None:
    """Write what dpkg states of each Debian package with a file in `target`, and the package's copyright file.

    `/var/lib/dpkg/status.d/PACKAGE` is where image scanners look in an image without dpkg's own status file, as in
    Google's distroless images. On a base without dpkg nothing is written.
    """
    if not (dpkg / "status").is_file():
        return
    states = stanzas((dpkg / "status").read_text(encoding="utf-8"))
    licenses = set()
    for package in owners(target, dpkg):
        # A removed package may have left settings, and their list.
        if package not in states:
            continue
        # A list is named after package and architecture, where a machine may have several.
        name = package.partition(":")[0]
        write(target / "var/lib/dpkg/status.d" / name, states[package])
        copyright_file = documents / name / "copyright"
        if copyright_file.is_file():
            text = copyright_file.read_text(encoding="utf-8", errors="surrogateescape")
            write(target / "usr/share/doc" / name / "copyright", text)
            licenses |= set(re.findall(rf"{_LICENSES}/([\w.+-]*\w)", text))
    # Copyright files refer to these for the text.
    for name in sorted(licenses):
        put(_LICENSES / name, target)


def owners(target: Path, dpkg: Path) -> list[str]:
    """Return the packages that own a file or link in `target`, by the names of their lists."""
    copied = {f"/{path.relative_to(target)}" for path in target.rglob("*") if path.is_symlink() or path.is_file()}
    # Each package with a file below /lib lists the link as its folder.
    copied -= {f"/{link}" for link in _LINKED}
    found = {package for package, path in _GENERATED.items() if path in copied}
    for path in (dpkg / "info").glob("*.list"):
        if any(merged(line) in copied for line in path.read_text(encoding="utf-8").splitlines()):
            found.add(path.name.removesuffix(".list"))
    return sorted(found)


def merged(path: str) -> str:
    """Return a path of a list of dpkg as the file is named since /lib is a link to /usr/lib."""
    top, _, rest = path.removeprefix("/").partition("/")
    return f"/{_LINKED[top]}/{rest}" if rest and top in _LINKED and Path("/", top).is_symlink() else path


def stanzas(status: str) -> dict[str, str]:
    """Return dpkg's statements of installed packages by name, and by name and architecture."""
    found: dict[str, str] = {}
    for block in re.split(r"\n\n+", status.strip()):
        fields = dict(re.findall(r"^(Package|Architecture|Status): (.+)$", block, re.MULTILINE))
        if fields.get("Status", "").endswith(" installed"):
            name, text = fields["Package"], f"{block}\n"
            found |= {name: text, f"{name}:{fields['Architecture']}": text}
    return found


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", errors="surrogateescape")
    path.chmod(0o644)


def project(target: Path, venv: Path, names: list[str]) -> None:
    """Compile the project's packages and copy those of `names`, the metadata, and commands that are in them."""
    [about] = venv.glob("lib/python3.*/site-packages/mptraining-*.dist-info")
    compile_all(about.parent, sourceless=False)
    for path in [about, *(about.parent / name for name in names)]:
        put(path, target)
    for path in sorted((venv / "bin").iterdir()):
        if not path.is_symlink() and any(f"from {name}." in path.read_text(errors="replace") for name in names):
            put(path, target)


def libraries(loaded: list[Path]) -> set[Path]:
    """Shared libraries of the system that the files load, and the loader itself, under the names they are loaded by."""
    found = set()
    for path in loaded:
        if ".so" not in path.name and not os.access(path, os.X_OK):
            continue
        listed = subprocess.run(["ldd", str(path)], capture_output=True, text=True, check=False).stdout  # noqa: S603, S607
        found |= {Path(each) for each in re.findall(r"(?:=> |^\s)(/\S+) \(0x", listed, re.MULTILINE)}
    known = next(each.parent for each in found if each.name.startswith("libc.so"))
    found |= {known / name for name in _LOADED_BY_NAME if (known / name).exists()}
    return {each for each in found if not each.is_relative_to("/opt")}


def put(path: Path, target: Path) -> None:
    """Copy a file, a link with what it leads to, or a folder, to the same place below `target`."""
    if not os.path.lexists(path):
        return
    # /lib is a link: the file itself is below /usr.
    place = Path(os.path.realpath(path.parent)) / path.name
    copy = target / place.relative_to("/")
    if os.path.lexists(copy):
        return
    copy.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink():
        leads = path.readlink()
        copy.symlink_to(leads)
        put(place.parent / leads, target)
    elif path.is_dir():
        shutil.copytree(path, copy, symlinks=True)
    else:
        shutil.copy2(path, copy)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(dest="command", required=True)
    pruned = commands.add_parser("packages")
    pruned.add_argument("folder", type=Path)
    pruned.add_argument("--sourceless", action="store_true")
    copied = commands.add_parser("root")
    copied.add_argument("folder", type=Path)
    copied.add_argument("venv", type=Path)
    ours = commands.add_parser("project")
    ours.add_argument("folder", type=Path)
    ours.add_argument("venv", type=Path)
    ours.add_argument("names", nargs="+")
    chosen = parser.parse_args(arguments)
    if chosen.command == "packages":
        packages(chosen.folder, sourceless=chosen.sourceless)
    elif chosen.command == "project":
        project(chosen.folder, chosen.venv, chosen.names)
    else:
        root(chosen.folder, chosen.venv)


if __name__ == "__main__":
    main(sys.argv[1:])
