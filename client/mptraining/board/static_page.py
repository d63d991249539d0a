"""The board's page with its data in one file, for `mptj board --to` and `mptj compare --to`: needs no server."""

from __future__ import annotations

import base64
import hashlib
import posixpath
import re
from pathlib import Path
from typing import Any

import msgspec

from mptraining.board import details
from mptraining.board.server import FOLDER, page
from mptraining.board.state import Board
from mptraining.runs.reader import RunReader
from mptraining.runs.series import whole_series
from mptraining_api import run_folder
from mptraining_api.problems import InvalidData
from mptraining_storage import local

# Bytes of the end of each log.
LOG_BYTES = 16 << 10

_STYLE = re.compile(r'<link rel="stylesheet" href="/static/([^"]+)">\n?')
_SCRIPT = re.compile(r'<script (type="module" )?src="/static/([^"]+)"(?: defer)?></script>\n?')
_IMPORT = re.compile(r'^import \{[^}]*\} from "(\.[^"]+)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?function|const|class)", re.MULTILINE)


def write_page(path: Path, board: Board) -> Path:
    """Write the page with all runs of the board to `path`. Raises Problem, InvalidData if there are no runs."""
    board.refresh()
    if not board.facts():
        problems = "; ".join(f"{source.where}: {source.problem or 'no runs'}" for source in board.sources)
        raise InvalidData("--to", problems, expected="folders with runs")
    local.write(path, html(data(board)).encode())
    return path


def data(board: Board) -> dict[str, Any]:
    """Return all answers of the API that the page asks for, with the curves downsampled. Raises Problem."""
    readers = board.readers()
    # The curves first: they find the best values, which are in the list of runs.
    series = {run: whole_series(reader.curves()) for run, reader in readers.items()}
    return {
        "runs": board.runs(),
        "run": {run: board.run(run) for run in board.facts()},
        "series": series,
        "sweeps": board.sweeps(),
        "sweep": {sweep: board.sweep(sweep) for sweep in board.shown_sweeps()},
        "importance": {sweep: board.importance(sweep) for sweep in board.shown_sweeps()},
        "logs": {run: _logs(reader) for run, reader in readers.items()},
    }


def _logs(reader: RunReader) -> dict[str, str]:
    texts = {}
    for log in details.logs(reader.listed):
        start = max(0, log["bytes"] - LOG_BYTES)
        data = reader.files.read(f"{run_folder.LOGS}/{log['name']}", start, LOG_BYTES)
        text = data.decode("utf-8", errors="replace")
        texts[log["name"]] = f"…\n{text.partition(chr(10))[2]}" if start else text
    return texts


def html(content: dict[str, Any]) -> str:
    """Return the page with styles, scripts and data inlined, and a Content-Security-Policy that allows only these."""
    text = page()
    styles = [_static(name) for name in _STYLE.findall(text)]
    scripts = [(kind, bundle(name) if kind else _static(name)) for kind, name in _SCRIPT.findall(text)]
    policy = "; ".join(
        [
            "default-src 'none'",
            "img-src data:",
            f"style-src {' '.join(map(_hash, styles))}",
            f"script-src {' '.join(_hash(script) for _, script in scripts)}",
            "form-action 'none'",
            "base-uri 'none'",
        ]
    )
    data = msgspec.json.encode(content).decode().replace("<", "\\u003c")
    inlined = f'<script type="application/json" id="data">{data}</script>\n'
    # A classic script without `src` runs where it is: all of them are at the end of the page.
    inlined += "".join(f"<script{' ' + kind.strip() if kind else ''}>{script}</script>\n" for kind, script in scripts)
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
    head += "".join(f"<style>{style}</style>\n" for style in styles)
    text = _SCRIPT.sub("", _STYLE.sub("", text))
    return text.replace('<meta charset="utf-8">\n', f'<meta charset="utf-8">\n{head}', 1).replace(
        "</body>", f"{inlined}</body>", 1
    )


def bundle(entry: str) -> str:
    """Return a module of static/ with all modules that it imports as one script, the imported ones first.

    The modules import by name alone, one import a line, and their top-level names are unique.
    """
    texts: dict[str, str] = {}

    def visit(name: str) -> None:
        if name in texts:
            return
        texts[name] = ""
        text = _static(name)
        for imported in _IMPORT.findall(text):
            visit(posixpath.normpath(posixpath.join(posixpath.dirname(name), imported)))
        # Inserted again, so that it is behind what it imports.
        del texts[name]
        texts[name] = _EXPORT.sub("", _IMPORT.sub("", text))

    visit(entry)
    return "\n".join(texts.values())


def _static(name: str) -> str:
    # A script ends at the first `</script`, wherever it is.
    return (FOLDER / "static" / name).read_text(encoding="utf-8").replace("</script", "<\\/script")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
