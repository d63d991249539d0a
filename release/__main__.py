"""Release a version: build, check, sign, publish.

    python -m release --prepare --version 0.2.0
    python -m release --version 0.2.0 --registry HOST/PATH --index URL --key cosign.key

--prepare writes the version into pyproject.toml, Chart.yaml and CHANGELOG.md and ends. --dry-run prints the plan and
what refuses it. The environment has the credentials: COSIGN_PASSWORD; UV_PUBLISH_TOKEN, or UV_PUBLISH_USERNAME and
UV_PUBLISH_PASSWORD; `oras login` and `cosign login` those of the registry. See docs/release.md.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from kind.engine import ROOT, Failed
from release import build, facts, plan, prepare, publish
from release.programs import say

# Variables by which cosign gets the identity of a CI: GitHub's, and any other's.
_IDENTITIES = ("ACTIONS_ID_TOKEN_REQUEST_TOKEN", "SIGSTORE_ID_TOKEN")
# By the names in `plan.steps`.
STEPS: dict[str, Callable[[build.Release], Iterator[str] | None]] = {
    "distributions": build.make_distributions,
    "environments": build.make_environments,
    "images": build.make_images,
    "chart": build.make_chart,
    "install.yaml": build.make_install_yaml,
    "bills": build.make_bills,
    "provenance": build.make_provenance,
    "checksums": build.make_checksums,
    "signatures": build.make_signatures,
    "upload": publish.upload,
    "index": publish.index,
    "tags": publish.tags,
}


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    try:
        if given.prepare:
            today = datetime.now(UTC).strftime("%Y-%m-%d")
            written = prepare.prepare(ROOT, given.version, today)
            say(f"{', '.join(written)} have {given.version}. Run `make setup manifests`, review, commit and release.")
            return 0
        return _release(given)
    except Failed as failed:
        sys.stderr.write(f"release: {failed}\n")
        return 1


def _release(given: argparse.Namespace) -> int:
    request = plan.Request(
        version=given.version,
        registry=given.registry.rstrip("/"),
        index=given.index,
        key=given.key,
        variants=tuple(given.variants.split(",")),
        pythons=tuple(given.python),
        base=given.base,
        simple_index=given.simple_index,
        without_environments=given.without_environments,
    )
    refused = plan.refusals(request, facts.gather(request, ROOT))
    if request.key and not Path(request.key).is_file():
        refused.append(f"--key {request.key}: no such file. `cosign generate-key-pair` makes one.")
    if not request.key and not any(os.environ.get(each) for each in _IDENTITIES):
        refused.append("--key: not given, and this is no CI with an identity. `cosign generate-key-pair` makes a key.")
    if not request.base and not given.local_base:
        refused.append(
            "--base: not given. Name the images' base as NAME@sha256:…, or try the release with --local-base."
        )
    steps = [] if plan.mistakes(request) else plan.steps(request)
    if given.dry_run:
        for number, (name, makes) in enumerate(steps, 1):
            say(f"{number:2}. {name}: {makes}")
    if refused:
        raise Failed("refused:\n" + "\n".join(f"  - {each}" for each in refused))
    return 0 if given.dry_run else _make(request, steps)


def _make(request: plan.Request, steps: Sequence[tuple[str, str]]) -> int:
    finished = ROOT / "build" / "release" / request.version
    folder = finished.with_name(f"{request.version}.part")
    shutil.rmtree(folder, ignore_errors=True)
    release = build.Release(request, facts.commit(ROOT), folder, build.now())
    times = {}
    for number, (name, makes) in enumerate(steps, 1):
        say(f"[{number}/{len(steps)}] {name}: {makes}")
        began = time.monotonic()
        for line in STEPS[name](release) or ():
            say(f"    {line}")
        times[name] = round(time.monotonic() - began, 1)
        if times[name] >= 1:
            say(f"    {times[name]:.0f} s")
    record = {"version": request.version, "commit": release.commit.name, "digests": release.digests, "seconds": times}
    (folder / "release.json").write_text(json.dumps(record, indent=1), encoding="utf-8")
    shutil.rmtree(finished, ignore_errors=True)
    folder.rename(finished)
    say(f"{request.version} is published after {sum(times.values()):.0f} s; files in {finished.relative_to(ROOT)}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m release", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", required=True, help="such as 0.2.0 or 0.2.0rc1")
    parser.add_argument("--registry", default="", help="HOST/PATH; images are HOST/PATH/mptraining/operator, …")
    parser.add_argument("--index", default="", help="the upload address of a package index")
    parser.add_argument("--simple-index", default="", help="its address for pip (PyPI's own, else INDEX/simple/)")
    parser.add_argument("--key", default="", help="cosign's private key; without it keyless, in CI")
    parser.add_argument("--variants", default=",".join(plan.VARIANTS), help="of the trainer (cpu,gpu,tpu)")
    parser.add_argument(
        "--base",
        default=os.environ.get("MPTRAINING_BASE_IMAGE", ""),
        help="base of the images, NAME@sha256:… (MPTRAINING_BASE_IMAGE)",
    )
    parser.add_argument("--local-base", action="store_true", help="a base of this machine's Debian packages: for tests")
    parser.add_argument(
        "--python", action="append", default=[], help="a Python, or a folder with a Debian, to install every extra in"
    )
    parser.add_argument("--without-environments", action="store_true", help="install the extras nowhere")
    parser.add_argument("--prepare", action="store_true", help="write the version into the repository, and end")
    parser.add_argument("--dry-run", action="store_true", help="print the plan and what refuses it, and end")
    return parser


if __name__ == "__main__":
    sys.exit(main())
