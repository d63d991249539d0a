"""Generated pages of the site: fields of the resources, commands, Python API, chart, accelerators, examples.

Events, metrics, the JSON schema and notebooks are in `reference`.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import mptraining
from hack import crd
from hack.docs import reference
from mptraining import tensorflow_cloud
from mptraining.cli.accelerators import rows
from mptraining.cli.main import app
from mptraining.job_file.editor_schema import schema_text
from mptraining.training_job import PythonArguments

ROOT = Path(__file__).resolve().parents[2]

# Pages of the site whose text is a file outside of docs/.
SOURCES = {
    "index.md": "README.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
    "reference/chart.md": "charts/mptraining/README.md",
}
GITHUB = "https://github.com"
# The first commands of README.md, which a reader of the site types in a clone.
_FIRST_COMMANDS = "```bash\nmake demo "
NOTEBOOK_PAGES = {name: page for page, name in reference.notebooks().items()}
EXAMPLES = "reference/examples.md"
ROOT_OF_EXAMPLES = "manifests"
# Public modules beside `mptraining` itself, with the names that their pages show.
_OTHER_MODULES = {
    "mptraining.tensorflow_cloud": [name for name in tensorflow_cloud.__all__ if not name.startswith("_")],
    "mptraining.colab": ["run_here"],
}
_EXAMPLE_FOLDERS = ("manifests/examples", "manifests/katib")


def generated(repository: str = "") -> dict[str, str]:
    """Return the text of each generated file by its path below docs/. `repository`: OWNER/NAME on GitHub, or empty."""
    pages = {page: (ROOT / source).read_text(encoding="utf-8") for page, source in SOURCES.items()}
    if repository:
        clone = f"git clone {GITHUB}/{repository} && cd {Path(repository).name}"
        pages["index.md"] = pages["index.md"].replace(
            _FIRST_COMMANDS, _FIRST_COMMANDS.replace("make", f"{clone}\nmake")
        )
    return pages | {
        "license.md": "# License\n\n```text\n" + (ROOT / "LICENSE").read_text(encoding="utf-8") + "```\n",
        "reference/mptrainingjob.md": _resource(crd.custom_resource_definition()),
        "reference/mptrainingsweep.md": _resource(crd.sweep_definition()),
        "reference/mptj.md": _commands(),
        "reference/python.md": _python(),
        "reference/accelerators.md": _accelerators(),
        "reference/events.md": reference.events(),
        "reference/metrics.md": reference.metrics(),
        "reference/schema.md": reference.schema(),
        reference.SCHEMA: schema_text(),
        EXAMPLES: _examples(),
        **{page: reference.notebook_page(name, repository) for page, name in reference.notebooks().items()},
    }


def page_of(path: str) -> tuple[str, str] | None:
    """Return the page and the anchor that show a file or folder of the repository; None if no page does."""
    for page, source in SOURCES.items():
        if path == source:
            return page, ""
    if path == "LICENSE":
        return "license.md", ""
    if path in (ROOT_OF_EXAMPLES, "manifests/examples"):
        return EXAMPLES, ""
    return (EXAMPLES, _anchor(path)) if path in {*map(_name, _example_files()), "manifests/katib"} else None


def _resource(definition: Mapping[str, Any]) -> str:
    """Return a section for each object of the resource, with a table of its fields."""
    (version,) = definition["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]
    names = definition["spec"]["names"]
    lines = [
        f"# {names['kind']}",
        "",
        f"`{definition['spec']['group']}/{version['name']}`, kind `{names['kind']}`, plural `{names['plural']}`, "
        f"short name `{names['shortNames'][0]}`. {schema['description']}",
    ]
    for part in ("spec", "status"):
        for path, node in _objects(part, schema["properties"][part]):
            lines += ["", f"## {path} {{ #{_anchor(path)} }}", "", _cell(node.get("description", "")), ""]
            lines += ["| Field | Type | Description |", "|---|---|---|"]
            for name, field in node["properties"].items():
                inner, suffix = _items(field)
                target = f"{path}.{name}{suffix}"
                shown = f"[`{name}`](#{_anchor(target)})" if "properties" in inner else f"`{name}`"
                required = " **Required.**" if name in node.get("required", ()) else ""
                lines.append(f"| {shown} | {_type(field)} | {_cell(field.get('description', ''))}{required} |")
    return "\n".join(lines) + "\n"


def _objects(path: str, node: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the objects with fields of their own, with their paths, depth first."""
    yield path, node
    for name, field in node["properties"].items():
        inner, suffix = _items(field)
        if "properties" in inner:
            yield from _objects(f"{path}.{name}{suffix}", inner)


