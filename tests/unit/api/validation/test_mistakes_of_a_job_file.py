"""Mistakes of a job file without its data: every one with its line, in words of YAML's users, and the next step."""

from __future__ import annotations

import pytest

from mptraining_api.problems import InvalidSpec
from mptraining_api.resolve.document_problems import DocumentProblems, document_problems
from mptraining_api.resolve.resolve import ClusterSettings
from mptraining_api.spec import MPTrainingJob
from mptraining_api.validation.job_text import read_job_text
from mptraining_api.validation.mistakes import InvalidJobFile
from mptraining_api.validation.short_forms import for_value
from mptraining_api.validation.yaml_text import read_yaml
from tests.jobs import parsed_job

JOB = """\
apiVersion: mptraining.dev/v1alpha1
kind: MPTrainingJob
metadata: {name: flowers}
spec:
  accelerator: {type: cpu}
  program:
    application: {name: mlp, classes: 10}
  data:
    train: ["gs://bucket/train-*"]
    label: label
  training:
    epochs: 1
    batchSize: {global: 16}
    optimizer: {className: Adam, config: {learning_rate: 1e-3}}
"""


def found(*changes: tuple[str, str]) -> DocumentProblems:
    return document_problems(read_job_text(changed(*changes), file="job.yaml").content, ClusterSettings())


def changed(*changes: tuple[str, str]) -> str:
    text = JOB
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    return text


def mistakes(*changes: tuple[str, str]) -> list[str]:
    """Return the lines that `mptj check` prints for the job with these changes."""
    try:
        written = read_job_text(changed(*changes), file="job.yaml")
        problems = document_problems(written.content, ClusterSettings()).problems
    except InvalidJobFile as error:
        return str(error).splitlines()
    return str(written.located(problems)).splitlines() if problems else []


def test_a_learning_rate_in_scientific_notation_is_a_number() -> None:
    assert mistakes() == []
    assert parsed_job(JOB).to_document()["spec"]["training"]["optimizer"]["config"] == {"learning_rate": 0.001}


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("  training:\n", "  data: {train: [x]}\n  training:\n",
         "job.yaml:11: spec.data: given twice, first on line 8; expected each field once. "
         "Remove one of the two, or join them."),
        ("    epochs", "\tepochs",
         "job.yaml:12: a TAB in the indentation. YAML indents with spaces; replace the TAB."),
        ("    epochs: 1", "   epochs: 1",
         "job.yaml:13: wrong indentation: 'batchSize' is indented by 4 spaces, 'epochs' on line 12 by 3. "
         "Indent the fields of one section by the same number of spaces."),
        ("label: label", "label: a: b", "job.yaml:10: a second ': ' in one line. Quote the value that contains it."),
        ('"gs://bucket/train-*"', "*.tfrecord",
         'job.yaml:9: a value begins with * or &, which YAML reserves. Quote it, such as "*.tfrecord".'),
        ("{global: 16}", "{global: 16",
         "job.yaml:14: the '{' that opens on line 13 is not closed, or a comma is missing. "
         "Close it, or put a comma between the entries."),
        ("batchSize", "batch_size", "job.yaml:13: spec.training.batch_size: unknown field; write it 'batchSize'"),
        ("{global: 16}", "16",
         "job.yaml:13: spec.training.batchSize: 16 is not valid; expected the fields perReplica, global. "
         "Write batchSize: {global: 16}"),
        ("{className: Adam, config: {learning_rate: 1e-3}}", "adam",
         "job.yaml:14: spec.training.optimizer: 'adam' is not valid; expected the fields className, config. "
         "Write optimizer: {className: Adam}"),
        ("  program:", "  precision: {policy: fp16}\n  program:",
         "job.yaml:6: spec.precision.policy: 'fp16' is not valid; expected Auto, Measure, float32, mixed_float16 or "
         "mixed_bfloat16. Write policy: mixed_float16"),
        ("epochs: 1", "epochs: ten", "job.yaml:12: spec.training.epochs: 'ten' is not valid; expected a whole number"),
        ('["gs://bucket/train-*"]', "gs://bucket/train-*",
         "job.yaml:9: spec.data.train: 'gs://bucket/train-*' is not valid; expected a list: [a, b]. "
         'Write train: ["gs://bucket/train-*"]'),
        ("label: label", "label: 5", 'job.yaml:10: spec.data.label: 5 is not valid; expected text. Quote it: "5".'),
        ("    epochs: 1", "    learning_rate: 0.1\n    epochs: 1",
         "job.yaml:12: spec.training.learning_rate: unknown field. "
         "The optimizer has it: optimizer: {className: Adam, config: {learning_rate: 0.1}}"),
        ("  training:", "  seed: 7\n  training:",
         "job.yaml:11: spec.seed: unknown field. 'seed' belongs in spec.training."),
        ("name: mlp", "name: VGG99",
         "job.yaml:7: spec.program.application.name: there is no application 'VGG99' in Keras VERSION. "
         "Did you mean 'VGG19'?"),
        ("className: Adam", "className: Adamm",
         "job.yaml:14: spec.training.optimizer.className: there is no optimizer 'Adamm' in Keras VERSION. "
         "Did you mean 'Adam'?"),
        ("learning_rate: 1e-3", "learning_rate: {class_name: CosineDecays, config: {decay_steps: 9}}",
         "job.yaml:14: spec.training.optimizer.config.learning_rate.class_name: there is no schedule 'CosineDecays' in "
         "Keras VERSION. Did you mean 'CosineDecay'?"),
        ("learning_rate: 1e-3", 'learning_rate: "1e-3"',
         "job.yaml:14: spec.training.optimizer.config.learning_rate: '1e-3' is text; expected a number. "
         "Remove the quotes."),
    ],
)  # fmt: skip
def test_a_mistake_has_its_line_and_the_next_step(old: str, new: str, line: str) -> None:
    from mptraining_api.validation.keras_names import table

    assert mistakes((old, new)) == [line.replace("VERSION", table()["Keras3"].version)]


