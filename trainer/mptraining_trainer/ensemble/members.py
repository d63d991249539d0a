"""Members of an ensemble: trained models of run folders that agree in inputs, outputs, preprocessing and code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mptraining_api.problems import InvalidSpec
from mptraining_api.resolved_job import ResolvedJob
from mptraining_trainer.model.output_losses import OutputLoss
from mptraining_trainer.prediction.location import Location

_SHOWN = 200


@dataclass(frozen=True)
class Member:
    """A run's exported model: `path` is its local copy, `outputs` are the shapes of its outputs without the batch."""

    uri: str
    location: Location
    job: ResolvedJob
    path: Path
    model: Any
    outputs: Mapping[str, tuple[int | None, ...]]

    @property
    def about(self) -> Mapping[str, Any]:
        """The content of its model.json."""
        return self.location.about

    @property
    def losses(self) -> dict[str, OutputLoss]:
        """The losses of Keras' own functions by output; the name of an only output is empty."""
        return {name: OutputLoss(**found) for name, found in (self.about.get("losses") or {}).items()}

    @property
    def sources(self) -> dict[str, bytes]:
        """The program's own modules that were exported with the model, by their paths."""
        folder = self.path / "source"
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*.py"))}


# What members must agree in, each with a name for messages. `from_logits` may differ: the average takes probabilities.
_SAME: tuple[tuple[str, Callable[[Member], Any]], ...] = (
    ("inputs", lambda member: member.about.get("inputs")),
    ("preprocessing", lambda member: member.about.get("preprocess")),
    # With their order, by which the outputs of a model without names are averaged.
    ("outputs", lambda member: [(name, list(shape)) for name, shape in member.outputs.items()]),
    ("classes", lambda member: member.about.get("classes")),
    ("losses", lambda member: {name: [loss.loss, loss.activation] for name, loss in member.losses.items()}),
)


def require_agreement(members: Sequence[Member]) -> None:
    """Raise InvalidSpec for the first member that differs from the first one, with the difference."""
    first = members[0]
    for number, other in enumerate(members[1:], start=1):
        field = f"spec.program.ensemble.members[{number}]"
        for name, value in _SAME:
            here, there = value(first), value(other)
            if here != there:
                raise InvalidSpec(
                    field,
                    f"the {name} of {other.uri} are {_shortened(there)}, and those of {first.uri} {_shortened(here)}",
                    expected=f"members with the same {name}",
                )
        one, two = first.sources, other.sources
        for file in sorted(one.keys() & two.keys()):
            if one[file] != two[file]:
                raise InvalidSpec(
                    field,
                    f"{file} of {other.uri} differs from the one of {first.uri}",
                    expected="members of the same code",
                    next_step="Train them again with one version of it.",
                )


def _shortened(value: object) -> str:
    text = str(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
