"""The images install what their locks name, file by file, and nothing else; they run without root."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
LOCKS = sorted(path for path in (ROOT / "hack" / "images").glob("*.lock"))
# Continued lines are joined, comments are left out.
DOCKERFILE = re.sub(r"\\\n\s*", "", re.sub(r"(?m)^\s*#.*\n", "", (ROOT / "Dockerfile").read_text(encoding="utf-8")))
INSTRUCTIONS = [(name, arguments.strip()) for name, arguments in re.findall(r"(?m)^([A-Z]+) (.*)", DOCKERFILE)]
_ALLOWED = re.compile(
    r"pip --python /opt/venv/bin/python install (--no-compile )?"
    r"(--require-hashes( -r /opt/[\w${}-]+\.lock)+|--no-index /opt/mptraining-\*\.whl)"
)
# Other ways for something from elsewhere into an image.
_ELSEWHERE = re.compile(r"\b(apt|apt-get|apk|dnf|yum|curl|wget|git|npm|conda|uv|easy_install|https?:)\b")


def all_of(name: str) -> list[str]:
    return [arguments for instruction, arguments in INSTRUCTIONS if instruction == name]


def test_nothing_comes_into_an_image_but_by_its_locks() -> None:
    runs = " && ".join(all_of("RUN"))
    parts = [part.strip() for part in re.split(r"&&|;|\|", re.sub(r"--mount=\S+ |\w+=\S+ ", "", runs))]
    installs = [part for part in parts if re.search(r"\bpip\b.*\binstall\b", part)]
    assert len(installs) == 3
    assert [part for part in installs if not _ALLOWED.fullmatch(part)] == []
    assert not _ELSEWHERE.search(runs)
    assert all_of("ADD") == []
    stages = {arguments.split()[-1] for arguments in all_of("FROM")}
    assert {arguments.split()[0] for arguments in all_of("FROM")} <= {*stages, "${BASE}", "trainer-${VARIANT}"}
    assert set(re.findall(r"--from=(\S+)", DOCKERFILE)) <= stages
    # No requirement of a package comes in without its entry in a lock.
    assert "PIP_NO_DEPS=1" in " ".join(all_of("ENV"))
    used = {name for part in installs for name in re.findall(r"/opt/(\S+\.lock)", part)}
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
    # The two targets; the stages between are no images.
    assert all_of("USER") == ["1000:1000"] * 2
    values = " ".join(all_of("ENV") + all_of("ARG"))
    assert not re.search(r"(?i)token|password|secret|index_url", values.replace("/run/secrets/pip.conf", ""))
    with_index = [each for each in all_of("RUN") if "--require-hashes" in each]
    assert len(with_index) == 2
    assert all(each.startswith("--mount=type=secret,id=pip.conf --mount=type=secret,id=ca.crt") for each in with_index)
