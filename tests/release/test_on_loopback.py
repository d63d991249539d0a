"""Publishing to a real registry and a real index: what is there afterwards is signed, complete and installable.

The images are stubs; `tests.soak.release_round` publishes real ones.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from release import build, facts, layout, publish
from release.plan import Request, names
from release.programs import attempt, program, run
from release.signatures import Verifier
from tests.left_out import leave_out
from tests.testbed import release_servers
from tests.testbed.processes import free_ports

pytestmark = pytest.mark.soak


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Iterator[build.Release]:
    missing = release_servers.missing()
    if missing:
        leave_out(missing)
    folder = tmp_path_factory.mktemp("release")
    os.environ |= {"COSIGN_PASSWORD": "", "UV_PUBLISH_USERNAME": "test", "UV_PUBLISH_PASSWORD": "test"}
    run(program("cosign"), "generate-key-pair", folder=folder)
    registry_port, index_port = free_ports(2)
    version = facts.declared_version(build.ROOT)
    registry, index = f"localhost:{registry_port}", f"http://127.0.0.1:{index_port}"
    request = Request(version, registry, f"{index}/", str(folder / "cosign.key"), ("cpu",))
    with (
        release_servers.registry(folder / "registry", port=registry_port),
        release_servers.package_index(folder / "index", port=index_port),
    ):
        release = build.Release(request, facts.commit(build.ROOT), folder / "made", build.now())
        build.make_distributions(release)
        for image in names(request).images:
            config = layout.Blob("application/vnd.oci.image.config.v1+json", b'{"architecture":"amd64","os":"linux"}')
            release.digests[image.reference] = layout.artifact(release.layout(image.reference), config, [])
            bill = {"serialNumber": "urn:uuid:1", "components": [], "metadata": {"component": {"name": image.target}}}
            (release.files / f"{image.bill}.cdx.json").write_text(json.dumps({"bomFormat": "CycloneDX", **bill}))
            (release.files / f"{image.bill}.spdx.json").write_text(json.dumps({"spdxVersion": "SPDX-2.3"}))
        build.make_chart(release)
        build.make_install_yaml(release)
        build.make_provenance(release)
        build.make_checksums(release)
        build.make_signatures(release)
        assert facts.in_registry(names(request).references) == []
        list(publish.upload(release))
        assert facts.in_registry(names(request).references) == [], "something has a name before everything is there"
        publish.index(release)
        # An upload that broke off after the wheel.
        next((folder / "index" / "packages").glob("*.tar.gz")).unlink()
        publish.index(release)
        publish.tags(release)
        yield release


def verifier(release: build.Release) -> Verifier:
    return Verifier(program("cosign"), Path(release.request.key).with_suffix(".pub"))


def test_everything_in_the_registry_is_signed_and_attested(published: build.Release) -> None:
    by_key = verifier(published)
    for reference in names(published.request).references:
        run(*by_key.reference(reference))
        run(*by_key.attestation(reference, "slsaprovenance1"))
    run(*by_key.attestation(names(published.request).images[0].reference, "cyclonedx"))


def test_the_version_exists_now_and_would_be_refused(published: build.Release) -> None:
    all_names = names(published.request)
    assert facts.in_registry(all_names.references) == list(all_names.references)
    simple = f"{published.request.index}simple/"
    assert facts.in_index(simple, published.request.version) == [all_names.wheel, all_names.sdist]
    assert facts.in_index(simple, "9.9.9") == []


def test_the_files_come_back_with_their_checksums(published: build.Release, tmp_path: Path) -> None:
    files = names(published.request).files
    run(program("oras"), "pull", "--plain-http", "--no-tty", "--output", tmp_path, files)
    run("sha256sum", "--check", "--quiet", "--strict", "SHA256SUMS", folder=tmp_path)
    statement = tmp_path / "provenance.intoto.json"
    run(*verifier(published).statement(statement, tmp_path / "install.yaml"))
    run(*verifier(published).blob(tmp_path / "SHA256SUMS"))


def test_helm_takes_the_chart_and_renders_the_images_by_digest(published: build.Release) -> None:
    all_names = names(published.request)
    repository, _, version = all_names.chart.rpartition(":")
    from_registry = (f"oci://{repository}", "--version", version, "--plain-http", "--kube-version", build.KUBE_VERSION)
    template = (program("helm"), "template", "x", *from_registry)
    rendered = run(*template)
    for image in (all_names.images[0], all_names.images[2]):
        assert published.pinned(image.reference) in rendered
    mirrored = run(*template, "--set", "global.imageRegistry=mirror.example")
    assert f"mirror.example/mptraining/operator@{published.digests[all_names.images[0].reference]}" in mirrored


def test_another_key_verifies_nothing(published: build.Release, tmp_path: Path) -> None:
    run(program("cosign"), "generate-key-pair", folder=tmp_path)
    stranger = Verifier(program("cosign"), tmp_path / "cosign.pub")
    assert attempt(*stranger.reference(names(published.request).chart)).returncode != 0
