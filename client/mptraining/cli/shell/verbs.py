"""Hints for words that are no command, such as verbs of other tools; aliases are declared with the commands."""

from __future__ import annotations

import click
import cloup

from mptraining_api.problems import InvalidSpec, nearest

_HINTS = {
    "train start launch": "Here: `mptj run FILE`. On a cluster: `mptj submit FILE`.",
    "get": "`mptj list` lists jobs, `mptj status NAME` shows one.",
    "apply": "`mptj submit FILE` creates a job.",
    "create": "`mptj submit FILE` creates a job; `mptj init` writes a job file.",
    "new": "`mptj init` writes a job file.",
    "kill stop": "`mptj cancel NAME` deletes a job, `mptj suspend NAME` keeps it.",
    "pause": "`mptj suspend NAME` stops a job at a checkpoint.",
    "continue restart": "`mptj resume NAME` resumes a suspended job; here, `mptj run FILE` again resumes a run.",
    "validate lint": "`mptj check FILE` does.",
    "explain": "`mptj check FILE` explains a job's defaults, `kubectl explain mptj.spec` the fields.",
    "watch follow attach": "`mptj wait NAME` follows a job, `mptj logs -f NAME` its logs.",
    "export": "`mptj track RUN --to mlflow|wandb|tensorboard` sends a run.",
    "convert": "`mptj records convert SOURCE DEST` does.",
    "edit": "A started job cannot be changed: `mptj cancel NAME`, then `mptj submit FILE`.",
    "models applications": "The names of keras.applications, mlp and cnn: `mptj init --program NAME`.",
    "help": "`mptj COMMAND --help` describes a command.",
}


class Commands(cloup.Group):
    """A group of commands that answers an unknown one with a hint."""

    def handle_bad_command_name(
        self, bad_name: str, valid_names: list[str], error: click.UsageError
    ) -> click.UsageError:
        del error
        hints = {verb: hint for verbs, hint in _HINTS.items() for verb in verbs.split()}
        close = nearest(bad_name, [*valid_names, *hints])
        hint = hints.get(bad_name) or hints.get(close.removeprefix("Did you mean '").removesuffix("'?"))
        if bad_name.endswith((".yaml", ".yml")):
            hint = f"`mptj run {bad_name}` runs it here, `mptj submit {bad_name}` on a cluster."
        step = hint or close or "`mptj --help` lists the commands."
        raise InvalidSpec("", f"there is no command {bad_name!r}", next_step=step)