@pytest.mark.parametrize(
    ("word", "kind"), [("gpu", "GPUs: p100, "), ("rtx4090", "GPUs: p100, "), ("tpu", "TPUs: v3, ")]
)
def test_an_accelerator_of_no_catalogue_gets_those_of_its_kind(word: str, kind: str) -> None:
    (line,) = mistakes(("type: cpu", f"type: {word}"))
    assert line.startswith(f"job.yaml:5: spec.accelerator.type: unknown accelerator '{word}'. ")
    assert kind in line
    assert "Did you mean 'cpu'" not in line
    assert word == "rtx4090" or "Did you mean" not in line, "the name of a kind is close to none of its members"
    assert line.endswith("`mptj accelerators` describes them.")


@pytest.mark.parametrize("name", ["[{a: 1}]", "{a: 1}", "[a, b]"])
def test_a_list_or_mapping_is_no_name_of_a_field(name: str) -> None:
    (line,) = mistakes(("  accelerator: {type: cpu}\n", f"  ? {name}\n  : 1\n"))
    assert "spec: a list or a mapping as the name of a field; expected a text. Look at the brackets" in line


def test_all_mistakes_are_listed_at_once_in_the_order_of_their_lines() -> None:
    lines = mistakes(
        ("type: cpu", "type: gpu"), ("name: mlp", "nam: mlp"), ("epochs: 1", "epochs: ten"), ("global", "globl"),
        ("className: Adam", "className: Adamm"),
    )  # fmt: skip
    assert [line.split(": ")[1] for line in lines] == [
        "spec.accelerator.type",
        "spec.program.application.nam",
        "spec.training.epochs",
        "spec.training.batchSize.globl",
        "spec.training.optimizer.className",
    ]
    assert [int(line.split(":")[1]) for line in lines] == [5, 7, 12, 13, 14]


