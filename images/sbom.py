"""The software bill of materials of each image, CycloneDX and SPDX: what its locks let pip install, nothing else.

    python images/sbom.py FOLDER [--metadata SITE_PACKAGES]

Needs cyclonedx-python-lib, packaging and spdx-tools (images/sbom.lock); `make sbom` calls it. The same locks give the
same bytes. A lock accepts several files of one version (wheels for other machines, the source): their hashes stand
together in the component's reference to its distribution. Licences are what the installed packages in `--metadata` say
of themselves, as far as they have the lock's version. What the base image holds is not in here: docs/security.md says
how to list it.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import re
import sys
import tomllib
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cyclonedx.contrib.license.exceptions import LicenseFactoryException
from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, XsUri
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import License
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL
from packaging.requirements import Requirement
from spdx_document import spdx_text

ROOT = Path(__file__).resolve().parents[1]
# By the image's tag suffix, the locks that the Dockerfile installs for it.
IMAGES = {
    "operator": ("operator",),
    "board": ("board",),
    "trainer-cpu": ("trainer", "tensorflow-cpu"),
    "trainer-gpu": ("trainer", "tensorflow-gpu"),
    "trainer-tpu": ("trainer", "tensorflow-tpu"),
}
# Where images run: for the markers of the locks.
_MACHINE = {
    "implementation_name": "cpython",
    "os_name": "posix",
    "platform_machine": "x86_64",
    "platform_python_implementation": "CPython",
    "platform_system": "Linux",
    "python_full_version": "3.11.0",
    "python_version": "3.11",
    "sys_platform": "linux",
}
_LONGEST_LICENSE = 80
_PROJECT = "mptraining"
_CLASSIFIER = "License :: OSI Approved :: "


@dataclass(frozen=True)
class Locked:
    """One entry of a lock: the files that pip accepts for it, by SHA-256, and the packages that asked for it."""

    name: str
    version: str
    hashes: frozenset[str]
    wanted_by: frozenset[str]


def entries(text: str) -> Iterator[Locked]:
    """What a lock installs on the images' machine. Raises ValueError for an entry without a version or a hash."""
    for block in re.split(r"\n(?=[A-Za-z0-9])", f"\n{text}"):
        if not block or not block[0].isalnum():
            continue
        head, *rest = block.splitlines()
        asked = Requirement(head.rstrip("\\ "))
        if asked.marker is not None and not asked.marker.evaluate(_MACHINE):
            continue
        pinned = re.fullmatch(r"==([^*,]+)", str(asked.specifier))
        hashes = frozenset(re.findall(r"--hash=sha256:([0-9a-f]{64})\b", block))
        if pinned is None or not hashes:
            raise ValueError(f"{head!r}: expected NAME==VERSION with SHA-256 hashes. Run `make lock`.")
        # "# via a", or a line for each.
        comments = " ".join(line.strip().lstrip("#").strip().removeprefix("via") for line in rest if "#" in line)
        wanted = frozenset(_normal(each) for each in re.findall(r"(?<![-\w./])[a-z][\w.-]*", comments))
        yield Locked(_normal(asked.name), pinned[1], hashes, wanted)


