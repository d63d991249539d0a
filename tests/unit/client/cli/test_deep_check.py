"""`mptj check --deep`: the trainer's facts become a report, and its refusal an error in one line."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from mptraining.cli import deep_check
from mptraining.cli.deep_check import advice, findings, show, total
from mptraining_api.model_report import LayerReport, Memory, Report
from mptraining_api.problems import InvalidProgram, Problem

JobFile = Callable[..., Path]

LAYER = LayerReport(
    name="block/first",
    kind="Dense",
    compute="float16",
    variables="float32",
    output="float16",
    output_shape=(30,),
    parameters=930,
    output_bytes=60,
    multiply_adds=900,
    padding="in 30 -> 32",
    padding_cost=0.0667,
)
HEAD = LayerReport(
    name="head",
    kind="Dense",
    compute="float32",
    variables="float32",
    output="float32",
    output_shape=(3,),
    parameters=93,
)


def memory(policy: str, batch: int | None, activations: int) -> Memory:
    return Memory(
        policy=policy,
        weights=4000,
        slots=8000,
        gradients=4000,
        copies=0,
        activations_per_example=activations,
        working_per_example=10,
        batch_size=batch,
    )


def report(**changed: Any) -> Report:
    found = Report(
        model="flowers",
        policy="mixed_float16",
        multiple=8,
        layers=(LAYER, HEAD),
        parameters=1023,
        trainable=1023,
        kept_float32=("head",),
        softmax_not_float32=(),
        output_not_float32=(),
        padding_cost=0.05,
        device="NVIDIA T4",
        device_bytes=16 * 2**30,
        memory=(memory("float32", 96, 1000), memory("mixed_float16", 184, 500)),
        batch_size=64,
        uncounted=(),
    )
    return found.model_copy(update=changed)


def shown(found: Report, width: int = 100) -> str:
    file = io.StringIO()
    show(found, Console(file=file, width=width, highlight=False))
    return file.getvalue()


def test_a_report_names_layers_memory_and_what_to_change() -> None:
    text = shown(report())
    for part in (
        "flowers under mixed_float16: 1,023 parameters",
        "block/first",
        "in 30 -> 32: +7%",
        "kept in float32: head",
        "softmax below float32: none",
        "output below float32: no, as it should be",
        "widths that miss a multiple of 8: block/first; the model multiplies 5.0% more",
        "largest batch in 90% of 16 GiB, by 8s",
        "advice: Widen block/first (in 30 -> 32)",
        "advice: mixed_float16 leaves room for 184 examples per replica, float32 for 96. The job takes 64; with more, "
        "learningRateScaling",
    ):
        assert part in re.sub(r" *\n", " ", text), part
    assert all(len(line) <= 100 for line in text.splitlines() if "│" in line)


def test_a_cpu_has_no_multiples_and_no_known_memory() -> None:
    measured = (memory("float32", None, 1000), memory("mixed_bfloat16", None, 500))
    found = report(multiple=1, device="CPU", device_bytes=None, memory=measured, layers=(HEAD,), padding_cost=0.0)
    text = shown(found)
    assert "padded" not in text
    assert "largest batch" not in text
    assert "leaves room" not in text


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"output_not_float32": ("head (float16)",)}, "End the model in float32"),
        ({"softmax_not_float32": ("own (float16)",)}, "Give the softmax of own (float16) dtype='float32'"),
        (
            {"memory": (memory("float32", 32, 9), memory("mixed_float16", 48, 9))},
            "64 examples per replica will hardly fit on NVIDIA T4: at most 48. Try gradientAccumulationSteps: 2",
        ),
        (
            {"memory": (memory("float32", 0, 9), memory("mixed_float16", 0, 9))},
            "Not even one example fits on NVIDIA T4",
        ),
    ],
)
def test_advice_follows_from_the_facts(changed: dict[str, Any], says: str) -> None:
    assert any(each.startswith(says) for each in advice(report(**changed))), advice(report(**changed))


def test_nothing_to_change_is_no_advice() -> None:
    quiet = report(padding_cost=0.0, memory=(memory("float32", 10**9, 1), memory("mixed_float16", 10**9, 1)))
    assert advice(quiet) == []
    assert "over 65,536" in shown(quiet)


def test_many_names_are_counted() -> None:
    many = dict(findings(report(kept_float32=tuple("abcdefg"))))
    assert many["kept in float32"] == "a, b, c, d and 3 more"
    assert "loops in lstm" in dict(findings(report(uncounted=("lstm",))))["not counted in memory"]


def test_memory_adds_up() -> None:
    assert total(memory("float32", None, 100), 3) == 4000 + 8000 + 4000 + 3 * 110


# A script replaces the trainer

FACTS: dict[str, Any] = {
    "name": "flowers", "keras": "keras 3", "parameters": 9, "trainable": 9, "weights": 36, "slots": 72,
    "gradients": 36,
    "policies": [
        {"policy": policy, "layers": [], "output": "float32", "outputLayer": "head", "activations": 8, "copies": 0}
        for policy in ("float32", "mixed_bfloat16")
    ],
}  # fmt: skip
SAYING = """\
import json, os, sys
def say(kind, **fields):
    print(json.dumps(dict(mptraining=1, time=0, attempt=1, incarnation="none", worker=0, kind=kind, **fields)))