def _items(field: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
    """Return the schema of the elements of a list or map, and what its path adds; else the field's own."""
    if field.get("type") == "array":
        return field["items"], "[]"
    values = field.get("additionalProperties")
    return (values, "{}") if isinstance(values, Mapping) else (field, "")


def _type(field: Mapping[str, Any]) -> str:
    if field.get("type") == "array":
        return f"list of {_type(field['items'])}"
    if isinstance(field.get("additionalProperties"), Mapping):
        return f"map of {_type(field['additionalProperties'])}"
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    bounds = [f"{sign} {field[key]}" for key, sign in (("minimum", "≥"), ("maximum", "≤")) if key in field]
    # The largest int32 or int64 is no bound that a reader needs.
    bounds = [bound for bound in bounds if len(bound) < 9]
    return " ".join([str(field.get("type", "any")), *bounds])


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def _anchor(path: str) -> str:
    """Return the anchor of a field, file or command."""
    return "".join(letter if letter.isalnum() else "-" for letter in path.lower()).strip("-")


def _commands() -> str:
    """Return the help of each command of `mptj`."""
    lines = ["# mptj", "", "What `mptj COMMAND --help` prints. `kubectl mptj …` is the same program.", ""]
    for name, command in _below(app, "mptj"):
        context = command.make_context(name, [], resilient_parsing=True, max_content_width=100, terminal_width=100)
        lines += [f"## {name} {{ #{_anchor(name)} }}", "", "```text", command.get_help(context).rstrip(), "```", ""]
    return "\n".join(lines)


def _below(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield the commands below this one, depth first."""
    for word, child in command.commands.items():
        if not child.hidden:
            yield f"{name} {word}", child
            if hasattr(child, "commands"):
                yield from _below(child, f"{name} {word}")


def _python() -> str:
    """Return functions, the objects that they return, and the classes of the job file with their arguments."""
    summary, _, _ = (mptraining.__doc__ or "").partition("\n")
    public = {name: getattr(mptraining, name) for name in sorted(mptraining.__all__, key=str.lower)}
    classes = {name: value for name, value in public.items() if inspect.isclass(value)}
    arguments = {name: cls for name, cls in classes.items() if issubclass(cls, PythonArguments)}
    lines = ["# Python", "", summary, "", "## Functions", ""]
    lines += [_directive(name) for name in public if name not in classes]
    lines += ["## Objects", "", *(_directive(name) for name in classes if name not in arguments)]
    lines += ["## Classes of the job file", ""]
    lines += ["Values and bounds are those of [MPTrainingJob](mptrainingjob.md). All arguments have names.", ""]
    for name in sorted(arguments, key=lambda name: (name != "TrainingJob", name.lower())):
        lines += _arguments(name, arguments[name])
    lines += ["## Programs of tensorflow-cloud", ""]
    for module, names in _OTHER_MODULES.items():
        lines += [f"::: {module}", "    options:", "      heading_level: 3", f"      members: [{', '.join(names)}]", ""]
    return "\n".join(lines)


def _directive(name: str) -> str:
    return f"::: mptraining.{name}\n    options: {{heading_level: 3}}\n"


def _arguments(name: str, kind: type[PythonArguments]) -> list[str]:
    """Return the section of a class of the job file."""
    summary, _, _ = (kind.__doc__ or "").partition("\n\n")
    lines = [f"### mptraining.{name} {{ #mptraining.{name} data-toc-label={name} }}", "", summary, ""]
    lines += ["| Argument | Description |", "|---|---|"]
    for argument in inspect.signature(kind).parameters:
        field = kind.model_fields[argument]
        required = " **Required.**" if field.is_required() else ""
        lines.append(f"| `{argument}` | {_cell(field.description or '')}{required} |")
    return [*lines, ""]


def _accelerators() -> str:
    """Return the catalogue as a table."""
    lines = [
        "# Accelerators",
        "",
        "`mptj accelerators` prints this table. `precision.policy: Auto` chooses the automatic policy.",
        "",
        "| Name | Also | Accelerator | Memory | Automatic policy | Policies | Per worker |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows():
        memory = "" if row["memoryGiB"] is None else f"{row['memoryGiB']} GiB"
        short, policies, most = (", ".join(map(str, row[key])) for key in ("also", "policies", "perWorker"))
        lines.append(
            f"| `{row['name']}` | {short} | {row['what']} | {memory} | {row['autoPolicy']} | {policies} | {most} |"
        )
    return "\n".join(lines) + "\n"


def _example_files() -> list[Path]:
    examples = [path for folder in _EXAMPLE_FOLDERS for path in sorted((ROOT / folder).glob("*.yaml"))]
    return [*examples, ROOT / "manifests" / "kustomization.yaml"]


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _examples() -> str:
    """Return the files of the example folders."""
    lines = ["# Examples", "", "The files of `manifests/`. Each is checked by the tests.", ""]
    folder = ""
    for path in _example_files():
        if folder != _name(path.parent):
            folder = _name(path.parent)
            lines += [f"## {folder} {{ #{_anchor(folder)} }}", ""]
        lines += [f"### {path.name} {{ #{_anchor(_name(path))} }}", ""]
        lines += ["```yaml", path.read_text(encoding="utf-8").rstrip(), "```", ""]
    return "\n".join(lines)
