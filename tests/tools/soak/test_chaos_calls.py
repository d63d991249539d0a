"""Calls are asked again while a server is down, and not for ever."""

from __future__ import annotations

from typing import Any

import pytest

from tests.soak.chaos.calls import insisted, listed
from tests.testbed.kubernetes.rest import Refused


def calls(*answers: Any) -> Any:
    left = list(answers)

    def call() -> Any:
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return call


def refused(code: int) -> Refused:
    return Refused(code, {"reason": "No"})


def test_it_is_asked_again_until_there_is_an_answer() -> None:
    assert insisted(calls(ConnectionError("down"), refused(503), 7)) == 7
    assert listed(calls(refused(500), {"items": [{"a": 1}]})) == [{"a": 1}]


@pytest.mark.parametrize("code", [404, 409])
def test_what_is_over_or_done_is_no_answer(code: int) -> None:
    assert insisted(calls(refused(code))) is None
    assert listed(calls(refused(code))) == []


def test_a_mistake_is_not_tried_again_nor_anything_for_ever() -> None:
    with pytest.raises(Refused, match="422"):
        insisted(calls(refused(422)))
    with pytest.raises(ConnectionError):
        insisted(calls(ConnectionError("down")), seconds=0)
    with pytest.raises(Refused, match="500"):
        insisted(calls(refused(500)), seconds=0)
