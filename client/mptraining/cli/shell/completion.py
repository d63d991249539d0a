"""Values for shell completion: accelerators, applications, files, run folders, sweeps. None asks a server."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import click

_MOST = 200


def accelerators(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Return short and canonical names of accelerators."""
    from mptraining_api.accelerators import catalogue

    names = [name for accelerator in catalogue().values() for name in (*accelerator.aliases, accelerator.name)]
    return _beginning(dict.fromkeys(names), incomplete)


def targets(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Return what `mptj submit` takes: files in the folder that is being typed, and applications in any case."""
    from mptraining_api.validation.keras_names import table

    models = table()["Keras3"].names["applications"] if incomplete else ()
    fitting = [name for name in models if name.lower().startswith(incomplete.lower())]
    return [*_files(incomplete, (".yaml", ".yml", ".py", ".ipynb")), *fitting]


def job_files(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    return _files(incomplete, (".yaml", ".yml", ".json"))


def run_folders(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Return run folders, which have a job.json, in the folder that is being typed and in runs/."""
    return _folders("job.json", incomplete)


def sweeps(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Return folders of sweeps, which have a sweep.json, in the folder that is being typed and in runs/; and files."""
    return [*_folders("sweep.json", incomplete), *_files(incomplete, (".yaml", ".yml"))]


def _folders(file: str, incomplete: str) -> list[str]:
    """Return the folders that hold `file`; each with a slash, since a word without one is the name of a job."""
    typed = incomplete[: incomplete.rfind("/") + 1]
    try:
        here = [f"{typed or './'}{path.parent.name}" for path in sorted(Path(typed or ".").glob(f"*/{file}"))[:_MOST]]
        runs = [str(path.parent) for path in sorted(Path("runs").glob(f"*/{file}"))[:_MOST]]
    except OSError:
        return []
    return [
        name
        for name in dict.fromkeys([*here, *runs])
        if name.removeprefix("./").startswith(incomplete.removeprefix("./"))
    ]


def _files(incomplete: str, endings: tuple[str, ...]) -> list[str]:
    folder = Path(incomplete).parent if "/" in incomplete else Path()
    try:
        names = [f"{path}/" if path.is_dir() else str(path) for path in sorted(folder.iterdir())[:_MOST]]
    except OSError:
        return []
    return _beginning([name for name in names if name.endswith(("/", *endings))], incomplete)


def _beginning(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]
