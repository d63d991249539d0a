"""The tables of the guide agree with the code: reasons, phases, conditions, messages, settings."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import yaml

from mptraining.tfjob import Choices, convert_file
from mptraining_api.outcomes import OPERATOR_OUTCOMES, OUTCOMES, Budget
from mptraining_api.spec import Training
from mptraining_api.status import CONDITION_TYPES, Phase, Progress
from mptraining_api.sweep.conditions import End
from mptraining_operator.metrics import Metrics
from mptraining_operator.monitoring.job_metrics import NUMBERS, JobMetrics
from mptraining_operator.plan.waiting import NAMESPACE_FULL, NODE_NOT_READY, PODS_DO_NOT_END, STARTS_SLOWLY
from mptraining_operator.settings import OperatorSettings
from mptraining_operator.sweeps.metrics import SweepMetrics
from tests.unit.docs.blocks import ROOT, SECTIONS
from tests.unit.docs.model_fields import find_field


def _table(document: str, heading: str, number: int = 0) -> list[list[str]]:
    """Return the cells of the `number`-th table below a heading, without its head."""
    text = (ROOT / document).read_text(encoding="utf-8").split(f"\n{heading}\n", 1)[1]
    found = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)[number]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in found.splitlines()[2:]]


def test_the_guide_names_every_reason_with_its_budget() -> None:
    words = {
        Budget.NONE: "",
        Budget.NEVER_RETRY: "never retried",
        Budget.UNDECIDED: "the first failure's",
        Budget.BACKOFF_LIMIT: "`backoffLimit`",
        Budget.INFRASTRUCTURE_RETRIES: "`infrastructureRetries`",
    }
    told = {row[0].strip("`"): row[2] for row in _table("docs/guide/reference.md", "## Reasons")}
    assert told == {each.reason: words[each.budget] for each in (*OUTCOMES, *OPERATOR_OUTCOMES)}


def test_the_guide_names_every_reason_to_wait() -> None:
    source = (ROOT / "operator" / "mptraining_operator" / "plan" / "waiting.py").read_text(encoding="utf-8")
    known = {*re.findall(r'\bWait\([\w.]+,\s*"(\w+)"', source), *re.findall(r'": \("(\w+)", ', source)}
    known |= {NAMESPACE_FULL, NODE_NOT_READY, PODS_DO_NOT_END, STARTS_SLOWLY}
    told = {row[0].strip("`") for row in _table("docs/guide/reference.md", "## Reasons", 1)}
    assert told == known - {each.reason for each in OUTCOMES}


# Reasons that a variable has: the outcomes, the waits, and the ends of a sweep, which have tables of their own.
# `record` is an Event of a sweep's plan, which is found where the plan makes it.
_REASONS_ELSEWHERE = {
    "outcome.reason", "outcomes.INVALID_SPEC.reason", "outcomes.NO_CAPACITY.reason", "found.reason", "end.reason",
    "record.reason",
}  # fmt: skip


def _event_records() -> Iterator[tuple[str, str, ast.Call]]:
    """Yield module, kind of object and call of each Event that the operator writes."""
    for folder, package in (("operator", "mptraining_operator"), ("api", "mptraining_api/sweep")):
        for path in sorted((ROOT / folder / package).rglob("*.py")):
            module = ".".join(path.relative_to(ROOT / folder).with_suffix("").parts)
            kind = "sweep" if ".sweep" in module else "job"
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "EventRecord":
                    yield module, kind, node


def test_the_guide_names_every_kubernetes_event() -> None:
    written: dict[str, tuple[str, set[str]]] = {}
    elsewhere = set()
    for module, kind, call in _event_records():
        match call.args[0]:
            case ast.Constant(value=str(reason)):
                pass
            case ast.Name(id=name):
                reason = getattr(importlib.import_module(module), name)
            case other:
                elsewhere.add(ast.unparse(other))
                continue
        severity = ast.literal_eval(call.args[2]) if len(call.args) > 2 else "Normal"
        known, kinds = written.setdefault(reason, (severity, set()))
        assert known == severity, reason
        kinds.add(kind)
    assert elsewhere == _REASONS_ELSEWHERE
    rows = _table("docs/guide/reference.md", "## Kubernetes events")
    told = {name.strip("`"): (row[1], {*row[2].split(", ")}) for row in rows for name in row[0].split(", ")}
    assert told == written


def test_the_guide_names_every_end_of_a_sweep() -> None:
    told = {row[0].strip("`") for row in _table("docs/guide/sweeps.md", "## Trials", 1)}
    assert told == {*get_args(get_type_hints(End)["reason"])}


def test_the_guide_names_every_field_of_training() -> None:
    told = [name for row in _table("docs/guide/train.md", "## Training") for name in re.findall(r"`(\w+)`", row[0])]
    assert sorted(told) == sorted(each.alias or name for name, each in Training.model_fields.items())


def test_the_guide_names_every_phase() -> None:
    told = {
        name for row in _table("docs/guide/kubernetes.md", "### Phases and conditions") for name in row[0].split(", ")
    }
    assert told == {phase.value for phase in Phase}


def test_the_guide_names_every_condition_with_its_reasons() -> None:
    rows = {row[0].strip("`"): row for row in _table("docs/guide/kubernetes.md", "### Phases and conditions", 1)}
    assert rows.keys() == set(CONDITION_TYPES)
    source = (ROOT / "operator" / "mptraining_operator" / "plan" / "conditions.py").read_text(encoding="utf-8")
    written = re.findall(r'with_condition\(status, "(\w+)", (True|False), "(\w+)"', source)
    assert written
    for condition, value, reason in written:
        # The reasons for waiting have a table of their own.
        if (condition, value) != ("Running", "False"):
            assert f"`{reason}`" in rows[condition][1 if value == "True" else 2]
    assert all(row[3] for row in rows.values())


def test_the_guide_names_lines_that_a_notebook_really_prints() -> None:
    files = [*(ROOT / "client").rglob("*.py"), *(ROOT / "trainer").rglob("*.py")]
    code = "".join(each.read_text(encoding="utf-8") for each in files)
    # The source has a message in several strings, one a line.
    code = re.sub(r'"\s*\n\s*f?"', "", code)
    named = [row[0] for row in _table("docs/guide/notebooks.md", "### Messages in a notebook")]
    others = ("Note: you may need",)
    ours = [each.strip("`").removeprefix("advice: ") for each in named if not each.strip("`").startswith(others)]
    assert len(ours) > 10
    assert [each for each in ours if each not in code] == []


def test_the_guide_names_every_field_of_tfjob() -> None:
    """The fields of the CustomResourceDefinition of training-operator 1.9.3."""
    run_policy = "activeDeadlineSeconds backoffLimit cleanPodPolicy managedBy suspend ttlSecondsAfterFinished"
    scheduling = "minAvailable minResources priorityClass queue scheduleTimeoutSeconds"
    fields = {
        "spec": "enableDynamicWorker successPolicy",
        "spec.runPolicy": run_policy,
        "spec.runPolicy.schedulingPolicy": scheduling,
        "spec.tfReplicaSpecs": "Chief Evaluator Master PS Worker",
        "spec.tfReplicaSpecs.*": "replicas restartPolicy template",
        "status": "completionTime conditions lastReconcileTime replicaStatuses startTime",
    }
    told: dict[str, set[str]] = {}
    for row in _table("docs/guide/migrate.md", "## Moving from Kubeflow's TFJob", 1):
        first, *more = re.findall(r"`([\w.*/]+)`", row[0].partition(" (")[0])
        if row[0].startswith("…"):
            continue
        parent, _, name = first.rpartition(".")
        told.setdefault(parent, set()).update([name, *more])
    assert told == {parent: set(names.split()) for parent, names in fields.items()}


def test_the_guide_has_the_defaults_of_settings() -> None:
    defaults = OperatorSettings().to_document()
    for name, default, _ in _table("docs/guide/operate.md", "### Settings"):
        value: Any = defaults
        for part in name.strip("`").split("."):
            value = value.get(part) if isinstance(value, dict) else value
        if default.startswith("`"):
            assert yaml.safe_load(default.strip("`")) == value, name
        else:
            assert not value, name
        find_field(OperatorSettings, name.strip("`").split("."))


def _metrics_of(heading: str) -> list[str]:
    return re.findall(r"`(mptraining_\w+)", " ".join(row[0] for row in _table("docs/guide/operate.md", heading)))


def test_the_guide_names_every_metric() -> None:
    metrics = Metrics(monotonic=float)
    metrics.watch(jobs_by_phase=dict, queue_age=float, queue_depth=int, lease_transitions=int)
    SweepMetrics(metrics.registry).watch(sweeps_by_phase=dict, trials_by_state=dict, paused=int, queue_age=float)
    metrics.registry.register(JobMetrics(list, lambda: True))
    exported = re.findall(r"^# TYPE (\w+) ", metrics.text().decode(), re.MULTILINE)
    told = _metrics_of("### Metrics and probes") + _metrics_of("#### Metrics of single jobs")
    assert sorted(told) == sorted(exported)


def test_the_guide_has_the_most_series_of_a_job() -> None:
    limits = Progress.model_json_schema()["properties"]["metrics"]["anyOf"]
    (metrics,) = (each["maxItems"] for each in limits if "maxItems" in each)
    text = (ROOT / "docs/guide/operate.md").read_text(encoding="utf-8")
    # One series for each number and for stepTime.
    assert f"at most {len(NUMBERS) + 1 + metrics} in all" in text


def test_the_guide_shows_the_job_that_its_tfjob_becomes(tmp_path: Path) -> None:
    section = SECTIONS["docs/guide/migrate.md", "Moving from Kubeflow's TFJob"]
    texts = {block.file: block.text for block in section if block.file}
    (tmp_path / "tfjob.yaml").write_text(texts["tfjob.yaml"], encoding="utf-8")
    (found,) = convert_file(tmp_path / "tfjob.yaml", Choices(run_folder="gs://my-bucket/flowers"))
    assert found.document == yaml.safe_load(texts["expected.yaml"])
    (shown,) = (block.text for block in section if block.text.startswith("tfjob.yaml: "))
    told = {line.strip().replace(f"{tmp_path}/", "") for line in found.report()}
    assert [line for line in shown.splitlines() if line.strip() not in {*told, "…"}] == []
