"""Which feature is the label when nobody says so."""

from __future__ import annotations

from mptraining_api.problems import InvalidData, nearest

LABELS = ("label", "labels", "y", "target", "class")


def choose_label(uri: str, names: list[str], label: str | None) -> str | None:
    """The label's name: the one asked for, else one of LABELS where there is one."""
    if label is None:
        return next((name for name in LABELS if name in names), None)
    if label not in names:
        raise InvalidData(
            uri,
            f"no {label!r} in it",
            expected="one of " + ", ".join(map(repr, names[:20])),
            next_step=nearest(label, names),
        )
    return label
