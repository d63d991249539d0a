"""Names of what a release publishes, its order, and every reason to refuse it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from release.plan import Facts, Request, chart_version, mistakes, names, refusals, steps

REQUEST = Request("0.2.0", "registry.example:5000/team", "https://index.example/legacy/", "cosign.key")
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
    assert found.images[0].repository == "registry.example:5000/team/mptraining/operator"


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
        "--variants",
    ]


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
