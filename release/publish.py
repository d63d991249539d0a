"""The steps that publish: everything by digest first, signed there, then the index, and the tags last."""

from __future__ import annotations

from collections.abc import Iterator

from release import signatures
from release.build import Release, signer_of
from release.facts import plain_http
from release.plan import names, simple_index
from release.programs import program, run


def upload(release: Release) -> Iterator[str]:
    """Push images, chart and files under their digests, and sign them there; yield a line for each."""
    all_names = names(release.request)
    signer = signer_of(release)
    bills = {each.reference: each.bill for each in all_names.images}
    folders = {each.reference: release.layout(each.reference) for each in all_names.images}
    folders |= {
        all_names.chart: release.folder / "layouts" / "chart",
        all_names.files: release.folder / "layouts" / "files",
    }
    for reference, folder in folders.items():
        pinned = release.pinned(reference)
        # The name in the layout: release.layout.
        to = [f"--to{each[1:]}" for each in plain_http(pinned)]
        run(program("oras"), "cp", *to, "--no-tty", "--from-oci-layout", f"{folder}:release", pinned)
        run(*signer.reference(pinned))
        run(*signer.attestation(pinned, signatures.PROVENANCE, release.folder / "predicate.json"))
        if reference in bills:
            for suffix, kind in signatures.BILLS.items():
                run(*signer.attestation(pinned, kind, release.files / f"{bills[reference]}{suffix}"))
        yield f"{pinned} pushed and signed"


def index(release: Release) -> None:
    """Upload wheel and sdist; uv reads its token, or the CI's identity, from the environment.

    A file that the index has with the same bytes is passed over; one with other bytes is an error.
    """
    all_names = names(release.request)
    files = [release.files / each for each in (all_names.wheel, all_names.sdist)]
    to = ("--publish-url", release.request.index, "--check-url", simple_index(release.request))
    run(program("uv"), "publish", "--quiet", *to, *files)


def tags(release: Release) -> None:
    """Give everything in the registry its name."""
    for reference in names(release.request).references:
        run(program("oras"), "tag", *plain_http(reference), release.pinned(reference), reference.rpartition(":")[2])
