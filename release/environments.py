"""Every extra of the wheel, installed in an empty environment of each Python, and used there."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from release.programs import attempt, program

# What each extra is for, done once. The client's is the empty one.
_USES = {
    "": "from mptraining.cli.main import main; main(['accelerators'])",
    "operator": "import mptraining_operator.app, mptraining_operator.helm_test",
    "trainer": "import mptraining_trainer.train, tensorflow, keras, tf_keras; keras.layers.Dense(1).build((None, 2))",
    "board": "import mptraining.board.server, uvicorn",
    "sweep": "import optuna, cmaes; optuna.create_study(sampler=optuna.samplers.CmaEsSampler())",
    "mlflow": "import mptraining.exporters, mlflow",
    "wandb": "import mptraining.exporters, wandb",
    "notebook": "import mptraining.packaging, IPython",
}
# Extras that a Python cannot have, and why: docs/guide/install.md.
KNOWN = {("trainer", "3.14"): "TensorFlow 2.21 has no wheels for Python 3.14"}


@dataclass(frozen=True)
class Python:
    """A Python, by its executable; or that of a Debian in a folder, which is entered by chroot."""

    path: Path

    @property
    def root(self) -> Path | None:
        return self.path if self.path.is_dir() else None


@dataclass(frozen=True)
class Installed:
    """One extra under one Python. `reason`: why it could not be installed or used, the last line; else empty."""

    python: str
    extra: str
    seconds: float
    reason: str

    @property
    def wrong(self) -> bool:
        """Whether it fails where it should not, or works where this module says that it cannot."""
        return bool(self.reason) != ((self.extra, self.python) in KNOWN)


def check(wheel: Path, pythons: Sequence[str], extras: Sequence[str]) -> Iterator[Installed]:
    """Install and use the client alone, then each extra, under each Python."""
    for each in pythons:
        found = shutil.which(each)
        python = Python(Path(found) if found else Path(each))
        for extra in ("", *extras):
            yield _installed(python, wheel, extra)


def as_json(rows: Sequence[Installed]) -> str:
    return json.dumps([each.__dict__ for each in rows], indent=1)


@contextmanager
def _scratch(python: Python) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=python.root / "tmp" if python.root else None) as made:
        yield Path(made)


def _installed(python: Python, wheel: Path, extra: str) -> Installed:
    with _scratch(python) as folder:
        # The program and the wheel where a chroot sees them.
        shutil.copy(wheel, folder)
        shutil.copy(program("uv"), folder / "uv")
        enter = ("chroot", str(python.root)) if python.root else ()
        inside = Path("/") / folder.relative_to(python.root) if python.root else folder
        executable = "/usr/bin/python3" if python.root else str(python.path)
        uv, venv = str(inside / "uv"), inside / "environment"
        asked = str(inside / wheel.name) + (f"[{extra}]" if extra else "")
        interpreter = str(venv / "bin" / "python")
        version = attempt(*enter, executable, "-c", "import sys; print('%d.%d' % sys.version_info[:2])").stdout.strip()
        # A home of its own, but one cache, so that TensorFlow is downloaded once.
        cache = "/var/cache/uv" if python.root else attempt(uv, "cache", "dir").stdout.strip()
        environment = {"PYTHONPATH": "", "HOME": str(inside), "UV_CACHE_DIR": cache}
        began = time.monotonic()
        for command in (
            (uv, "venv", "--quiet", "--no-project", "--python", executable, str(venv)),
            (uv, "pip", "install", "--quiet", "--python", interpreter, asked),
            (uv, "pip", "check", "--quiet", "--python", interpreter),
            (interpreter, "-W", "ignore", "-c", _USES.get(extra, "import mptraining")),
        ):
            # A folder of its own: nothing is imported from the repository.
            done = attempt(*enter, *command, folder=folder, environment=environment)
            if done.returncode:
                said = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
                return Installed(version, extra, time.monotonic() - began, " ".join(said[-4:]))
        return Installed(version, extra, time.monotonic() - began, "")
