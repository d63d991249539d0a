"""The rim: runs the commands of the plan, with messages that name the next step."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gke.plan import Command, Step, clusters
from gke.settings import Settings

_LAST = 1500
# What gcloud prints for an object that does not exist: GKE, Storage, kubectl.
_MISSING = re.compile(
    r"NotFound|not found|NOT_FOUND|code=404|HTTPError 404|No cluster named|was not found", re.IGNORECASE
)
_EXISTS = re.compile(r"already exists|ALREADY_EXISTS|code=409|HTTPError 409", re.IGNORECASE)
# The fault and the next step by what gcloud prints, the most particular first.
_FAULTS = (
    (
        re.compile(r"ZONE_RESOURCE_POOL_EXHAUSTED|STOCKOUT|does not have enough resources", re.IGNORECASE),
        "Google has none of these machines in the zone now",
        "Run the same command later, or with another --zone.",
    ),
    (
        re.compile(r"quota", re.IGNORECASE),
        "the project's quota does not allow it",
        "Request it under IAM & Admin > Quotas, or leave the pool out with --pools; what exists stays.",
    ),
    (
        re.compile(r"SERVICE_DISABLED|has not been used in project|is disabled", re.IGNORECASE),
        "an API of the project is off",
        "Wait a minute after the first step, then run the same command.",
    ),
    (
        re.compile(r"PERMISSION_DENIED|403|does not have permission|Required .* permission", re.IGNORECASE),
        "your account may not do this in the project",
        "It needs roles/container.admin, roles/storage.admin and roles/serviceusage.serviceUsageAdmin in the project, "
        "and roles/iam.serviceAccountUser on the service account of the nodes.",
    ),
    (
        re.compile(r"active account|auth login|invalid_grant|Reauthentication", re.IGNORECASE),
        "gcloud is not signed in",
        "gcloud auth login",
    ),
    (
        re.compile(r"billing", re.IGNORECASE),
        "the project has no billing account",
        "Link one under Billing in the console.",
    ),
)
# A cluster with an operation under way refuses the next one for a while (google.rpc.Code FAILED_PRECONDITION).
_BUSY = re.compile(
    r"currently (creating|running|upgrading|reconciling)|operation .* in progress|incompatible operation", re.IGNORECASE
)
# What `clusters list` warns of, with exit code 0, when it could not ask every zone.
_SILENT = re.compile(r"did not respond", re.IGNORECASE)
_TRIES, _WAIT_SECONDS = 20, 30.0


class StepFailed(Exception):
    """A command failed; the message names step, fault, next step and what gcloud printed."""


@dataclass(frozen=True)
class Answer:
    """What a command printed, and its exit code."""

    code: int
    output: str
    errors: str


def call(command: Command) -> Answer:
    """Run a command to its end."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    except FileNotFoundError:
        return Answer(127, "", f"{command[0]} is not installed")
    return Answer(done.returncode, done.stdout, done.stderr)


