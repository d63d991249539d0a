"""`make push-images`: what the engine is asked to build and push, and what is printed for chart and GKE."""

from __future__ import annotations

import io
import json
import os
import shlex
import shutil
import tarfile
from pathlib import Path

import pytest

from gke.settings import Settings, check
from kind import engine, images
from kind.engine import Engine, Failed
from release import push
from release.programs import program, run
from tests.docs.model_fields import find_field
from tests.left_out import leave_out
from tests.testbed import release_servers
from tests.testbed.processes import free_ports
from tools.helm_chart import ChartValues

REGISTRY = "registry.example:5000/team"
_DIGEST = f"sha256:{64 * 'a'}"
# Docker prints the digest, Podman writes it into a file.
_ENGINE = f"""#!/bin/sh
echo "$@" >> {{folder}}/calls
if [ "$1" = push ]; then
  for word; do case "$word" in --digestfile=*) printf {_DIGEST} > "${{{{word#*=}}}}" ;; esac; done
  echo "0.1.0: digest: {_DIGEST} size: 12"
fi
"""


@pytest.fixture(params=["docker", "podman"])
def fake(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """An engine that records its calls in `calls` and answers a push with a digest."""
    path = tmp_path / request.param
    path.write_text(_ENGINE.format(folder=tmp_path))
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(images, "fill_context", lambda variant: None)
    monkeypatch.setattr(images, "secrets", dict)
    return Engine(request.param)


def calls(folder: Path, verb: str) -> list[list[str]]:
    return [words[1:] for words in map(shlex.split, (folder / "calls").read_text().splitlines()) if words[0] == verb]


@pytest.mark.parametrize("variant", ["cpu", "gpu"])
def test_three_images_are_built_and_pushed_under_the_chart_s_names(
    fake: Engine, variant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VARIANT", variant)
    digests = push.push_all(fake, REGISTRY)
    suffix = "" if variant == "cpu" else "-gpu"
    expected = [
        f"{REGISTRY}/mptraining/operator:{images.VERSION}",
        f"{REGISTRY}/mptraining/board:{images.VERSION}",
        f"{REGISTRY}/mptraining/trainer:{images.VERSION}{suffix}",
    ]
    assert [image.reference for image in digests] == expected
    assert set(digests.values()) == {_DIGEST}
    assert [words[words.index("--target") + 1] for words in calls(tmp_path, "build")] == [
        "operator",
        "board",
        "trainer",
    ]
    assert all(f"VARIANT={variant}" in words for words in calls(tmp_path, "build"))
    assert calls(tmp_path, "tag") == [[each.removeprefix(f"{REGISTRY}/"), each] for each in expected]
    assert [words[-1] for words in calls(tmp_path, "push")] == expected
    flags = push.values(REGISTRY, digests)
    assert flags[0] == f"--set=global.imageRegistry={REGISTRY}"
    assert flags[-1] == f"--set=trainer.digests.{variant}={_DIGEST}"
    for flag in flags:
        find_field(ChartValues, flag.removeprefix("--set=").partition("=")[0].split("."))


def test_the_command_prints_what_installs_these_images(
    fake: Engine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("VARIANT", raising=False)
    monkeypatch.setattr(push, "docker", lambda: fake)
    assert push.main(["--registry", "us-docker.pkg.dev/my-project/images/"]) == 0
    printed = capsys.readouterr().out
    assert f"us-docker.pkg.dev/my-project/images/mptraining/board:{images.VERSION}@{_DIGEST}" in printed
    assert (
        "helm install mptraining charts/mptraining --set=global.imageRegistry=us-docker.pkg.dev/my-project" in printed
    )
    check(Settings("my-project", images=printed.rpartition("--images=")[2].strip()), images_needed=True)


@pytest.mark.parametrize(("registry", "plain"), [("localhost:5000", True), ("localhost.example.com/team", False)])
def test_only_a_registry_on_loopback_is_spoken_to_without_tls(
    fake: Engine, registry: str, plain: bool, tmp_path: Path
) -> None:
    assert push.push(fake, f"{registry}/x:1") == _DIGEST
    (words,) = calls(tmp_path, "push")
    assert ("--tls-verify=false" in words) == (plain and fake.name == "podman")


@pytest.mark.parametrize("registry", ["", "https://registry.example", "registry.example/Team"])
def test_what_is_no_registry_is_refused_before_anything_is_built(fake: Engine, registry: str, tmp_path: Path) -> None:
    with pytest.raises(Failed, match=r"--registry '.*': expected HOST\[:PORT\]\[/PATH\]"):
        push.push_all(fake, registry)
    assert not (tmp_path / "calls").exists()


def test_an_unknown_variant_is_refused(fake: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VARIANT", "cuda")
    with pytest.raises(Failed, match="VARIANT=cuda: expected cpu, gpu, tpu"):
        push.push_all(fake, REGISTRY)


def test_a_push_that_fails_names_the_login(fake: Engine, tmp_path: Path) -> None:
    (tmp_path / fake.name).write_text("#!/bin/sh\necho denied >&2\nexit 1\n")
    with pytest.raises(Failed, match=rf"(?s)denied.*{fake.name} login registry\.example:5000$"):
        push.push(fake, f"{REGISTRY}/x:1")


@pytest.mark.soak
def test_a_registry_has_the_digest_that_podman_returns(tmp_path: Path) -> None:
    if release_servers.missing() or os.geteuid() != 0 or not shutil.which("podman"):
        leave_out(release_servers.missing() or "no Podman as root here")
    with tarfile.open(tmp_path / "image.tar", "w") as archive:
        entry = tarfile.TarInfo("file")
        entry.size = 4
        archive.addfile(entry, io.BytesIO(b"text"))
    (port,) = free_ports(1)
    reference = f"localhost:{port}/team/mptraining/operator:1"
    podman = engine.podman()
    podman("import", "--quiet", str(tmp_path / "image.tar"), reference)
    try:
        with release_servers.registry(tmp_path / "registry", port=port):
            digest = push.push(podman, reference)
            found = run(program("oras"), "manifest", "fetch", "--descriptor", "--plain-http", reference)
    finally:
        podman("rmi", reference)
    assert json.loads(found)["digest"] == digest
