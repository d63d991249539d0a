"""The base of every value: frozen, camelCase on the wire, strict on input, lenient on stored values."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from mptraining_api.model import Arguments, Count, Model
from mptraining_api.problems import InvalidSpec


class Inner(Model):
    step_count: Count | None = None


class Outer(Model):
    inner_values: tuple[Inner, ...] = ()
    arguments: Arguments | None = None


def test_camel_case_on_the_wire() -> None:
    value = Outer.parse({"innerValues": [{"stepCount": 3}]})
    assert value == Outer(inner_values=(Inner(step_count=3),))
    assert value.to_document() == {"innerValues": [{"stepCount": 3}]}


def test_a_value_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Inner(step_count=3).step_count = 4  # type: ignore[misc]


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"innerValues": [{}, {"stepCount": "3"}]}, "spec.innerValues[1].stepCount: '3' is not valid"),
        ({"innerValues": [{"stepCont": 3}]}, "spec.innerValues[0].stepCont: unknown field. Did you mean 'stepCount'?"),
        ({"a": 1, "b": 2}, "(1 more)"),
    ],
)
def test_a_bad_document_names_the_first_field(document: object, said: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        Outer.parse(document, where="spec")
    assert said in str(caught.value)


def test_stored_values_of_a_newer_version_are_read() -> None:
    assert Inner.read('{"stepCount": 3, "newer": true}') == Inner(step_count=3)


def test_free_form_arguments_stay_as_written() -> None:
    arguments = {"Any_Case": [1, 2.5, None, {"x": "y"}]}
    assert Outer.parse({"arguments": arguments}).to_document() == {"arguments": arguments, "innerValues": []}