def test_decisions_that_contradict_the_accelerator_are_listed_together() -> None:
    lines = mistakes(
        ("type: cpu", "type: t4, countPerWorker: 4"), ("global: 16", "global: 15"),
        ("  program:", "  precision: {policy: mixed_bfloat16}\n  program:"),
    )  # fmt: skip
    assert [line.split(": ")[1] for line in lines] == ["spec.precision.policy", "spec.training.batchSize.global"]


@pytest.mark.parametrize(
    ("accelerator", "lines"),
    [
        ("{type: cpu, alternatives: [{type: nvidia-l5}, {type: nvidia-l6}]}",
         ["spec.accelerator.alternatives[0].type: unknown accelerator 'nvidia-l5'",
          "spec.accelerator.alternatives[1].type: unknown accelerator 'nvidia-l6'"]),
        ("{type: gpu, alternatives: [{type: l4, countPerWorker: 3}]}",
         ["spec.accelerator.type: unknown accelerator 'gpu'",
          "spec.accelerator.alternatives[0].countPerWorker: no machine has 3 x NVIDIA L4"]),
        ("{type: cpu, provisioning: FlexStart, alternatives: [{type: nvidia-l5}, {type: l4, countPerWorker: 3}]}",
         ["spec.accelerator.alternatives[0].type: unknown accelerator 'nvidia-l5'",
          "spec.accelerator.provisioning: 'FlexStart'; expected no provisioning: FlexStart",
          "spec.accelerator.alternatives[1].countPerWorker: no machine has 3 x NVIDIA L4"]),
        ("{type: cpu, alternatives: [{type: l4, countPerWorker: 8}, {type: a100-80gb, countPerWorker: 3}]}",
         ["spec.accelerator.alternatives[1].countPerWorker: no machine has 3 x NVIDIA A100 80 GB"]),
        ("{type: t4, partition: 3g.20gb, countPerWorker: 4}",
         ["spec.accelerator.countPerWorker: 4; expected 1 with partition",
          "spec.accelerator.partition: NVIDIA T4 has no slice '3g.20gb'"]),
        ("{type: cpu, partition: 3g.20gb}", ["spec.accelerator.partition: '3g.20gb'; expected no partition except"]),
        ("{type: a100, partition: 3g.20gb, countPerWorker: 4}",
         ["spec.accelerator.countPerWorker: 4; expected 1 with partition"]),
        ("{type: cpu, alternatives: [{type: l4, countPerWorker: 3, provisioning: Reservation}]}",
         ["spec.accelerator.alternatives[0].reservation: missing; expected reservation with provisioning: Reservation",
          "spec.accelerator.alternatives[0].countPerWorker: no machine has 3 x NVIDIA L4"]),
    ],
)  # fmt: skip
def test_the_mistakes_of_all_machines_are_listed_beside_broken_rules(accelerator: str, lines: list[str]) -> None:
    problems = [str(each) for each in found(("{type: cpu}", accelerator)).problems]
    assert len(problems) == len(lines)
    for problem, line in zip(problems, lines, strict=True):
        assert problem.startswith(line)


@pytest.mark.parametrize(
    ("accelerator", "field"),
    [
        ("{type: ironwood, partition: 3g.20gb}", "spec.accelerator.type"),
        ("{type: trillium, topology: 2x2}", "spec.accelerator.type"),
        ("{type: cpu, alternatives: [{type: ironwood, partition: 3g.20gb}]}", "spec.accelerator.alternatives[0].type"),
    ],
)
def test_another_name_breaks_no_rule_on_the_kind_of_the_machine(accelerator: str, field: str) -> None:
    problems = found(("{type: cpu}", accelerator)).problems
    assert [problem.where for problem in problems] == [field]
    assert "is a name of the command line alone" in problems[0].found


