"""`make images`: builds the two container images and brings them to the cluster's nodes, without a registry.

The images become an OCI layout, a folder of layers named by their digests; a node gets those that it lacks, as an
archive that containerd imports. After a change of code that is the last layer, which holds the project's packages.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

from hack.cluster.engine import ROOT, Engine, Failed, engines, finish, say
from hack.cluster.nodes import CONTROL_PLANE, NAME, NODES, WORKERS, kind

BUILD = ROOT / "build" / "images"
CONTEXT = BUILD / "context"
LAYOUT = BUILD / "layout"
BASE = "localhost/mptraining-base:bookworm"
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
VARIANT = os.environ.get("VARIANT", "cpu")
# Trainers run on workers alone: the control plane takes no pods that do not ask for it.
TARGETS = {"operator": NODES, "trainer": WORKERS}
OCI = "application/vnd.oci.image"


def main() -> None:
    """Build and load the images; with `context`, only copy what the Dockerfile needs."""
    if sys.argv[1:] == ["context"]:
        fill_context("cpu", "gpu", "tpu")
        return
    began = time.monotonic()
    fill_context(VARIANT)
    engine = engine_of_cluster()
    for target in TARGETS:
        build(engine, target)
    for target, nodes in TARGETS.items():
        load(engine, target, nodes)
    say(f"images in place after {time.monotonic() - began:.0f} s")


def engine_of_cluster() -> Engine:
    for engine in engines():
        if engine.has_container(CONTROL_PLANE):
            return engine
    raise Failed("there is no cluster to load into: make cluster")


def version(target: str) -> str:
    """The part behind the colon, which the operator's settings name by the kind of accelerator."""
    return VERSION if target != "trainer" or VARIANT == "cpu" else f"{VERSION}-{VARIANT}"


def tag(target: str) -> str:
    return f"mptraining/{target}:{version(target)}"


def fill_context(*variants: str) -> None:
    """What the Dockerfile copies. A file that did not change is left alone, so that its layer is found again."""
    CONTEXT.mkdir(parents=True, exist_ok=True)
    for lock in ("operator", "trainer", *(f"tensorflow-{variant}" for variant in variants)):
        put(CONTEXT / f"{lock}.lock", (ROOT / "hack" / "images" / f"{lock}.lock").read_bytes())
    made = BUILD / "wheel"
    shutil.rmtree(made, ignore_errors=True)
    program([sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(made)])
    wheels = sorted(made.glob("*.whl"))
    for old in set(CONTEXT.glob("*.whl")) - {CONTEXT / wheel.name for wheel in wheels}:
        old.unlink()
    for wheel in wheels:
        put(CONTEXT / wheel.name, wheel.read_bytes())
    if not (CONTEXT / "digits" / "train-manifest.json").exists():
        digits(CONTEXT / "digits")


def put(path: Path, content: bytes) -> None:
    if not path.exists() or path.read_bytes() != content:
        path.write_bytes(content)
        path.chmod(0o644)


def digits(folder: Path) -> None:
    """The demo's data, as the demo makes it; its held-out part is called validation here."""
    say("writing the digits as TFRecords")
    raw = BUILD / "digits"
    program([sys.executable, "examples/demo/digits.py", str(raw)])
    for part, name in (("train", "train"), ("held-out", "validation")):
        source = raw / f"{part}.npz"
        program([sys.executable, "-m", "mptraining", "records", "convert", str(source), str(folder), "--name", name])


def program(command: list[str]) -> None:
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise Failed(f"{' '.join(command[1:4])} ended with {done.returncode}:\n{done.stdout}{done.stderr}")


def build(engine: Engine, target: str) -> None:
    known = image_id(engine, target)
    began = time.monotonic()
    arguments = ["build", "--target", target, "--tag", tag(target), "--file", str(ROOT / "Dockerfile")]
    arguments += ["--build-arg", f"VARIANT={VARIANT}"]
    if engine.name == "podman":
        # The network is the host's, as is the way to the package index; layers are kept to be found again.
        arguments += ["--network", "host", "--layers"]
    base = base_image(engine)
    if base:
        arguments += ["--build-arg", f"BASE={base}"]
    for secret, path in secrets().items():
        arguments += ["--secret", f"id={secret},src={path}"]
    engine(*arguments, str(CONTEXT))
    if image_id(engine, target) != known:
        say(f"built {tag(target)} in {time.monotonic() - began:.0f} s")


def base_image(engine: Engine) -> str | None:
    """The reference for the Dockerfile's BASE, or None for its own. MPTRAINING_BASE_IMAGE names another.

    Podman has no registry in reach: its base is made of Debian's packages where it is missing.
    """
    if (reference := os.environ.get("MPTRAINING_BASE_IMAGE")) or engine.name != "podman":
        return reference
    if not engine.has_image(BASE):
        say("making a base image of Debian packages, two minutes")
        engine.run(str(ROOT / "hack" / "images" / "base.sh"), str(BUILD / "base"), BASE)
    return BASE


def image_id(engine: Engine, target: str) -> str | None:
    return engine.asked("image", "inspect", "--format", "{{.Id}}", tag(target))


