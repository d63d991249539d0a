"""Lines on standard output stay whole, for any threads that write them."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable

import pytest

from mptraining_trainer.reporting.telemetry import WholeLines, as_whole_lines


@pytest.fixture
def out() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def lines(out: io.StringIO) -> WholeLines:
    return WholeLines(out)


def in_thread(call: Callable[[], object]) -> None:
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


def test_a_print_of_several_parts_is_not_split_by_another_thread(out: io.StringIO, lines: WholeLines) -> None:
    lines.write("Epochs:")
    in_thread(lambda: print("of another", file=lines))
    lines.line("an event")
    print("", 3, file=lines)
    assert out.getvalue() == "of another\nan event\nEpochs: 3\n"


def test_a_line_that_was_flushed_before_its_end_is_ended_for_an_event(out: io.StringIO, lines: WholeLines) -> None:
    print("3/10 [===", end="", file=lines, flush=True)
    lines.line("an event")
    print("4/10 [====", end="\n", file=lines)
    assert out.getvalue() == "3/10 [===\nan event\n4/10 [====\n"


def test_lines_without_an_end_are_passed_on_when_they_are_long_flushed_or_of_an_ended_thread(
    out: io.StringIO, lines: WholeLines
) -> None:
    assert lines.write("one\ntwo\nthr") == 11
    assert out.getvalue() == "one\ntwo\n"
    lines.flush()
    assert out.getvalue() == "one\ntwo\nthr"
    lines.write("." * 10_000)
    assert out.getvalue() == "one\ntwo\nthr" + "." * 10_000
    in_thread(lambda: lines.write("last words"))
    lines.flush()
    assert out.getvalue().endswith(".last words")


def test_there_is_one_around_a_stream(lines: WholeLines) -> None:
    assert as_whole_lines(lines) is lines
