"""Layouts, signatures' commands, and metadata of wheels."""

from __future__ import annotations

import hashlib
import json
from email.parser import Parser
from pathlib import Path
from typing import Any

import pytest

from kind.engine import ROOT
from release import distributions, layout
from release.chart import pack
from release.readme import ReadmeHook, with_absolute_links
from release.signatures import Signer, Verifier

METADATA = """Metadata-Version: 2.4
Name: mptraining
Version: 0.2.0
Summary: Jobs.
License-Expression: Apache-2.0
Keywords: keras
Requires-Python: <3.13,>=3.11
Description-Content-Type: text/markdown
Classifier: Programming Language :: Python :: 3.11
Classifier: Programming Language :: Python :: 3.12
Provides-Extra: dev
Provides-Extra: board
"""


def test_a_layout_has_every_blob_under_its_digest(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(b"hello")
    blobs = [layout.Blob("text/plain", file, title="a.txt")]
    folder = tmp_path / "layout"
    digest = layout.artifact(folder, layout.Blob(layout.EMPTY, b"{}"), blobs, artifact_type="x/y")
    index = json.loads((folder / "index.json").read_text())
    assert [each["digest"] for each in index["manifests"]] == [digest]
    for path in (folder / "blobs" / "sha256").iterdir():
        assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name
    manifest = json.loads((folder / "blobs" / "sha256" / digest.removeprefix("sha256:")).read_text())
    assert manifest["layers"][0]["annotations"] == {layout.TITLE: "a.txt"}
    assert manifest["layers"][0]["size"] == 5
    assert layout.artifact(folder, layout.Blob(layout.EMPTY, b"{}"), blobs, artifact_type="x/y") == digest


def test_a_chart_is_packed_to_the_same_bytes(tmp_path: Path) -> None:
    chart = tmp_path / "chart"
    (chart / "templates").mkdir(parents=True)
    for name in ("values.yaml", "Chart.yaml", "templates/a.yaml"):
        (chart / name).write_text(name)
    pack(chart, tmp_path / "one.tgz", epoch=1_900_000_000)
    (chart / "values.yaml").touch()
    pack(chart, tmp_path / "two.tgz", epoch=1_900_000_000)
    assert (tmp_path / "one.tgz").read_bytes() == (tmp_path / "two.tgz").read_bytes()


def test_a_key_signs_without_any_service_and_no_key_asks_the_identity_of_the_ci() -> None:
    offline = Path("offline.json")
    with_key = Signer("cosign", Path("k"), offline).reference("r/x@sha256:1")
    assert with_key == ["cosign", "sign", "--yes", "--key=k", "--signing-config=offline.json", "r/x@sha256:1"]
    assert Signer("cosign").blob(Path("f")) == ["cosign", "sign-blob", "--yes", "--bundle=f.sigstore.json", "f"]
    keyless = Verifier("cosign", identity="https://ci.example/w", issuer="https://ci.example").reference("r/x:1")
    assert "--certificate-identity=https://ci.example/w" in keyless
    assert not any("ignore-tlog" in each for each in keyless)


def test_a_tag_is_never_signed() -> None:
    with pytest.raises(ValueError, match="a tag may move"):
        Signer("cosign").reference("registry.example/x:0.2.0")


@pytest.mark.parametrize(
    ("before", "after", "mistake"),
    [
        ("Version: 0.2.0", "Version: 0.1.0", "Version is 0.1.0, not 0.2.0"),
        ("License-Expression: Apache-2.0\n", "", "License-Expression is missing"),
        ("<3.13", "<3.14", "classifiers name Python 3.11, 3.12, Requires-Python allows 3.11, 3.12, 3.13"),
    ],
)
def test_metadata_that_would_mislead_is_refused(before: str, after: str, mistake: str) -> None:
    assert distributions.metadata_mistakes(Parser().parsestr(METADATA), "0.2.0") == []
    assert distributions.metadata_mistakes(Parser().parsestr(METADATA.replace(before, after)), "0.2.0") == [mistake]


def test_the_extra_of_developers_is_not_checked() -> None:
    assert distributions.extras(Parser().parsestr(METADATA)) == ["board"]


def test_links_of_the_description_lead_to_the_tag_of_the_repository(tmp_path: Path) -> None:
    (tmp_path / "examples").mkdir()
    text = "![a [b]](p.svg) [`c`](d.md#e) [f](examples) [g](#h) [i](https://j.example/)\n\n```text\n[k](l)\n```\n"
    address = "https://github.com/owner/name"
    assert with_absolute_links(text, tmp_path, "owner/name", "v1.0.0") == (
        f"![a [b]]({address}/raw/v1.0.0/p.svg) [`c`]({address}/blob/v1.0.0/d.md#e) [f]({address}/tree/v1.0.0/examples) "
        "[g](#h) [i](https://j.example/)\n\n```text\n[k](l)\n```\n"
    )


def test_without_a_repository_the_description_is_the_readme(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MPTRAINING_REPOSITORY", raising=False)
    metadata: dict[str, Any] = {"version": "1.0.0"}
    ReadmeHook(str(ROOT), {}).update(metadata)
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert metadata == {
        "version": "1.0.0",
        "urls": {},
        "readme": {"content-type": "text/markdown", "text": text},
    }
    monkeypatch.setenv("MPTRAINING_REPOSITORY", "owner/name")
    ReadmeHook(str(ROOT), {}).update(metadata)
    assert "](docs/" not in str(metadata["readme"])
    assert metadata["urls"]["Changelog"] == "https://github.com/owner/name/blob/v1.0.0/CHANGELOG.md"
