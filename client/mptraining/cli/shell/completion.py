"""Values for shell completion: accelerators, precision policies, applications, run folders. None asks a server."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from mptraining_api.problems import Problem

POLICIES = ("Auto", "Measure", "float32", "mixed_float16", "mixed_bfloat16")
_MOST = 200


def accelerators(incomplete: str) -> list[str]:
    """Return short and canonical names of accelerators."""
    from mptraining_api.accelerators import catalogue

    names = [name for each in catalogue().values() for name in (*each.aliases, each.name)]
    return _beginning(dict.fromkeys(names), incomplete)


def policies(incomplete: str) -> list[str]:
    """Return the precision policies."""
    return _beginning(POLICIES, incomplete)


def applications(incomplete: str) -> list[str]:
    """Return the names of models, in any case."""
    from mptraining_api.validation.keras_names import table

    names = table()["Keras3"].names["applications"]
    return [name for name in names if name.lower().startswith(incomplete.lower())]


def targets(incomplete: str) -> list[str]:
    """Return what `mptj submit` takes: files in the folder that is being typed, and applications."""
    return [*_files(incomplete, (".yaml", ".yml", ".py", ".ipynb")), *(applications(incomplete) if incomplete else [])]


def job_files(incomplete: str) -> list[str]:
    """Return YAML files and folders."""
    return _files(incomplete, (".yaml", ".yml", ".json"))


def run_folders(incomplete: str) -> list[str]:
    """Return run folders, which have a job.json, in the folder that is being typed and in runs/."""
    try:
        parents = [Path(incomplete).parent if "/" in incomplete else Path(), Path("runs")]
        found = [str(each.parent) for parent in parents for each in sorted(parent.glob("*/job.json"))[:_MOST]]
    except (OSError, Problem):
        return []
    return _beginning(dict.fromkeys(found), incomplete)


def sweeps(incomplete: str) -> list[str]:
    """Return folders of sweeps, which have a sweep.json, in the folder that is being typed and in runs/; and files."""
    try:
        parents = [Path(incomplete).parent if "/" in incomplete else Path(), Path("runs")]
        found = [str(each.parent) for parent in parents for each in sorted(parent.glob("*/sweep.json"))[:_MOST]]
    except OSError:
        return []
    return [*_beginning(dict.fromkeys(found), incomplete), *job_files(incomplete)]


def _files(incomplete: str, endings: tuple[str, ...]) -> list[str]:
    folder = Path(incomplete).parent if "/" in incomplete else Path()
    try:
        found = [f"{each}/" if each.is_dir() else str(each) for each in sorted(folder.iterdir())[:_MOST]]
    except OSError:
        return []
    return _beginning([each for each in found if each.endswith(("/", *endings))], incomplete)


def _beginning(names: Iterable[str], incomplete: str) -> list[str]:
    return [each for each in names if each.startswith(incomplete)]
