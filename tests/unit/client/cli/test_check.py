"""The output of `mptj check` for a job that can work."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from rich.console import Console

from mptraining.cli.check import check_job, machine_rows, rows, show, summary
from mptraining.cli.main import app
from mptraining_api.problems import InvalidSpec
from mptraining_records.convert.convert import convert

JobFile = Callable[..., Path]


def test_summary_names_program_and_machines_and_a_job_that_can_never_work_is_a_problem(job_file: JobFile) -> None:
    path = job_file(workers=2)
    text = path.read_text()
    path.write_text(text.replace("{type: cpu}", "{type: t4, countPerWorker: 4}"))
    assert summary(str(path), check_job(str(path))[0]).startswith(f"{path}: flowers trains mlp on 2 workers with 4 x ")
    path.write_text(text.replace("type: cpu", "type: t5"))
    with pytest.raises(InvalidSpec, match="t5"):
        check_job(str(path))


def test_every_choice_has_its_reason(job_file: JobFile) -> None:
    path = job_file()
    path.write_text(path.read_text().replace("spec:\n", "spec:\n  scheduling: {topology: Pack}\n", 1))
    checked, advice = check_job(str(path))
    assert {field for field, _, _ in rows(checked)} >= {"strategy", "precision.policy", "keras"}
    file = io.StringIO()
    show(str(path), checked, advice, Console(file=file, width=10_000, highlight=False))
    shown = file.getvalue()
    for words in rows(checked):
        assert all(words)
        assert all(word in shown for word in words)
    assert all(f"advice: {text}" in shown for text in advice)
    assert any(text.startswith("scheduling.topology: Pack changes nothing") for text in advice)


def test_without_an_output_it_says_where_a_local_run_writes(job_file: JobFile) -> None:
    path = job_file()
    told = {field: because for field, _, because in rows(check_job(str(path))[0])}
    assert told["output.uri"].endswith("; `mptj run` writes runs/flowers instead")
    path.write_text(path.read_text() + "  output: {uri: gs://bucket/flowers}\n")
    assert "mptj run" not in "".join(because for _, _, because in rows(check_job(str(path))[0]))


def test_every_machine_of_a_job_with_alternatives_has_its_plan(job_file: JobFile) -> None:
    path = job_file()
    machines = (
        "{type: a100, countPerWorker: 8, provisioning: Spot, "
        "alternatives: [{type: t4, countPerWorker: 4}, {type: cpu}]}"
    )
    path.write_text(path.read_text().replace("{type: cpu}", machines))
    checked, advice = check_job(str(path))
    assert machine_rows(checked) == [
        ("8 x NVIDIA A100 40 GB", "Spot", "Mirrored", "mixed_float16", "1 x 8", "8"),
        ("4 x NVIDIA T4", "OnDemand", "Mirrored", "mixed_float16", "1 x 4", "16"),
        ("1 x CPU", "OnDemand", "None", "float32", "1 x 1", "64"),
    ]
    file = io.StringIO()
    show(str(path), checked, advice, Console(file=file, width=200, highlight=False))
    assert "tried in this order" in file.getvalue()


def test_a_job_is_checked_for_the_platform_that_is_named(job_file: JobFile) -> None:
    path = job_file()
    tpu = "{type: v5e, topology: 2x4}"
    path.write_text(path.read_text().replace("{type: cpu}", tpu))
    with pytest.raises(InvalidSpec, match=r"EKS know no v5e.*mptj check --node-labels"):
        check_job(str(path), node_labels="EKS")
    labels = check_job(str(path), node_labels="GKE")[0].placement.node_selector or {}
    assert labels["cloud.google.com/gke-tpu-topology"] == "2x4"
    assert CliRunner().invoke(app, ["check", "--node-labels", "gke", str(path)]).exit_code == 0
    # The cluster decides for its own workers.
    assert CliRunner().invoke(app, ["submit", "--dry-run", str(path)]).exit_code == 0


def test_a_script_of_keras_2_gets_legacy_by_its_text(job_file: JobFile) -> None:
    path = job_file()
    before, _, _ = path.read_text().partition("  program:")
    path.write_text(before + "  program: {script: {path: old.py}}\n")
    assert check_job(str(path))[0].keras == "Keras3", "a script that is not here is for the trainer to read"
    path.with_name("old.py").write_text("import tensorflow as tf\nmodel.save('folder')\n")
    checked, advice = check_job(str(path))
    assert checked.keras == "Legacy"
    assert advice[0].startswith("keras: Legacy (tf_keras) is chosen: the program is written for Keras 2: old.py")
    path.write_text(path.read_text() + "  keras: Keras3\n")
    assert check_job(str(path))[0].keras == "Keras3"


def test_records_that_their_manifest_calls_sorted_are_in_the_advice(job_file: JobFile) -> None:
    path = job_file()
    # The records are where the job file says, relative to its folder.
    text = re.sub(r"train: \[.*?\]", 'train: ["records/train-*.tfrecord"]', path.read_text())
    path.write_text(text)
    np.savez(path.parent / "rows.npz", x=np.arange(200), label=np.arange(200) // 50)
    convert(str(path.parent / "rows.npz"), str(path.parent / "records"), keep_order=True, overwrite=True)
    assert any("data.train: the records are sorted by 'label'; data" in each for each in check_job(str(path))[1])
    convert(str(path.parent / "rows.npz"), str(path.parent / "records"), overwrite=True)
    assert not any("sorted" in each for each in check_job(str(path))[1])
