"""The steps that make everything of a release in one folder, without a word to registry or index."""

from __future__ import annotations

import json
import os
import shutil
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from kind.engine import ROOT, Failed, podman
from release import chart, distributions, environments, images, layout, signatures
from release.documents import changelog, checksums, provenance
from release.documents import notes as release_notes
from release.facts import Commit
from release.plan import PROJECT, Request, names
from release.programs import program, run

KUBE_VERSION = "1.34.0"
FILES_TYPE = "application/vnd.mptraining.release.v1"
# What decides which packages are in the images, and how they are built.
_MATERIALS = ("Dockerfile", "pyproject.toml", "requirements.lock", "images/*.lock", "images/prune.py")


@dataclass
class Release:
    """What was made so far. `digests`: of images, chart and files, by their references with a tag."""

    request: Request
    commit: Commit
    folder: Path
    started: str
    digests: dict[str, str] = field(default_factory=dict)

    @property
    def files(self) -> Path:
        return self.folder / "files"

    def layout(self, reference: str) -> Path:
        return self.folder / "layouts" / reference.rpartition("/")[2].replace(":", "-")

    def pinned(self, reference: str) -> str:
        return f"{reference.rpartition(':')[0]}@{self.digests[reference]}"


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def make_distributions(release: Release) -> None:
    release.files.mkdir(parents=True)
    distributions.build(
        ROOT, release.files, names(release.request), version=release.request.version, epoch=release.commit.epoch
    )


def make_environments(release: Release) -> Iterator[str]:
    """Yield a line for each environment. Raises Failed if an extra that its Python should have does not work."""
    wheel = release.files / names(release.request).wheel
    rows = []
    for row in environments.check(wheel, release.request.pythons, distributions.extras(distributions.metadata(wheel))):
        rows.append(row)
        name = f"[{row.extra}]" if row.extra else "the client"
        yield f"Python {row.python}, {name}: " + (row.reason or f"{row.seconds:.0f} s")
    (release.folder / "environments.json").write_text(environments.as_json(rows), encoding="utf-8")
    wrong = [f"Python {each.python} [{each.extra}]" for each in rows if each.wrong]
    if wrong:
        raise Failed(f"not as expected (release/environments.py): {', '.join(wrong)}")


def make_images(release: Release) -> Iterator[str]:
    """Yield a line for each image. Raises Failed if an image has another wheel than the one that is published."""
    engine = podman()
    wheel = names(release.request).wheel
    for image in names(release.request).images:
        folder = release.layout(image.reference)
        release.digests[image.reference] = images.build(
            engine, image, folder, base=release.request.base, epoch=release.commit.epoch
        )
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6
        yield f"{image.reference} {release.digests[image.reference]}, {size:,.0f} MB to pull"
        if checksums.sha256(images.wheel_inside()) != checksums.sha256(release.files / wheel):
            raise Failed(f"{image.reference}: its {wheel} has other bytes than the one that is published")


