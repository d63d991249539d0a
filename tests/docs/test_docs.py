"""The documents are true: every block of code in them is parsed, resolved or run, every link leads somewhere.

A block whose first line names a file (`# job.yaml`) becomes that file; other Python blocks are run, and so are the
`mptj` commands of bash blocks, in the order of the document, in one folder for each `##` section. A YAML block that is
no whole object is a part of `spec`. Blocks of `text` are ignored. A Python block that begins with a magic (`%pip`)
is a notebook's cell: it is parsed here, and run by tests/kind/test_notebook_on_kind.py.

A section with a `kubectl` command needs a cluster: nothing in it is run. Its files are parsed, and its commands
checked: files and jobs that they name exist, and so do verbs, conditions and fields. Tables of settings, reasons and
phases are compared with the code.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from IPython.core.inputtransformer2 import TransformerManager
from typer.main import get_command

import mptraining
from mptraining.cli import accelerators
from mptraining.cli.main import app
from mptraining_api.model import Model
from mptraining_api.outcomes import OPERATOR_OUTCOMES, OUTCOMES, Budget
from mptraining_api.problems import InvalidSpec
from mptraining_api.resolve.resolve import ClusterSettings, resolve
from mptraining_api.spec import KIND, PAUSED, MPTrainingJob
from mptraining_api.status import CONDITION_TYPES, JobStatus, Phase
from mptraining_api.sweep.check import sweep_problems
from mptraining_api.sweep.spec import SWEEP_KIND
from mptraining_api.validation.yaml_text import read_yaml
from mptraining_operator.plan.waiting import NAMESPACE_FULL, NODE_NOT_READY
from mptraining_operator.settings import OperatorSettings
from tests.jobs import parsed_job
from tools.helm_chart import ChartValues

ROOT = Path(__file__).parents[2]
# Every page of the guide: a new one is checked from the day it is written.
GUIDE = tuple(sorted(f"docs/guide/{path.name}" for path in (ROOT / "docs" / "guide").glob("*.md")))
EXECUTED = ("README.md", *GUIDE, "docs/cluster.md")
DOCUMENTS = (
    *EXECUTED,
    "docs/guide.md",
    "docs/architecture.md",
    "docs/keras-io.md",
    "docs/measured.md",
    "docs/precision.md",
    "docs/reliability.md",
    "docs/security.md",
    "docs/tensorflow-cloud.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "charts/mptraining/README.md",
)
LANGUAGES = ("text", "yaml", "python", "bash")

_FILE = re.compile(r"# ([\w-]+\.(?:yaml|py))\n")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_MODULE = re.compile(r"`(mptraining(?:_api|_operator|_records|_trainer|))\.([a-z_0-9.]+)`")
# Commands of mptj that load TensorFlow.
_TRAINS = (["run"], ["predict"], ["ensemble"])
# kubectl's verbs in the documents, and the kinds of their arguments.
_VERBS = ("annotate", "apply", "cp", "create", "delete", "describe", "events", "exec", "explain", "get", "logs")
_VERBS += ("patch", "rollout", "taint", "wait")
# An annotation of the operator's, set or removed.
_ANNOTATIONS = (f"{PAUSED}=true", f"{PAUSED}-")
_CONDITIONS = {*CONDITION_TYPES, "Ready"}
_BASE: dict[str, Any] = {
    "accelerator": {"type": "nvidia-tesla-t4"},
    "program": {"application": {"name": "cnn"}},
    "data": {"train": ["train"], "validation": ["validation"]},
}


@dataclass(frozen=True)
class Block:
    """One fenced block; `line` is that of its fence."""

    document: str
    section: str
    line: int
    language: str
    text: str

    @property
    def file(self) -> str | None:
        found = _FILE.match(self.text)
        return found[1] if found else None

    @property
    def is_cell(self) -> bool:
        return self.language == "python" and self.text.startswith("%")

    @property
    def commands(self) -> list[list[str]]:
        """The commands of a bash block, without comments."""
        lines = (shlex.split(line, comments=True) for line in self.text.splitlines())
        return [words for words in lines if words]

    @property
    def on_a_cluster(self) -> bool:
        return self.language == "bash" and any(words[0] in ("kubectl", "helm") for words in self.commands)

    @property
    def trains(self) -> bool:
        """Whether running it loads TensorFlow."""
        if self.language == "bash":
            return any(words[1:2] in _TRAINS or "--deep" in words for words in self.commands)
        if self.language != "python" or self.file is not None or self.is_cell:
            return False
        loads = ("import keras", "import tensorflow as tf", 'backend="local"', "run_local(")
        return any(each in self.text for each in loads)


def blocks(document: str) -> Iterator[Block]:
    section, began = "", 0
    language: str | None = None
    kept: list[str] = []
    for number, line in enumerate((ROOT / document).read_text(encoding="utf-8").splitlines(), start=1):
        if language is None and line.startswith("## "):
            section = line.removeprefix("## ")
        elif language is None and line.startswith("```"):
            language, began, kept = line.removeprefix("```"), number, []
        elif language is not None and line == "```":
            yield Block(document, section, began, language, "".join(f"{each}\n" for each in kept))
            language = None
        elif language is not None:
            kept.append(line)
    assert language is None, f"{document}:{began}: the block does not end"


def of(language: str) -> list[Any]:
    return [pytest.param(block, id=f"{block.document}:{block.line}") for block in ALL if block.language == language]


ALL = [block for document in EXECUTED for block in blocks(document)]
SECTIONS: dict[tuple[str, str], list[Block]] = {}
for _block in ALL:
    SECTIONS.setdefault((_block.document, _block.section), []).append(_block)


def test_every_block_has_a_known_language() -> None:
    assert {(block.document, block.line) for block in ALL if block.language not in LANGUAGES} == set()


@pytest.mark.parametrize("block", of("yaml"))
def test_every_job_can_work(block: Block) -> None:
    document = yaml.safe_load(block.text)
    if document.get("kind") == SWEEP_KIND:
        (written,) = read_yaml(block.text, file=block.document)
        assert sweep_problems(written.content, ClusterSettings()).problems == ()
        return
    if block.file == "values.yaml":
        ChartValues.parse(document)
        return
    if document.get("kind", KIND) != KIND:
        _check_other_object(document)
        return
    if "kind" not in document:
        document = {
            "apiVersion": "mptraining.dev/v1alpha1",
            "kind": KIND,
            "metadata": {"name": "part"},
            "spec": {**_BASE, **document},
        }
    job = parsed_job(yaml.safe_dump(document))
    assert resolve(job, ClusterSettings()).name == job.metadata.name
    assert resolve(job, ClusterSettings(cpu_fallback=True)).accelerator.kind == "cpu"


def _check_other_object(document: dict[str, Any]) -> None:
    """Check one of Kubernetes' own kinds: complete, its mounts in place; a ConfigMap of settings can be read."""
    assert document["apiVersion"]
    assert document["metadata"]["name"]
    if document["kind"] == "ConfigMap":
        OperatorSettings.parse(yaml.safe_load(document["data"]["settings.yaml"]))
    if document["kind"] == "Pod":
        volumes = {volume["name"] for volume in document["spec"]["volumes"]}
        mounts = [each["name"] for container in document["spec"]["containers"] for each in container["volumeMounts"]]
        assert set(mounts) == volumes


