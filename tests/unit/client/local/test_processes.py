"""Real processes: every line arrives, every worker ends, and no process is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mptraining.local.outcome import End, GangEnd, Timeouts
from mptraining.local.processes import Stream, Worker, run_gang
from mptraining.local.watchdog import groups_left

Seen = list[tuple[int, Stream, str]]
QUICK = Timeouts(stop=0.5, peers=0.3)


def gang(*codes: str, seen: Seen | None = None, timeouts: Timeouts = QUICK) -> GangEnd:
    """Runs one worker for each piece of Python."""
    seen = [] if seen is None else seen
    workers = [
        Worker(index, (sys.executable, "-u", "-c", "import os,signal,subprocess,sys,time\n" + code), os.environ)
        for index, code in enumerate(codes)
    ]
    return run_gang(
        workers,
        on_line=lambda worker, stream, text: seen.append((worker, stream, text)),
        on_stop=lambda number: None,
        timeouts=timeouts,
    )


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def wait_until(true: Callable[[], bool], seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def test_lines_of_both_streams_arrive_in_order_with_their_worker() -> None:
    seen: Seen = []
    end = gang("print('a'); print('b')", "print('c', file=sys.stderr)", seen=seen)
    assert [each for each in seen if each[0] == 0] == [(0, "stdout", "a"), (0, "stdout", "b")]
    assert (1, "stderr", "c") in seen
    assert {each.code for each in end.ends} == {0}


def test_more_output_than_pipes_hold_on_both_streams_does_not_deadlock() -> None:
    seen: Seen = []
    gang("for _ in range(3000):\n  print('x' * 100); print('y' * 100, file=sys.stderr)", seen=seen)
    assert len(seen) == 6000


@pytest.mark.parametrize(
    ("written", "lines"),
    [
        pytest.param(r"b'no end'", ["no end"], id="a last line without its end"),
        pytest.param(r"b'10%\r20%\rdone\n'", ["done"], id="a line that redraws itself"),
        pytest.param(r"b'1/2\b\b\b2/2\n'", ["2/2"], id="Keras' progress bar"),
        pytest.param(r"b'\xff\xfe\n'", ["\ufffd\ufffd"], id="not UTF-8"),
        pytest.param(r"b'a\n\nb\r\n'", ["a", "", "b"], id="empty lines and carriage returns"),
    ],
)
def test_lines_as_a_terminal_shows_them(written: str, lines: list[str]) -> None:
    seen: Seen = []
    gang(f"sys.stdout.buffer.write({written})", seen=seen)
    assert [text for _, _, text in seen] == lines


def test_exit_codes_in_the_order_of_ends(tmp_path: Path) -> None:
    # The first one waits until the second has ended completely: until its end has been recorded.
    waits = f"""
from pathlib import Path
file = Path({str(tmp_path / "pid")!r})
while not file.exists() or os.path.exists("/proc/" + file.read_text()):
    time.sleep(0.01)
sys.exit(76)
"""
    says = f"""
open({str(tmp_path / "pid.new")!r}, "w").write(str(os.getpid()))
os.replace({str(tmp_path / "pid.new")!r}, {str(tmp_path / "pid")!r})
sys.exit(3)
"""
    end = gang(waits, says, timeouts=Timeouts(stop=60, peers=60))
    assert [(each.worker, each.code, each.signalled) for each in end.ends] == [(1, 3, False), (0, 76, False)]


def test_the_others_are_ended_when_one_fails_and_handlers_are_restored() -> None:
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    end = gang("time.sleep(600)", "sys.exit(1)", timeouts=Timeouts(stop=60, peers=0.3))
    assert end.ends == (End(1, 1, signalled=False), End(0, -signal.SIGTERM, signalled=True))
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before


def test_a_worker_that_ignores_sigterm_is_killed_after_the_grace(tmp_path: Path) -> None:
    ignores = f"signal.signal(signal.SIGTERM, signal.SIG_IGN); open({str(tmp_path / 'deaf')!r}, 'w'); time.sleep(600)"
    fails = f"while not os.path.exists({str(tmp_path / 'deaf')!r}): time.sleep(0.01)\nsys.exit(1)"
    begin = time.monotonic()
    end = gang(ignores, fails)
    assert end.ends[-1].code == -signal.SIGKILL
    assert time.monotonic() - begin < 120


def test_processes_of_a_worker_end_with_it() -> None:
    seen: Seen = []
    gang("print(subprocess.Popen(['sleep', '600']).pid)", seen=seen)
    wait_until(lambda: not is_alive(int(seen[0][2])))


def test_an_error_of_the_reader_leaves_no_worker_behind() -> None:
    pids: list[int] = []

    def read(worker: int, stream: Stream, text: str) -> None:
        pids.append(int(text))
        raise BrokenPipeError

    worker = Worker(0, (sys.executable, "-uc", "import os,time; print(os.getpid()); time.sleep(600)"), os.environ)
    with pytest.raises(BrokenPipeError):
        run_gang([worker], on_line=read, on_stop=lambda number: None, timeouts=QUICK)
    assert not is_alive(pids[0])


def test_workers_end_when_the_starter_is_killed() -> None:
    """Also one that ignores SIGTERM, and its own children."""
    code = """
import os, sys
from mptraining.local.processes import Worker, run_gang
from mptraining.local.outcome import Timeouts
child = "import os,signal,subprocess,time; signal.signal(15, signal.SIG_IGN)\\n"
child += "print(os.getpid(), subprocess.Popen(['sleep', '600']).pid, flush=True); time.sleep(600)"
run_gang([Worker(0, (sys.executable, "-c", child), os.environ)],
         on_line=lambda worker, stream, text: print(text, flush=True),
         on_stop=lambda number: None, timeouts=Timeouts(stop=0.3))
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment) as starter:
        assert starter.stdout
        pids = [int(part) for part in starter.stdout.readline().split()]
        assert len(pids) == 2
        starter.kill()
        wait_until(lambda: not any(is_alive(pid) for pid in pids))


def test_groups_left() -> None:
    assert groups_left([]) == []
    assert groups_left(["+12\n", "+13\n", "-12\n"]) == [13]
    assert groups_left(["+12\n", "+1x\n", "\n", "nonsense\n", "-99\n"]) == [12]