@dataclass
class Runner:
    """Creates and deletes; `journal` is the file of what this machine created and has not labelled yet.

    Only an object that gets its label by a second command (Step.after) is in it, with its location, between the two.
    """

    settings: Settings
    journal: Path
    say: Callable[[str], None]
    call: Callable[[Command], Answer] = call
    sleep: Callable[[float], None] = time.sleep
    unlabelled: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        if self.journal.exists():
            self.unlabelled = set(json.loads(self.journal.read_text(encoding="utf-8")))

    def create(self, step: Step) -> bool:
        """Create and complete the step's object unless it exists. Return whether it was new.

        Raises StepFailed, also if another's object has the name.
        """
        if self._exists(step):
            return False
        self.say(f"  creating {step.title}")
        answer = self._patiently(step.create)
        if answer.code:
            # An earlier call may have succeeded although its answer was lost.
            if _EXISTS.search(answer.errors) and (not step.look or self._exists(step)):
                return False
            raise StepFailed(explain(step.title, step.create, answer))
        if step.after:
            self._note({*self.unlabelled, self._entry(step, self.settings.region)})
        self._complete(step)
        return True

    def delete(self, step: Step) -> bool:
        """Delete the step's object if it has the label; return whether it was there. Raises StepFailed."""
        found = self._find(step)
        if found is None:
            self._forget(step)
            self.say(f"  gone     {step.title}")
            return False
        if not self._is_ours(step, found) and not self._was_begun(step, found):
            self.say(
                f"  kept     {step.title}: it has no label {self.settings.label}, so this script did not create it"
            )
            return False
        self.say(f"  deleting {step.title}")
        answer = self._patiently(step.delete)
        if answer.code and not _MISSING.search(answer.errors):
            raise StepFailed(explain(step.title, step.delete, answer))
        self._forget(step)
        return True

    def zones(self) -> list[str]:
        """Return the zones in which a cluster has the name and the label. Raises StepFailed."""
        command = clusters(self.settings)
        answer = self.call(command)
        if answer.code or _SILENT.search(answer.errors):
            raise StepFailed(explain("clusters", command, answer))
        try:
            found = json.loads(answer.output)
        except ValueError:
            found = None
        if not isinstance(found, list):
            raise StepFailed(f"clusters: `{' '.join(command[:4])}` printed no JSON list: {answer.output[:200]!r}")
        key, _, value = self.settings.label.partition("=")
        return sorted(
            one["location"]
            for one in found
            if one["name"] == self.settings.name and (one.get("resourceLabels") or {}).get(key) == value
        )

    def output(self, title: str, command: Command) -> str:
        """Return what a command printed. Raises StepFailed."""
        answer = self.call(command)
        if answer.code:
            raise StepFailed(explain(title, command, answer))
        return answer.output.strip()

    def _exists(self, step: Step) -> bool:
        """Return whether the object is there, completed if need be. Raises StepFailed if it is another's."""
        found = self._find(step) if step.look else None
        if found is None:
            return False
        if step.labels and not self._is_ours(step, found):
            if not self._was_begun(step, found):
                raise StepFailed(
                    f"{step.title}: it exists and has no label {self.settings.label}. Choose another --name."
                )
            self._complete(step)
        self.say(f"  exists   {step.title}")
        return True

    def _complete(self, step: Step) -> None:
        for command in step.after:
            self.output(step.title, command)
        self._forget(step)

    def _find(self, step: Step) -> dict[str, Any] | None:
        answer = self.call(step.look)
        if answer.code == 0:
            return self._object(step, answer.output)
        if _MISSING.search(answer.errors):
            return None
        raise StepFailed(explain(step.title, step.look, answer))

    def _object(self, step: Step, output: str) -> dict[str, Any]:
        try:
            found = json.loads(output)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise StepFailed(f"{step.title}: `{' '.join(step.look[:4])}` printed no JSON object: {output[:200]!r}")
        return found

    def _is_ours(self, step: Step, found: dict[str, Any]) -> bool:
        labels: Any = found
        for part in step.labels:
            labels = labels.get(part) or {}
        key, _, value = self.settings.label.partition("=")
        return bool(labels.get(key) == value)

    def _patiently(self, command: Command) -> Answer:
        """Run the command again while the cluster is busy with another operation."""
        for _ in range(_TRIES):
            answer = self.call(command)
            if answer.code == 0 or not _BUSY.search(answer.errors):
                return answer
            self.say("           the cluster is busy with another operation; again in half a minute")
            self.sleep(_WAIT_SECONDS)
        return answer

    def _was_begun(self, step: Step, found: dict[str, Any]) -> bool:
        return bool(step.after) and self._entry(step, str(found.get("location", "")).lower()) in self.unlabelled

    def _entry(self, step: Step, location: str) -> str:
        return f"{step.title} in {location}"

    def _forget(self, step: Step) -> None:
        left = {entry for entry in self.unlabelled if entry.rpartition(" in ")[0] != step.title}
        if left != self.unlabelled:
            self._note(left)

    def _note(self, unlabelled: set[str]) -> None:
        self.unlabelled = unlabelled
        self.journal.parent.mkdir(parents=True, exist_ok=True)
        self.journal.write_text(json.dumps(sorted(unlabelled)), encoding="utf-8")


def explain(title: str, command: Command, answer: Answer) -> str:
    """Return the message of a failed command."""
    ended = f"`{' '.join(command[:4])}` ended with {answer.code}", "Correct it and run the same command."
    fault, next_step = next((rest for pattern, *rest in _FAULTS if pattern.search(answer.errors)), ended)
    return f"{title}: {fault}. {next_step}\n{answer.errors.strip()[-_LAST:]}"
