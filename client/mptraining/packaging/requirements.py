"""`pip install` commands of a notebook as lines of a requirements file, and what of it the trainer has itself."""

from __future__ import annotations

import re
import shlex

# Of the image, measured together; whoever brings another one breaks training. The client is there too.
OF_THE_IMAGE = frozenset(
    {
        "tensorflow", "tensorflow-cpu", "tensorflow-gpu", "tensorflow-tpu", "tensorflow-intel", "tf-nightly", "keras",
        "tf-keras", "tensorflow-cloud", "mptraining",
    }
)  # fmt: skip
# Never installed beside the image's, even where a requirements file asks for it: 3.3 GB, and its service is gone.
NEVER = frozenset({"tensorflow-cloud", "mptraining"})

_COMMAND = re.compile(
    r"^\s*(?:sudo\s+)?(?:uv\s+)?(?:\S*python[\d.]*\s+-m\s+|\{sys\.executable\}\s+-m\s+)?pip[\d.]*\s+install\s+(.+)$"
)
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
# Options that a requirements file takes as lines of their own.
_LINE_OPTIONS = frozenset(
    {"-i", "--index-url", "--extra-index-url", "-f", "--find-links", "--no-binary", "--only-binary"}
)
FILE_OPTIONS = frozenset({"-r", "--requirement", "-c", "--constraint"})
# They say how to install, which the trainer decides: beside the image's packages, in a folder of the job's own.
_PASSED_OVER = frozenset(
    {
        "-q", "-qq", "-qqq", "--quiet", "-v", "--verbose", "-U", "--upgrade", "--user", "-y", "--no-cache-dir",
        "--system", "--force-reinstall", "--ignore-installed", "-I", "--no-warn-script-location",
        "--root-user-action=ignore", "--no-input",
        "--disable-pip-version-check", "--break-system-packages", "--use-deprecated=legacy-resolver",
    }
)  # fmt: skip


def install_arguments(command: str) -> str | None:
    """What follows `pip install` in a shell command; None when it is another command."""
    found = _COMMAND.match(command)
    return found[1] if found else None


def requirement_lines(arguments: str) -> tuple[list[str], list[str]]:
    """Lines for a requirements file, and notes about what is not installed, for the words after `pip install`."""
    try:
        words = shlex.split(arguments, comments=True)
    except ValueError as error:
        return [], [f"pip install {arguments}: {error}; not installed"]
    lines: list[str] = []
    notes: list[str] = []
    waiting = iter(words)
    for word in waiting:
        if word in (";", "||", "2>&1", "&>", "&") or word.startswith((">", "2>", "|")):
            # What the shell does with the output.
            break
        if word == "--pre":
            lines.append(word)
        elif word in _LINE_OPTIONS or word in FILE_OPTIONS:
            lines.append(f"{word} {next(waiting, '')}".rstrip())
        elif word in _PASSED_OVER or word.startswith(("--progress-bar", "--timeout")):
            continue
        elif word.startswith("--") and "=" in word and word.partition("=")[0] in _LINE_OPTIONS | FILE_OPTIONS:
            lines.append(word.replace("=", " ", 1))
        elif word.startswith("-"):
            notes.append(f"pip's {word} is not known in the job, and is passed over")
        elif "{" in word or "$" in word:
            notes.append(f"pip install {word}: known only when the notebook runs; not installed")
        elif ("/" in word or word in (".", "..")) and "://" not in word:
            notes.append(f"pip install {word}: a local folder is not shipped; not installed")
        elif name_of(word) in OF_THE_IMAGE:
            notes.append(f"pip install {word}: the trainer's image has its own {name_of(word)}")
        else:
            lines.append(word)
    return lines, notes


def name_of(requirement: str) -> str:
    """The normal form of the distribution that a requirement line names; empty for an option or a URL."""
    found = _NAME.match(requirement.strip())
    if found is None or "://" in requirement.partition("@")[0] or requirement.startswith("git+"):
        return ""
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def without_never(text: str) -> tuple[str, list[str]]:
    """A requirements file without the lines of what is never installed, and a note for each."""
    kept, notes = [], []
    for line in text.splitlines():
        if name_of(line) in NEVER:
            notes.append(f"requirements: the trainer's image has its own {name_of(line)}; {line.strip()!r} is left out")
        else:
            kept.append(line)
    return ("\n".join(kept) + "\n" if notes else text), notes
