"""Where a command goes: the options that every verb of `mptj` for a cluster takes, and what they add up to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from mptraining.cluster import Where

Context = Annotated[str | None, typer.Option("--context", help="Context of the kubeconfig.")]
Namespace = Annotated[str | None, typer.Option("--namespace", "-n", help="Namespace; default: the context's.")]
Project = Annotated[str | None, typer.Option("--project", help="GKE without kubeconfig: the project,")]
Location = Annotated[str | None, typer.Option("--location", help="the cluster's zone or region,")]
Cluster = Annotated[str | None, typer.Option("--cluster", help="and its name.")]


def place(
    context: str | None, namespace: str | None, project: str | None, location: str | None, cluster: str | None
) -> Where:
    """Raises NoCluster when they do not go together."""
    from mptraining.cluster import Where

    return Where(context=context, namespace=namespace, project=project, location=location, cluster=cluster)


def job_names(context: typer.Context, incomplete: str) -> list[str]:
    """For the shell's completion: it shows nothing rather than an error."""
    from mptraining_api.problems import Problem

    try:
        from mptraining.api_server import JOBS
        from mptraining.cluster import connect

        said = {name: context.params.get(name) for name in ("context", "namespace", "project", "location", "cluster")}
        found = connect(place(**said)).items(JOBS)
    except Problem:
        return []
    return [name for each in found if (name := str(each["metadata"]["name"])).startswith(incomplete)]


Name = Annotated[str, typer.Argument(help="The job's name.", metavar="NAME", autocompletion=job_names)]
Names = Annotated[list[str], typer.Argument(help="The jobs' names.", metavar="NAME...", autocompletion=job_names)]
