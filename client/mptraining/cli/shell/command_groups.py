"""The commands of `mptj --help` in groups, in the order in which a new user meets them, one line of 80 columns each."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

GROUPS: dict[str, dict[str, str]] = {
    "Start and train here": {
        "init": "Write a job file with comments to start from.",
        "check": "Validate job files and show their defaults, with reasons.",
        "run": "Train the job in a file on this machine.",
        "sweep": "Search hyperparameters: `mptj sweep FILE`.",
    },
    "Data": {"records": "Convert data to TFRecords; index and verify them."},
    "Look at runs": {
        "compare": "Show runs side by side.",
        "board": "Show runs and jobs in the browser, with live curves.",
        "predict": "Predict with a trained model, to a Parquet file.",
        "ensemble": "Average the best of some runs in one model.",
        "export": "Send a run to MLflow, W&B or TensorBoard.",
    },
    "On a cluster": {
        "submit": "Send a job, a sweep or a program to the cluster.",
        "list": "List the jobs and sweeps of a namespace.",
        "status": "Show a job's phase, its reason, progress and advice.",
        "logs": "Print the logs of a job's workers, or of a run folder.",
        "wait": "Follow a job until it has ended.",
        "fetch": "Copy a job's run folder, or its model, to this machine.",
        "suspend": "Stop jobs at a checkpoint until `mptj resume`.",
        "resume": "Resume suspended jobs from their last checkpoint.",
        "cancel": "Delete jobs; their run folders are kept.",
    },
    "Platform": {
        "accelerators": "List the accelerators and their names in a job file.",
        "runtimes": "List the runtimes that the cluster offers.",
        "schema": "Print the JSON schema of a job file, for editors.",
        "convert-tfjob": "Convert Kubeflow's TFJobs into MPTrainingJobs.",
    },
}


class GroupedCommands(TyperGroup):
    """The root command, whose help lists GROUPS; typer's own panels need rich, which triples the time of `--help`."""

    def list_commands(self, ctx: Any) -> list[str]:
        order = [name for group in GROUPS.values() for name in group]
        return sorted(super().list_commands(ctx), key=order.index)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        wide = max(map(len, self.list_commands(ctx)))
        for title, group in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(wide), text) for name, text in group.items()])
