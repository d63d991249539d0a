"""`LocalRunner` with real processes that print the trainer's Events."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from mptraining.local import runner
from mptraining.local.outcome import Timeouts
from mptraining.local.runner import LocalRunner, Machine, gpus_of_workers, this_machine, visible_gpus
from mptraining_api.problems import InvalidProgram, InvalidSpec, ResumeRefused
from tests.jobs import resolved_job

JobFile = Callable[..., Path]
Stub = Callable[[str], tuple[str, str]]
RunIn = Callable[..., Path]
Capture = pytest.CaptureFixture[str]
# The files of a real trainer's chief.
WRITES_FOLDER = """
job = json.load(open(os.environ["MPTRAINING_JOB_FILE"]))
os.makedirs(job["output"] + "/events", exist_ok=True)
json.dump(job, open(job["output"] + "/job.json", "w"))
open(f"{job['output']}/events/{attempt}-{incarnation}-{index}-0.jsonl", "w").close()
"""


pytestmark = pytest.mark.usefixtures("here")


def test_a_run_that_succeeds(job_file: JobFile, stub: Stub, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = """
    say("Progress", step=10, total_steps=10, epoch=1, metrics={"loss": 0.5})
    print("a word of the program's own")
    finish("Succeeded", 0, step=10, metrics={"val_accuracy": 0.9}, model="model/flowers.keras", seconds=12.0)
    """
    assert LocalRunner(command=stub(code)).run(job_file()).exit_code == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines[0] == "flowers: mlp on CPU"
    assert lines[1].split() == ["run", "folder", "runs/flowers"]
    assert "step 10/10  epoch 1  loss 0.5" in lines
    assert "a word of the program's own" in lines
    assert lines[-5:] == [
        "Succeeded: 10 steps in 12 s",
        "  metrics     val_accuracy 0.9",
        "  run folder  runs/flowers",
        "  model       runs/flowers/model/flowers.keras",
        "  next        mptj compare runs/flowers",
    ]
    assert err == ""


def test_the_environment_of_the_workers(job_file: JobFile, stub: Stub, capsys: pytest.CaptureFixture[str]) -> None:
    code = """
    names = ["MPTRAINING_HOSTS", "MPTRAINING_ATTEMPT", "MPTRAINING_INCARNATION", "MPTRAINING_SOURCE_FOLDER"]
    job = json.load(open(os.environ["MPTRAINING_JOB_FILE"]))
    print("TOLD", json.dumps([index, job["data"]["train"], *(os.environ[name] for name in names)]))
    finish("Succeeded", 0)
    """
    path = job_file(workers=2)
    assert LocalRunner(command=stub(code), incarnation=lambda: "one-uuid").run(path).exit_code == 0
    out = capsys.readouterr().out.splitlines()
    told = sorted(json.loads(line.partition("TOLD ")[2]) for line in out if "TOLD" in line)
    assert [line for line in out if line.startswith("[worker 1] TOLD")]
    assert not [line for line in out if line.startswith("[worker 0]")]
    assert [each[0] for each in told] == [0, 1]
    assert told[0][1:] == told[1][1:]
    data, hosts, *rest = told[0][1:]
    assert data == [f"{path.parent}/records/train-*.tfrecord"]
    assert rest == ["1", "one-uuid", str(path.parent)]
    assert len({host.rpartition(":")[2] for host in hosts.split(",")}) == 2


@pytest.mark.parametrize("debug", [False, True])
def test_tensorflows_own_messages_are_for_debugging(
    debug: bool, job_file: JobFile, stub: Stub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    noise = [
        "E0000 00:00:1.2 3 cpu.cc:4] oneDNN supports DT_HALF only on platforms with AVX-512.",
        "2026-01-01 00:00:00.0: I port.cc:153] oneDNN custom operations are on. You may see slightly different results",
        "I0000 00:00:1.2 3 cudart_stub.cc:31] Could not find cuda drivers on your machine, GPU will not be used.",
        "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
    ]
    monkeypatch.setenv("MPTRAINING_DEBUG", "1" if debug else "")
    code = f"""
    for line in {noise!r}: print(line, file=sys.stderr); print(line, flush=True)
    print("E0000 something that matters", file=sys.stderr, flush=True)
    finish("Succeeded", 0)
    """
    assert LocalRunner(command=stub(code)).run(job_file()).exit_code == 0
    out, err = capsys.readouterr()
    assert err.splitlines() == [*(noise if debug else []), "E0000 something that matters"]
    assert set(noise) <= set(out.splitlines()), "what the program itself prints stays"


def test_the_next_attempt_has_the_next_number(job_file: JobFile, stub: Stub, capsys: Capture) -> None:
    code = WRITES_FOLDER + "print('attempt', attempt); finish('ProgramFailed', 1, 'oops')"
    for _ in range(2):
        assert LocalRunner(command=stub(code)).run(job_file()).exit_code == 1
    shown = [line for line in capsys.readouterr().out.splitlines() if line.startswith("attempt")]
    assert shown == ["attempt 1", "attempt 2"]


@pytest.mark.parametrize(
    ("code", "exit_code", "said"),
    [
        # A mistake of the user's: no advice to run again.
        ("finish('InvalidData', 2, 'records/x: no such file')", 2, "InvalidData: records/x: no such file."),
        ("say('Saved', step=7, uri='x', bytes=1, seconds=0.1); finish('StorageUnavailable', 75, 'no answer')", 75,
         "StorageUnavailable: no answer. `mptj run FILE` resumes from step 7."),
        ("os.kill(os.getpid(), 9)", 137, "ProgramFailed: the trainer was killed (SIGKILL), perhaps because memory ran "
         "out. `mptj run FILE` starts again."),
        ("os.kill(os.getpid(), 11)", 139, "ProgramFailed: the trainer was ended by SIGSEGV. `mptj run FILE` starts "
         "again."),
        ("sys.exit(3)", 3, "Diverged: the trainer exited with code 3 (loss or weights are no longer finite numbers); "
         "the lines above may say why."),
    ],
)  # fmt: skip
def test_failures(job_file: JobFile, stub: Stub, capsys: Capture, code: str, exit_code: int, said: str) -> None:
    path = job_file()
    assert LocalRunner(command=stub(code)).run(path).exit_code == exit_code
    assert capsys.readouterr().err.splitlines()[-1] == f"mptj: {said.replace('FILE', str(path))}"


def test_one_worker_fails_the_others_exit(job_file: JobFile, stub: Stub, capsys: pytest.CaptureFixture[str]) -> None:
    code = """
    if index == 0: time.sleep(0.3); finish("PeerLost", 76, "worker 1 went away")
    finish("ProgramFailed", 1, "ValueError: bad")
    """
    # Whichever of them ends first on a busy machine: the other has time for its own end.
    assert LocalRunner(command=stub(code), timeouts=Timeouts(stop=60, peers=60)).run(job_file(workers=2)).exit_code == 1
    assert "mptj: ProgramFailed: worker 1: ValueError: bad." in capsys.readouterr().err


def test_a_folder_of_another_job_is_refused_before_anything_starts(
    job_file: JobFile, stub: Stub, tmp_path: Path
) -> None:
    LocalRunner(command=stub(WRITES_FOLDER), output="shared").run(job_file())
    with pytest.raises(ResumeRefused, match=r"metadata\.name was 'flowers' and is 'roses'"):
        LocalRunner(command=stub("open('started', 'w')"), output="shared").run(job_file(name="roses"))
    assert not Path("started").exists()


def test_without_tensorflow_nothing_starts(job_file: JobFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(InvalidProgram, match=r"TensorFlow is not installed here\. Install it with: pip install"):
        LocalRunner().run(job_file())


def test_a_finished_job_starts_nothing(job_file: JobFile, stub: Stub, run_in: RunIn, capsys: Capture) -> None:
    folder = run_in("flowers", steps=30)
    stored = json.loads((folder / "job.json").read_text())
    stored["data"]["train"] = [f"{job_file().parent}/records/train-*.tfrecord"]
    (folder / "job.json").write_text(json.dumps(stored))
    assert LocalRunner(command=stub("sys.exit(1)"), output=str(folder)).run(job_file(epochs=5)).exit_code == 0
    assert capsys.readouterr().out == (
        f"already finished at step 30: {folder}; delete the folder or raise spec.training.epochs "
        "(or totalSteps) to train on\n"
    )
    assert LocalRunner(command=stub("sys.exit(1)"), output=str(folder)).run(job_file(epochs=6)).exit_code == 1
    (folder / "job.json").write_text("{")
    with pytest.raises(ResumeRefused, match=r"job\.json: cannot be read"):
        LocalRunner(command=stub("pass"), output=str(folder)).run(job_file())


def test_absent_accelerators_fall_back_to_the_cpu(job_file: JobFile, stub: Stub, capsys: Capture) -> None:
    path = job_file()
    path.write_text(path.read_text().replace("{type: cpu}", "{type: t4, countPerWorker: 2}"))
    ends_early = stub("import os; os._exit(0)")
    assert LocalRunner(command=ends_early, machine=Machine(gpu=False, tpu=False)).run(path).exit_code == 1
    out, err = capsys.readouterr()
    assert "FellBackToCPU" in out
    assert "ProgramFailed: the trainer exited before it could report a result" in err


@pytest.mark.parametrize(
    ("visible", "workers", "shares"),
    [("3,5,7,-1,1", 1, [None]), ("3,5", 2, ["3", "5"]), ("3,5,7,9", 2, ["3", "5"])],
)
def test_workers_share_out_the_visible_gpus(visible: str, workers: int, shares: list[str | None]) -> None:
    job = resolved_job("a", accelerator={"type": "t4"}, workers=workers)
    assert gpus_of_workers(job, {"CUDA_VISIBLE_DEVICES": visible}) == shares


def test_too_few_visible_gpus_are_refused_and_hidden_ones_leave_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    job = resolved_job("a", accelerator={"type": "t4"}, workers=2)
    with pytest.raises(InvalidSpec, match=r"workers: 2 workers need 2 GPUs, and .* shows 1 \(CUDA_VISIBLE_DEVICES=3\)"):
        gpus_of_workers(job, {"CUDA_VISIBLE_DEVICES": "3"})
    # A machine with the driver of NVIDIA.
    monkeypatch.setattr(runner.Path, "exists", lambda _: True)
    gpus = {hidden: this_machine({"CUDA_VISIBLE_DEVICES": hidden}).gpu for hidden in ("", "-1", "3")}
    assert gpus == {"": False, "-1": False, "3": True}
    assert this_machine({}).gpu
    monkeypatch.setattr(runner.os, "listdir", lambda _: ["0000:01", "0000:02"])
    assert visible_gpus({}) == ["0", "1"]


def test_the_ports_of_workers_are_not_those_that_connections_get() -> None:
    ports = [port for _ in range(50) for port in runner._free_ports(4)]
    assert len(set(ports[:4])) == 4
    # Linux uses ports 32768 and up for connections, others 49152 and up.
    assert all(1024 < port < 32_768 for port in ports)


def test_the_output_of_every_worker_is_kept(job_file: JobFile, stub: Stub, here: Path) -> None:
    """Also that of child processes, of C++ code and of a crash, which write to the file descriptors."""
    code = """
    import subprocess
    print("printed by worker", index)
    subprocess.run(["echo", "printed by a child process"])
    say("Progress", step=10, total_steps=10, epoch=1, metrics={"loss": 0.5})
    os.write(2, b"the last words of C++")
    os.kill(os.getpid(), 11)
    """
    assert LocalRunner(command=stub(code), incarnation=lambda: "one-uuid").run(job_file(workers=2)).exit_code == 139
    for worker in (0, 1):
        lines = (here / f"runs/flowers/logs/1-one-uuid-{worker}-0.log").read_text().splitlines()
        assert sorted(lines) == ["printed by a child process", f"printed by worker {worker}", "the last words of C++"]
