"""Every block of code in the documents is parsed, resolved or run.

A block whose first line names a file (`# job.yaml`) becomes that file; other Python blocks are run, and so are the
`mptj` commands of bash blocks, in the order of the document, in one folder for each `##` section. A YAML block that is
no whole object is a part of `spec`. Blocks of `text` are ignored. A Python block that begins with a magic (`%pip`)
is a notebook's cell: it is parsed here.

A section with a `kubectl` command needs a cluster: nothing in it is run. Its files are parsed here, and its commands
are checked by test_commands.py.
"""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from IPython.core.inputtransformer2 import TransformerManager

from hack.helm_chart import ChartValues
from mptraining_api.resolve.resolve import ClusterSettings, resolve
from mptraining_api.spec import KIND
from mptraining_api.sweep.check import sweep_problems
from mptraining_api.sweep.spec import SWEEP_KIND
from mptraining_api.validation.yaml_text import read_yaml
from mptraining_operator.settings import OperatorSettings
from tests.jobs import parsed_job
from tests.unit.docs.blocks import ALL, BASE, LANGUAGES, Block, of


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
        document = {**BASE, "metadata": {"name": "part"}, "spec": {**BASE["spec"], **document}}
    job = parsed_job(yaml.safe_dump(document))
    assert resolve(job, ClusterSettings()).name == job.metadata.name
    assert resolve(job, ClusterSettings(cpu_fallback=True)).accelerator.kind == "cpu"


def _check_other_object(document: dict[str, Any]) -> None:
    """Check one of Kubernetes' own kinds: complete, its mounts in place; a ConfigMap of settings can be read."""
    if document["kind"] == "CustomResourceStateMetrics":
        # A configuration file of kube-state-metrics, not an object.
        assert document["spec"]["resources"][0]["groupVersionKind"]["kind"] == KIND
        return
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
