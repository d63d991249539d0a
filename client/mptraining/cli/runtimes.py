"""Command `mptj runtimes`: the runtimes of a cluster, and what each adds to a job."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from cloup import option

from mptraining.cli import options
from mptraining.cli.output import print_document, print_table
from mptraining_api.problems import InvalidSpec

if TYPE_CHECKING:
    from mptraining.cluster.connection import Cluster
    from mptraining.job_file.runtimes_file import KnownRuntimes
    from mptraining_api.resolve.runtime_settings import Runtime

_HEADINGS = ("NAME", "NAMESPACES", "ADDS", "LIMITS", "WHAT")
_OPERATOR = "mptraining-system"


@options.command()
@option(
    "-f", "--filename", metavar="FILE", help="Read settings, the chart's values or its ConfigMap from FILE instead."
)
@options.output_format("json", "yaml")
@options.cluster_options
def runtimes(filename: str | None, form: str | None, cluster: Cluster) -> None:
    """List the runtimes that the cluster offers.

    A job names one in spec.runtime; ADDS is what it then gets. NAMESPACES are those whose jobs have the runtime if
    they name none. The job has precedence over its runtime, and that over `default`, which jobs without another one
    have. The namespace is the operator's; default: mptraining-system. `mptj check --runtimes` takes the YAML.
    """
    from mptraining.job_file.runtimes_file import load

    if filename and cluster.flags():
        raise InvalidSpec("--filename", f"given together with {cluster.flags()[0]}", expected="one of them")
    known = load(Path(filename)) if filename else of_cluster(cluster, cluster.namespace or _OPERATOR)
    if form is not None:
        print_document(known.to_document(), form)
    elif not known.runtimes:
        click.echo("no runtimes")
    else:
        print_table([_HEADINGS, *rows(known)])


def of_cluster(cluster: Cluster, operator_namespace: str) -> KnownRuntimes:
    """Read the runtimes that the operator's chart publishes; none if it publishes none. Raises ClusterProblem."""
    from mptraining.cluster.connection import connect
    from mptraining.cluster.errors import ClusterProblem
    from mptraining.job_file.runtimes_file import CONFIG_MAP, KEY, KnownRuntimes, parse
    from mptraining_api.kubernetes_api import CONFIG_MAPS

    server = connect(cluster).in_namespace(operator_namespace)
    try:
        stored = server.get(CONFIG_MAPS, CONFIG_MAP)
    except ClusterProblem as problem:
        if problem.status == 404:
            return KnownRuntimes()
        raise
    return parse(str(stored.get("data", {}).get(KEY, "")), where=f"ConfigMap {operator_namespace}/{CONFIG_MAP}")


def rows(known: KnownRuntimes) -> list[tuple[str, ...]]:
    return [
        (
            name,
            ", ".join(sorted(namespace for namespace, chosen in known.default_runtimes.items() if chosen == name))
            or "-",
            ", ".join(_adds(runtime)) or "-",
            ", ".join(f"{field} {_text(value)}" for field, value in _limits(runtime).items()) or "-",
            runtime.description or "-",
        )
        for name, runtime in sorted(known.runtimes.items())
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
