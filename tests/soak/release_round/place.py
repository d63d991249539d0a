"""Where the round takes place, its programs, and the time of each command."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from release.plan import Names, Request, names
from release.programs import attempt, program, run
from release.signatures import Verifier

VERSION = "0.2.0"
# Words of the line in which a program says why it refuses: the first that is found.
_REASONS = (("mismatch", "commit digest", "do not match", "signature"), ("error", "fail"))


@dataclass
class Place:
    """`folder`: of the round; in it `checkout`, `registry`, `index`, `files` (what a person downloads)."""

    folder: Path
    registry_port: int
    index_port: int
    rows: list[tuple[str, str, float]] = field(default_factory=list)

    @property
    def registry(self) -> str:
        return f"localhost:{self.registry_port}"

    @property
    def index(self) -> str:
        return f"http://127.0.0.1:{self.index_port}"

    @property
    def key(self) -> Path:
        return self.folder / "cosign.key"

    @property
    def files(self) -> Path:
        return self.folder / "files"

    @property
    def names(self) -> Names:
        return names(Request(VERSION, self.registry, f"{self.index}/", str(self.key), ("cpu",)))

    @property
    def verifier(self) -> Verifier:
        """By the public key, which a person has from elsewhere than the registry."""
        return Verifier(program("cosign"), self.folder / "cosign.pub")

    def timed(
        self,
        what: str,
        *command: str | Path,
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
        text: str | None = None,
    ) -> str:
        """Run a command, which must succeed, and remember its time. Returns its standard output."""
        began = time.monotonic()
        output = run(*command, folder=folder, environment=environment, text=text)
        self.remember(what, self.shown(*command), time.monotonic() - began)
        return output

    def remember(self, what: str, command: str, seconds: float) -> None:
        self.rows.append((what, command, seconds))
        print(f"round: {what}: {seconds:.0f} s", flush=True)

    def refused(self, *command: str | Path, folder: Path | None = None) -> str:
        """Run a command, which must fail, and return the line in which it says why. Raises AssertionError."""
        done = attempt(*command, folder=folder)
        said = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        assert done.returncode != 0, f"{self.shown(*command)} accepted what was tampered with"
        # cosign warns that a signature by a key is in no log.
        lines = [line for line in said if not line.startswith("WARNING")]
        ranked = [line for words in _REASONS for line in lines if any(word in line.lower() for word in words)]
        return self.plain((ranked or said)[0])

    def shown(self, *command: str | Path) -> str:
        """The command as a person types it."""
        words = [str(each) for each in command]
        return self.plain(" ".join([Path(words[0]).name, *words[1:]]))

    def plain(self, text: str) -> str:
        """Without the places of this run."""
        for found, name in (
            (self.registry, "REGISTRY"),
            (f"{self.index}/", "INDEX/"),
            (f"{self.files}/", ""),
            (f"{self.folder}/", ""),
            (f"{Path.cwd()}/", ""),
        ):
            text = text.replace(found, name)
        return text


def passwords() -> None:
    """Those of a key and an index that exist for the round alone."""
    os.environ |= {"COSIGN_PASSWORD": "", "UV_PUBLISH_USERNAME": "round", "UV_PUBLISH_PASSWORD": "round"}
