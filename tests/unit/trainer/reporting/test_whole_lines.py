"""Lines on standard output stay whole, for any threads that write them."""

from __future__ import annotations

import io
import threading

from mptraining_trainer.reporting.telemetry import WholeLines, as_whole_lines


def test_a_print_of_several_parts_is_not_split_by_another_thread() -> None:
    out = io.StringIO()
    lines = WholeLines(out)
    lines.write("Epochs:")
    other = threading.Thread(target=lambda: print("of another", file=lines))
    other.start()
    other.join()
    lines.line("an event")
    print("", 3, file=lines)
    assert out.getvalue() == "of another\nan event\nEpochs: 3\n"


def test_a_line_that_was_flushed_before_its_end_is_ended_for_an_event() -> None:
    out = io.StringIO()
    lines = WholeLines(out)
    print("3/10 [===", end="", file=lines, flush=True)
    lines.line("an event")
    print("4/10 [====", end="\n", file=lines)
    assert out.getvalue() == "3/10 [===\nan event\n4/10 [====\n"


def test_a_line_without_an_end_is_passed_on() -> None:
    out = io.StringIO()
    WholeLines(out).write("." * 10_000)
    assert out.getvalue() == "." * 10_000


def test_several_lines_at_once_and_the_beginning_of_another() -> None:
    out = io.StringIO()
    lines = WholeLines(out)
    assert lines.write("one\ntwo\nthr") == 11
    assert out.getvalue() == "one\ntwo\n"
    lines.flush()
    assert out.getvalue() == "one\ntwo\nthr"


def test_the_rest_of_an_ended_thread_is_not_lost() -> None:
    out = io.StringIO()
    lines = WholeLines(out)
    gone = threading.Thread(target=lambda: lines.write("last words"))
    gone.start()
    gone.join()
    lines.flush()
    assert out.getvalue() == "last words"


def test_there_is_one_around_a_stream() -> None:
    lines = as_whole_lines(io.StringIO())
    assert as_whole_lines(lines) is lines
