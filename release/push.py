"""Build the images and push them to a registry, under the names that chart and `python -m gke` expect: no release.

    python -m release.push --registry HOST/PATH

`make push-images` calls it. VARIANT=gpu or tpu in the environment chooses the trainer's TensorFlow, as for `make
images`. The engine, Docker or Podman, has the credentials: `docker login HOST` or `podman login HOST`.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from kind import images as built
from kind.engine import Engine, Failed, docker, podman
from release.facts import plain_http
from release.plan import VARIANTS, Image, Request, names, registry_mistake
from release.programs import say

_DIGEST = re.compile(r"\bdigest: (sha256:[0-9a-f]{64})\b")


def push_all(engine: Engine, registry: str) -> dict[Image, str]:
    """Build and push the three images, and return their digests in the registry. Raises Failed."""
    variant = built.chosen_variant()
    if variant not in VARIANTS:
        raise Failed(f"VARIANT={variant}: expected {', '.join(VARIANTS)}")
    mistake = registry_mistake(registry)
    if mistake:
        raise Failed(mistake)
    built.fill_context(variant)
    images = names(Request(built.VERSION, registry, index="", variants=(variant,))).images
    for image in images:
        built.build(engine, image.target, variant)
    digests = {}
    for image in images:
        engine("tag", built.tag(image.target), image.reference)
        digests[image] = push(engine, image.reference)
        say(f"pushed {image.reference}@{digests[image]}")
    return digests


def push(engine: Engine, reference: str) -> str:
    """Push an image that the engine has under this name, and return its digest in the registry."""
    try:
        if engine.name == "docker":
            # Docker itself speaks plain HTTP to a registry on loopback, and to no other.
            found = _DIGEST.search(engine("push", reference))
            if found is None:
                raise Failed(f"docker push {reference}: printed no digest")
            return found[1]
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "digest")
            plain = ("--tls-verify=false",) if plain_http(reference) else ()
            engine("push", "--quiet", *plain, f"--digestfile={file}", reference)
            return file.read_text(encoding="utf-8").strip()
    except Failed as failed:
        host = reference.partition("/")[0]
        raise Failed(f"{failed}\nIf the registry denies access: {engine.name} login {host}") from None


def values(registry: str, digests: Mapping[Image, str]) -> list[str]:
    """Return the flags of helm with which the chart uses these images."""
    keys = {"operator": "image.digest", "board": "board.image.digest"}
    flags = [f"--set=global.imageRegistry={registry}"]
    return flags + [
        f"--set={keys.get(image.target, f'trainer.digests.{image.variant}')}={digest}"
        for image, digest in digests.items()
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m release.push", description="Build the images and push them.")
    parser.add_argument("--registry", required=True, help="HOST/PATH; images are HOST/PATH/mptraining/operator, …")
    registry = parser.parse_args(arguments).registry.rstrip("/")
    try:
        digests = push_all(docker() or podman(), registry)
    except Failed as failed:
        sys.stderr.write(f"release: {failed}\n")
        return 1
    print(f"\nhelm install mptraining charts/mptraining {' '.join(values(registry, digests))}")
    print(f"python -m gke up --images={registry}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