def make_chart(release: Release) -> None:
    request, all_names = release.request, names(release.request)
    staged, archive = release.folder / "chart", release.files / all_names.chart_file
    digests = {image.name: release.digests[image.reference] for image in all_names.images}
    chart.stage(ROOT / "charts" / PROJECT, staged, registry=request.registry, digests=digests)
    chart.pack(staged, archive, epoch=release.commit.epoch)
    created = datetime.fromtimestamp(release.commit.epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    layout_folder = release.folder / "layouts" / "chart"
    release.digests[all_names.chart] = chart.artifact(staged, archive, layout_folder, created=created)


def make_install_yaml(release: Release) -> None:
    staged = release.folder / "chart"
    text = chart.install_yaml(staged, version=release.request.version, kube_version=KUBE_VERSION)
    (release.files / "install.yaml").write_text(text, encoding="utf-8")


def make_bills(release: Release) -> None:
    """Copy the bills of materials of the images that were built, which `images/sbom.py` writes and validates."""
    made = release.folder / "bills"
    python = ROOT / "build" / "sbom-tools" / "bin" / "python"
    if not python.is_file():
        raise Failed(f"no {python.relative_to(ROOT)}: make release-tools")
    run(python, "images/sbom.py", made, "--metadata", sysconfig.get_path("purelib"))
    for image in names(release.request).images:
        for suffix in signatures.BILLS:
            shutil.copy(made / f"{image.bill}{suffix}", release.files)


def make_provenance(release: Release) -> None:
    request = release.request
    materials = {
        path.relative_to(ROOT).as_posix(): checksums.sha256(path)
        for pattern in _MATERIALS
        for path in sorted(ROOT.glob(pattern))
    }
    about = provenance.predicate(
        _build_of(release),
        parameters={
            "version": request.version,
            "registry": request.registry,
            "variants": list(request.variants),
            "base": request.base,
        },
        materials=materials,
        base=request.base,
    )
    subjects = checksums.digests(release.files) | {
        release.pinned(each): digest for each, digest in release.digests.items()
    }
    statement = provenance.statement(subjects, about)
    (release.files / provenance.FILE).write_text(json.dumps(statement, indent=1) + "\n", encoding="utf-8")
    (release.folder / "predicate.json").write_text(json.dumps(about), encoding="utf-8")


def _build_of(release: Release) -> provenance.Build:
    """GitHub's variables name repository, workflow and run; elsewhere a person built it."""
    server, repository = os.environ.get("GITHUB_SERVER_URL", ""), os.environ.get("GITHUB_REPOSITORY", "")
    workflow, run_id = os.environ.get("GITHUB_WORKFLOW_REF", ""), os.environ.get("GITHUB_RUN_ID", "")
    in_ci = bool(server and repository and workflow)
    return provenance.Build(
        repository=f"{server}/{repository}" if in_ci else "file://checkout",
        commit=release.commit.name,
        builder=f"{server}/{workflow}" if in_ci else "https://mptraining.dev/release/by-hand",
        started=release.started,
        finished=now(),
        invocation=f"{server}/{repository}/actions/runs/{run_id}" if in_ci and run_id else "",
    )


def make_checksums(release: Release) -> None:
    section = changelog.section((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), release.request.version)
    files = checksums.digests(release.files)
    key = Path(signatures.PUBLIC_KEY) if release.request.key else None
    by = signatures.Verifier("cosign", key, _build_of(release).builder, signatures.GITHUB_ISSUER)
    text = release_notes.notes(
        section or "",
        version=release.request.version,
        references=release.digests,
        files=files,
        verification=by.flags,
    )
    (release.files / release_notes.FILE).write_text(text, encoding="utf-8")
    (release.files / checksums.FILE).write_text(checksums.text(checksums.digests(release.files)), encoding="utf-8")


def make_signatures(release: Release) -> None:
    """Sign each file that is installed, the statement and the checksums; then pack all files as one artifact."""
    signer = signer_of(release)
    if signer.key:
        public = run(signer.cosign, "public-key", f"--key={signer.key}")
        (release.files / signatures.PUBLIC_KEY).write_text(public, encoding="utf-8")
    all_names = names(release.request)
    for name in (all_names.wheel, all_names.sdist, all_names.chart_file, "install.yaml", checksums.FILE):
        run(*signer.blob(release.files / name))
    run(*signer.statement(release.files / provenance.FILE))
    layers = [
        layout.Blob("application/octet-stream", path, title=path.name) for path in sorted(release.files.iterdir())
    ]
    release.digests[all_names.files] = layout.artifact(
        release.folder / "layouts" / "files", layout.Blob(layout.EMPTY, b"{}"), layers, artifact_type=FILES_TYPE
    )


def signer_of(release: Release) -> signatures.Signer:
    key = Path(release.request.key).resolve() if release.request.key else None
    offline = None
    if key:
        offline = release.folder / "signing-config.json"
        offline.write_text(signatures.OFFLINE, encoding="utf-8")
    return signatures.Signer(program("cosign"), key, offline)