def secrets() -> dict[str, Path]:
    """The host's way to a package index, from pip's files and environment, for the time of the build."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], check=True, capture_output=True, text=True
    ).stdout
    settings = {}
    # The environment outranks the files.
    for line in sorted(listed.splitlines(), key=lambda line: line.startswith(":env:")):
        key, _, value = line.partition("=")
        if key.startswith(("global.", ":env:.", "install.")):
            settings[key.rpartition(".")[2]] = value.strip("'\"")
    mounted = {}
    certificates = settings.pop("cert", None) or os.environ.get("SSL_CERT_FILE")
    if certificates and Path(certificates).is_file():
        mounted["ca.crt"] = Path(certificates)
        settings["cert"] = "/run/secrets/ca.crt"
    kept = ("index-url", "extra-index-url", "trusted-host", "proxy", "default-timeout", "timeout", "cert")
    lines = [f"{key} = {value}\n" for key, value in settings.items() if key in kept]
    if lines:
        mounted["pip.conf"] = BUILD / "pip.conf"
        mounted["pip.conf"].write_text("[global]\n" + "".join(lines), encoding="utf-8")
        mounted["pip.conf"].chmod(0o600)
    return mounted


def load(engine: Engine, target: str, nodes: tuple[str, ...]) -> None:
    if engine.name == "docker":
        engine.run(kind(), "load", "docker-image", tag(target), "--name", NAME, "--nodes", ",".join(nodes))
        return
    image = export(engine, target)
    with ThreadPoolExecutor(max_workers=2) as pool:
        for done in [pool.submit(bring, engine, image, node) for node in nodes]:
            done.result()


@dataclass(frozen=True)
class Image:
    """An image as the files of an OCI layout: its name, and the digest and file of each blob, the manifest first."""

    target: str
    manifest: bytes
    layers: dict[str, Path]
    config: Path

    @property
    def name(self) -> str:
        """Kubernetes' full name for an image without a registry."""
        return f"docker.io/{tag(self.target)}"

    @property
    def digest(self) -> str:
        return f"sha256:{hashlib.sha256(self.manifest).hexdigest()}"

    @property
    def index(self) -> bytes:
        entry = {"mediaType": f"{OCI}.manifest.v1+json", "digest": self.digest, "size": len(self.manifest)}
        named = {**entry, "annotations": {"io.containerd.image.name": self.name}}
        return json.dumps({"schemaVersion": 2, "manifests": [named]}).encode()


def export(engine: Engine, target: str) -> Image:
    """Takes the image out of Podman, as layers compressed by zstd: reading them costs a node less than writing them.

    Podman writes only the layers that the layout lacks, and each is compressed once. What no image needs any more goes.
    """
    layout = LAYOUT / target
    layout.mkdir(parents=True, exist_ok=True)
    save = ("save", "--quiet", "--format", "oci-dir", "--uncompressed", "--output", str(layout))
    engine(*save, f"localhost/{tag(target)}")
    blobs = layout / "blobs" / "sha256"
    entry = json.loads((layout / "index.json").read_text())["manifests"][-1]
    manifest = json.loads(blob(blobs, entry).read_text())
    config = blob(blobs, manifest["config"])
    plain = [blob(blobs, layer) for layer in manifest["layers"]]
    kept = {blob(blobs, entry), config, *plain}
    for path in set(blobs.iterdir()) - kept - {path.with_suffix(".zst") for path in kept}:
        path.unlink()
    layers = {}
    for path in plain:
        packed, digest = compressed(path)
        layers[digest] = packed
    described = [
        {"mediaType": f"{OCI}.layer.v1.tar+zstd", "digest": digest, "size": packed.stat().st_size}
        for digest, packed in layers.items()
    ]
    return Image(target, json.dumps({**manifest, "layers": described}, indent=1).encode(), layers, config)


def compressed(layer: Path) -> tuple[Path, str]:
    """The file of the compressed layer and its digest."""
    packed = layer.with_suffix(".zst")
    if not packed.exists():
        part = layer.with_suffix(".part")
        program(["zstd", "--quiet", "--force", "-3", "--threads=0", str(layer), "-o", str(part)])
        part.replace(packed)
    with packed.open("rb") as file:
        return packed, f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def blob(blobs: Path, entry: dict[str, Any]) -> Path:
    return blobs / str(entry["digest"]).removeprefix("sha256:")


def bring(engine: Engine, image: Image, node: str) -> None:
    """Imports the image into the containerd of a node, without the layers that are there."""
    inside = (engine.name, "exec", "-i", node, "ctr", "--namespace", "k8s.io")
    if image.digest in engine.run(*inside, "images", "list", f"name=={image.name}").stdout:
        return
    there = set(engine.run(*inside, "content", "list", "--quiet").stdout.split())
    missing = {digest: path for digest, path in image.layers.items() if digest not in there}
    began = time.monotonic()
    importing = subprocess.Popen(
        [*inside, "images", "import", "--digests", "--snapshotter", "overlayfs", "-"],
        env=os.environ | engine.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert importing.stdin is not None
    with tarfile.open(fileobj=importing.stdin, mode="w|", bufsize=1 << 20) as archive:
        add(archive, "oci-layout", b'{"imageLayoutVersion": "1.0.0"}')
        add(archive, "index.json", image.index)
        add(archive, inner(image.digest), image.manifest)
        archive.add(image.config, inner(f"sha256:{image.config.name}"))
        for digest, path in missing.items():
            archive.add(path, inner(digest))
    output, _ = importing.communicate()
    if importing.returncode != 0:
        raise Failed(f"{node} did not take {image.name}:\n{output.decode(errors='replace')}")
    size = sum(path.stat().st_size for path in missing.values()) / 1e6
    took = time.monotonic() - began
    say(f"{node}: {tag(image.target)}, {len(missing)} of {len(image.layers)} layers, {size:,.1f} MB in {took:.0f} s")


def inner(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    archive.addfile(entry, BytesIO(content))


if __name__ == "__main__":
    finish(main)
