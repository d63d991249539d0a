"""What `make test` prints before each stage."""

from __future__ import annotations

from pathlib import Path

from tools.run_stages import ROOT, TYPICAL, descriptions, left


def test_every_stage_of_make_test_has_a_text_and_a_typical_time() -> None:
    makefile = Path(ROOT, "Makefile").read_text()
    (stages,) = (line.removeprefix("STAGES := ").split() for line in makefile.splitlines() if "STAGES := " in line)
    assert set(stages) == set(TYPICAL)
    assert set(stages) <= set(descriptions(makefile))


def test_the_time_that_is_left_counts_the_stages_to_come() -> None:
    expected = {"lint": 60.0, "test-unit": 150.0}
    assert left(["lint", "test-unit"], expected) == "about 4 minutes"
    assert left(["lint"], expected) == "about 1 minute"
