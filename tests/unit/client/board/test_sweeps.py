"""What the board's API answers about sweeps."""

from __future__ import annotations

from pathlib import Path

from tests.testbed.served_board import served
from tests.testbed.sweep_folders import RATE, write_sweep


def test_sweeps_below_the_folder_and_one_in_detail(tmp_path: Path) -> None:
    write_sweep(tmp_path / "team" / "digits", start=1_800_000_000, running=(24,))
    with served(tmp_path) as board:
        (found,) = board.get("/api/sweeps")["sweeps"]
        assert (found["name"], found["counts"]["ended"], found["phase"]) == ("digits", 23, "Interrupted")
        detail = board.get(f"/api/sweep/{found['id']}")
        assert [each["title"] for each in detail["columns"]] == [
            "learning_rate",
            "batchSize.global",
            "width",
            "val_accuracy",
            "time",
        ]
        first, last = detail["trials"][0], detail["trials"][-1]
        assert first["values"].keys() == {each["key"] for each in detail["columns"]}
        assert (last["state"], last["run"]) == ("Running", None)
        assert "objective" not in last["values"]
        assert {each["key"] for each in detail["importance"]} >= {RATE}
        assert board.request("/api/sweep/none").status == 404


def test_a_damaged_sweep_is_a_problem_of_its_source(tmp_path: Path) -> None:
    write_sweep(tmp_path / "digits", start=1_800_000_000)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "sweep.json").write_text("{")
    with served(tmp_path) as board:
        assert [each["name"] for each in board.get("/api/sweeps")["sweeps"]] == ["digits"]
        (source,) = board.get("/api/runs")["sources"]
        assert "broken/sweep.json: is no sweep" in source["problem"]
