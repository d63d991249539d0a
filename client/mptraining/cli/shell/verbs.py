"""Verbs of other tools at the command line: aliases of `mptj`'s commands, and a hint for every unknown one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mptraining_api.problems import InvalidSpec, nearest

# What these do elsewhere is what the command here does. `stop` is the one that keeps the job.
_ALIASES = {"ls": "list", "ps": "list", "describe": "status", "delete": "cancel", "rm": "cancel", "stop": "suspend"}
_HINTS = {
    "train": "Here: `mptj run FILE`. On a cluster: `mptj submit FILE`.",
    "start": "Here: `mptj run FILE`. On a cluster: `mptj submit FILE`.",
    "launch": "Here: `mptj run FILE`. On a cluster: `mptj submit FILE`.",
    "apply": "`mptj submit FILE` creates a job.",
    "create": "`mptj submit FILE` creates a job; `mptj init` writes a job file.",
    "new": "`mptj init` writes a job file.",
    "kill": "`mptj cancel NAME` deletes a job, `mptj suspend NAME` keeps it.",
    "pause": "`mptj suspend NAME` stops a job at a checkpoint.",
    "continue": "`mptj resume NAME` resumes a suspended job; here, `mptj run FILE` again resumes a run.",
    "restart": "`mptj resume NAME` resumes a suspended job; here, `mptj run FILE` again resumes a run.",
    "validate": "`mptj check FILE` does.",
    "lint": "`mptj check FILE` does.",
    "explain": "`mptj check FILE` explains a job's defaults, `kubectl explain mptj.spec` the fields.",
    "watch": "`mptj wait NAME` follows a job, `mptj logs -f NAME` its logs.",
    "follow": "`mptj wait NAME` follows a job, `mptj logs -f NAME` its logs.",
    "attach": "`mptj wait NAME` follows a job, `mptj logs -f NAME` its logs.",
    "convert": "`mptj records convert SOURCE DEST` does.",
    "edit": "A started job cannot be changed: `mptj cancel NAME`, then `mptj submit FILE`.",
    "models": "The names of keras.applications, mlp and cnn: `mptj init --program NAME`.",
    "applications": "The names of keras.applications, mlp and cnn: `mptj init --program NAME`.",
}
# `kubectl get mptj NAME` has the kind as a word of its own.
_KINDS = frozenset({"job", "jobs", "mptj", "mptrainingjob", "mptrainingjobs"})


def translate(arguments: Sequence[str], known: Iterable[str]) -> tuple[list[str], str | None]:
    """Return the arguments with aliases replaced by `known` commands, and a note for the user, if one is needed.

    Raises InvalidSpec with a hint for an unknown command.
    """
    at = next((index for index, each in enumerate(arguments) if not each.startswith("-")), None)
    commands = set(known)
    if at is None or arguments[at] in commands:
        return list(arguments), None
    before, verb, rest = list(arguments[:at]), arguments[at], list(arguments[at + 1 :])
    if verb == "help":
        return [*before, *rest[:1], "--help"], None
    command = _ALIASES.get(verb)
    if command is None and verb != "get":
        close = nearest(verb, [*commands, *_ALIASES, *_HINTS])
        meant = verb if verb in _HINTS else close.removeprefix("Did you mean '").removesuffix("'?")
        hint = _HINTS.get(meant) or close or "`mptj --help` lists the commands."
        raise InvalidSpec("", f"there is no command {verb!r}", next_step=hint)
    if rest and rest[0] in _KINDS:
        rest = rest[1:]
    if command is None:
        command = "status" if rest and not rest[0].startswith("-") else "list"
    note = f"{verb} is `mptj {command}`: it keeps the job; `mptj cancel` deletes it" if verb == "stop" else None
    return [*before, command, *rest], note
