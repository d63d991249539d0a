"""Names of images are parsed as a container runtime parses them."""

from __future__ import annotations

import pytest

from mptraining_api.pods.images import (
    ImageReference,
    has_moving_tag,
    is_in_registry,
    matches,
    parse_image,
    parse_location,
)

DIGEST = "sha256:" + "0" * 64
OTHER = "sha256:" + "1" * 64


@pytest.mark.parametrize(
    ("text", "repository", "tag", "digest"),
    [
        ("nginx", "docker.io/library/nginx", "", ""),
        ("team/trainer:1", "docker.io/team/trainer", "1", ""),
        ("index.docker.io/team/trainer", "docker.io/team/trainer", "", ""),
        ("localhost/trainer", "localhost/trainer", "", ""),
        ("localhost:5000/a/b:v", "localhost:5000/a/b", "v", ""),
        ("GCR.io/p/trainer", "gcr.io/p/trainer", "", ""),
        (f"gcr.io/p/trainer:1@{DIGEST}", "gcr.io/p/trainer", "", DIGEST),
    ],
)
def test_an_image_is_taken_apart(text: str, repository: str, tag: str, digest: str) -> None:
    assert parse_image(text) == ImageReference(repository, tag, digest)
    assert has_moving_tag(text) is (not tag and not digest)
    assert has_moving_tag("nginx:latest")


@pytest.mark.parametrize(
    "text", ["", "https://gcr.io/p/trainer", "gcr.io/", "Trainer", "a b", "gcr.io/p/../q", "a:", "a@sha256:0", "a\n"]
)
def test_what_is_no_image(text: str) -> None:
    with pytest.raises(ValueError, match="is no image"):
        parse_image(text)
    assert not has_moving_tag(text), "the job may name it, and the kubelet refuses it"


@pytest.mark.parametrize("text", ["", "https://gcr.io", "gcr.io/p:1", "gcr.io//p", "*", "gcr.io/*"])
def test_what_is_no_registry(text: str) -> None:
    with pytest.raises(ValueError, match="is no registry"):
        parse_location(text)


@pytest.mark.parametrize(
    ("image", "location", "inside"),
    [
        ("gcr.io/p/trainer", "gcr.io/p", True),
        ("gcr.io/p/trainer", "gcr.io/p/", True),
        ("gcr.io/pirate/trainer", "gcr.io/p", False),
        ("gcr.io.evil.org/p/trainer", "gcr.io", False),
        ("evil.org/gcr.io/p/trainer", "gcr.io/p", False),
        ("nginx", "index.docker.io", True),
        ("gcr.io:443/p/trainer", "gcr.io", False),
    ],
)
def test_an_image_is_in_a_registry(image: str, location: str, inside: bool) -> None:
    assert is_in_registry(parse_image(image), parse_location(location)) is inside


@pytest.mark.parametrize(
    ("image", "allowed", "same"),
    [
        ("gcr.io/p/trainer:2", "gcr.io/p/trainer", True),
        ("gcr.io/p/trainer", "gcr.io/p/trainer:latest", True),
        ("gcr.io/p/trainer:2", "gcr.io/p/trainer:1", False),
        ("gcr.io/p/trainer2", "gcr.io/p/trainer", False),
        (f"gcr.io/p/trainer@{DIGEST}", f"gcr.io/p/trainer:1@{DIGEST}", True),
        (f"gcr.io/p/trainer@{OTHER}", f"gcr.io/p/trainer@{DIGEST}", False),
        ("gcr.io/p/trainer:1", f"gcr.io/p/trainer:1@{DIGEST}", False),
        pytest.param(f"gcr.io/p/trainer:1@{OTHER}", "gcr.io/p/trainer:1", False, id="the digest decides, not the tag"),
    ],
)
def test_an_image_is_the_allowed_one(image: str, allowed: str, same: bool) -> None:
    assert matches(parse_image(image), parse_image(allowed)) is same