def bill(image: str, version: str, metadata: Path | None) -> Bom:
    """The bill of one image of `IMAGES`."""
    texts = [(ROOT / "images" / f"{lock}.lock").read_text(encoding="utf-8") for lock in IMAGES[image]]
    # An entry may be in both locks of an image, with the same version, which the second pip finds installed.
    locked: dict[str, Locked] = {}
    for entry in (each for text in texts for each in entries(text)):
        known = locked.setdefault(entry.name, entry)
        if known.version != entry.version:
            raise ValueError(f"images/*.lock of {image}: {entry.name} {known.version} and {entry.version}. make lock")
    licenses = _Licenses(metadata)
    target, _, variant = image.partition("-")
    tag = version if variant in ("", "cpu") else f"{version}-{variant}"
    root = Component(name=f"mptraining/{target}", version=tag, type=ComponentType.CONTAINER, bom_ref="image")
    bom = Bom(serial_number=uuid.uuid5(uuid.NAMESPACE_OID, "\n".join([image, tag, *texts])))
    bom.metadata.component = root
    # The same locks are the same bill, whenever it is written.
    bom.metadata.timestamp = datetime.fromtimestamp(0, UTC)
    parts = {name: _component(entry, licenses) for name, entry in sorted(locked.items())}
    for name, part in parts.items():
        bom.components.add(part)
        wanted_by = [parts[each] for each in locked[name].wanted_by if each in parts and each != name]
        if not wanted_by or _PROJECT in locked[name].wanted_by:
            wanted_by.append(root)
        for parent in wanted_by:
            bom.register_dependency(parent, [part])
    return bom


def _component(entry: Locked, licenses: _Licenses) -> Component:
    purl = PackageURL("pypi", name=entry.name, version=entry.version)
    files = ExternalReference(
        type=ExternalReferenceType.DISTRIBUTION,
        url=XsUri(purl.to_string()),
        comment="SHA-256 of each file that the lock accepts",
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=each) for each in sorted(entry.hashes)],
    )
    return Component(
        name=entry.name,
        version=entry.version,
        type=ComponentType.LIBRARY,
        purl=purl,
        bom_ref=purl.to_string(),
        licenses=licenses.of(entry),
        external_references=[files],
    )


class _Licenses:
    """What installed packages say of their licence."""

    def __init__(self, folder: Path | None) -> None:
        found = importlib.metadata.distributions(path=[str(folder)]) if folder else ()
        self._known = {_normal(each.name): each for each in found if each.name}
        self._factory = LicenseFactory()

    def of(self, entry: Locked) -> list[License]:
        """None for a package that is not here in this version, or says nothing short."""
        about = self._known.get(entry.name)
        if about is None or about.version != entry.version:
            return []
        told = about.metadata.get("License-Expression") or about.metadata.get("License") or ""
        if told.strip().upper() in ("", "UNKNOWN") or "\n" in told.strip() or len(told) > _LONGEST_LICENSE:
            classifiers = about.metadata.get_all("Classifier") or []
            names = [each.removeprefix(_CLASSIFIER) for each in classifiers if each.startswith(_CLASSIFIER)]
            return [self._factory.make_with_name(name) for name in names]
        try:
            return [self._factory.make_from_string(told.strip())]
        except LicenseFactoryException:
            return [self._factory.make_with_name(told.strip())]


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def main(arguments: list[str] | None = None) -> int:
    """Writes IMAGE.cdx.json and IMAGE.spdx.json for each image; 1, and nothing written, when one is not valid."""
    parser = argparse.ArgumentParser(description="Writes a software bill of materials for each image.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--metadata", type=Path, help="site-packages in which licences are looked up")
    chosen = parser.parse_args(arguments)
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    texts = {}
    for image in IMAGES:
        made = bill(image, version, chosen.metadata)
        texts[f"{image}.cdx.json"] = JsonV1Dot6(made).output_as_string(indent=1) + "\n"
        wrong = JsonStrictValidator(SchemaVersion.V1_6).validate_str(texts[f"{image}.cdx.json"])
        if wrong is not None:
            sys.stderr.write(f"{image}: not CycloneDX 1.6: {wrong}\n")
            return 1
        try:
            texts[f"{image}.spdx.json"] = spdx_text(made)
        except ValueError as error:
            sys.stderr.write(f"{image}: {error}\n")
            return 1
        with_license = sum(1 for each in made.components if each.licenses)
        sys.stdout.write(f"{image}: {len(made.components)} packages, the licence of {with_license} is known\n")
    chosen.folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        part = chosen.folder / f"{name}.part"
        part.write_text(text, encoding="utf-8")
        part.replace(chosen.folder / name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