def test_a_misspelled_field_hides_no_machine_and_no_broken_rule() -> None:
    lines = mistakes(("  program:", "  nods: 2\n  program:"), ("{type: cpu}", "{type: t4, countPerWorker: 3}"))
    assert [line.split(": ")[1] for line in lines] == ["spec.accelerator.countPerWorker", "spec.nods"]
    lines = mistakes(("epochs: 1", "epochs: ten"), ("name: mlp", "name: mlp, freezeBase: true"))
    assert [line.split(":")[1] for line in lines] == ["7", "12"]


@pytest.mark.parametrize("name", ["mypackage>MyAdam", "flowers.optimizers:MyAdam"])
def test_names_of_the_users_own_are_not_refused(name: str) -> None:
    assert mistakes(("className: Adam", f'className: "{name}"')) == []


@pytest.mark.parametrize(
    "change",
    [
        ("application: {name: mlp, classes: 10}", 'function: {entryPoint: "flowers:build"}'),
        ("label: label", 'preprocess: "flowers:augment"'),
        ("  training:", "  podTemplate: {image: mine}\n  training:"),
    ],
)
def test_code_or_an_image_of_the_users_may_register_a_name(change: tuple[str, str]) -> None:
    result = found(change, ("className: Adam", "className: MyAdam"))
    assert result.problems == ()
    assert [doubt.where for doubt in result.doubts] == ["spec.training.optimizer.className"]


@pytest.mark.parametrize(
    ("text", "kind"),
    [("", "an empty file"), ("# Flowers\n\n- a\n* b\n", "Markdown"), ("import keras\nx = {1: 2}\n", "Python")],
)
def test_a_file_that_is_no_job_is_called_what_it_is(text: str, kind: str) -> None:
    with pytest.raises(InvalidSpec, match=f"this is {kind}, no job; expected an MPTrainingJob") as caught:
        read_job_text(text, file="notes.yaml")
    assert "`mptj init` writes a job file." in str(caught.value)


def test_values_that_kubectl_reads_differently_are_noted_and_recursion_is_a_mistake() -> None:
    (document,) = read_yaml('a: yes\nb: "no"\nc: [off, 010]\nd: true\n', file="x")
    assert document.content == {"a": "yes", "b": "no", "c": ["off", 10], "d": True}
    assert document.ambiguous == (
        (1, 'a: yes is text here (YAML 1.2) and true for kubectl; write "yes"'),
        (3, 'c[0]: off is text here (YAML 1.2) and false for kubectl; write "off"'),
        (3, "c[1]: 010 is 10 here (YAML 1.2) and 8 for kubectl"),
    )
    with pytest.raises(InvalidSpec, match="levels of nesting"):
        read_yaml("&a [*a]", file="x")


def test_a_range_of_workers_is_refused() -> None:
    spec = {"accelerator": {"type": "l4"}, "workers": {"min": 2, "max": 8}}
    with pytest.raises(InvalidSpec, match=r"spec\.workers"):
        MPTrainingJob.parse({"metadata": {"name": "flowers"}, "spec": spec})


@pytest.mark.parametrize(
    ("path", "value", "line"),
    [
        (("spec", "workers"), {"min": 2, "max": 8}, "Write elastic: {min: 2, max: 8} in spec, without workers."),
        (("spec", "workers"), "2-8", "Write elastic: {min: 2, max: 8} in spec, without workers."),
        (("spec", "workers"), "two", ""),
        (("spec", "elastic"), "2-8", "Write elastic: {min: 2, max: 8}"),
        (("spec", "elastic"), 4, "Write elastic: {min: 1, max: 4}"),
        (("spec", "elastic"), True, "Write elastic: {min: 1, max: 8}"),
    ],
)  # fmt: skip
def test_a_short_form_gets_the_line_to_write(path: tuple[str | int, ...], value: object, line: str) -> None:
    assert for_value(path, value) == line


def test_a_field_of_others_is_refused_with_what_is_here() -> None:
    (line,) = mistakes(("  training:", "  podTemplate: {sidecars: []}\n  training:"))
    assert "sidecars: unknown field. Write initContainers; a container with restartPolicy: Always is a sidecar." in line
