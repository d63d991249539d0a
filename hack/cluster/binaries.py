"""Puts etcd, kube-apiserver, kube-controller-manager and so on into build/bin.

With `--kubernetes 1.33` the control plane of the oldest release that is promised goes to build/kubernetes-1.33, beside
links to etcd and kubectl of build/bin; with `--kubernetes 1.36` that of the newest.

In this order: from the archive of a kind node image, whose binary plays all parts, in seconds; the released binaries,
where their servers are in reach; compiled from Go modules, in about seven minutes. Exit code 3: none of the three.
Only the standard library: this runs before there is a virtual environment.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
ARCHIVE_VARIABLE = "MPTRAINING_KIND_IMAGE_ARCHIVE"
NOT_HERE = 3  # the exit code with which make continues without them, except in CI
INSIDE = "usr/local/bin/hyperkube"
# The Kubernetes of the tests and of kind, of which everything is there; the newest and the oldest that are promised.
TESTED, NEWEST, OLDEST = "1.34.4", "1.36.3", "1.33.13"
OTHERS = {version.rpartition(".")[0]: version for version in (OLDEST, NEWEST)}
KUBERNETES, ETCD = "https://dl.k8s.io", "https://github.com/etcd-io/etcd/releases/download"
# The etcd of kubeadm for TESTED.
ETCD_VERSION = "3.6.5"
CONTROL_PLANE = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")


class NotHere(Exception):
    """The binary cannot be had; the text says what to do about it."""


def archive(version: str = TESTED) -> Path | None:
    """The archive of that release's node image: the variable's, else one beside the checkout; None without one.

    The variable names the archive of TESTED. That of another release is node-image-vVERSION.tar.zst in the same folder.
    """
    named = os.environ.get(ARCHIVE_VARIABLE)
    if named and not Path(named).is_file():
        raise NotHere(f"{ARCHIVE_VARIABLE}={named}: no such file. Name a node image archive, or unset it.")
    if named and version == TESTED:
        return Path(named)
    folder = Path(named).parent if named else ROOT.parent / "shared" / "kind"
    image = folder / f"node-image-v{version}.tar.zst"
    return image if image.is_file() else None


def extract(image: Path, target: Path) -> None:
    """Writes the binary in the docker or OCI archive `image` (tar.zst) to `target`."""
    with subprocess.Popen([_zstd(), "-dc", "--long=31", str(image)], stdout=subprocess.PIPE) as unpacking:
        assert unpacking.stdout is not None
        with tarfile.open(fileobj=unpacking.stdout, mode="r|*") as outer:
            for member in outer:
                content = outer.extractfile(member) if member.isfile() and member.size > 1_000_000 else None
                if content is not None and _layer(content, target):
                    unpacking.kill()  # what follows the binary is not needed
                    return
    raise NotHere(f"{image}: no /{INSIDE} in any layer. Take a node image built by this project's recipe.")


def _layer(content: IO[bytes], target: Path) -> bool:
    """Whether this file of the archive is a layer with the binary, which then has been written to `target`."""
    try:
        with tarfile.open(fileobj=content, mode="r|*") as layer:
            for member in layer:
                if member.name.removeprefix("./") == INSIDE and member.isfile():
                    binary = layer.extractfile(member)
                    assert binary is not None
                    unfinished = target.with_suffix(".part")
                    with unfinished.open("wb") as out:
                        shutil.copyfileobj(binary, out, 1 << 20)
                    unfinished.chmod(0o755)
                    unfinished.replace(target)
                    return True
    except tarfile.ReadError:
        pass  # a configuration or a manifest
    return False


def _zstd() -> str:
    """The path of the zstd command, installed where that is possible."""
    if shutil.which("zstd") is None and os.geteuid() == 0 and shutil.which("apt-get"):
        subprocess.run(["apt-get", "install", "-y", "-qq", "zstd"], stdout=subprocess.DEVNULL, check=False)
    command = shutil.which("zstd")
    if command is None:
        raise NotHere("no zstd command to unpack the node image with: apt-get install zstd")
    return command


def build(target: Path, version: str = TESTED) -> None:
    """Compiles the binary; needs Go, the Go module proxy and about 6 GB of build cache."""
    if shutil.which("go") is None:
        raise NotHere(f"no Go to build Kubernetes with, and no node image archive: set {ARCHIVE_VARIABLE}")
    sys.stderr.write(f"building Kubernetes {version} from Go modules, about seven minutes\n")
    script = ROOT / "hack" / "cluster" / "hyperkube" / "build.sh"
    name = "hyperkube" if version == TESTED else f"hyperkube-{version}"
    source = script.parent if version == TESTED else script.parent / "control_plane"
    subprocess.run([str(script), str(ROOT / "build" / name), str(target), version, str(source)], check=True)


def released(folder: Path, version: str, names: Sequence[str]) -> bool:
    """Download the released programs; return False where their servers are out of reach or serve no such machine."""
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine())
    if sys.platform != "linux" or machine is None:
        return False
    for name in names:
        url = f"{KUBERNETES}/v{version}/bin/linux/{machine}/{name}"
        try:
            if name == "etcd":
                package = f"etcd-v{ETCD_VERSION}-linux-{machine}"
                url = f"{ETCD}/v{ETCD_VERSION}/{package}.tar.gz"
                sums = _get(f"{ETCD}/v{ETCD_VERSION}/SHA256SUMS").decode()
                content = _get(url)
                digest = next(line.split()[0] for line in sums.splitlines() if line.endswith(f"{package}.tar.gz"))
            else:
                digest = _get(f"{url}.sha256").decode().strip()
                content = _get(url)
        except OSError:
            return False
        if hashlib.sha256(content).hexdigest() != digest:
            raise RuntimeError(f"{url}: the content has another SHA-256 than the published {digest}; try again")
        if name == "etcd":
            with tarfile.open(fileobj=io.BytesIO(content)) as packed:
                member = packed.extractfile(f"{package}/etcd")
                assert member is not None
                content = member.read()
        unfinished = folder / f"{name}.part"
        unfinished.write_bytes(content)
        unfinished.chmod(0o755)
        unfinished.replace(folder / name)
    return True


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=10) as response:
        content: bytes = response.read()
        return content


def tested(folder: Path) -> None:
    """All of NAMES in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    if all((folder / name).exists() for name in NAMES):
        return
    target = folder / "hyperkube"
    if not target.exists():
        image = archive()
        if image is not None:
            extract(image, target)
        elif released(folder, TESTED, NAMES):
            return
        else:
            build(target)
    for name in NAMES:
        _link(folder / name, Path(target.name))