@pytest.mark.parametrize("block", of("python"))
def test_every_program_is_python(block: Block) -> None:
    text = TransformerManager().transform_cell(block.text) if block.is_cell else block.text
    compile(text, f"{block.document}:{block.line}", "exec")


@pytest.mark.parametrize("block", of("bash"))
def test_every_command_exists(block: Block) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for program, *arguments in block.commands:
        if program == "make":
            assert set(arguments) <= targets
        elif program == "mptj":
            _parse(arguments)
        elif program == "kubectl":
            _look_at_kubectl(block, arguments)
        elif program == "helm":
            _look_at_helm(arguments)
        else:
            assert program == "export", f"{program} is not run by this test"


def _look_at_helm(arguments: list[str]) -> None:
    """Check that the chart exists, and every value that is set."""
    verb, release, *rest = arguments
    assert verb in ("install", "upgrade", "test", "uninstall")
    assert release == "mptraining"
    for word in rest:
        if word.startswith("--set="):
            _find(ChartValues, word.removeprefix("--set=").split("=")[0].split("."))
        elif not word.startswith("--"):
            assert (ROOT / word / "Chart.yaml").exists()
        else:
            assert word.split("=")[0] in (
                "--namespace",
                "--create-namespace",
                "--take-ownership",
                "--reset-then-reuse-values",
                "--values",
            ), word


