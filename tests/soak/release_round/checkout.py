"""A clone of the repository with the next version written, committed and released."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from kind.engine import ROOT
from release.programs import attempt, program, run
from tests.soak.release_round.place import VERSION, Place

# Programs that were built once.
_SHARED = ("bin", "release-tools", "release-python", "sbom-tools")


def prepare(place: Place) -> Path:
    """Clone the commit that is checked out, write the version and commit."""
    checkout = place.folder / "checkout"
    shutil.rmtree(checkout, ignore_errors=True)
    run("git", "clone", "--quiet", ROOT, checkout)
    (checkout / "build").mkdir()
    for name in _SHARED:
        (checkout / "build" / name).symlink_to(ROOT / "build" / name)
    place.timed("the version is written", *_release(place, "--prepare"), folder=checkout)
    identity = ("-c", "user.name=round", "-c", "user.email=round@example.com")
    run("git", *identity, "commit", "--quiet", "--all", "--message", f"Version {VERSION}", folder=checkout)
    if not place.key.exists():
        run(program("cosign"), "generate-key-pair", folder=place.folder)
    return checkout


def release(place: Place, checkout: Path) -> str:
    """Release it, then see that the version cannot be released again. Returns what the command printed."""
    flags = (
        "--registry",
        place.registry,
        "--index",
        f"{place.index}/",
        "--key",
        place.key,
        "--variants",
        "cpu",
        "--local-base",
        "--without-environments",
    )
    printed = place.timed("released", *_release(place, *flags), folder=checkout)
    again = attempt(*_release(place, *flags), folder=checkout)
    assert again.returncode, "the same version was released twice"
    assert again.stderr.count("exists already") == len(place.names.references) + 2, again.stderr
    return printed


def _release(place: Place, *flags: str | Path) -> list[str | Path]:
    return [sys.executable, "-m", "release", "--version", VERSION, *flags]
