"""Five ways to tamper with what was published, and what the documented verification answers to each."""

from __future__ import annotations

import json
import shutil
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kind.engine import Engine
from kind.nodes import CONTROL_PLANE
from release import layout
from release.chart import pack
from release.documents import checksums
from release.facts import plain_http
from release.programs import program, run
from tests.soak.release_round.place import VERSION, Place
from tests.testbed import release_servers


@dataclass(frozen=True)
class Refusal:
    """What was changed, the command of docs/guide/install.md that refuses it, and its answer."""

    changed: str
    command: str
    answer: str


def all_ways(place: Place, made: dict[str, str], engine: Engine | None) -> list[Refusal]:
    """Tamper, verify and restore, one way after the other. `made`: digests by reference; without an engine no
    node pulls.

    Raises AssertionError where a verification accepts what was changed.
    """
    ways: list[Callable[[], list[Refusal]]] = [
        lambda: _layer(place, made, engine),
        lambda: _moved_tag(place, made),
        lambda: _chart(place, made),
        lambda: _wheel(place),
        lambda: _install_yaml(place, made),
    ]
    refusals = [refusal for way in ways for refusal in way()]
    # What is restored is accepted again.
    for reference in place.names.references:
        run(*place.verifier.reference(reference))
    for name in (place.names.chart_file, "install.yaml", checksums.FILE):
        run(*place.verifier.blob(place.files / name))
    return refusals


def _layer(place: Place, made: dict[str, str], engine: Engine | None) -> list[Refusal]:
    """A byte of a layer changes in the registry's storage; manifest and signature stay as they are."""
    reference = place.names.images[0].reference
    pinned = f"{reference.rpartition(':')[0]}@{made[reference]}"
    storage = place.folder / "registry"
    manifest = json.loads(release_servers.blob(storage, made[reference]).read_bytes())
    file = release_servers.blob(storage, manifest["layers"][-1]["digest"])
    genuine = file.read_bytes()
    middle = len(genuine) // 2
    file.write_bytes(genuine[:middle] + bytes([genuine[middle] ^ 1]) + genuine[middle + 1 :])
    what = "a byte of a layer of the operator's image"
    copied = ("--to-oci-layout", pinned, f"{place.folder / 'pulled'}:tampered")
    pulls: list[tuple[str | Path, ...]] = [(program("oras"), "copy", *_from(pinned), "--no-tty", *copied)]
    if engine is not None:
        # As the kubelet's runtime pulls, on a node that has never had the image.
        on_node = (engine.name, "exec", CONTROL_PLANE, "ctr", "--namespace", "release-round", "images", "pull")
        pulls.append((*on_node, "--hosts-dir", "/etc/containerd/certs.d", pinned))
    try:
        return [_refusal(place, what, *command) for command in pulls]
    finally:
        file.write_bytes(genuine)
        # The same commands accept the genuine layer.
        for command in pulls:
            run(*command)
        shutil.rmtree(place.folder / "pulled", ignore_errors=True)


def _moved_tag(place: Place, made: dict[str, str]) -> list[Refusal]:
    """The tag names another image; then the genuine signatures are copied to it as well."""
    reference = place.names.images[0].reference
    repository, _, tag = reference.rpartition(":")
    manifest = json.loads(release_servers.blob(place.folder / "registry", made[reference]).read_bytes())
    other = json.dumps(manifest | {"annotations": {"tampered": "yes"}}).encode()
    file = place.folder / "manifest.json"
    file.write_bytes(other)
    oras = program("oras")
    run(oras, "manifest", "push", *plain_http(reference), "--media-type", layout.MANIFEST, reference, file)
    digest = f"sha256-{checksums.sha256(file)}"
    try:
        first = _refusal(place, f"the tag {VERSION} of the operator's image", *place.verifier.reference(reference))
        run(oras, "tag", *plain_http(reference), f"{repository}:{made[reference].replace(':', '-')}", digest)
        second = _refusal(place, "the same, genuine signatures copied", *place.verifier.reference(reference))
        return [first, second]
    finally:
        run(oras, "tag", *plain_http(reference), f"{repository}@{made[reference]}", tag)


