"""How the accuracy table comes about; `make soak` fills it."""

from __future__ import annotations

import pytest

from bench.accuracy.__main__ import BEGIN, END, PAGE, Parity, Trial, table, with_table

TRIAL = Trial("mlp", 8, "mixed_bfloat16", 12)


def test_the_interval_is_that_of_students_t_over_pairs() -> None:
    """Differences 1, 2, 3, 4, 5: mean 3, standard deviation 1.5811, t(0.975, 4) 2.776."""
    one = Parity(TRIAL, (90.0, 91.0, 92.0, 93.0, 94.0), (91.0, 93.0, 95.0, 97.0, 99.0))
    assert one.difference == pytest.approx(3.0)
    assert one.half == pytest.approx(2.776 * 1.5811 / 5**0.5, rel=1e-4)
    assert "| mlp, width 8 | `mixed_bfloat16` | 92.00 | 95.00 | +3.00 | +1.04 to +4.96 |" in table([one])


def test_the_page_has_its_markers_and_keeps_the_rest() -> None:
    page = PAGE.read_text(encoding="utf-8")
    again = with_table(with_table(page, "first"), "second")
    assert f"{BEGIN}\nsecond\n{END}" in again
    assert again.split(BEGIN)[0] == page.split(BEGIN)[0]
    assert again.split(END)[1] == page.split(END)[1]
