"""The files of the chart that follow from models, and what its alerts and dashboard ask for, without helm."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml

from hack import helm_chart
from hack.helm_chart import ChartValues
from mptraining_api.model import Model
from mptraining_operator.app import Operator
from mptraining_operator.jobs.plan.actions import Plan
from mptraining_operator.runtime.cluster import Cluster
from mptraining_operator.runtime.leader_election import ObservedLease
from mptraining_operator.runtime.metrics import Metrics
from mptraining_operator.settings import Identity, OperatorSettings

CHART = Path(__file__).parents[2] / "charts" / "mptraining"


@pytest.mark.parametrize(("name", "text"), helm_chart.files().items())
def test_the_files_in_the_chart_are_those_of_the_models(name: str, text: str) -> None:
    assert (CHART / name).read_text(encoding="utf-8") == text, "run `make manifests`"


def test_the_values_are_the_model_s_defaults() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert ChartValues.parse(values) == ChartValues()


def leaves(model: type[Model], path: str = "") -> Iterator[tuple[str, Any]]:
    for field in model.model_fields.values():
        name = f"{path}{field.alias}"
        if isinstance(field.annotation, type) and issubclass(field.annotation, Model):
            yield from leaves(field.annotation, f"{name}.")
        else:
            yield name, field


def test_every_value_is_explained_and_is_in_the_table() -> None:
    table = (CHART / "README.md").read_text(encoding="utf-8")
    head, *lines = re.findall(r"^\| ([\w.]+) \| \w+ \| .*? \| (.+) \|$", table, re.MULTILINE)
    assert head == ("Key", "Description")
    rows = dict(lines)
    wanted = {name: field.description for name, field in leaves(ChartValues)}
    assert 40 < len(wanted) <= 80
    assert rows == wanted


def test_the_chart_has_the_version_of_the_distribution() -> None:
    document = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert document["appVersion"] == version("mptraining")
    # Helm wants a semantic version: 0.1.0.dev0 becomes 0.1.0-dev.0.
    assert re.sub(r"\.dev(\d+)$", r"-dev.\1", version("mptraining")) == document["version"]


def names(text: str) -> set[str]:
    return set(re.findall(r"\bmptraining_\w+", text))


def series() -> set[str]:
    """Every name and label that one scrape may show."""
    metrics = Metrics(monotonic=float)
    cluster, identity = Cluster(None), Identity(name="operator-0", namespace="ops")
    operator = Operator(OperatorSettings(), identity, cluster, cluster, metrics, on_stuck=print)
    operator.replica._lease._seen = ObservedLease("operator-0", 10.0, "1", 0.0)
    metrics.count_call("get", "nodes", 200)
    metrics.count_retry("Bug")
    metrics.observe_list("pods", 1.0)
    metrics.observe_reconcile("job", 1.0)
    metrics.count_watch_restart("pods")
    metrics.watch_event("pods")
    metrics.count_refused_report(401)
    metrics.count_dropped_event("QueueFull")
    operator.jobs._metrics.count_plan(Plan(restart="Preempted"))
    return names("\n".join(line for line in metrics.text().decode().splitlines() if not line.startswith("#")))


@pytest.mark.parametrize("file", ["alerts.yaml", "dashboard.json"])
def test_alerts_and_dashboard_ask_for_what_there_is(file: str) -> None:
    asked = names((CHART / "files" / file).read_text())
    assert asked
    assert asked <= series()


def test_every_alert_can_be_acted_on() -> None:
    rules = [
        rule
        for group in yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())["groups"]
        for rule in group["rules"]
    ]
    for rule in rules:
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert set(rule["annotations"]) == {"summary", "description"}
        assert rule["expr"].count("(") == rule["expr"].count(")")
    alerts = {rule["alert"] for rule in rules}
    assert len(alerts) == len(rules) > 5
    # The file that promtool is asked about, by hand, names each of them.
    played = yaml.safe_load((Path(__file__).parents[1] / "apiserver" / "chart" / "alerts.yaml").read_text())["tests"][0]
    assert {each["alertname"] for each in played["alert_rule_test"]} == alerts


def test_the_dashboard_has_a_place_for_each_panel() -> None:
    panels = json.loads((CHART / "files" / "dashboard.json").read_text())["panels"]
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels]
    assert len(set(places)) == len(panels) == len({panel["id"] for panel in panels})