def _chart(place: Place, made: dict[str, str]) -> list[Refusal]:
    """A chart with another image, as file and under the chart's tag."""
    reference = place.names.chart
    folder = place.folder / "tampered-chart"
    shutil.rmtree(folder, ignore_errors=True)
    genuine = place.files / place.names.chart_file
    with tarfile.open(genuine) as archive:
        archive.extractall(folder, filter="data")
    values = folder / "mptraining" / "values.yaml"
    values.write_text(values.read_text().replace("mptraining/operator", "mptraining/other"))
    with _replaced(genuine):
        pack(folder / "mptraining", genuine, epoch=0)
        found = [_refusal(place, "the chart's file", *place.verifier.blob(genuine))]
        content = layout.Blob("application/vnd.cncf.helm.chart.content.v1.tar+gzip", genuine)
        digest = layout.artifact(
            folder / "layout", layout.Blob("application/vnd.cncf.helm.config.v1+json", b"{}"), [content]
        )
        _push(folder / "layout", reference, digest)
    try:
        return [*found, _refusal(place, "the chart in the registry", *place.verifier.reference(reference))]
    finally:
        run(
            program("oras"), "tag", *plain_http(reference), f"{reference.rpartition(':')[0]}@{made[reference]}", VERSION
        )
        shutil.rmtree(folder)


def _wheel(place: Place) -> list[Refusal]:
    """A module more in the wheel that the index serves."""
    name = place.names.wheel
    served = place.folder / "index" / "packages" / name
    digest = checksums.sha256(place.files / name)
    requirement = place.folder / "mptraining.txt"
    requirement.write_text(f"mptraining=={VERSION} --hash=sha256:{digest}\n")
    target = place.folder / "downloaded"
    with _replaced(served):
        with zipfile.ZipFile(served, "a") as archive:
            archive.writestr("mptraining/extra.py", "print('tampered')\n")
        asked = ("--index-url", f"{place.index}/simple/", "--only-binary=:all:", "--no-cache-dir")
        pip = (place.folder / "stranger" / "env" / "bin" / "pip", "download", "--no-deps", "--dest", target, *asked)
        first = _refusal(place, "the wheel in the index", *pip, "--require-hashes", "-r", requirement)
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        shutil.copy(served, target)
        shutil.copy(place.files / f"{name}.sigstore.json", target)
    second = _refusal(place, "the wheel in the index", *place.verifier.blob(target / name))
    shutil.rmtree(target)
    return [first, second]


def _install_yaml(place: Place, made: dict[str, str]) -> list[Refusal]:
    """Another image in install.yaml; then with checksums that fit."""
    file, sums = place.files / "install.yaml", place.files / checksums.FILE
    with _replaced(file), _replaced(sums):
        file.write_text(file.read_text().replace("mptraining/operator@", "mptraining/other@"))
        check = ("sha256sum", "--check", "--quiet", "--strict", checksums.FILE)
        first = _refusal(place, "install.yaml", *check, folder=place.files)
        second = _refusal(place, "install.yaml", *place.verifier.blob(file))
        named = [line.split("  ") for line in sums.read_text().splitlines()]
        sums.write_text(checksums.text({name: checksums.sha256(place.files / name) for _, name in named}))
        run(*check, folder=place.files)
        third = _refusal(place, "install.yaml, and SHA256SUMS to fit", *place.verifier.blob(sums))
    return [first, second, third]


def _refusal(place: Place, changed: str, *command: str | Path, folder: Path | None = None) -> Refusal:
    answer = place.refused(*command, folder=folder)
    print(f"round: refused: {changed}: {answer}", flush=True)
    return Refusal(changed, place.shown(*command), answer)


def _push(folder: Path, reference: str, digest: str) -> None:
    to = [f"--to{each[1:]}" for each in plain_http(reference)]
    pinned = f"{reference.rpartition(':')[0]}@{digest}"
    run(program("oras"), "cp", *to, "--no-tty", "--from-oci-layout", f"{folder}:release", pinned)
    run(program("oras"), "tag", *plain_http(reference), pinned, reference.rpartition(":")[2])


def _from(reference: str) -> list[str]:
    return [f"--from{each[1:]}" for each in plain_http(reference)]


@contextmanager
def _replaced(file: Path) -> Iterator[None]:
    """The file may be changed for a while."""
    genuine = file.read_bytes()
    try:
        yield
    finally:
        file.write_bytes(genuine)
