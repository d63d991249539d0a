"""Options and arguments that several commands of `mptj` share: each has one name and one meaning.

    @command()
    @job_name
    @plain
    @cluster_options
    def wait(name: str, plain: bool, cluster: Cluster) -> int: ...

A command returns its exit code, or None for 0.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click
import cloup
from cloup import HelpSection, argument, option
from cloup.formatting import ensure_is_cloup_formatter

from mptraining.cli.shell import completion
from mptraining_api.problems import InvalidSpec
from mptraining_api.validation.job_text import KIND

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
F = TypeVar("F", bound=Callable[..., Any])

# Prefixes of a job's name, as `kubectl get -o name`, `mptj list -o name` and kubectl's short name have it.
_PREFIXES = (f"{KIND.lower()}.mptraining.dev/", "mptj/")
SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class Command(cloup.Command):
    """A command whose help lists its own options first, then the groups that it shares with others."""

    def format_params(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        own_options = self.get_default_option_group(ctx, is_the_only_visible_option_group=True)
        groups = [self.make_option_group_help_section(group, ctx) for group in (own_options, *self.option_groups)]
        arguments = self.get_arguments_help_section(ctx)
        sections: list[HelpSection] = [*([arguments] if arguments else []), *groups]
        ensure_is_cloup_formatter(formatter).write_many_sections(sections, aligned=True)


def command(name: str | None = None, **settings: Any) -> Callable[[Callable[..., Any]], Command]:
    """Make a command of a function whose docstring is its help."""
    return cloup.command(name, cls=Command, context_settings=SETTINGS, **settings)


def choice(*values: str) -> click.Choice[str]:
    """Return the type of an option with these values, which are accepted in any case."""
    return click.Choice(values, case_sensitive=False)


class _Count(click.ParamType[int]):
    """A whole number from `least`; click.IntRange adds `[x>=1]` to the help."""

    name = "number"

    def __init__(self, least: int) -> None:
        self.least = least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if not isinstance(value, int) and not (value.isdecimal() and int(value) >= self.least):
            self.fail(f"{value!r} is not a whole number from {self.least}.", param, ctx)
        return int(value)


def count(name: str, help_text: str, *, least: int = 1, **settings: Any) -> Decorator:
    return option(name, type=_Count(least), metavar="N", help=help_text, **settings)


# The cluster: one group at the end of the help.
_CLUSTER = cloup.option_group(
    "Cluster",
    option("--context", metavar="NAME", help="Context of the kubeconfig; default: the current one."),
    option("-n", "--namespace", metavar="NAME", help="Namespace; default: the context's."),
    option("--kubeconfig", metavar="FILE", help="Kubeconfig; default: KUBECONFIG, else ~/.kube/config."),
    option("--gke", metavar="PROJECT/LOCATION/CLUSTER", help="A cluster on GKE, without a kubeconfig."),
)


def cluster_options(command: F) -> F:
    """Add the options that select a cluster; the command gets them as the argument `cluster`."""

    @functools.wraps(command)
    def with_cluster(context: str, namespace: str, kubeconfig: str, gke: str, **given: Any) -> Any:
        from mptraining.cluster.connection import Cluster

        return command(cluster=Cluster(context, namespace, kubeconfig, gke), **given)

    return _CLUSTER(with_cluster)  # type: ignore[return-value]


def complete_jobs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the names of the cluster's jobs that begin like this; none instead of an error."""
    from mptraining_api.problems import Problem

    del param
    try:
        from mptraining.cluster.connection import Cluster, connect
        from mptraining_api.kubernetes_api import JOBS

        chosen: dict[str, Any] = {name: ctx.params.get(name) for name in ("context", "namespace", "kubeconfig", "gke")}
        jobs = connect(Cluster(**chosen)).items(JOBS)
    except Problem:
        return []
    return [name for job in jobs if (name := str(job["metadata"]["name"])).startswith(incomplete)]


job_name = argument("name", metavar="NAME", help="The job's name.", shell_complete=complete_jobs)
job_names = argument(
    "names", nargs=-1, required=True, metavar="NAME...", help="Names of jobs or sweeps.", shell_complete=complete_jobs
)
plain = option("--plain", is_flag=True, help="Print plain lines, also on a terminal.")
overwrite = option("--overwrite", is_flag=True, help="Replace what exists.")
dry_run = option("--dry-run", is_flag=True, help="Print the job, and start nothing.")


def accelerator(help_text: str) -> Decorator:
    return option("--accelerator", metavar="TYPE", help=help_text, shell_complete=completion.accelerators)


def runs_argument(name: str, metavar: str, help_text: str, **settings: Any) -> Decorator:
    """Return an argument that takes run folders, and in some commands jobs."""
    return argument(name, metavar=metavar, help=help_text, shell_complete=completion.run_folders, **settings)


def output_format(*forms: str) -> Decorator:
    """Return the option for a machine-readable output; the command gets its value as `form`."""
    return option("-o", "--output", "form", type=choice(*forms), help="Print this format instead of text.")


def names_folder(word: str) -> bool:
    """Return whether a word of the command line names a run folder, which has a slash; others are jobs' names."""
    return "/" in plain_name(word) or word in (".", "..")


def plain_name(word: str) -> str:
    """Return the name of a job without the prefix of its kind."""
    return word.removeprefix(_PREFIXES[0]).removeprefix(_PREFIXES[1])


@contextmanager
def folder_suggested(name: str) -> Iterator[None]:
    """Suggest the folder of the same name if the block finds no job `name`."""
    from mptraining.cluster.errors import NoCluster, NotFound

    try:
        yield
    except (NoCluster, NotFound) as problem:
        folder = next((folder for folder in (name, f"runs/{name}") if name and Path(folder).is_dir()), None)
        if folder is not None:
            shown = folder if "/" in folder else f"./{folder}"
            problem.step_parts += (f" A folder has a slash: did you mean {shown}?",)
        raise


def refuse_together(**given: object) -> None:
    """Raise InvalidSpec if more than one of these options has a value; their names have underscores for dashes."""
    names = [f"--{name.replace('_', '-')}" for name, value in given.items() if value not in (None, False, (), "")]
    if len(names) > 1:
        raise InvalidSpec(names[1], f"given together with {names[0]}", expected="one of them")


def refuse_with(what: str, **given: object) -> None:
    """Raise InvalidSpec if one of these options, which mean nothing for `what`, has a value."""
    for name, value in given.items():
        if value not in (None, False, (), ""):
            raise InvalidSpec(f"--{name.replace('_', '-')}", f"has no meaning for {what}", next_step="Leave it out.")