"""


def trainer(tmp_path: Path, code: str) -> tuple[str, str]:
    path = tmp_path / "trainer.py"
    path.write_text(SAYING + f"FACTS = {FACTS!r}\n" + code)
    return sys.executable, str(path)


def test_the_trainer_is_started_with_the_job_and_its_source(job_file: JobFile, tmp_path: Path) -> None:
    code = """
job = json.load(open(os.environ["MPTRAINING_JOB_FILE"]))
say("Notice", level="Warning", topic="Told", message=" ".join(
    [job["data"]["train"][0], os.environ["MPTRAINING_SOURCE_FOLDER"], os.environ["CUDA_VISIBLE_DEVICES"]]))
say("Inspected", model=FACTS)
say("Finished", reason="Succeeded", exitCode=0, message="")
"""
    path, said = job_file(), list[str]()
    found = deep_check.deep_check(str(path), say=said.append, command=trainer(tmp_path, code))
    folder = path.parent
    assert said == [f"warning: {folder}/records/train-*.tfrecord {folder} -1"]
    assert (found.model, found.policy, found.parameters) == ("flowers", "float32", 9)


@pytest.mark.parametrize(
    ("code", "kind", "message", "lines"),
    [
        (
            "say('Finished', reason='InvalidProgram', exitCode=2, message='spec.x: no such function'); sys.exit(2)",
            InvalidProgram,
            "spec.x: no such function",
            [],
        ),
        (
            "sys.exit('Segmentation fault')",
            Problem,
            "the trainer ended with exit code 1 and without a report",
            ["Segmentation fault"],
        ),
    ],
)
def test_a_refusal_of_the_trainer_is_one_line(
    job_file: JobFile, tmp_path: Path, code: str, kind: type[Problem], message: str, lines: list[str]
) -> None:
    said: list[str] = []
    with pytest.raises(kind, match=message) as raised:
        deep_check.deep_check(str(job_file()), say=said.append, command=trainer(tmp_path, code))
    assert raised.value.reason == kind.reason
    assert said == lines


INSPECTING = f"""
FACTS = {FACTS!r}
print(json.dumps(dict(mptraining=1, time=0, attempt=1, incarnation="a", worker=0, kind="Inspected", model=FACTS)))
"""


@pytest.mark.parametrize("as_json", [False, True])
def test_the_command_prints_a_report_or_json(
    job_file: JobFile,
    environment: Callable[..., dict[str, str]],
    mptj: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    as_json: bool,
) -> None:
    monkeypatch.setenv("PYTHONPATH", environment(INSPECTING)["PYTHONPATH"])
    for name, value in (("JOB_COMPLETION_INDEX", "0"), ("MPTRAINING_ATTEMPT", "1"), ("MPTRAINING_INCARNATION", "a")):
        monkeypatch.setenv(name, value)
    ended = mptj("check", str(job_file()), "--deep", *(["--json"] * as_json))
    assert (ended.returncode, ended.stderr) == (0, "")
    if as_json:
        document = json.loads(ended.stdout)
        assert document["job"]["name"] == "flowers"
        assert [each["policy"] for each in document["model"]["memory"]] == ["float32", "mixed_bfloat16"]
    else:
        assert "flowers under float32: 9 parameters" in ended.stdout
