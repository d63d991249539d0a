"""The container engine that runs kind's nodes and builds images: Docker, or Podman from Debian packages."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[2]
BIN = ROOT / "build" / "bin"
# What outlives a checkout, as the cluster does.
STATE = Path("/var/lib/mptraining-cluster")
CLAIMS = STATE / "claims"
# Debian's packages, and the program for which each is installed.
PACKAGES = {
    "podman": "podman",
    "buildah": "buildah",
    "runc": "runc",
    "netavark": "netavark",
    "aardvark-dns": "aardvark-dns",
    "containernetworking-plugins": "portmap",
    "iptables": "iptables",
    "nftables": "nft",
    "debootstrap": "debootstrap",
    "zstd": "zstd",
}
# Where these packages have programs outside of a user's PATH; Podman looks for netavark in the same folders.
_FOLDERS = (
    *("/usr/local/sbin", "/usr/sbin", "/usr/local/lib/podman", "/usr/lib/podman", "/usr/libexec/podman"),
    *("/usr/lib/cni", "/opt/cni/bin"),
)
_MODULES = Path("/lib/modules")


class Failed(Exception):
    """Ends the command with one line."""


class Impossible(Failed):
    """This machine cannot have a cluster; what would have to be there is in the text."""


@dataclass(frozen=True)
class Engine:
    """`docker` or `podman`, with the environment under which it and kind are started."""

    name: str
    environment: dict[str, str] = field(default_factory=dict)

    def run(
        self, *command: str, text: str | None = None, stdin: IO[bytes] | None = None, shown: bool = False
    ) -> subprocess.CompletedProcess[str]:
        """Runs kind, or anything else that calls the engine. Raises Failed with the last lines of its output.

        `text` or the file `stdin` is its input; `shown` lets its output go to the terminal.
        """
        done = subprocess.run(
            command,
            env=os.environ | self.environment,
            input=text,
            stdin=stdin if text is None else None,
            capture_output=not shown,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            output = "\n".join(((done.stdout or "") + (done.stderr or "")).strip().splitlines()[-15:])
            raise Failed(f"{' '.join(command[:4])} … ended with {done.returncode}:\n{output}")
        return done

    def asked(self, *arguments: str) -> str | None:
        """What the engine answers, or None where it cannot."""
        try:
            return self(*arguments).strip()
        except Failed:
            return None

    def __call__(self, *arguments: str) -> str:
        return self.run(self.name, *arguments).stdout

    def has_container(self, name: str) -> bool:
        return self.asked("container", "inspect", name) is not None

    def has_image(self, name: str) -> bool:
        return self.asked("image", "inspect", name) is not None


def docker() -> Engine | None:
    """Docker, where its daemon answers."""
    engine = Engine("docker")
    return engine if shutil.which("docker") and engine.asked("info", "--format", "{{.ID}}") else None


def engines() -> list[Engine]:
    """Return the engines that are there."""
    return [engine for engine in (docker(), podman() if shutil.which("podman") else None) if engine]


def podman() -> Engine:
    """Podman as root with runc; Debian's packages of what is missing are installed."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *_FOLDERS])
    # Whatever package a program is from: Docker's containerd.io has its own runc, and conflicts with the package runc.
    missing = [package for package, program in PACKAGES.items() if not shutil.which(program, path=path)]
    if missing or not _MODULES.is_dir():
        if os.geteuid() != 0:
            raise Impossible("without Docker the cluster is made by Podman, which must be set up: run this as root")
        # kind mounts it into its nodes; a minimal host has none.
        _MODULES.mkdir(exist_ok=True)
    if missing:
        if not shutil.which("apt-get"):
            raise Impossible(f"no Docker here, and no Debian whose packages could replace it: {', '.join(missing)}")
        say(f"installing Debian packages: {' '.join(missing)}")
        apt = Engine("apt-get", {"DEBIAN_FRONTEND": "noninteractive"})
        apt("update", "-qq")
        # Without --no-remove, -y would agree to the removal of a package that conflicts, such as Docker's.
        apt("install", "-y", "-qq", "--no-install-recommends", "--no-remove", *missing)
    STATE.mkdir(parents=True, exist_ok=True)
    settings = STATE / "containers.conf"
    settings.write_text(_settings(), encoding="utf-8")
    return Engine("podman", {"KIND_EXPERIMENTAL_PROVIDER": "podman", "CONTAINERS_CONF": str(settings)})


def _settings() -> str:
    """crun, the default, fails on hybrid cgroups; Podman asks for limits that a host may withhold."""
    # 16384 processes: where raising limits is withheld, runc may not even ask for the host's own number.
    limits = ["nproc=16384:16384"]
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if files != resource.RLIM_INFINITY:
        limits.append(f"nofile={files}:{files}")
    return f'[containers]\ndefault_ulimits = {json.dumps(limits)}\n[engine]\nruntime = "runc"\n'


def say(text: str) -> None:
    print(f"cluster: {text}", flush=True)


def finish(main: Callable[[], None]) -> None:
    """Run a command's main function; print an expected failure without a traceback; exit code 3: Impossible."""
    try:
        main()
    except Failed as failed:
        print(f"cluster: {failed}", file=sys.stderr)
        sys.exit(3 if isinstance(failed, Impossible) else 1)
