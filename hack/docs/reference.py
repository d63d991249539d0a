"""Pages of the reference beside the resources: events, metrics, the JSON schema, and the notebooks as pages."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from mptraining.job_file.editor_schema import schema_text
from mptraining_api import events as api_events
from mptraining_api.spec import API_VERSION

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = ROOT / "docs" / "notebooks"
SCHEMA = "reference/mptrainingjob.schema.json"
_COLAB = "https://colab.research.google.com/github"


def events() -> str:
    """Return a section for each kind of event, with its fields and the comments of the code."""
    path = ROOT / "api/mptraining_api/events.py"
    text = path.read_text(encoding="utf-8")
    classes = {node.name: node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)}
    lines = [
        "# Events of a run",
        "",
        "Each worker writes one JSON object a line into `events/` of the run folder and into its log. `mptj`, the "
        "board, notebooks and the operator read a run from them alone. Readers ignore fields of a newer version.",
        "",
        "## Every event",
        "",
        " ".join((ast.get_docstring(classes["_Event"]) or "").split()),
        "",
        *_fields(classes["_Event"], text.splitlines()),
    ]
    for model in get_args(api_events.Event):
        node = classes[model.__name__]
        lines += ["", f"## {model.__name__}", "", " ".join((ast.get_docstring(node) or "").split()), ""]
        lines += _fields(node, text.splitlines())
    return "\n".join(lines) + "\n"


def _fields(node: ast.ClassDef, lines: list[str]) -> Iterator[str]:
    yield "| Field | Type | About |"
    yield "|---|---|---|"
    for field in node.body:
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name) or field.target.id == "kind":
            continue
        comment: list[str] = []
        above = field.lineno - 2
        while lines[above].strip().startswith("#"):
            comment.insert(0, lines[above].strip().removeprefix("#").strip())
            above -= 1
        kind = ast.unparse(field.annotation).replace("|", "\\|")
        yield f"| `{field.target.id}` | `{kind}` | {' '.join(comment)} |"


def metrics() -> str:
    """Return the metrics of the operator with their labels and help."""
    lines = [
        "# Metrics of the operator",
        "",
        "`/metrics` of each replica, port 8080. [Operate](../guide/operate.md#metrics-and-probes) says what for.",
        "",
        "| Metric | Kind | Labels | Help |",
        "|---|---|---|---|",
    ]
    declared = sorted(_declared(ROOT / "operator/mptraining_operator"))
    lines += [f"| `{name}` | {kind} | {labels} | {text} |" for name, kind, labels, text in declared]
    return "\n".join(lines) + "\n"


def _declared(folder: Path) -> Iterator[tuple[str, str, str, str]]:
    kinds = {"Counter": "counter", "Gauge": "gauge", "Histogram": "histogram", "GaugeMetricFamily": "gauge"}
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.func.id not in kinds:
                continue
            match node.args:
                case [ast.Constant(value=str(name)), ast.Constant(value=str(text)), *rest]:
                    named = [keyword.value for keyword in node.keywords if keyword.arg in ("labels", "labelnames")]
                    labels = [literal for value in (*rest, *named) if (literal := _strings(value))]
                    kind = kinds[node.func.id]
                    shown = f"{name}_total" if kind == "counter" else name
                    yield shown, kind, ", ".join(f"`{label}`" for group in labels for label in group), text


def _strings(node: ast.expr) -> list[str]:
    if not isinstance(node, (ast.Tuple, ast.List)):
        return []
    return [elt.value for elt in node.elts if isinstance(elt, ast.Constant) and isinstance(elt.value, str)]


def schema() -> str:
    """Return the page of the JSON schema, whose file is beside it."""
    document = json.loads(schema_text())
    return "\n".join(
        [
            "# JSON schema",
            "",
            f"[{Path(SCHEMA).name}]({Path(SCHEMA).name}) is the schema of a job file "
            f"({len(schema_text()) // 1024} KiB, `{document['$schema']}`). `mptj schema` prints it, `mptj init` writes "
            "it beside a new job file, and `mptj schema --sweep` prints that of a sweep's file.",
            "",
            "With the YAML extension of VS Code, or any client of yaml-language-server, the first line of a job file "
            "names it; the editor then completes fields and marks mistakes:",
            "",
            "```yaml",
            f"# yaml-language-server: $schema={Path(SCHEMA).name}",
            f"apiVersion: {API_VERSION}",
            "kind: MPTrainingJob",
            "```",
            "",
            "It knows types, names and bounds. Rules between fields, data and names of Keras are "
            "checked by `mptj check`.",
            "",
        ]
    )


def notebooks() -> dict[str, str]:
    """Return the paths of the notebooks below docs/."""
    return {f"notebooks/{path.stem}.md": f"notebooks/{path.name}" for path in sorted(NOTEBOOKS.glob("*.ipynb"))}


def notebook_page(name: str, repository: str) -> str:
    """Return a notebook as Markdown, with the link to its file, and to Colab if `repository` (OWNER/NAME) is known."""
    book: dict[str, Any] = json.loads((ROOT / "docs" / name).read_text(encoding="utf-8"))
    title, *rest = book["cells"]
    first, _, below = "".join(title["source"]).partition("\n")
    file = Path(name).name
    links = f"[Download the notebook]({file}){{ .md-button download={file} }}"
    if repository:
        links = (
            f"[Open in Colab]({_COLAB}/{repository}/blob/main/docs/{name}){{ .md-button .md-button--primary }} {links}"
        )
    lines = [first, "", links, "", below.strip(), ""]
    for cell in rest:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            lines += [text.replace(".ipynb)", ".md)"), ""]
        else:
            lines += ["```python", text, "```", ""]
    return "\n".join(lines)
