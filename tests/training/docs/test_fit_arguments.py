"""docs/guide/train.md has a row for each argument of `model.fit` of both generations, and each row's fields exist."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from mptraining_api.model import Model
from mptraining_api.problems import InvalidSpec
from mptraining_api.spec import JobSpec, MPTrainingJob

GUIDE = (Path(__file__).parents[3] / "docs" / "guide" / "train.md").read_text(encoding="utf-8")
_SECTION = re.search(r"#### The arguments of `fit`\n(.*?)\n#", GUIDE, re.DOTALL)
_ROW = re.compile(r"^\| (`.+?`) \| (supported|refused|meaningless here) \| (.+) \|$", re.MULTILINE)


def rows() -> dict[str, tuple[str, str]]:
    assert _SECTION is not None
    return {
        name: (kind, text)
        for names, kind, text in _ROW.findall(_SECTION.group(1))
        for name in re.findall(r"`(\w+)`", names)
    }


def arguments(package: str) -> set[str]:
    signature = inspect.signature(importlib.import_module(package).Model.fit)
    return set(signature.parameters) - {"self"}


@pytest.mark.parametrize("package", ["keras", "tf_keras"])
def test_every_argument_of_fit_has_a_row(package: str) -> None:
    assert arguments(package) <= rows().keys()


def test_no_row_is_of_an_argument_that_is_gone() -> None:
    assert rows().keys() == arguments("keras") | arguments("tf_keras")


@pytest.mark.parametrize("name", sorted(rows()))
def test_fields_that_a_row_names_are_fields_of_a_job(name: str) -> None:
    kind, text = rows()[name]
    fields = re.findall(r"`(?:spec\.)?((?:data|training|checkpoint)\.[\w.]+)`", text)
    assert fields or kind != "supported" or "program" in text
    for field in fields:
        assert _has(JobSpec, field.split(".")), field


@pytest.mark.parametrize("name", sorted(name for name, (kind, _) in rows().items() if kind == "refused"))
def test_what_is_refused_is_refused_by_its_name(name: str) -> None:
    first, *others = name.split("_")
    field = first + "".join(word.capitalize() for word in others)
    spec = {"accelerator": {"type": "cpu"}, "program": {"application": {"name": "mlp"}}, "training": {field: 1}}
    with pytest.raises(InvalidSpec, match=f"training.{field}: unknown field"):
        MPTrainingJob.parse({"metadata": {"name": "a"}, "spec": spec})


def _has(model: Any, path: list[str]) -> bool:
    if not path:
        return True
    (found,) = [each for name, each in model.model_fields.items() if (each.alias or name) == path[0]] or [None]
    if found is None:
        return False
    if len(path) == 1:
        return True
    kinds = [kind for kind in (found.annotation, *getattr(found.annotation, "__args__", ())) if inspect.isclass(kind)]
    return any(issubclass(kind, Model) and _has(kind, path[1:]) for kind in kinds)
