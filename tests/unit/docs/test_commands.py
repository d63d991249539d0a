"""Every command in the documents can be run: mptj's and helm's options exist, and of kubectl verbs, files, jobs,
conditions and fields.
"""

from __future__ import annotations

import copy
import functools
import json
import re
from typing import Any, get_args, get_origin

import pytest
import yaml

from hack.helm_chart import ChartValues
from mptraining.cli.main import app
from mptraining_api.model import Model
from mptraining_api.spec import KIND, PAUSED, MPTrainingJob
from mptraining_api.status import CONDITION_TYPES, JobStatus
from mptraining_operator.settings import OperatorSettings
from tests.unit.docs.blocks import BASE, ROOT, SECTIONS, Block, of

# kubectl's verbs in the documents, and the kinds of their arguments.
_VERBS = ("annotate", "apply", "cp", "create", "delete", "describe", "events", "exec", "explain", "get", "label")

_VERBS += ("logs", "patch", "rollout", "taint", "wait")

# An annotation of the operator's, set or removed.
_ANNOTATIONS = (f"{PAUSED}=true", f"{PAUSED}-")

_CONDITIONS = {*CONDITION_TYPES, "Ready"}


@pytest.mark.parametrize("block", of("bash"))
def test_every_command_exists(block: Block) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    for program, *arguments in block.commands:
        if program == "make":
            variables = [argument.partition("=")[0] for argument in arguments if "=" in argument]
            assert all(re.search(rf"\${{1,2}}[({{]?{name}\b", makefile) for name in variables)
            assert {argument for argument in arguments if "=" not in argument} <= targets
        elif program == "mptj":
            _parse(arguments)
        elif program == "kubectl":
            _look_at_kubectl(block, arguments)
        elif program == "helm":
            _look_at_helm(arguments)
        elif program == "sed":
            assert arguments[0] == "s/registry.invalid/docker.io/"
            assert (ROOT / arguments[1]).is_file()
        else:
            assert program == "export", f"{program} is not run by this test"


def _look_at_helm(arguments: list[str]) -> None:
    """Check that the chart exists, and every value that is set."""
    verb, release, *rest = arguments
    assert verb in ("install", "upgrade", "test", "uninstall")
    assert release == "mptraining"
    for word in rest:
        if word.startswith("--set="):
            section, *path = word.removeprefix("--set=").split("=")[0].split(".")
            # The chart passes the settings on as they are.
            model, names = (OperatorSettings, path) if section == "settings" else (ChartValues, [section, *path])
            find_field(model, names)
        elif not word.startswith("--"):
            assert (ROOT / word / "Chart.yaml").exists()
        else:
            assert word.split("=")[0] in (
                "--namespace",
                "--create-namespace",
                "--take-ownership",
                "--reset-then-reuse-values",
                "--values",
            ), word


@functools.cache
def _mptj() -> Any:
    """Return the command line of mptj, whose commands do nothing."""
    command = copy.deepcopy(app)
    waiting: list[Any] = [command]
    while waiting:
        each = waiting.pop()
        each.callback = None
        waiting += getattr(each, "commands", {}).values()
    return command


def _parse(arguments: list[str]) -> None:
    """Parse the command line without running it. Raises click's error for an unknown argument."""
    _mptj().main(arguments, prog_name="mptj", standalone_mode=False)


def _look_at_kubectl(block: Block, arguments: list[str]) -> None:
    """Check all that needs no cluster: verb, files, jobs, conditions, fields."""
    if arguments[0] == "mptj":
        _parse(arguments[1:])
        return
    assert arguments[0] in _VERBS, f"kubectl {arguments[0]}: one of {', '.join(_VERBS)} is known here"
    if arguments[0] == "annotate":
        assert arguments[-1] in _ANNOTATIONS
    if arguments[0] == "label":
        assert dict([arguments[-1].split("=")]) == ChartValues().namespace.labels
    beside = SECTIONS[block.document, block.section]
    files = {each.file: each.text for each in beside if each.file}
    jobs = {name for text in (*files.values(), *_manifests()) for name in _jobs(text)}
    for word, following in zip(arguments, [*arguments[1:], ""], strict=True):
        if word == "-f":
            assert following in files or (ROOT / following).is_file(), f"no {following}"
        elif word == "mptj" and arguments[0] != "get" and arguments[0] != "explain":
            assert following in jobs
        elif word.startswith("mptj/"):
            assert word.removeprefix("mptj/") in jobs
        elif word.startswith("mptj.spec."):
            find_field(MPTrainingJob, word.split(".")[1:])
        elif word.startswith("--for=condition="):
            assert word.rpartition("=")[2] in _CONDITIONS
        elif word.startswith("--output=jsonpath={.status."):
            find_field(JobStatus, word.partition(".status.")[2].rstrip("}").split("."))
        elif word == "--patch":
            sections = {key: {**BASE.get(key, {}), **value} for key, value in json.loads(following).items()}
            MPTrainingJob.parse({"metadata": {"name": "patched"}, **BASE, **sections})


@functools.cache
def _manifests() -> tuple[str, ...]:
    return tuple(path.read_text("utf-8") for path in (ROOT / "manifests").rglob("*.yaml"))


@functools.cache
def _jobs(text: str) -> set[str]:
    return {
        each["metadata"]["name"]
        for each in yaml.load_all(text, Loader=yaml.CSafeLoader)
        if each and each.get("kind") == KIND
    }


def find_field(model: type[Model], path: list[str]) -> None:
    """Fail if a model has no such field."""
    parts = iter(path)
    for name in parts:
        field = next((field for field in model.model_fields.values() if field.alias == name), None)
        assert field is not None, f"{model.__name__} has no {name}"
        if get_origin(field.annotation) is dict:
            # The name of an item.
            next(parts, None)
        inner = [each for each in (field.annotation, *get_args(field.annotation)) if isinstance(each, type)]
        model = next((each for each in inner if issubclass(each, Model)), model)
