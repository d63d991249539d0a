"""`make audit`: exit code 1 for a known vulnerability or a licence that is not allowed.

    python -m tools.audit [--data FOLDER] [--report FILE]

pip-audit asks api.osv.dev about every locked version. With `--data` it asks a copy of the advisories on this machine
instead, which the report dates: a copy of more than 30 days is a finding of its own, which `--old-data` permits.
tools/audit/exceptions.toml lists what is passed over, with reasons. The bills of materials must exist: `make sbom`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from tools.audit import advisories, licenses

ROOT = Path(__file__).resolve().parents[2]
PIP_AUDIT = ROOT / "build" / "audit-tools" / "bin" / "pip-audit"
BILLS = ROOT / "build" / "sbom"
_LOCKS = ("*.lock", "images/*.lock", "tests/*.lock", "tools/*.lock")
_OLDEST_DAYS = 30


@dataclass(frozen=True)
class Vulnerability:
    id: str
    names: frozenset[str]
    package: str
    version: str
    fixed: tuple[str, ...]
    about: str


@dataclass(frozen=True)
class Excepted:
    """`until` is the last day on which the exception holds."""

    id: str
    package: str
    reason: str
    until: date


def locks() -> list[str]:
    """Return the names of all locks of the repository."""
    return sorted(path.relative_to(ROOT).as_posix() for pattern in _LOCKS for path in ROOT.glob(pattern))


def scan(lock: Path, url: str | None) -> tuple[int, list[Vulnerability]]:
    """Return the number of packages and their vulnerabilities. Raises RuntimeError where pip-audit cannot tell."""
    command = [str(PIP_AUDIT), "--disable-pip", "--require-hashes", "--requirement", str(lock), "--format", "json"]
    command += ["-s", "osv", "--progress-spinner", "off", *(("--osv-url", url) if url else ())]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    # 1 is for vulnerabilities, and for errors, after which there is no answer.
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        last = (done.stderr.strip().splitlines() or ["no answer"])[-1]
        raise RuntimeError(f"{lock.name}: pip-audit cannot tell: {last}. Without a network give --data") from None
    return len(answer["dependencies"]), list(vulnerabilities(answer))


def vulnerabilities(answer: Mapping[str, Any]) -> list[Vulnerability]:
    """Return those of pip-audit's answer. Raises RuntimeError for a package that it left out."""
    skipped = [each["name"] for each in answer["dependencies"] if "skip_reason" in each]
    if skipped:
        raise RuntimeError(f"pip-audit left out {', '.join(skipped)}")
    return [
        Vulnerability(
            found["id"],
            frozenset((found["id"], *found["aliases"])),
            each["name"],
            each["version"],
            tuple(found["fix_versions"]),
            found["description"][:160],
        )
        for each in answer["dependencies"]
        for found in each["vulns"]
    ]


def judge(
    found: Sequence[Vulnerability], excepted: Sequence[Excepted], today: date
) -> tuple[list[Vulnerability], list[str]]:
    """Return what no exception covers, and a line for each exception that has expired or is not needed."""
    covers = [(each, [v for v in found if each.id in v.names and each.package == v.package]) for each in excepted]
    passed = {(v.package, v.id) for each, covered in covers if each.until >= today for v in covered}
    stale = [
        f"the exception of {each.id} ended on {each.until}: {each.reason}" for each, _ in covers if each.until < today
    ]
    stale += [f"the exception of {each.id} covers nothing: remove it" for each, covered in covers if not covered]
    return [each for each in found if (each.package, each.id) not in passed], stale


def main() -> int:
    parser = argparse.ArgumentParser(description="Known vulnerabilities and licences of what is shipped.")
    parser.add_argument("--data", type=Path, help="a folder of advisories in OSV's format, instead of api.osv.dev")
    parser.add_argument("--old-data", action="store_true", help="accept a copy of more than 30 days")
    parser.add_argument("--report", type=Path, help="write the report as Markdown")
    chosen = parser.parse_args()
    today = datetime.now(UTC).date()
    exceptions = tomllib.loads((ROOT / "tools" / "audit" / "exceptions.toml").read_text(encoding="utf-8"))
    lines, wrong = [f"# Audit of {today}", ""], list[str]()
    try:
        with contextlib.ExitStack() as stack:
            url, source = None, "api.osv.dev"
            if chosen.data:
                known = advisories.load(chosen.data)
                newest = advisories.newest(known).date()
                url = stack.enter_context(advisories.serve(known))
                source = f"a copy with {sum(map(len, known.values())):,} advisories, the newest of {newest}"
                if (today - newest).days > _OLDEST_DAYS and not chosen.old_data:
                    wrong.append(f"the copy of advisories is of {newest}, more than {_OLDEST_DAYS} days old")
            lines += [
                f"Vulnerabilities by pip-audit, from {source}.",
                "",
                "| Lock | Packages | Vulnerabilities |",
                "|---|---|---|",
            ]
            every: dict[tuple[str, str], Vulnerability] = {}
            for name in locks():
                count, found = scan(ROOT / name, url)
                lines.append(f"| `{name}` | {count} | {len(found)} |")
                every |= {(each.package, each.id): each for each in found}
    except (RuntimeError, ValueError) as error:
        print(f"audit: {error}", file=sys.stderr)
        return 2
    excepted = [
        Excepted(each["id"], each["package"], each["reason"], each["until"])
        for each in exceptions.get("vulnerability", ())
    ]
    open_, stale = judge(list(every.values()), excepted, today)
    for each in open_:
        fixed = f"fixed in {', '.join(each.fixed)}" if each.fixed else "no version fixes it"
        wrong.append(f"{each.package} {each.version}: {each.id}, {fixed}: {each.about}")
    wrong += stale
    bills = {path.name.partition(".")[0]: json.loads(path.read_text()) for path in sorted(BILLS.glob("*.cdx.json"))}
    if not bills:
        print("audit: no bill of materials in build/sbom: make sbom", file=sys.stderr)
        return 2
    reasons = {each["package"]: each["reason"] for each in exceptions.get("license", ())}
    refused, unused = licenses.check(bills, reasons)
    lines += ["", *licence_table(bills), ""]
    for finding in refused:
        told = finding.license or "states none"
        wrong.append(f"{finding.package} ({', '.join(finding.images)}): licence {told}: allow or except it")
    wrong += [f"the exception of the licence of {each} is not needed: remove it" for each in unused]
    lines += ["Exceptions:", "", *(f"- `{package}`: {reason}" for package, reason in reasons.items())]
    lines += [f"- {each.id} in {each.package}, until {each.until}: {each.reason}" for each in excepted]
    lines += ["", "Findings:", "", *(f"- {each}" for each in wrong or ["none"])]
    text = "\n".join(lines) + "\n"
    print(text, end="")
    if chosen.report:
        chosen.report.parent.mkdir(parents=True, exist_ok=True)
        chosen.report.write_text(text, encoding="utf-8")
    return int(bool(wrong))


def licence_table(bills: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return a table of licences with their packages, over all images."""
    packages: dict[str, set[str]] = {}
    for bill in bills.values():
        for component in bill["components"]:
            packages.setdefault(licenses.stated(component) or "states none", set()).add(component["name"])
    rows = [f"| {license} | {', '.join(sorted(packages[license]))} |" for license in sorted(packages)]
    return ["| Licence | Packages of the images |", "|---|---|", *rows]


if __name__ == "__main__":
    sys.exit(main())
