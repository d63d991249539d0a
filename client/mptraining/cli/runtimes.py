"""Command `mptj runtimes`: the runtimes of a cluster, and what each adds to a job."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mptraining.cli.jobs import columns

if TYPE_CHECKING:
    from mptraining.cluster.connection import Cluster
    from mptraining.job_file.runtimes import KnownRuntimes
    from mptraining_api.resolve.runtime_settings import Runtime

_HEADINGS = ("NAME", "NAMESPACES", "ADDS", "LIMITS", "WHAT")

OperatorNamespace = Annotated[
    str, typer.Option("--operator-namespace", help="Namespace of the operator.", metavar="NAME")
]


def runtimes(
    file: Annotated[
        str | None, typer.Option(help="Settings, the chart's values or its ConfigMap as a file, instead of a cluster.")
    ] = None,
    operator_namespace: OperatorNamespace = "mptraining-system",
    as_yaml: Annotated[bool, typer.Option("--yaml", help="Print YAML, for `mptj check --runtimes`.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    *,
    cluster: Cluster,
) -> None:
    """List the runtimes that jobs may name in spec.runtime, and what each adds to a job.

    NAMESPACES are those whose jobs have the runtime if they name none. The job has precedence over its runtime,
    and that over `default`, which jobs without another one have.
    """
    from mptraining.job_file.runtimes import load

    found = load(Path(file)) if file else of_cluster(cluster, operator_namespace)
    if as_json or as_yaml:
        import yaml

        document = found.to_document()
        text = json.dumps(document, indent=2) if as_json else yaml.safe_dump(document, sort_keys=False).rstrip()
        typer.echo(text)
        return
    if not found.runtimes:
        typer.echo("no runtimes")
        return
    for line in columns([_HEADINGS, *rows(found)]):
        typer.echo(line)


def of_cluster(cluster: Cluster, operator_namespace: str) -> KnownRuntimes:
    """Read the runtimes that the operator's chart publishes; none if it publishes none. Raises ClusterProblem."""
    from mptraining.cluster.connection import connect
    from mptraining.cluster.errors import ClusterProblem
    from mptraining.job_file.runtimes import CONFIG_MAP, KEY, KnownRuntimes, parse
    from mptraining_api.kubernetes_api import CONFIG_MAPS

    server = connect(cluster).in_namespace(operator_namespace)
    try:
        stored = server.get(CONFIG_MAPS, CONFIG_MAP)
    except ClusterProblem as problem:
        if problem.status == 404:
            return KnownRuntimes()
        raise
    return parse(str(stored.get("data", {}).get(KEY, "")), where=f"ConfigMap {operator_namespace}/{CONFIG_MAP}")


def rows(found: KnownRuntimes) -> list[tuple[str, ...]]:
    """Return one row of text for each runtime, by name."""
    return [
        (
            name,
            ", ".join(sorted(each for each, chosen in found.default_runtimes.items() if chosen == name)) or "-",
            ", ".join(_adds(runtime)) or "-",
            ", ".join(f"{field} {_text(value)}" for field, value in _limits(runtime).items()) or "-",
            runtime.description or "-",
        )
        for name, runtime in sorted(found.runtimes.items())
    ]


def _adds(runtime: Runtime) -> list[str]:
    images = [f"image for {kind}" for kind in runtime.images.to_document()]
    template = runtime.pod_template.to_document() if runtime.pod_template else {}
    output = [f"output below {runtime.output}"] if runtime.output else []
    proxies = ["proxies"] if runtime.http_proxy or runtime.https_proxy else []
    return [*([str(runtime.provisioning)] if runtime.provisioning else []), *images, *output, *proxies, *template]


def _limits(runtime: Runtime) -> dict[str, Any]:
    return {name: value for name, value in runtime.limits.to_document().items() if value}


def _text(value: object) -> str:
    return "/".join(map(str, value)) if isinstance(value, list) else str(value)
