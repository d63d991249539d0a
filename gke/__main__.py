"""`python -m gke plan|up|run|down --project P`: mptraining on Google Cloud, one job each on T4 Spot, A100, TPU v5e.

plan prints costs and commands and calls nothing. up creates the cluster, the node pools, the bucket and the chart
after a question. run submits the jobs, waits for them and prints how they ended. down removes the cluster and the
bucket that have this name's label, and nothing else. Each continues where it was stopped.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import yaml

from gke import costs, jobs
from gke.execute import Runner, StepFailed
from gke.plan import context, project_number, setup, teardown
from gke.pools import Pool, chosen
from gke.settings import InvalidSettings, Settings, check
from hardware.data import pattern

ROOT = Path(__file__).resolve().parents[1]
_NUMBER = "PROJECT_NUMBER"
_POLL_SECONDS = 20.0
# Longer than the jobs' own limits of waiting and training.
_MOST_SECONDS = 5400.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; return 0, 1 for a step or a job that failed, 2 for wrong arguments."""
    parser = argparse.ArgumentParser(prog="python -m gke", description=__doc__)
    parser.add_argument("verb", choices=["plan", "up", "run", "down"])
    parser.add_argument("--project", required=True, help="project ID")
    parser.add_argument(
        "--zone",
        default="",
        help=f"of the cluster: {Settings.zone}, which has all three accelerators; run and down find the cluster's",
    )
    parser.add_argument("--name", default=Settings.name, help="of the cluster; all that is created bears it as a label")
    parser.add_argument("--pools", nargs="+", default=[], metavar="POOL", help="some of t4 a100 v5e")
    parser.add_argument(
        "--images", default="", metavar="REGISTRY", help="with mptraining/operator and mptraining/trainer"
    )
    parser.add_argument("--tag", default="", help="of these images")
    parser.add_argument("--chart", default=str(ROOT / "charts" / "mptraining"), help="folder, or oci://… of the chart")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    asked = parser.parse_args(arguments)
    settings = Settings(asked.project, asked.zone or Settings.zone, asked.name, asked.images, asked.tag)
    try:
        # The chart of this folder names no registry: its images would be looked for in docker.io.
        check(settings, images_needed=asked.verb in ("plan", "up") and not asked.chart.startswith("oci://"))
        pools = chosen(asked.pools)
    except (InvalidSettings, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    runner = Runner(settings, ROOT / "build" / "gke" / f"{settings.bucket}.json", say=_say)
    try:
        match asked.verb:
            case "plan":
                plan(settings, pools, asked.chart)
            case "up":
                print(costs.table(pools))
                if not asked.yes and not _agreed(f"Create these in {settings.project}?"):
                    return 1
                up(runner, pools, asked.chart)
            case "run":
                if not asked.zone and (zones := runner.zones()):
                    runner.settings = dataclasses.replace(settings, zone=zones[0])
                return 0 if run(runner, pools) else 1
            case "down":
                return 0 if down(runner, asked.zone, yes=asked.yes) else 1
    except StepFailed as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def plan(settings: Settings, pools: Sequence[Pool], chart: str) -> None:
    """Print costs and commands."""
    print(costs.table(pools))
    print("\nup:")
    for step in setup(settings, pools, _NUMBER, chart):
        for command in (step.create, *step.after):
            print(f"  {shlex.join(command)}")
    print("\nrun: one job on each pool")
    for pool in pools:
        print(f"  {jobs.name(pool)}: {json.dumps(pool.job_accelerator)}")
    print("\ndown:")
    for step in teardown(settings, [settings.zone]):
        print(f"  {shlex.join(step.delete)}")
    quotas = ", ".join(pool.quota for pool in pools)
    print(f"\nQuotas needed in {settings.region}, one each: {quotas}")
    if gpus := sum(pool.gpus for pool in pools):
        print(f"Quota needed for the project: {gpus} of GPUS_ALL_REGIONS")


def up(runner: Runner, pools: Sequence[Pool], chart: str) -> None:
    """Create what is missing. Raises StepFailed; a pool that cannot be created does not keep the rest from it."""
    number = runner.output("project", project_number(runner.settings))
    failed = []
    for step in setup(runner.settings, pools, number, chart):
        try:
            if step.title.startswith("cluster "):
                _refuse_another_zone(runner)
            runner.create(step)
        except StepFailed as error:
            if not step.title.startswith("node pool "):
                raise
            failed.append(str(error))
    if failed:
        raise StepFailed("\n".join(failed))


def down(runner: Runner, zone: str, *, yes: bool) -> bool:
    """Delete the labelled clusters, in whichever zone they are, and the bucket; return whether it was agreed to.

    Raises StepFailed, also if `zone` is given and a cluster is elsewhere: it would be left and cost.
    """
    settings = runner.settings
    zones = runner.zones()
    elsewhere = [one for one in zones if one != zone]
    if zone and elsewhere:
        raise StepFailed(
            f"cluster {settings.name}: it is in {', '.join(elsewhere)}, not only in {zone}. Run the command without "
            "--zone, which deletes it there; nothing was deleted."
        )
    place = f" in {', '.join(zones)}" if zones else f" (none found in any zone; {settings.zone} is looked at again)"
    if not yes and not _agreed(f"Delete cluster {settings.name}{place} and gs://{settings.bucket}?"):
        return False
    for step in teardown(settings, zones or [settings.zone]):
        runner.delete(step)
    return True


def run(runner: Runner, pools: Sequence[Pool]) -> bool:
    """Upload records, submit the jobs, wait for all; return whether all succeeded. Raises StepFailed."""
    settings = runner.settings
    kubectl = ("kubectl", f"--context={context(settings)}", f"--namespace={settings.namespace}")
    with tempfile.TemporaryDirectory(prefix="mptraining-gke-") as name:
        folder = Path(name)
        # Noise: the jobs show that everything works together, not what is learnt.
        written = Path(pattern(folder, "resnet50", "small", "synthetic")).parent
        cp = ("gcloud", "storage", "cp", f"{written}/*", f"{jobs.records(settings)}/")
        runner.output("records", (*cp, f"--project={settings.project}"))
        for pool in pools:
            file = folder / f"{pool.name}.yaml"
            file.write_text(yaml.safe_dump(jobs.document(settings, pool), sort_keys=False), encoding="utf-8")
            # A job that exists is left as it is: the command continues a run that was stopped.
            runner.output(jobs.name(pool), (*kubectl, "apply", f"--filename={file}"))
    until = time.monotonic() + _MOST_SECONDS
    shown: dict[str, str] = {}
    while True:
        found = []
        for pool in pools:
            command = (*kubectl, "get", "mptj", jobs.name(pool), "--output=json")
            found.append(json.loads(runner.output(jobs.name(pool), command)))
            line = jobs.summary(pool, found[-1])
            if shown.get(pool.name) != line:
                print(line, flush=True)
                shown[pool.name] = line
        if all(map(jobs.finished, found)):
            break
        if time.monotonic() > until:
            running = [jobs.name(pool) for pool, job in zip(pools, found, strict=True) if not jobs.finished(job)]
            print(
                f"{', '.join(running)}: not ended after {_MOST_SECONDS / 60:.0f} minutes. Their machines and the "
                "cluster cost until they are deleted:\n"
                f"  python -m gke down --project {settings.project} --name {settings.name}",
                flush=True,
            )
            break
        runner.sleep(_POLL_SECONDS)
    return all(job.get("status", {}).get("phase") == "Succeeded" for job in found)


def _refuse_another_zone(runner: Runner) -> None:
    """Raise StepFailed if the cluster exists in another zone: both would have one bucket and one name."""
    settings = runner.settings
    elsewhere = [zone for zone in runner.zones() if zone != settings.zone]
    if elsewhere:
        raise StepFailed(
            f"cluster {settings.name}: it exists in {', '.join(elsewhere)}. Give --zone {elsewhere[0]}, run `down` "
            "first, or choose another --name."
        )


def _agreed(question: str) -> bool:
    try:
        return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        return False


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
