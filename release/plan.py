"""The plan of a release: names of everything that it publishes, its steps, and the reasons to refuse it. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from kind.base_image import require_digest
from kind.engine import Failed
from mptraining_api.admin_limits import names_registry
from release.documents import changelog

PROJECT = "mptraining"
TARGETS = ("operator", "board", "trainer")
VARIANTS = ("cpu", "gpu", "tpu")
_VERSION = re.compile(r"(\d+\.\d+\.\d+)(?:(a|b|rc|\.dev)(\d+))?")
# PyPI and TestPyPI (Warehouse) take uploads at upload.HOST/legacy/ or HOST/legacy/, and are read at HOST/simple/.
_WAREHOUSE = re.compile(r"(https?://)(?:upload\.)?([^/]+)/legacy/?")
_PRERELEASE = {"a": "alpha", "b": "beta", "rc": "rc", ".dev": "dev"}


@dataclass(frozen=True)
class Request:
    """What a person asks for.

    `key`: the file of cosign's private key; empty for keyless signatures in CI. `base`: the images' base by digest;
    empty for one that is made of this machine's Debian packages, which no other machine makes again. `pythons`: those
    in which every extra is installed, and `without_environments` that there are none on purpose. `simple_index`: the
    index's address for pip where `simple_index` of this module does not know it.
    """

    version: str
    registry: str
    index: str
    key: str = ""
    variants: tuple[str, ...] = VARIANTS
    pythons: tuple[str, ...] = ()
    base: str = ""
    simple_index: str = ""
    without_environments: bool = False


@dataclass(frozen=True)
class Facts:
    """What the repository, the registry and the index say before anything is made.

    `changed`: files that differ from the commit. `published`: names of this version that exist already.
    """

    declared_version: str
    chart_version: str
    changed: tuple[str, ...]
    changelog: str
    published: tuple[str, ...]


@dataclass(frozen=True)
class Image:
    """One image: `bill` names its bill of materials."""

    target: str
    variant: str
    reference: str
    bill: str

    @property
    def name(self) -> str:
        """For files: operator, trainer-gpu."""
        return self.target if self.target != "trainer" else f"{self.target}-{self.variant}"


@dataclass(frozen=True)
class Names:
    """The names of everything that a release publishes."""

    wheel: str
    sdist: str
    images: tuple[Image, ...]
    chart: str
    chart_file: str
    files: str

    @property
    def references(self) -> tuple[str, ...]:
        """Everything in the registry, by tag."""
        return (*(each.reference for each in self.images), self.chart, self.files)


def chart_version(version: str) -> str:
    """Return the semantic version, which Helm requires: 0.2.0rc1 becomes 0.2.0-rc.1. Raises ValueError."""
    found = _VERSION.fullmatch(version)
    if found is None:
        raise ValueError(f"{version!r} is no version: expected 0.2.0, 0.2.0rc1 or 0.2.0.dev1")
    plain, kind, number = found.groups()
    return plain if kind is None else f"{plain}-{_PRERELEASE[kind]}.{number}"


def names(request: Request) -> Names:
    """Return the names of a valid request."""
    root = f"{request.registry.rstrip('/')}/{PROJECT}"
    semantic = chart_version(request.version)
    images = []
    for target in TARGETS:
        for variant in request.variants if target == "trainer" else ("cpu",):
            tag = request.version if variant == "cpu" else f"{request.version}-{variant}"
            bill = target if target != "trainer" else f"trainer-{variant}"
            images.append(Image(target, variant, f"{root}/{target}:{tag}", bill))
    return Names(
        wheel=f"{PROJECT}-{request.version}-py3-none-any.whl",
        sdist=f"{PROJECT}-{request.version}.tar.gz",
        images=tuple(images),
        chart=f"{root}/charts/{PROJECT}:{semantic}",
        chart_file=f"{PROJECT}-{semantic}.tgz",
        files=f"{root}/release:{request.version}",
    )


def simple_index(request: Request) -> str:
    """Return the address of the index for pip (PEP 503): what was given, PyPI's own, or INDEX/simple/."""
    if request.simple_index:
        return request.simple_index
    warehouse = _WAREHOUSE.fullmatch(request.index)
    return f"{warehouse[1]}{warehouse[2]}/simple/" if warehouse else f"{request.index.rstrip('/')}/simple/"


