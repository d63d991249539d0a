"""Fuzzes one target in this process: `python -m tests.soak.fuzz.one TARGET FINDINGS [libFuzzer's arguments]`.

FINDINGS is a folder with a JSON file for each finding so far; a finding that is in it does not end the process again.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

# The limits of a correct parser, in seconds of the process's own time: one for each KiB, and for what is shorter.
SECONDS_PER_KIB = 1.0
_PACKAGES = ("mptraining", "mptraining_api", "mptraining_operator", "mptraining_records", "mptraining_trainer")


class TooSlow(Exception):
    """An input that takes longer than its size permits."""


def signature(error: BaseException) -> str:
    """Return what makes two findings the same: the class and the innermost line of the project, tests apart."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if any(f"/{package}/" in frame.filename for package in _PACKAGES)]
    frame = (ours or frames)[-1]
    return f"{type(error).__name__} {Path(frame.filename).name}:{frame.name}"


def main() -> None:
    name, findings, *arguments = sys.argv[1:]
    atheris: Any = importlib.import_module("atheris")
    # The packages before the extra ones: what is imported later is not instrumented.
    with atheris.instrument_imports(include=[*_PACKAGES, "ruamel.yaml", "tarfile", "zipfile"]):
        targets = importlib.import_module("tests.soak.fuzz.targets")
    target = targets.TARGETS[name]
    known = {json.loads(path.read_text())["signature"] for path in Path(findings).glob("*.json")}
    # In memory, where there is such a file system.
    memory = Path("/dev/shm")
    scratch = Path(tempfile.mkdtemp(prefix="fuzz-", dir=memory if memory.is_dir() else None))

    def one(content: bytes) -> None:
        began = time.process_time()
        try:
            targets.run(target, content, scratch)
            spent = time.process_time() - began
            if spent > SECONDS_PER_KIB * max(1.0, len(content) / 1024):
                raise TooSlow(f"{spent:.1f} s for {len(content)} bytes")
        except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
            found = signature(error)
            if found in known:
                return
            save(Path(findings), name, found, content, error)
            known.add(found)

    atheris.Setup([sys.argv[0], *arguments], one)
    atheris.Fuzz()


def save(folder: Path, name: str, found: str, content: bytes, error: BaseException) -> None:
    digest = hashlib.sha256(f"{name} {found}".encode()).hexdigest()[:12]
    (folder / f"{name}-{digest}.input").write_bytes(content)
    text = "".join(traceback.format_exception(error))
    document = {"target": name, "signature": found, "bytes": len(content), "error": str(error)[:500], "traceback": text}
    (folder / f"{name}-{digest}.json").write_text(json.dumps(document, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
