"""The page of messages: outcomes, notices, advice, rules and errors, read from the code without running it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from mptraining.cluster import errors as cluster_errors
from mptraining_api import problems
from mptraining_api.outcomes import OPERATOR_OUTCOMES, OUTCOMES, Budget
from mptraining_api.rules.check import rules

ROOT = Path(__file__).resolve().parents[2]
_PACKAGES = ("api", "trainer", "operator", "client")
# A value that is known only when the message is written.
_VALUE = "…"
_SHORTEST = 3
_BUDGETS = {
    Budget.NONE: "none",
    Budget.BACKOFF_LIMIT: "`backoffLimit`",
    Budget.INFRASTRUCTURE_RETRIES: "`infrastructureRetries`",
    Budget.NEVER_RETRY: "never retried",
    Budget.UNDECIDED: "the first failure's",
}


@dataclass(frozen=True, slots=True, order=True)
class Message:
    """One error as the code has it; values that are filled in are `…`."""

    reason: str
    found: str
    expected: str
    next_step: str


@cache
def _calls() -> tuple[ast.Call, ...]:
    paths = [path for package in _PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in paths)
    return tuple(node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call))


def _name(call: ast.Call) -> str:
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def template(node: ast.expr | None) -> str:
    """Return the text that an expression writes, with `…` for what is filled in."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            joined = "".join(each.value if isinstance(each, ast.Constant) else _VALUE for each in values)  # type: ignore[misc]
            return re.sub(rf"{_VALUE}(\W?{_VALUE})+", _VALUE, joined)
        case ast.IfExp(body=body, orelse=other):
            both = [text for text in (template(body), template(other)) if text]
            return " / ".join(dict.fromkeys(both))
        case None:
            return ""
    return _VALUE


def errors() -> list[Message]:
    """Return the errors that the code raises, each once."""
    classes = {
        name: each.reason
        for name, each in {**vars(problems), **vars(cluster_errors)}.items()
        if isinstance(each, type) and issubclass(each, problems.Problem)
    }
    found: set[Message] = set()
    for call in _calls():
        if _name(call) not in classes or len(call.args) < 2:
            continue
        named = {each.arg: template(each.value) for each in call.keywords}
        text = template(call.args[1])
        if len(re.findall(r"\w+", text)) >= _SHORTEST or len(named.get("next_step", "")) > len(_VALUE):
            reason = classes[_name(call)]
            found.add(Message(reason, text, named.get("expected", ""), named.get("next_step", "")))
    return sorted(found)


def notices() -> dict[str, str]:
    """Return the text of each notice of the trainer by its topic."""
    found: dict[str, str] = {}
    for call in _calls():
        if _name(call) != "notice" or len(call.args) < 2:
            continue
        topic, text = template(call.args[0]), template(call.args[1])
        if re.fullmatch(r"[A-Z]\w+", topic) and len(text) > len(found.get(topic, "")):
            found[topic] = text
    return dict(sorted(found.items()))


def advice() -> list[str]:
    """Return the sentences of advice on a job that could work better."""
    path = ROOT / "api/mptraining_api/resolve/advice.py"
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return [template(node.value) for node in nodes if isinstance(node, ast.Yield)]


def page() -> str:
    """Return the page, which the search of the site finds by the words of a message."""
    lines = [
        "# Messages",
        "",
        "Every reason, error, notice and advice of the operator, the trainer and `mptj`, from their code. `…` stands "
        "for what is filled in: a field, a file, a number. Search for a few words of the message.",
        "",
        *_reasons(),
        *_rules(),
    ]
    used: set[str] = set()
    for reason, entries in _by_reason():
        lines += [f"## Errors: {reason} {{ #errors-{reason.lower()} }}", ""]
        for each in entries:
            lines += _error(each, used)
    lines += ["## Notices of the trainer { #notices }", "", "| Notice | Message |", "|---|---|"]
    lines += [f"| `{topic}` | {_cell(text)} |" for topic, text in notices().items()]
    lines += ["", "## Advice { #advice }", "", "`mptj check` and `mptj submit` print it.", ""]
    lines += [f"- {_cell(text)}" for text in advice()]
    return "\n".join(lines) + "\n"


def _error(message: Message, used: set[str]) -> list[str]:
    """Return a section for the message: the search of the site shows it by its title."""
    known = message.found if len(re.findall(r"\w+", message.found)) >= _SHORTEST else message.next_step
    slug = "-".join(re.findall(r"\w+", known.lower()))[:60] or "message"
    anchor = next(name for number in range(1, 1000) if (name := f"{slug}-{number}" if number > 1 else slug) not in used)
    used.add(anchor)
    lines = [f"### {_cell(message.found)} {{ #{anchor} }}", ""]
    if message.expected:
        lines += [f"Expected: {_cell(message.expected)}.", ""]
    if message.next_step.strip(_VALUE):
        lines += [_cell(message.next_step), ""]
    return lines


def _reasons() -> Iterator[str]:
    yield "## Reasons of an attempt { #reasons }"
    yield ""
    yield "[Reasons](../guide/reference.md#reasons) has the next step of each."
    yield ""
    yield "| Reason | Exit code | Means | Budget |"
    yield "|---|---|---|---|"
    for each in (*OUTCOMES, *OPERATOR_OUTCOMES):
        code = "" if each in OPERATOR_OUTCOMES else str(each.exit_code)
        yield f"| `{each.reason}` | {code} | {each.meaning} | {_BUDGETS[each.budget]} |"
    yield ""


def _rules() -> Iterator[str]:
    yield "## Rules of the job file { #rules }"
    yield ""
    yield "The API server and `mptj check` refuse a job by the same rules, with the same words."
    yield ""
    yield "| Field | Expected | Next step |"
    yield "|---|---|---|"
    for each in rules():
        yield f"| `{each.field}` | {_cell(each.message)} | {_cell(each.next_step)} |"
    yield ""


def _by_reason() -> Iterator[tuple[str, list[Message]]]:
    found = errors()
    for reason in dict.fromkeys(each.reason for each in found):
        yield reason, [each for each in found if each.reason == reason]


def _cell(text: str) -> str:
    """Return text for a cell of a table or a title: a value of a message is no Markdown."""
    text = " ".join(text.split())
    # Code stays as it is written; elsewhere these begin markup.
    parts = text.split("`")
    if len(parts) % 2 == 0:
        parts = [text.replace("`", "'")]
    for index in range(0, len(parts), 2):
        parts[index] = re.sub(r"([\\*_\[\]<{}#])", r"\\\1", parts[index])
    return "`".join(parts).replace("|", "\\|")