def registry_mistake(registry: str) -> str | None:
    if names_registry(registry):
        return None
    return (
        f"--registry {registry!r}: expected HOST[:PORT][/PATH] without a scheme, the path in lower case, "
        "and HOST with a dot or a port, or localhost"
    )


def mistakes(request: Request) -> list[str]:
    """Return what is wrong with the request itself, each with the next step."""
    found = []
    try:
        chart_version(request.version)
    except ValueError as error:
        found.append(f"--version: {error}")
    mistake = registry_mistake(request.registry)
    if mistake:
        found.append(mistake)
    if not re.match(r"https?://[^/]+", request.index):
        found.append(f"--index {request.index!r}: expected the upload address of a package index, https://…")
    if request.base:
        try:
            require_digest(request.base)
        except Failed as failed:
            found.append(f"--base: {failed}")
    if bool(request.pythons) == request.without_environments:
        found.append(
            "--python: name each Python in which the extras are installed and used, such as --python python3.11, or "
            "release without that check by --without-environments; one of the two"
        )
    unknown = [each for each in request.variants if each not in VARIANTS]
    if unknown or not request.variants:
        found.append(f"--variants {', '.join(request.variants)}: expected some of {', '.join(VARIANTS)}")
    return found


def refusals(request: Request, facts: Facts) -> list[str]:
    """Return every reason not to release, each with the next step; empty for a release that may start."""
    found = mistakes(request)
    if found:
        return found
    version, semantic = request.version, chart_version(request.version)
    prepare = f"Run `python -m release --prepare --version {version}`, review and commit."
    if facts.declared_version != version:
        found.append(f"pyproject.toml: version is {facts.declared_version}, not {version}. {prepare}")
    if facts.chart_version != semantic:
        found.append(f"charts/mptraining/Chart.yaml: version is {facts.chart_version}, not {semantic}. {prepare}")
    if facts.changed:
        shown = ", ".join(facts.changed[:5]) + (", …" if len(facts.changed) > 5 else "")
        found.append(f"the tree differs from its commit ({shown}). Commit or remove these changes.")
    if changelog.section(facts.changelog, version) is None:
        found.append(f"CHANGELOG.md: no heading `## [{version}]` with text below it. {prepare}")
    all_names = names(request)
    # One file of the two: an upload that broke off. `publish.index` completes it if the file has the same bytes.
    if not set(facts.published) < {all_names.wheel, all_names.sdist}:
        found += [
            f"{each} exists already, and a published version never changes. Release the next."
            for each in facts.published
        ]
    return found


def steps(request: Request) -> Sequence[tuple[str, str]]:
    """Return each step and what it makes, in order: nothing has a public name before the last two."""
    all_names = names(request)
    installed = ", ".join(request.pythons)
    how = "with the key" if request.key else "keyless, with the identity of this CI run"
    return [
        ("distributions", f"{all_names.wheel} and {all_names.sdist}, built twice and compared"),
        *([("environments", f"every extra, installed in empty environments of {installed}")] if installed else []),
        ("images", f"{', '.join(each.reference for each in all_names.images)}, on {request.base or 'a local base'}"),
        ("chart", f"{all_names.chart}, which names the images by digest"),
        ("install.yaml", "the chart with its defaults, for kubectl apply"),
        ("bills", "what is in each image, as CycloneDX and SPDX"),
        ("provenance", "an in-toto statement of SLSA provenance over files and images"),
        ("checksums", "SHA256SUMS of all files, and the release notes"),
        ("signatures", f"of the files, {how}"),
        ("upload", "images, chart and files by digest, without a tag; signed and attested there"),
        ("index", f"{all_names.wheel} and {all_names.sdist} at {request.index}"),
        ("tags", ", ".join(all_names.references)),
    ]