def _parse(arguments: list[str]) -> None:
    """Parse the command line without running it. Raises typer's error for an unknown argument."""
    command = get_command(app)
    waiting: list[Any] = [command]
    while waiting:
        each = waiting.pop()
        each.callback = None
        waiting += getattr(each, "commands", {}).values()
    command.main(arguments, prog_name="mptj", standalone_mode=False)


def _look_at_kubectl(block: Block, arguments: list[str]) -> None:
    """Check all that needs no cluster: verb, files, jobs, conditions, fields."""
    if arguments[0] == "mptj":
        _parse(arguments[1:])
        return
    assert arguments[0] in _VERBS, f"kubectl {arguments[0]}: one of {', '.join(_VERBS)} is known here"
    if arguments[0] == "annotate":
        assert arguments[-1] in _ANNOTATIONS
    beside = SECTIONS[block.document, block.section]
    files = {each.file: each.text for each in beside if each.file}
    known = [*files.values(), *(each.read_text("utf-8") for each in (ROOT / "manifests").rglob("*.yaml"))]
    jobs = {name for text in known for name in _jobs(text)}
    for word, following in zip(arguments, [*arguments[1:], ""], strict=True):
        if word == "-f":
            assert following in files or (ROOT / following).is_file(), f"no {following}"
        elif word == "mptj" and arguments[0] != "get" and arguments[0] != "explain":
            assert following in jobs
        elif word.startswith("mptj/"):
            assert word.removeprefix("mptj/") in jobs
        elif word.startswith("mptj.spec."):
            _find(MPTrainingJob, word.split(".")[1:])
        elif word.startswith("--for=condition="):
            assert word.rpartition("=")[2] in _CONDITIONS
        elif word.startswith("--output=jsonpath={.status."):
            _find(JobStatus, word.partition(".status.")[2].rstrip("}").split("."))
        elif word == "--patch":
            patched = _merged(
                {"apiVersion": "mptraining.dev/v1alpha1", "kind": KIND, "spec": _BASE}, json.loads(following)
            )
            MPTrainingJob.parse({**patched, "metadata": {"name": "patched"}})


@functools.cache
def _jobs(text: str) -> set[str]:
    return {
        each["metadata"]["name"]
        for each in yaml.load_all(text, Loader=yaml.CSafeLoader)
        if each and each.get("kind") == KIND
    }


def _merged(base: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    return {**base, **{key: {**base.get(key, {}), **value} for key, value in patch.items()}}


def _find(model: type[Model], path: list[str]) -> None:
    """Fail if a model has no such field."""
    for name in path:
        field = next((field for field in model.model_fields.values() if field.alias == name), None)
        assert field is not None, f"{model.__name__} has no {name}"
        inner = [each for each in (field.annotation, *get_args(field.annotation)) if isinstance(each, type)]
        model = next((each for each in inner if issubclass(each, Model)), model)


def _table(document: str, heading: str, number: int = 0) -> list[list[str]]:
    """Return the cells of the `number`-th table below a heading, without its head."""
    text = (ROOT / document).read_text(encoding="utf-8").split(f"\n{heading}\n", 1)[1]
    found = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)[number]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in found.splitlines()[2:]]


def test_the_guide_names_every_reason_with_its_budget() -> None:
    words = {
        Budget.NONE: "",
        Budget.NEVER_RETRY: "never retried",
        Budget.UNDECIDED: "the first failure's",
        Budget.BACKOFF_LIMIT: "`backoffLimit`",
        Budget.INFRASTRUCTURE_RETRIES: "`infrastructureRetries`",
    }
    told = {row[0].strip("`"): row[2] for row in _table("docs/guide/reference.md", "## Reasons")}
    assert told == {each.reason: words[each.budget] for each in (*OUTCOMES, *OPERATOR_OUTCOMES)}


