"""The direction in which a metric improves, by its name alone."""

from __future__ import annotations

import pytest

from mptraining_api.run_folder import metric_direction


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("val_loss", "down"), ("val_sparse_categorical_accuracy", "up"), ("acc", "up"), ("auc_3", "up"),
        ("f1_score", "up"), ("binary_io_u", "up"), ("top_5_accuracy", "up"), ("true_positives_2", "up"),
        ("false_positives", "down"), ("mean_squared_error_of_accuracy", "down"),
        ("sparse_categorical_crossentropy", "down"), ("kl_divergence", "down"), ("precision_at_recall", "up"),
        ("r2_score", "up"), ("cosine_similarity", "up"), ("vaccinated", None), ("examples", None), ("", None),
    ],
)  # fmt: skip
def test_a_name_says_which_way_is_better(name: str, way: str | None) -> None:
    assert metric_direction(name) == way
