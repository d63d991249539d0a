"""Print the size of each image and whether two builds of it are the same bytes.

    python -m kind.image_report sizes            of the images that `make images` built
    python -m kind.image_report twice [TARGET]   builds from scratch two times, and names the files that differ

`make images-twice` calls the second, then the first; it needs Podman, and no cluster.
"""

from __future__ import annotations

import json
import sys
import tarfile
import tempfile
import time
from pathlib import Path

from kind.engine import Engine, Failed, finish, podman, say
from kind.images import TARGETS, build_as, chosen_variant, export, fill_context, tag

# Of a difference, the first names are enough to find its cause.
_NAMED = 20


def sizes(engine: Engine) -> None:
    """Print megabytes (10^6 bytes) unpacked, as a node stores them, and compressed by zstd, as a registry does."""
    print(f"{'image':24}{'unpacked':>10}{'compressed':>12}  layers of more than 1 MB")
    for target in TARGETS:
        unpacked = int(engine("image", "inspect", "--format", "{{.Size}}", f"localhost/{tag(target)}"))
        made = export(engine, target)
        compressed = sum(path.stat().st_size for path in made.layers.values())
        layers = [path.stat().st_size / 1e6 for path in made.layers.values()]
        shown = ", ".join(f"{size:.0f}" for size in layers if size > 1)
        print(f"{tag(target):24}{unpacked / 1e6:>7.0f} MB{compressed / 1e6:>9.0f} MB  {shown}")


def twice(engine: Engine, targets: list[str]) -> None:
    """Raise Failed for images whose two builds differ."""
    variant = chosen_variant()
    fill_context(variant)
    different = []
    for target in targets:
        names = [f"localhost/mptraining-twice/{target}:{number}" for number in (1, 2)]
        for name in names:
            began = time.monotonic()
            build_as(engine, target, variant, name, "--no-cache")
            made = engine("image", "inspect", "--format", "{{.Id}}", name).strip()
            say(f"{name}: {made}, {time.monotonic() - began:.0f} s")
        first, second = (engine("image", "inspect", "--format", "{{.Id}} {{.Digest}}", name) for name in names)
        if first == second:
            say(f"{target}: both builds have the digest {first.split()[1]}")
        else:
            different.append(target)
            for line in differences(engine, *names)[:_NAMED]:
                say(f"{target}: {line}")
        engine("rmi", "--force", *names)
    if different:
        raise Failed(f"two builds differ: {', '.join(different)}")


def differences(engine: Engine, first: str, second: str) -> list[str]:
    """The files that differ, by content, mode, owner or time; the configuration, where it does."""
    with tempfile.TemporaryDirectory() as folder:
        found = [_contents(engine, name, Path(folder, str(number))) for number, name in enumerate((first, second))]
    before, after = found
    return sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))


def _contents(engine: Engine, name: str, folder: Path) -> dict[str, object]:
    """What an image holds, by layer and path."""
    engine("save", "--quiet", "--format", "oci-dir", "--uncompressed", "--output", str(folder), name)
    blobs = folder / "blobs" / "sha256"
    entry = json.loads((folder / "index.json").read_text())["manifests"][-1]
    manifest = json.loads((blobs / entry["digest"].removeprefix("sha256:")).read_text())
    config = json.loads((blobs / manifest["config"]["digest"].removeprefix("sha256:")).read_text())
    held: dict[str, object] = {f"configuration: {key}": value for key, value in config.items() if key != "rootfs"}
    for number, layer in enumerate(manifest["layers"]):
        with tarfile.open(blobs / layer["digest"].removeprefix("sha256:")) as archive:
            for member in archive:
                content = archive.extractfile(member) if member.isreg() else None
                held[f"layer {number}: {member.name}"] = (
                    (member.mode, member.uid, member.gid, member.mtime, member.type, member.linkname),
                    hash(content.read()) if content else None,
                )
    return held


def main() -> None:
    match sys.argv[1:]:
        case ["sizes"]:
            sizes(podman())
        case ["twice", *targets] if set(targets) <= TARGETS.keys():
            twice(podman(), targets or list(TARGETS))
        case _:
            raise Failed("expected `sizes` or `twice [operator|board|trainer]`")


if __name__ == "__main__":
    finish(main)
