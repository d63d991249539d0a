"""The file of results: a JSON line for each finished program, and their summary."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hack.parity.comparison.compare import reason
from hack.parity.programs.program import Program

# The sources on which a result depends besides the program.
_SOURCES = (
    "api/mptraining_api",
    "trainer/mptraining_storage",
    "trainer/mptraining_records",
    "trainer/mptraining_trainer",
    "hack/parity",
)


def sources_digest(root: Path) -> str:
    """Return a digest that changes with any source file on which results depend."""
    digest = hashlib.sha256()
    for folder in _SOURCES:
        for file in sorted((root / folder).rglob("*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


@dataclass(frozen=True)
class Result:
    """One program's comparisons, as a child or a pair of workers returned them."""

    program: Program
    compared: tuple[dict[str, Any], ...]

    @property
    def different(self) -> tuple[dict[str, Any], ...]:
        return tuple(compared for compared in self.compared if compared["verdict"] == "different")

    @property
    def verdict(self) -> str:
        """The worst verdict of its variants."""
        verdicts = {compared["verdict"] for compared in self.compared}
        worst_first = ("different", "no program", "refused", "equal")
        return next((verdict for verdict in worst_first if verdict in verdicts), "not compared")


class Results:
    """Finished programs of these sources; results of other sources are ignored."""

    def __init__(self, file: Path, sources: str) -> None:
        self._file = file
        self._sources = sources
        self._finished: dict[tuple[str, bool], Result] = {}
        if file.exists():
            for line in file.read_text(encoding="utf-8").splitlines():
                self._take(line)

    def get(self, program: Program, *, workers: bool) -> Result | None:
        """Return the result of a program that was run before."""
        return self._finished.get((program.key, workers))

    def add(self, program: Program, answer: dict[str, Any], *, workers: bool) -> None:
        """Keep a response, in the file too."""
        line = json.dumps(
            {
                "sources": self._sources,
                "workers": workers,
                "program": json.loads(program.to_json()),
                "compared": answer["compared"],
                "seconds": answer.get("seconds", 0.0),
            }
        )
        with self._file.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        self._take(line)

    def _take(self, line: str) -> None:
        try:
            document = json.loads(line)
        except json.JSONDecodeError:
            # The last line of a run that was killed may be cut.
            return
        if document["sources"] == self._sources:
            program = Program.from_json(json.dumps(document["program"]))
            self._finished[program.key, document["workers"]] = Result(program, tuple(document["compared"]))


def report(results: Sequence[Result]) -> str:
    """Return how many were run, equal, refused (with reasons counted) and different, by variant."""
    lines = [f"programs: {len({result.program.key for result in results})}"]
    by_variant: dict[str, Counter[str]] = {}
    for result in results:
        for compared in result.compared:
            by_variant.setdefault(compared["variant"], Counter())[compared["verdict"]] += 1
    for variant, verdicts in sorted(by_variant.items()):
        lines.append(f"  {variant}: " + ", ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common()))
    for verdict in ("refused", "no program", "not compared", "different"):
        reasons = Counter(
            reason(compared.get("what", ""))
            for result in results
            for compared in result.compared
            if compared["verdict"] == verdict
        )
        if reasons:
            lines.append(f"{verdict}:")
            lines += [f"  {count:5d}  {text}" for text, count in reasons.most_common(40)]
    return "\n".join(lines)
