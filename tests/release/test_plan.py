"""Names of what a release publishes, its order, and every reason to refuse it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kind.engine import Failed
from release.facts import is_absent
from release.plan import Facts, Request, chart_version, mistakes, names, refusals, registry_mistake, simple_index, steps

REQUEST = Request(
    "0.2.0", "registry.example:5000/team", "https://index.example/legacy/", "cosign.key", pythons=("python3.11",)
)
FACTS = Facts("0.2.0", "0.2.0", (), "# Changelog\n\n## [0.2.0] - 2030-01-01\n\n- New.\n", ())


@pytest.mark.parametrize(
    ("version", "semantic"),
    [("0.2.0", "0.2.0"), ("0.2.0rc1", "0.2.0-rc.1"), ("1.0.0a2", "1.0.0-alpha.2"), ("0.1.0.dev0", "0.1.0-dev.0")],
)
def test_a_chart_has_the_semantic_version(version: str, semantic: str) -> None:
    assert chart_version(version) == semantic


@pytest.mark.parametrize("version", ["v0.2.0", "0.2", "0.2.0-rc1", "0.2.0+local", ""])
def test_what_is_no_version_is_refused(version: str) -> None:
    (mistake,) = mistakes(replace(REQUEST, version=version))
    assert mistake.startswith("--version:")
    assert "0.2.0rc1" in mistake


def test_names_in_the_registry_and_the_index() -> None:
    found = names(REQUEST)
    assert found.references == (
        "registry.example:5000/team/mptraining/operator:0.2.0",
        "registry.example:5000/team/mptraining/board:0.2.0",
        "registry.example:5000/team/mptraining/trainer:0.2.0",
        "registry.example:5000/team/mptraining/trainer:0.2.0-gpu",
        "registry.example:5000/team/mptraining/trainer:0.2.0-tpu",
        "registry.example:5000/team/mptraining/charts/mptraining:0.2.0",
        "registry.example:5000/team/mptraining/release:0.2.0",
    )
    assert (found.wheel, found.sdist) == ("mptraining-0.2.0-py3-none-any.whl", "mptraining-0.2.0.tar.gz")


def test_a_release_that_may_start() -> None:
    assert refusals(REQUEST, FACTS) == []


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        (
            {"declared_version": "0.1.0"},
            "pyproject.toml: version is 0.1.0, not 0.2.0. Run `python -m release --prepare",
        ),
        ({"chart_version": "0.1.0"}, "Chart.yaml: version is 0.1.0"),
        ({"changed": ("a.py", "b.py")}, "the tree differs from its commit (a.py, b.py)"),
        ({"changelog": "# Changelog\n\n## [Unreleased]\n\n- New.\n"}, "no heading `## [0.2.0]`"),
        ({"changelog": "# Changelog\n\n## [0.2.0] - 2030-01-01\n\n## [0.1.0]\n"}, "no heading `## [0.2.0]`"),
        ({"published": ("registry.example/x:0.2.0",)}, "registry.example/x:0.2.0 exists already"),
    ],
)
def test_a_refusal_names_the_cause_and_the_next_step(changed: dict[str, object], named: str) -> None:
    (refusal,) = refusals(REQUEST, replace(FACTS, **changed))  # type: ignore[arg-type]
    assert named in refusal
    assert refusal.endswith(".")


def test_all_refusals_come_at_once() -> None:
    facts = Facts("0.1.0", "0.1.0", ("a.py",), "", ("x", "y"))
    assert len(refusals(REQUEST, facts)) == 6


def test_all_mistakes_of_a_request_come_at_once() -> None:
    wrong = Request("two", "https://registry.example/team", "index", variants=("cpu", "cuda"), base="python:3.11-slim")
    assert [each.split(" ")[0] for each in mistakes(wrong)] == [
        "--version:",
        "--registry",
        "--index",
        "--base:",
        "--python:",
        "--variants",
    ]


@pytest.mark.parametrize("registry", ["myhost/team", "team", "registry.example/Team", "registry.example:latest/team"])
def test_what_an_image_s_name_takes_for_a_repository_of_docker_hub_is_no_registry(registry: str) -> None:
    assert registry_mistake(registry) is not None


@pytest.mark.parametrize("registry", ["registry.example/team/", "registry:5000/team", "localhost/team", "docker.io"])
def test_a_host_with_a_dot_or_a_port_is_a_registry(registry: str) -> None:
    assert registry_mistake(registry) is None


@pytest.mark.parametrize(
    ("upload", "simple"),
    [
        ("https://upload.index.example/legacy/", "https://index.example/simple/"),
        ("https://test.index.example/legacy", "https://test.index.example/simple/"),
        ("https://index.example/team/", "https://index.example/team/simple/"),
    ],
)
def test_pypi_is_read_at_another_address_than_it_takes_uploads(upload: str, simple: str) -> None:
    assert simple_index(replace(REQUEST, index=upload)) == simple
    assert simple_index(replace(REQUEST, index=upload, simple_index="https://x.example/")) == "https://x.example/"


def test_an_upload_that_broke_off_between_two_files_may_be_completed() -> None:
    wheel, sdist = names(REQUEST).wheel, names(REQUEST).sdist
    assert refusals(REQUEST, replace(FACTS, published=(wheel,))) == []
    assert len(refusals(REQUEST, replace(FACTS, published=(wheel, sdist)))) == 2
    assert len(refusals(REQUEST, replace(FACTS, published=(wheel, names(REQUEST).chart)))) == 2


def test_the_extras_are_left_untested_on_purpose_alone() -> None:
    (mistake,) = mistakes(replace(REQUEST, pythons=()))
    assert mistake.startswith("--python:")
    assert "--without-environments" in mistake
    assert len(mistakes(replace(REQUEST, without_environments=True))) == 1
    without = replace(REQUEST, pythons=(), without_environments=True)
    assert mistakes(without) == []
    assert "environments" not in dict(steps(without))


@pytest.mark.parametrize(
    "said",
    [
        "Error: localhost:5000/x:0.2.0: not found",
        "Error response from registry: name unknown: repository name not known to registry",
        'Error: response status code 404: {"code":"MANIFEST_UNKNOWN"}',
    ],
)
def test_a_registry_that_knows_no_such_name(said: str) -> None:
    assert is_absent("localhost:5000/x:0.2.0", said)


@pytest.mark.parametrize(
    "said",
    [
        "Error: dial tcp 127.0.0.1:40404: connect: connection refused",
        "Error: credential helper not found in $PATH",
        "Error: lookup registry.example: no such host",
    ],
)
def test_a_registry_that_does_not_answer_is_not_an_empty_one(said: str) -> None:
    assert not is_absent("registry.example/x:0.2.0", said)


def test_a_registry_that_denies_names_the_next_step() -> None:
    with pytest.raises(Failed, match=r"denied: no\. Run `oras login ghcr.example`"):
        is_absent("ghcr.example/team/x:0.2.0", "Error response from registry: denied: no")


def test_a_base_is_judged_by_the_rule_of_the_images() -> None:
    (mistake,) = mistakes(replace(REQUEST, base="python:3.11-slim"))
    assert "docker buildx imagetools inspect" in mistake
    assert mistakes(replace(REQUEST, base="python@sha256:" + 64 * "0")) == []


def test_nothing_is_published_before_everything_is_signed() -> None:
    order = [name for name, _ in steps(REQUEST)]
    assert order[-3:] == ["upload", "index", "tags"]
    assert order.index("signatures") == len(order) - 4
    assert "keyless" in dict(steps(replace(REQUEST, key="")))["signatures"]


def test_the_command_has_a_function_for_each_step() -> None:
    from release.__main__ import STEPS

    assert list(STEPS) == [name for name, _ in steps(REQUEST)]
