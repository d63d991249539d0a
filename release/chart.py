"""The chart of a release: with its registry and the digests of its images, packed reproducibly; and install.yaml."""

from __future__ import annotations

import gzip
import io
import json
import shutil
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from ruamel.yaml import YAML

from release import layout
from release.programs import program, run

# Helm's media types: https://helm.sh/docs/topics/registries/
_CONFIG = "application/vnd.cncf.helm.config.v1+json"
_CONTENT = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
_NAME = "mptraining"


def stage(source: Path, target: Path, *, registry: str, digests: Mapping[str, str]) -> None:
    """Copy the chart, with defaults that name the published images. `digests` by the images' names in `plan`.

    The registry is `global.imageRegistry`, which a mirror replaces; the digests hold there as well.
    """
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
    round_trip = YAML()
    round_trip.preserve_quotes = True
    round_trip.width = 10_000
    values = round_trip.load((source / "values.yaml").read_text(encoding="utf-8"))
    values["global"]["imageRegistry"] = registry
    values["image"]["digest"] = digests["operator"]
    values["board"]["image"]["digest"] = digests["board"]
    for name, digest in digests.items():
        kind, _, variant = name.partition("-")
        if kind == "trainer":
            values["trainer"]["digests"][variant] = digest
    with (target / "values.yaml").open("w", encoding="utf-8") as file:
        round_trip.dump(values, file)
    run(program("helm"), "lint", "--strict", "--quiet", target)


def pack(chart: Path, archive: Path, *, epoch: int) -> None:
    """Write the archive; the same files and time give the same bytes."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as file:
        # Helm reads Chart.yaml first.
        paths = sorted(path for path in chart.rglob("*") if path.is_file() and path.name != "Chart.yaml")
        for path in (chart / "Chart.yaml", *paths):
            entry = tarfile.TarInfo(f"{_NAME}/{path.relative_to(chart).as_posix()}")
            entry.size, entry.mtime, entry.mode = path.stat().st_size, epoch, 0o644
            with path.open("rb") as content:
                file.addfile(entry, content)
    archive.write_bytes(gzip.compress(packed.getvalue(), mtime=0))


def artifact(chart: Path, archive: Path, folder: Path, *, created: str) -> str:
    """Write the layout of the chart in a registry, as `helm push` would, and return its digest."""
    about: dict[str, Any] = yaml.safe_load((chart / "Chart.yaml").read_text(encoding="utf-8"))
    config = layout.Blob(_CONFIG, json.dumps(about, separators=(",", ":")).encode())
    annotations = {
        "org.opencontainers.image.title": about["name"],
        "org.opencontainers.image.version": about["version"],
        "org.opencontainers.image.description": about["description"],
        "org.opencontainers.image.created": created,
    }
    return layout.artifact(folder, config, [layout.Blob(_CONTENT, archive)], annotations=annotations)


def install_yaml(chart: Path, *, version: str, kube_version: str) -> str:
    """Return everything that `kubectl apply -f` needs."""
    command = ("template", _NAME, chart, "--namespace", "mptraining-system", "--set", "namespace.create=true")
    rendered = run(program("helm"), *command, "--skip-tests", "--kube-version", kube_version)
    return f"# mptraining {version}\n{rendered}"