def test_the_guide_names_every_reason_to_wait() -> None:
    source = (ROOT / "operator" / "mptraining_operator" / "plan" / "waiting.py").read_text(encoding="utf-8")
    known = {*re.findall(r'\bWait\([\w.]+,\s*"(\w+)"', source), *re.findall(r'": \("(\w+)", ', source)}
    known |= {NAMESPACE_FULL, NODE_NOT_READY}
    told = {row[0].strip("`") for row in _table("docs/guide/reference.md", "## Reasons", 1)}
    assert told == known - {each.reason for each in OUTCOMES}


def test_the_guide_names_every_phase() -> None:
    told = {
        name for row in _table("docs/guide/kubernetes.md", "### Phases and conditions") for name in row[0].split(", ")
    }
    assert told == {phase.value for phase in Phase}


def test_the_guide_names_every_condition_with_its_reasons() -> None:
    rows = {row[0].strip("`"): row for row in _table("docs/guide/kubernetes.md", "### Phases and conditions", 1)}
    assert rows.keys() == set(CONDITION_TYPES)
    source = (ROOT / "operator" / "mptraining_operator" / "plan" / "conditions.py").read_text(encoding="utf-8")
    written = re.findall(r'with_condition\(status, "(\w+)", (True|False), "(\w+)"', source)
    assert written
    for condition, value, reason in written:
        # The reasons for waiting have a table of their own.
        if (condition, value) != ("Running", "False"):
            assert f"`{reason}`" in rows[condition][1 if value == "True" else 2]
    assert all(row[3] for row in rows.values())


def test_the_guide_names_lines_that_a_notebook_really_prints() -> None:
    files = [*(ROOT / "client").rglob("*.py"), *(ROOT / "trainer").rglob("*.py")]
    code = "".join(each.read_text(encoding="utf-8") for each in files)
    # The source has a message in several strings, one a line.
    code = re.sub(r'"\s*\n\s*f?"', "", code)
    named = [row[0] for row in _table("docs/guide/notebooks.md", "### Messages in a notebook")]
    others = ("Note: you may need",)
    ours = [each.strip("`").removeprefix("advice: ") for each in named if not each.strip("`").startswith(others)]
    assert len(ours) > 10
    assert [each for each in ours if each not in code] == []


def test_the_guide_names_every_field_of_tfjob() -> None:
    """The fields of the CustomResourceDefinition of training-operator 1.9.3."""
    run_policy = "activeDeadlineSeconds backoffLimit cleanPodPolicy managedBy suspend ttlSecondsAfterFinished"
    scheduling = "minAvailable minResources priorityClass queue scheduleTimeoutSeconds"
    fields = {
        "spec": "enableDynamicWorker successPolicy",
        "spec.runPolicy": run_policy,
        "spec.runPolicy.schedulingPolicy": scheduling,
        "spec.tfReplicaSpecs": "Chief Evaluator Master PS Worker",
        "spec.tfReplicaSpecs.*": "replicas restartPolicy template",
        "status": "completionTime conditions lastReconcileTime replicaStatuses startTime",
    }
    told: dict[str, set[str]] = {}
    for row in _table("docs/guide/migrate.md", "## Moving from Kubeflow's TFJob"):
        first, *more = re.findall(r"`([\w.*/]+)`", row[0].partition(" (")[0])
        if row[0].startswith("…"):
            continue
        parent, _, name = first.rpartition(".")
        told.setdefault(parent, set()).update([name, *more])
    assert told == {parent: set(names.split()) for parent, names in fields.items()}


def test_the_guide_has_every_accelerator() -> None:
    table = _table("docs/guide/kubernetes.md", "### Accelerators", 1)
    shown = [[cell.replace("`", "") for cell in row] for row in table]
    assert shown == [
        [
            each["name"],
            ", ".join(each["short"]) or "-",
            f"{each['memoryGiB']} GiB" if each["memoryGiB"] else "-",
            each["autoPolicy"],
            ", ".join(map(str, each["perNode"])) or "-",
            ", ".join(each["nodeLabels"]) or "-",
        ]
        for each in accelerators.rows()
    ]


