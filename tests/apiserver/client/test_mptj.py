"""Every verb of `mptj` against the real API server, with the operator and a simulated kubelet.

Logs and exec requests pass through the API server to the node, where `tests.testbed.nodes.node_server` answers.
"""

from __future__ import annotations

import base64
import functools
import importlib
import itertools
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

import mptraining
from mptraining_api.events import Finished, Notice, Progress, Raised, Started
from mptraining_api.run_folder import FunctionResult
from tests.testbed import Behaviour, Exit, NodeServer, Run
from tests.testbed.mptj import Ended
from tests.testbed.nodes.pods import Pod

Mptj = Callable[..., Ended]


@pytest.fixture
def mptj(ns: Any, mptj: Mptj, use: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Mptj:
    """Runs a command in the shared namespace."""
    use(ns.control_plane, ns.namespace)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return mptj


@pytest.fixture
def submitted(ns: Any) -> Iterator[Callable[[str, Any], None]]:
    """Sets the behaviour of the pods of a job that `mptj` submits."""
    names: list[str] = []

    def script(name: str, behaviour: Callable[[Pod], Behaviour]) -> None:
        ns.scripts[name] = behaviour
        names.append(name)

    yield script
    for name in names:
        ns.scripts.pop(name, None)


def write(folder: Path, document: dict[str, Any]) -> str:
    path = folder / f"{document['metadata']['name']}.yaml"
    path.write_text(yaml.safe_dump(document))
    return str(path)


def worker_log(index: int, attempt: int, *kinds: Any) -> list[str]:
    """Return a worker's log: a line of the program, then events of an attempt."""
    common: dict[str, Any] = {"attempt": attempt, "incarnation": "x", "worker": index}
    logged: list[Any] = [
        Started(
            time=1.0, strategy="MultiWorkerMirrored", precision="float32", keras="Keras3", tensorflow="2.21.0",
            devices=("CPU:0",), workers=2, replicas_in_sync=2, global_batch_size=64, total_steps=20, **common,
        ),
        *(
            Progress(
                time=1.0 + step, step=step, total_steps=20, epoch=1, metrics={"loss": 1 / step, "val_loss": 2 / step},
                examples_per_second=100.0, step_seconds=0.64, **common,
            )
            for step in (10, 20)
        ),
        *(kind(time=30.0, **common) for kind in kinds),
    ]  # fmt: skip
    return [f"worker {index} loads flowers", *(each.to_json() for each in logged)]


def finished(**fields: Any) -> Finished:
    return Finished(reason="Succeeded", exit_code=0, message="", step=20, metrics={"loss": 0.05}, **fields)


@pytest.fixture
def pods_that_log(node_server: NodeServer) -> Callable[..., Callable[[Pod], Behaviour]]:
    """Pods that log an attempt's events and then do `then`."""

    def make(then: Callable[[Pod], Behaviour] = lambda pod: Exit(0, after=0.5), *kinds: Any) -> Any:
        def script(pod: Pod) -> Behaviour:
            log = node_server.log(pod.namespace, pod.name)
            log.say(*worker_log(pod.index or 0, int(pod.job.rpartition("-")[2]), *kinds))
            log.close()
            return then(pod)

        return script

    return make


def test_submit_list_status_wait_and_logs(
    ns: Any, mptj: Mptj, submitted: Any, pods_that_log: Any, tmp_path: Path
) -> None:
    """One job through the verbs that every user needs."""
    submitted("everyday", pods_that_log(lambda pod: Exit(0, after=1.0), finished))
    document = ns.document("everyday", output={"uri": "/runs/everyday"})
    made = mptj("submit", write(tmp_path, document), "--output", "name")
    assert (made.returncode, made.stdout) == (0, "mptrainingjob.mptraining.dev/everyday\n"), made.stderr
    # As in kubectl's output, a name may be piped to the next command.
    ended = mptj("wait", "mptrainingjob.mptraining.dev/everyday", "--plain")
    assert ended.returncode == 0, ended.stderr
    for text in ("training starts: MultiWorkerMirrored on 2 workers", "step 20/20  epoch 1  loss 0.05", "Succeeded"):
        assert text in ended.stdout
    assert "mptj compare everyday" in ended.stdout

    listed = mptj("list")
    (row,) = [line for line in listed.stdout.splitlines() if line.startswith("everyday ")]
    headings = ["NAME", "PHASE", "ACCELERATOR", "WORKERS", "PROGRESS", "METRICS", "AGE"]
    assert listed.stdout.splitlines()[0].split() == headings
    assert row.split()[1:6] == ["Succeeded", "1", "x", "cpu", "2"]
    assert "mptrainingjob.mptraining.dev/everyday\n" in mptj("list", "-o", "name").stdout
    assert {"everyday"} <= {job["metadata"]["name"] for job in json.loads(mptj("list", "-o", "json").stdout)["items"]}
    everywhere = mptj("list", "--all-namespaces").stdout
    assert any(line.split()[:2] == [ns.namespace, "everyday"] for line in everywhere.splitlines())

    status = mptj("status", "everyday").stdout
    assert status.startswith("everyday: Succeeded, attempt 1\n")
    for text in ("why         Succeeded:", "MultiWorkerMirrored, float32, 2 workers", "attempts    1 Succeeded"):
        assert text in status
    assert yaml.safe_load(mptj("status", "everyday", "-o", "yaml").stdout)["status"]["phase"] == "Succeeded"

    lines = mptj("logs", "everyday").stdout.splitlines()
    assert lines[0] == "worker 0 loads flowers"
    assert "[worker 1] worker 1 loads flowers" in lines
    second = mptj("logs", "everyday", "--worker", "1", "--raw").stdout.splitlines()
    assert second[0] == "worker 1 loads flowers"
    assert json.loads(second[1])["kind"] == "Started"


def test_logs_are_followed_over_a_restart(ns: Any, mptj: Mptj, pods_that_log: Any) -> None:
    def ends(pod: Pod) -> Behaviour:
        if pod.job.endswith("-1"):
            return Exit(1, after=0.5) if pod.index == 0 else Run()
        return Exit(0, after=0.5)

    ns.create("restarts", pods_that_log(ends))
    followed = mptj("logs", "restarts", "--follow", "--worker", "0", "--attempt", "1")
    assert followed.returncode == 0
    assert followed.stdout.count("worker 0 loads flowers") == 2


def test_a_log_that_is_cut_off_resumes_without_repeating_a_line(ns: Any, node_server: NodeServer, mptj: Mptj) -> None:
    ns.create("cut", lambda pod: Run(), workers=1)
    ns.running("cut")
    (pod,) = ns.control_plane.pods.select(ns.namespace, **{"mptraining.dev/job": "cut"})
    log = node_server.log(ns.namespace, pod.name)
    log.say("one", "two")
    job = mptraining.attach("cut")
    lines = job.log_lines(follow=True)
    assert [next(lines), next(lines)] == ["one", "two"]
    log.cut()
    log.say("three")
    # The client reconnects at the next change of the job, once it has noticed that the connection ended.
    with job_that_changes(ns, "cut"):
        assert next(lines) == "three"
    log.close()
    ns.kubelet.tell(pod, Exit(0))
    assert list(lines) == []


@contextmanager
def job_that_changes(ns: Any, name: str) -> Iterator[None]:
    """Change the job again and again in the background."""
    enough = threading.Event()

    def change() -> None:
        for number in itertools.count():
            ns.patch(name, {"metadata": {"annotations": {"touched": str(number)}}})
            if enough.wait(0.2):
                return

    thread = threading.Thread(target=change)
    thread.start()
    try:
        yield
    finally:
        enough.set()
        thread.join()


@pytest.mark.parametrize(("code", "reason", "advice"), [(2, "InvalidData", "spec.data"), (3, "Diverged", "clipnorm")])
def test_wait_leaves_with_the_jobs_code_and_says_why(ns: Any, mptj: Mptj, code: int, reason: str, advice: str) -> None:
    last = Finished(
        time=1.0, attempt=1, incarnation="x", worker=0, reason=reason, exit_code=code, message="nothing matches 'gs://b/*'"
    )  # fmt: skip
    name = reason.lower()
    ns.create(name, lambda pod: Exit(code, after=0.3, message=last.to_json()) if pod.index == 0 else Run())
    ended = mptj("wait", name)
    assert ended.returncode == code
    assert f"Failed: {reason}: " in ended.stdout
    assert "nothing matches 'gs://b/*'" in ended.stdout
    assert advice in ended.stdout
    assert advice in mptj("status", name).stdout


def test_wait_has_a_timeout_and_ctrl_c_ends_only_the_wait(ns: Any, mptj: Mptj) -> None:
    ns.create("endless", lambda pod: Run())
    ns.running("endless")
    # Long enough for the first request.
    late = mptj("wait", "endless", "--timeout", "3")
    assert late.returncode == 124
    assert "mptj: endless: still Running after 3 s. The job continues; wait again: mptj wait endless" in late.stderr
    process = subprocess.Popen(
        # A shell starts background processes with SIGINT ignored, and their children inherit it.
        ["env", "--default-signal=INT", sys.executable, "-m", "mptraining", "wait", "endless"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    assert process.stdout.readline().startswith("Running: Running: ")
    process.send_signal(signal.SIGINT)
    try:
        _, err = process.communicate(timeout=600)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "Detached; the job continues. Attach again: mptj wait endless   Cancel it: mptj cancel endless" in err
    assert ns.status("endless")["phase"] == "Running"


def pods_of(ns: Any, name: str) -> list[str]:
    """Return the job's pods in any state."""
    return [pod.name for pod in ns.control_plane.pods.select(ns.namespace, **{"mptraining.dev/job": name})]


def test_suspend_resume_and_cancel(ns: Any, mptj: Mptj) -> None:
    ns.create("paused", lambda pod: Run())
    ns.running("paused")
    assert "to continue it: mptj resume paused" in mptj("suspend", "paused").stdout
    ns.phase("paused", "Suspended")
    ns.wait(lambda: pods_of(ns, "paused"), lambda left: not left)
    status = mptj("status", "paused").stdout
    assert "paused: Suspended" in status
    assert "advice      to continue: mptj resume paused" in status
    assert mptj("resume", "paused").returncode == 0
    ns.running("paused", attempt=2)
    assert len(pods_of(ns, "paused")) == 2
    assert mptj("cancel", "paused").stdout == "cancelled: paused\n"
    ns.wait(lambda: pods_of(ns, "paused"), lambda left: not left)
    ns.create("after", lambda pod: Run())
    # One name that is gone keeps no other job alive.
    gone = mptj("cancel", "paused", "after")
    assert (gone.returncode, gone.stdout) == (2, "cancelled: after\n")
    assert "paused: no job of this name" in gone.stderr


def test_a_job_that_is_over_is_neither_suspended_nor_resumed(ns: Any, mptj: Mptj) -> None:
    ns.create("over", lambda pod: Exit(0))
    ns.phase("over", "Succeeded")
    for verb in ("suspend", "resume"):
        refused = mptj(verb, "over")
        assert refused.returncode == 2
        assert "over: the job has ended (Succeeded). To run it again: mptj cancel over" in refused.stderr


def test_a_job_that_goes_while_it_is_followed_ends_the_waiting(ns: Any, mptj: Mptj) -> None:
    ns.create("goes", lambda pod: Run())
    ns.running("goes")
    waiting = subprocess.Popen(
        [sys.executable, "-m", "mptraining", "wait", "goes"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    waiting.stdout.readline()
    ns.delete("goes")
    try:
        _, err = waiting.communicate(timeout=600)
    finally:
        waiting.kill()
    assert waiting.returncode == 2
    assert "goes: the job was deleted while it was followed" in err


def test_jobs_are_compared_by_their_pods_logs(ns: Any, mptj: Mptj, pods_that_log: Any) -> None:
    for name in ("one", "other"):
        ns.create(name, pods_that_log(lambda pod: Exit(0, after=0.3), finished))
    for name in ("one", "other"):
        ns.phase(name, "Succeeded")
    table = mptj("compare", "one", "other")
    assert table.returncode == 0, table.stderr
    assert [word for word in table.stdout.split() if word.isalpha()][:2] == ["one", "other"]
    assert "validation loss" in table.stdout
    compared = json.loads(mptj("compare", "one", "other", "-o", "json").stdout)["runs"]
    assert [each["val_loss"] for each in compared] == [0.1, 0.1]
    neither = mptj("compare", "nobody")
    assert (neither.returncode, "nobody: no job of this name" in neither.stderr) == (2, True)


def test_from_python(ns: Any, mptj: Mptj, submitted: Any, pods_that_log: Any, capsys: Any) -> None:
    del mptj  # the client loads it from its environment
    submitted("snake", pods_that_log(lambda pod: Exit(0, after=0.5), finished))
    job = mptraining.submit(ns.document("snake"))
    assert "No output.uri" in job.warnings[0]
    again = mptraining.attach("snake")
    assert (repr(again), again, len({again, job})) == (f"<Job {ns.namespace}/snake>", job, 1)
    assert job in mptraining.list_jobs()
    seen = again.wait()
    assert (seen.succeeded, seen.exit_code) == (True, 0)
    assert [attempt.outcome for attempt in job.attempts] == ["Succeeded"]
    assert [point.step for point in job.history.points] == [10, 20]
    # The operator writes the event after the status.
    expected = {"Started", "Succeeded", "SuccessfulCreate"}
    ns.wait(lambda: {event.reason for event in job.events()}, lambda reasons: expected <= reasons)
    assert "Succeeded" in str(job.status())
    job.logs(worker=1)
    assert "worker 1 loads flowers" in capsys.readouterr().out
    assert job.run_folder is None
    with pytest.raises(mptraining.cluster.errors.ClusterProblem, match=r"the pod that kept its model no longer exists"):
        job.model()
    with pytest.raises(mptraining.cluster.errors.ClusterProblem, match=r"snake: there is no value: its program is no"):
        job.result()


def test_a_function_raises_its_own_exception_from_the_log_of_a_job_without_run_folder(
    ns: Any, mptj: Mptj, submitted: Any, pods_that_log: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del mptj
    (tmp_path / "own.py").write_text("def train(rate): ...")
    monkeypatch.syspath_prepend(tmp_path)
    raised = FunctionResult(
        raised=True, type="ValueError", pickle=base64.b64encode(pickle.dumps(ValueError(3))).decode()
    )
    failed = functools.partial(Finished, reason="ProgramFailed", exit_code=1, message="ValueError: 3")
    log = pods_that_log(lambda pod: Exit(1, after=0.5), functools.partial(Raised, result=raised.to_json()), failed)
    submitted("own", log)
    job = mptraining.submit(importlib.import_module("own").train, args=[0.1], name="own", workers=2)
    with pytest.raises(ValueError, match="3"):
        job.result(300)
    # A restarted kernel.
    with pytest.raises(ValueError, match="3"):
        mptraining.attach("own").result()


def test_a_kept_model_is_fetched_from_its_pod(ns: Any, mptj: Mptj, node_server: NodeServer, tmp_path: Path) -> None:
    """The pod's process is the trainer's own `keep`; exec runs the trainer's own commands."""
    (tmp_path / "scratch" / "model").mkdir(parents=True)
    (tmp_path / "scratch" / "model" / "model.json").write_text('{"name": "kept"}')
    (tmp_path / "scratch" / "model" / "weights.npz").write_bytes(os.urandom(300_000))
    (tmp_path / "scratch" / "function").mkdir()
    value = FunctionResult(raised=False, type="int", pickle=base64.b64encode(pickle.dumps(3)).decode())
    (tmp_path / "scratch" / "function" / "result.json").write_text(value.to_json())
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    waits = Notice(time=3.0, attempt=1, incarnation="x", worker=0, topic="ModelWaits", message="kept 600 s")
    ns.create("kept", lambda pod: Run(), workers=1)
    ns.running("kept")
    (pod,) = ns.control_plane.pods.select(ns.namespace, **{"mptraining.dev/job": "kept"})
    log = node_server.log(ns.namespace, pod.name)
    node_server.commands[ns.namespace, pod.name] = environment
    early = mptj("wait", "kept", "--timeout", "0.2", "--model", "fetched")
    assert early.returncode == 124

    keep = [sys.executable, "-m", "mptraining_trainer", "keep", str(tmp_path / "scratch"), "240"]
    kept = subprocess.Popen(keep, env=environment)
    waiting = subprocess.Popen(
        [sys.executable, "-m", "mptraining", "wait", "kept", "--model", "fetched"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        # The message precedes the process that keeps the model, so the request is retried.
        log.say(waits.to_json())
        assert kept.wait(240) == 0, "the pod may go: the model has arrived"
    except subprocess.TimeoutExpired:
        waiting.kill()
        pytest.fail(str(waiting.communicate()))
    finally:
        kept.kill()
    log.close()
    ns.kubelet.tell(pod, Exit(0))
    try:
        out, _ = waiting.communicate(timeout=600)
    finally:
        waiting.kill()
    assert waiting.returncode == 0, out
    assert "model: fetched" in out
    for name in ("model.json", "weights.npz"):
        assert (tmp_path / "fetched" / name).read_bytes() == (tmp_path / "scratch" / "model" / name).read_bytes()
    assert [each[3] for each in node_server.asked][-3:] == ["files", "send", "fetched"]
    # The value came with the model, before the pod went.
    assert mptraining.attach("kept").result() == 3


def test_kubectl_mptj_is_the_same_program(ns: Any, mptj: Mptj) -> None:
    """kubectl finds the plugin and its completion on PATH."""
    ns.create("completed", lambda pod: Run())
    folder = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}

    def output(*command: Any) -> str:
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    assert "completed" in output(Path(__file__).parents[3] / "build" / "bin" / "kubectl", "mptj", "list")
    assert output(folder / "kubectl_complete-mptj", "status", "comp") == "completed\n:4\n"
    assert output(folder / "kubectl_complete-mptj", "sus") == "suspend\n:4\n"


def test_progress_comes_from_the_status_where_logs_may_not_be_read(
    ns: Any, mptj: Mptj, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = [{"apiGroups": ["mptraining.dev"], "resources": ["mptrainingjobs"], "verbs": ["get", "list", "watch"]}]
    token = ns.control_plane.service_account(ns.namespace, "reader", rules=rules)
    kubeconfig = ns.control_plane.kubeconfig("reader", token, namespace=ns.namespace)
    ns.create("silent", lambda pod: Run())
    ns.running("silent")
    progress = {
        "attempt": 1, "step": 5, "totalSteps": 20, "epoch": 1, "percentComplete": 25,
        "metrics": [{"name": "loss", "value": "0.5"}],
    }  # fmt: skip
    ns.patch("silent", {"status": {"progress": progress}}, "status")
    ns.scripts["silent"] = lambda pod: Exit(0)
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    followed = mptj("wait", "silent", "--timeout", "3")
    assert followed.returncode == 124
    assert "step 5/20  epoch 1  loss 0.5" in followed.stdout
