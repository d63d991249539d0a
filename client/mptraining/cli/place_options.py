"""Where a command goes: the options that every verb of `mptj` for a cluster takes, and what they add up to."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

if TYPE_CHECKING:
    from mptraining.cluster.connection import Where

_OPTIONS = {
    "context": typer.Option("--context", help="Context of the kubeconfig."),
    "namespace": typer.Option("--namespace", "-n", help="Namespace; default: the context's."),
    "project": typer.Option("--project", help="GKE without kubeconfig: the project,"),
    "location": typer.Option("--location", help="the cluster's zone or region,"),
    "cluster": typer.Option("--cluster", help="and its name."),
}


def placed(command: Callable[..., None]) -> Callable[..., None]:
    """The command of the shell whose options are the function's parameters, these five in place of the last, `where`.

    It raises NoCluster when they do not go together.
    """
    *own, where = inspect.signature(command).parameters.values()
    assert where.name == "where"
    hints = get_type_hints(command, localns={"Where": Any}, include_extras=True)
    options = {name: Annotated[str | None, option] for name, option in _OPTIONS.items()}
    options_last = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=hint)
        for name, hint in options.items()
    ]

    @functools.wraps(command)
    def called(**given: Any) -> None:
        command(**{each.name: given[each.name] for each in own}, where=_where({name: given[name] for name in options}))

    signature = inspect.Signature([*(each.replace(annotation=hints[each.name]) for each in own), *options_last])
    # What typer reads of a function.
    called.__signature__ = signature  # type: ignore[attr-defined]
    called.__annotations__ = {name: each.annotation for name, each in signature.parameters.items()}
    return called


def _where(said: dict[str, Any]) -> Where:
    from mptraining.cluster.connection import Where

    return Where(**said)


def job_names(context: typer.Context, incomplete: str) -> list[str]:
    """For the shell's completion: it shows nothing rather than an error."""
    from mptraining_api.problems import Problem

    try:
        from mptraining.cluster.api import JOBS
        from mptraining.cluster.connection import connect

        found = connect(_where({name: context.params.get(name) for name in _OPTIONS})).items(JOBS)
    except Problem:
        return []
    return [name for each in found if (name := str(each["metadata"]["name"])).startswith(incomplete)]


Name = Annotated[str, typer.Argument(help="The job's name.", metavar="NAME", autocompletion=job_names)]
Names = Annotated[list[str], typer.Argument(help="The jobs' names.", metavar="NAME...", autocompletion=job_names)]
