"""The generated pages of the documentation site. `make docs` builds it and refuses broken links."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatch
from typing import Any

import pytest
import yaml

import mptraining
from mptraining import tensorflow_cloud
from mptraining_api.accelerators import catalogue
from mptraining_api.outcomes import OPERATOR_OUTCOMES, OUTCOMES
from mptraining_api.rules.check import rules
from tools.docs_site import messages, pages, reference
from tools.docs_site.pages import ROOT


@pytest.fixture(scope="module")
def generated() -> dict[str, str]:
    return pages.generated()


def test_each_field_is_in_the_table_of_its_object(generated: dict[str, str]) -> None:
    job = generated["reference/mptrainingjob.md"]
    assert "## spec.training.batchSize { #spec-training-batchsize }" in job
    batch = job.split("## spec.training.batchSize")[1].split("##")[0]
    assert "| `perReplica` | integer ≥ 1" in batch
    assert "| [`features`](#spec-data-features) | list of object |" in job
    assert "`Recover`, `Fail`" in job
    assert "## status.conditions[]" in job
    assert "## spec.parameters[]" in generated["reference/mptrainingsweep.md"]


def test_each_command_has_its_help(generated: dict[str, str]) -> None:
    commands = generated["reference/mptj.md"]
    for name in ("mptj run", "mptj records convert", "mptj sweep"):
        assert f"## {name} {{" in commands
    assert "--output DIR" in commands.split("## mptj run {")[1].split("##")[0]


def test_the_public_names_and_the_accelerators_are_all_there(generated: dict[str, str]) -> None:
    python = generated["reference/python.md"]
    own, _, _ = python.partition("## Programs of tensorflow-cloud")
    named = re.findall(r"^(?::::|###) mptraining\.(\w+)", own, re.MULTILINE)
    assert sorted(named) == sorted(mptraining.__all__)
    assert named.index("submit") < named.index("Job") < named.index("TrainingJob") < named.index("BatchSize")
    assert "| `global_` | Examples per step over all replicas." in python.split("### mptraining.BatchSize ")[1]
    assert all(f"| `{name}` |" in generated["reference/accelerators.md"] for name in catalogue())


def test_the_python_page_has_the_modules_for_programs_of_tensorflow_cloud(generated: dict[str, str]) -> None:
    page = generated["reference/python.md"]
    shown = page.split("::: mptraining.tensorflow_cloud\n")[1].partition("members: [")[2].partition("]")[0]
    assert set(shown.split(", ")) == {*tensorflow_cloud.__all__} - {"__version__"}
    assert "::: mptraining.colab\n    options:\n      heading_level: 3\n      members: [run_here]\n" in page


class _Lenient(yaml.SafeLoader):
    """Reads mkdocs.yml, whose tags MkDocs alone knows."""


_Lenient.add_multi_constructor("", lambda *_: None)


def _pages(entries: list[Any]) -> Iterator[str]:
    for each in entries:
        if isinstance(each, str):
            yield each
        else:
            for below in each.values():
                yield from _pages(below if isinstance(below, list) else [below])


def test_llms_txt_has_every_page_that_a_user_or_an_administrator_reads() -> None:
    config = yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), Loader=_Lenient)
    (plugin,) = (each["llmstxt"] for each in config["plugins"] if isinstance(each, dict) and "llmstxt" in each)
    patterns = [pattern for section in plugin["sections"].values() for pattern in section]
    missing = {page for page in _pages(config["nav"]) if not any(fnmatch(page, pattern) for pattern in patterns)}
    # How it is built and measured.
    internals = "architecture.md measured.md contributing.md changelog.md"
    assert missing == {*internals.split()}


def test_files_of_the_repository_have_a_page_or_none() -> None:
    assert pages.page_of("README.md") == ("index.md", "")
    assert pages.page_of("manifests/examples") == ("reference/examples.md", "")
    assert pages.page_of("manifests/examples/digits.yaml") == (
        "reference/examples.md",
        "manifests-examples-digits-yaml",
    )
    assert pages.page_of("api/mptraining_api/spec.py") is None


def test_each_reason_rule_notice_and_error_is_on_the_page_of_messages(generated: dict[str, str]) -> None:
    page = generated["reference/messages.md"]
    assert all(f"| `{each.reason}` |" in page for each in (*OUTCOMES, *OPERATOR_OUTCOMES))
    assert all(f"| `{each.field}` |" in page for each in rules())
    assert all(f"| `{topic}` |" in page for topic in ("InputBound", "CheckpointDamaged", "NoModel"))
    # A title for each, so that the search finds it by its words.
    assert "### requests accelerators, and no nodeSelector names their type {" in page
    titles = [line for line in page.splitlines() if line.startswith("### ")]
    assert len(titles) == len(messages.errors()) > 300
    anchors = [line.partition("{ #")[2] for line in titles]
    assert len(set(anchors)) == len(anchors)


def test_what_a_message_fills_in_is_shown_as_such() -> None:
    assert messages.template(messages.ast.parse("f'no file {path!r} in {a}{b}'", mode="eval").body) == "no file … in …"
    assert messages.template(messages.ast.parse("'a' if x else 'b'", mode="eval").body) == "a / b"


def test_each_event_has_its_fields_with_their_comments(generated: dict[str, str]) -> None:
    page = generated["reference/events.md"]
    assert all(f"## {kind}\n" in page for kind in ("Started", "Progress", "Notice", "Saved", "Finished"))
    assert "| `gradient_norm` | `float \\| None` | Euclidean norm of all gradients of the last step" in page


def test_each_metric_of_the_operator_is_listed_with_its_labels(generated: dict[str, str]) -> None:
    page = generated["reference/metrics.md"]
    assert "| `mptraining_api_calls_total` | counter | `verb`, `resource`, `code` | Calls to the API server" in page
    assert "| `mptraining_jobs` | gauge |" in page
    assert "| `mptraining_job_metric` |" in page


def test_a_notebook_is_a_page_that_opens_in_colab_where_the_repository_is_known() -> None:
    page = reference.notebook_page("notebooks/train.ipynb", "")
    assert page.startswith("# Train in mixed precision from a notebook\n")
    assert "[Download the notebook](train.ipynb)" in page
    assert "colab" not in page.lower().replace("# colab has keras", "")
    assert "```python\n%%writefile digits_model.py\n" in page
    assert "](stream.md)" in page
    assert "https://colab.research.google.com/github/owner/name/blob/main/docs/notebooks/train.ipynb" in (
        reference.notebook_page("notebooks/train.ipynb", "owner/name")
    )


def test_the_first_page_begins_with_a_clone_where_the_repository_is_known(generated: dict[str, str]) -> None:
    assert "git clone" not in generated["index.md"]
    clone = "```bash\ngit clone https://github.com/owner/name && cd name\nmake demo "
    assert pages.generated("owner/name")["index.md"].count(clone) == 1
