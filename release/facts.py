"""Ask repository, registry and package index what there is before a release is made."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

import requests
import yaml

from kind.engine import Failed
from release.plan import PROJECT, Facts, Request, mistakes, names, simple_index
from release.programs import attempt, program, run

_SECONDS = 30
# oras writes a registry's codes, NAME_UNKNOWN, in small letters with spaces.
_ABSENT = re.compile(r": not found$|\b(?i:(?:name|manifest)[ _]unknown)\b", re.MULTILINE)
_DENIED = re.compile(r"\b(?:denied|unauthorized|forbidden|status code 40[13])", re.IGNORECASE)


@dataclass(frozen=True)
class Commit:
    """`epoch`: its time in seconds since 1970."""

    name: str
    epoch: int


def declared_version(root: Path) -> str:
    """Return the version in pyproject.toml."""
    return str(tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"])


def commit(root: Path) -> Commit:
    name, epoch = run("git", "log", "-1", "--format=%H %ct", folder=root).split()
    return Commit(name, int(epoch))


def gather(request: Request, root: Path) -> Facts:
    """Return the facts. Raises Failed if the registry or the index does not answer."""
    changed = run("git", "status", "--porcelain", folder=root).splitlines()
    chart = yaml.safe_load((root / "charts" / "mptraining" / "Chart.yaml").read_text(encoding="utf-8"))
    published: tuple[str, ...] = ()
    if not mistakes(request):
        published = (*in_registry(names(request).references), *in_index(simple_index(request), request.version))
    return Facts(
        declared_version=declared_version(root),
        chart_version=chart["version"],
        changed=tuple(line[3:] for line in changed),
        changelog=(root / "CHANGELOG.md").read_text(encoding="utf-8"),
        published=published,
    )


def in_registry(references: tuple[str, ...]) -> list[str]:
    """Return those of the references that exist."""
    found = []
    for reference in references:
        asked = attempt(program("oras"), "manifest", "fetch", "--descriptor", *plain_http(reference), reference)
        if asked.returncode == 0:
            found.append(reference)
        elif not is_absent(reference, asked.stderr):
            raise Failed(f"{reference}: the registry does not answer: {asked.stderr.strip().splitlines()[-1]}")
    return found


def is_absent(reference: str, said: str) -> bool:
    """Return whether oras says that a repository, or a tag in it, does not exist. Raises Failed if it is denied."""
    if _ABSENT.search(said):
        return True
    if _DENIED.search(said):
        raise Failed(
            f"{reference}: the registry denies access: {said.strip().splitlines()[-1]}. Run `oras login "
            f"{reference.partition('/')[0]}` as an account that may read and write there. Some registries answer so "
            "for a repository that does not exist, to accounts that may not create it"
        )
    return False


def in_index(simple: str, version: str) -> list[str]:
    """Return the files of this version that the index has (PEP 503)."""
    try:
        answer = requests.get(f"{simple.rstrip('/')}/{PROJECT}/", timeout=_SECONDS)
    except requests.RequestException as error:
        raise Failed(f"{simple}: the package index does not answer: {error}") from None
    if answer.status_code == requests.codes.not_found:
        return []
    if not answer.ok:
        raise Failed(f"{simple}: the package index answers {answer.status_code}")
    return sorted(
        set(re.findall(rf">\s*({PROJECT}-{re.escape(version)}(?:-py3-none-any\.whl|\.tar\.gz))\s*<", answer.text))
    )


def plain_http(reference: str) -> list[str]:
    """Loopback has no certificate, and needs none."""
    host = reference.partition("/")[0].partition(":")[0]
    return ["--plain-http"] if host in ("localhost", "127.0.0.1") else []