def control_plane(folder: Path, tested_folder: Path, version: str) -> None:
    """CONTROL_PLANE of that release in `folder`; etcd and kubectl are those in `tested_folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / "hyperkube"
    if not all((folder / name).exists() for name in CONTROL_PLANE):
        image = archive(version)
        if image is not None:
            extract(image, target)
        elif not released(folder, version, CONTROL_PLANE):
            unfinished = target.with_suffix(".part")
            build(unfinished, version)
            unfinished.replace(target)
    for name in NAMES:
        if not (folder / name).exists():
            _link(folder / name, Path(target.name) if name in CONTROL_PLANE else (tested_folder / name).absolute())


def _link(link: Path, target: Path) -> None:
    if not link.is_symlink():
        link.unlink(missing_ok=True)
        link.symlink_to(target)


def main() -> int:
    parser = argparse.ArgumentParser(prog="hack/cluster/binaries.py", description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "build" / "bin")
    parser.add_argument("--kubernetes", choices=OTHERS, help="that release's control plane, too")
    arguments = parser.parse_args()
    folder: Path = arguments.folder
    try:
        tested(folder)
        if arguments.kubernetes:
            other = folder.parent / f"kubernetes-{arguments.kubernetes}"
            control_plane(other, folder, OTHERS[arguments.kubernetes])
    except NotHere as problem:
        sys.stderr.write(f"{problem}\n")
        return NOT_HERE
    return 0


if __name__ == "__main__":
    sys.exit(main())
