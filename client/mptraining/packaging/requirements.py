"""Conversion of a notebook's `pip install` commands to requirements lines, without packages of the trainer's image."""

from __future__ import annotations

import re
import shlex

# Packages that the trainer's image contains in versions tested together; another version would break training.
IN_TRAINER_IMAGE = frozenset(
    {
        "tensorflow", "tensorflow-cpu", "tensorflow-gpu", "tensorflow-tpu", "tensorflow-intel", "tf-nightly", "keras",
        "tf-keras", "tensorflow-cloud", "mptraining",
    }
)  # fmt: skip
# Never installed, even if a requirements file names it: the real tensorflow-cloud installs 3.3 GB for a service that
# no longer exists, and the image contains mptraining.
NEVER_INSTALLED = frozenset({"tensorflow-cloud", "mptraining"})

_COMMAND = re.compile(
    r"^\s*(?:sudo\s+)?(?:uv\s+)?(?:\S*python[\d.]*\s+-m\s+|\{sys\.executable\}\s+-m\s+)?pip[\d.]*\s+install\s+(.+)$"
)
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
# Options that a requirements file accepts on a line of their own.
_LINE_OPTIONS = frozenset(
    {"-i", "--index-url", "--extra-index-url", "-f", "--find-links", "--no-binary", "--only-binary"}
)
FILE_OPTIONS = frozenset({"-r", "--requirement", "-c", "--constraint"})
# Options of the installation itself, which the trainer decides: it installs into a folder of the job.
_IGNORED_OPTIONS = frozenset(
    {
        "-q", "-qq", "-qqq", "--quiet", "-v", "--verbose", "-U", "--upgrade", "--user", "-y", "--no-cache-dir",
        "--system", "--force-reinstall", "--ignore-installed", "-I", "--no-warn-script-location",
        "--root-user-action=ignore", "--no-input",
        "--disable-pip-version-check", "--break-system-packages", "--use-deprecated=legacy-resolver",
    }
)  # fmt: skip


def install_arguments(command: str) -> str | None:
    """Return the arguments of `pip install` in a shell command; None for another command."""
    match = _COMMAND.match(command)
    return match[1] if match else None


def requirement_lines(arguments: str) -> tuple[list[str], list[str]]:
    """Return requirements lines, and notes about what is not installed, for the arguments of `pip install`."""
    try:
        words = iter(shlex.split(arguments, comments=True))
    except ValueError as error:
        return [], [f"pip install {arguments}: {error}; not installed"]
    lines: list[str] = []
    notes: list[str] = []
    for word in words:
        if word in (";", "||", "2>&1", "&>", "&") or word.startswith((">", "2>", "|")):
            # The rest is shell syntax: a redirection, a pipe, or the next command.
            break
        if word == "--pre":
            lines.append(word)
        elif word in _LINE_OPTIONS or word in FILE_OPTIONS:
            lines.append(f"{word} {next(words, '')}".rstrip())
        elif word in _IGNORED_OPTIONS or word.startswith(("--progress-bar", "--timeout")):
            continue
        elif word.startswith("--") and "=" in word and word.partition("=")[0] in _LINE_OPTIONS | FILE_OPTIONS:
            lines.append(word.replace("=", " ", 1))
        elif word.startswith("-"):
            notes.append(f"pip's {word} is not known in the job, and is ignored")
        elif "{" in word or "$" in word:
            notes.append(f"pip install {word}: known only when the notebook runs; not installed")
        elif ("/" in word or word in (".", "..")) and "://" not in word:
            notes.append(f"pip install {word}: a local folder is not shipped; not installed")
        elif distribution_name(word) in IN_TRAINER_IMAGE:
            notes.append(f"pip install {word}: the trainer's image has its own {distribution_name(word)}")
        else:
            lines.append(word)
    return lines, notes


def distribution_name(requirement: str) -> str:
    """Return the normalized distribution name of a requirement line; empty for an option or a URL."""
    name = _NAME.match(requirement.strip())
    if name is None or "://" in requirement.partition("@")[0] or requirement.startswith("git+"):
        return ""
    return re.sub(r"[-_.]+", "-", name[0]).lower()


def without_never_installed(text: str) -> tuple[str, list[str]]:
    """Return a requirements file without the lines of packages in NEVER_INSTALLED, and a note for each removed line."""
    removed = [line for line in text.splitlines() if distribution_name(line) in NEVER_INSTALLED]
    if not removed:
        return text, []
    notes = [
        f"requirements: the trainer's image has its own {distribution_name(line)}; {line.strip()!r} is left out"
        for line in removed
    ]
    return "".join(f"{line}\n" for line in text.splitlines() if line not in removed), notes