def test_the_guide_has_the_defaults_of_settings() -> None:
    defaults = OperatorSettings().to_document()
    for name, default, _ in _table("docs/guide/operate.md", "### Settings"):
        value: Any = defaults
        for part in name.strip("`").split("."):
            value = value.get(part) if isinstance(value, dict) else value
        if default.startswith("`"):
            assert yaml.safe_load(default.strip("`")) == value, name
        else:
            assert not value, name
        _find(OperatorSettings, name.strip("`").split("."))


@pytest.mark.parametrize(
    "line",
    [
        "apply -f manifests/nowhere.yaml",
        "annotate mptj digits a=b",
        "describe mptj nobody",
        "wait --for=condition=Done mptj/digits",
        "explain mptj.spec.runPolicy.backoffs",
        "get mptj digits --output=jsonpath={.status.percent}",
        """patch mptj digits --patch '{"spec":{"runPolicy":{"suspended":true}}}'""",
    ],
)
def test_mistakes_in_kubectl_are_noticed(line: str) -> None:
    block = next(block for block in ALL if block.on_a_cluster)
    with pytest.raises((AssertionError, InvalidSpec)):
        _look_at_kubectl(block, shlex.split(line))


def test_mistakes_in_helm_are_noticed() -> None:
    for line in ("install mptraining charts/nowhere", "install mptraining --set=settings.cpuFalback=true"):
        with pytest.raises(AssertionError):
            _look_at_helm(line.split())


def test_unknown_options_are_noticed() -> None:
    with pytest.raises(Exception, match="No such option"):
        _parse(["check", "job.yaml", "--deeply"])


def _sections(*, training: bool) -> list[Any]:
    return [
        pytest.param(found, id=f"{document}: {section}")
        for (document, section), found in SECTIONS.items()
        if any(block.trains for block in found) == training and not any(block.on_a_cluster for block in found)
    ]


@pytest.mark.integration
@pytest.mark.parametrize("section", _sections(training=False))
def test_section(section: list[Block], tmp_path: Path) -> None:
    _run(section, tmp_path)


@pytest.mark.training
@pytest.mark.parametrize("section", _sections(training=True))
def test_section_that_trains(section: list[Block], tmp_path: Path) -> None:
    _run(section, tmp_path)


def _run(section: list[Block], folder: Path) -> None:
    for block in section:
        if block.file is not None:
            (folder / block.file).write_text(block.text, encoding="utf-8")
        elif block.language == "python" and not block.is_cell:
            _call(block, [sys.executable, "-c", block.text], folder)
        elif block.language == "bash":
            for program, *arguments in block.commands:
                if program == "mptj":
                    _call(block, [sys.executable, "-m", "mptraining", *arguments], folder)


def _call(block: Block, command: list[str], folder: Path) -> None:
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, check=False, text=True, timeout=600
    )
    told = f"{block.document}:{block.line}: {shlex.join(command[1:])}\n{done.stdout}{done.stderr}"
    assert done.returncode == 0, told


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_link_leads_somewhere(document: str) -> None:
    path = ROOT / document
    for link in _LINK.findall(_prose(path)):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        assert target.exists(), f"{document}: {link}"
        if anchor:
            assert anchor in _anchors(target), f"{document}: {link}"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_module_that_is_named_exists(document: str) -> None:
    roots = {
        "mptraining_api": "api",
        "mptraining_operator": "operator",
        "mptraining_records": "trainer",
        "mptraining_trainer": "trainer",
    }
    for package, module in _MODULE.findall(_prose(ROOT / document)):
        path = (ROOT / roots.get(package, "client") / package).joinpath(*module.split("."))
        # `mptraining.dev/…` is the group of the resource, `mptraining.compare` a public function.
        # `mptraining.tensorflow_cloud.run` is a function of a module.
        files = (path.with_suffix(".py"), path.parent.with_suffix(".py"))
        found = module in ("dev", *mptraining.__all__) or path.is_dir() or any(file.exists() for file in files)
        assert found, f"{document}: {package}.{module}"


def _prose(path: Path) -> str:
    """Return the text without its blocks of code."""
    return re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def _anchors(path: Path) -> set[str]:
    """Return the headings as GitHub's link anchors."""
    headings = re.findall(r"^#+ (.+)$", _prose(path), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
