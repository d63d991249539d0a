"""The images install what their locks name, file by file, and nothing else; they run without root."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[3]
LOCKS = sorted(each for each in (ROOT / "hack" / "images").glob("*.lock"))
_ALLOWED = re.compile(
    r"pip --python /opt/venv/bin/python install (--no-compile )?"
    r"(--require-hashes( -r /opt/[\w${}-]+\.lock)+|--no-index /opt/mptraining-\*\.whl)"
)
# Other ways for something from elsewhere into an image.
_ELSEWHERE = re.compile(r"\b(apt|apt-get|apk|dnf|yum|curl|wget|git|npm|conda|uv|easy_install|https?:)\b")


def instructions(text: str) -> Iterator[tuple[str, str]]:
    """Name and arguments of each instruction, continued lines joined, comments left out."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    for line in joined.splitlines():
        if line.strip():
            name, _, arguments = line.strip().partition(" ")
            yield name, arguments.strip()


DOCKERFILE = list(instructions((ROOT / "Dockerfile").read_text(encoding="utf-8")))


def installs(commands: list[tuple[str, str]]) -> list[str]:
    """Each part of a RUN that calls an installer."""
    runs = (arguments for name, arguments in commands if name == "RUN")
    parts = (part.strip() for each in runs for part in re.split(r"&&|;|\|", re.sub(r"--mount=\S+|\w+=\S+ ", "", each)))
    return [part for part in parts if re.search(r"\b(pip|python3? -m pip)\b.*\binstall\b", part)]


def strangers(commands: list[tuple[str, str]]) -> list[str]:
    """What would bring something into an image that no lock names."""
    found = [part for part in installs(commands) if not _ALLOWED.fullmatch(re.sub(r"\s+", " ", part))]
    found += [arguments for name, arguments in commands if name == "RUN" and _ELSEWHERE.search(arguments)]
    found += [arguments for name, arguments in commands if name == "ADD"]
    stages = {arguments.split()[-1] for name, arguments in commands if name == "FROM"}
    copied = [arguments for name, arguments in commands if name == "COPY" and arguments.startswith("--from=")]
    found += [each for each in copied if each.split()[0].removeprefix("--from=") not in stages]
    based = [arguments.split()[0] for name, arguments in commands if name == "FROM"]
    return found + [each for each in based if each not in {*stages, "${BASE}", "trainer-${VARIANT}"}]


def test_nothing_comes_into_an_image_but_by_its_locks() -> None:
    assert len(installs(DOCKERFILE)) == 3
    assert strangers(DOCKERFILE) == []


def test_nothing_is_installed_that_no_lock_names() -> None:
    """pip takes these from the environment: no requirement of a package comes in without its entry in a lock."""
    environment = " ".join(arguments for name, arguments in DOCKERFILE if name == "ENV")
    assert "PIP_NO_DEPS=1" in environment


def test_what_is_installed_from_a_lock_is_copied_from_the_repository_s() -> None:
    used = {name for part in installs(DOCKERFILE) for name in re.findall(r"/opt/(\S+\.lock)", part)}
    names = {each.replace("${VARIANT}", variant) for each in used for variant in ("cpu", "gpu", "tpu")}
    assert names == {each.name for each in LOCKS}


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.stem)
def test_every_entry_of_a_lock_has_one_version_and_hashes(lock: Path) -> None:
    text = lock.read_text(encoding="utf-8")
    entries = re.split(r"\n(?=[A-Za-z0-9])", "\n".join(line for line in text.splitlines() if "#" not in line))
    assert len(entries) > 5
    for entry in entries:
        assert re.match(r"[\w.-]+==[\w.!+]+( ; .*)? \\\n( +--hash=sha256:[0-9a-f]{64}( \\)?\n?)+$", f"{entry}\n"), entry


def test_images_run_as_the_user_of_the_pods_and_keep_no_secret() -> None:
    users = [arguments for name, arguments in DOCKERFILE if name == "USER"]
    # The two targets; the stages between are no images.
    assert users == ["1000:1000"] * 2
    values = yaml.safe_load((ROOT / "charts/mptraining/values.yaml").read_text(encoding="utf-8"))
    assert values["image"]["repository"] == "mptraining/operator"
    values_of = " ".join(arguments for name, arguments in DOCKERFILE if name in ("ENV", "ARG"))
    assert not re.search(r"(?i)token|password|secret|index_url", values_of.replace("/run/secrets/pip.conf", ""))
    with_index = [each for name, each in DOCKERFILE if name == "RUN" and "--require-hashes" in each]
    assert len(with_index) == 2
    assert all(each.startswith("--mount=type=secret,id=pip.conf --mount=type=secret,id=ca.crt") for each in with_index)
