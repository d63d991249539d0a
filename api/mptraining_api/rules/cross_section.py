"""Rules between sections: fields that a script, a function or a TPU excludes; changes after the job has started."""

from __future__ import annotations

from functools import partial

from pydantic.alias_generators import to_camel

from mptraining_api.model import Model
from mptraining_api.outputs.fields import Checkpoint
from mptraining_api.rules.capacity import CAPACITY_RULES
from mptraining_api.rules.clause import Clause, absent, absent_or, absent_or_not, field_at, present, rule
from mptraining_api.rules.rule import Rule
from mptraining_api.rules.sections import is_tpu
from mptraining_api.spec import JOB_NAME, JobSpec, MPTrainingJob, RunPolicy


def _same(path: str, field: str, *, required: bool = False) -> str:
    """Return CEL that holds if the field below `path` is unchanged, whether set or absent."""
    now, before = f"self.{path}.{field}", f"oldSelf.{path}.{field}"
    if required:
        return f"{now} == {before}"
    return f"has({now}) == has({before}) && (!has({now}) || {now} == {before})"


# Fields that may change after the start, by section. The operator reads the first ones of the current spec; a worker
# gets maxToKeep with its attempt.
MUTABLE: dict[str, tuple[type[Model], tuple[str, ...]]] = {
    "run_policy": (RunPolicy, ("suspend", "active_deadline_seconds", "ttl_seconds_after_finished")),
    "checkpoint": (Checkpoint, ("max_to_keep",)),
}


def _unchanged_after_start() -> str:
    """Return CEL that holds if no attempt exists or no field but those of MUTABLE has changed.

    The rule is at the root, because removing and adding a subtree bypasses a rule on it. It compares field by field,
    because CEL cannot compare objects except for some fields.
    """
    same = [
        _same("spec", to_camel(name), required=about.is_required())
        for name, about in JobSpec.model_fields.items()
        if name not in MUTABLE
    ]
    same += [_same_but(to_camel(name), model, mutable) for name, (model, mutable) in MUTABLE.items()]
    started = "has(oldSelf.status) && has(oldSelf.status.currentAttempt) && oldSelf.status.currentAttempt > 0"
    return f"!({started}) || ({' && '.join(same)})"


def _same_but(section: str, model: type[Model], mutable: tuple[str, ...]) -> str:
    """Return CEL that holds if no field of the section has changed but the `mutable` ones."""
    path = f"spec.{section}"
    fixed = [to_camel(name) for name in model.model_fields if name not in mutable]
    # A section that is added or removed may have mutable fields only.
    none = " && ".join(f"!has(VALUE.{path}.{each})" for each in fixed)
    added_or_removed = [
        f"(has({there}.{path}) || !has({here}.{path}) || ({none.replace('VALUE', here)}))"
        for here, there in (("self", "oldSelf"), ("oldSelf", "self"))
    ]
    both = f"(!has(self.{path}) || !has(oldSelf.{path}) || ({' && '.join(_same(path, each) for each in fixed)}))"
    return " && ".join([*added_or_removed, both])


def _mutable_text() -> str:
    names = [f"{to_camel(section)}.{to_camel(name)}" for section, (_, names) in MUTABLE.items() for name in names]
    return f"{', '.join(names[:-1])} and {names[-1]}"


_ROOT = (
    Rule(
        at="",
        field="metadata.name",
        cel="size(self.metadata.name) <= 50 && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
        message="at most 50 small letters, digits and hyphens, a letter first and no hyphen last",
        next_step="Pods are named <job>-<attempt>-<index>, which must fit a DNS label of 63 characters.",
        holds=lambda job: JOB_NAME.fullmatch(_job(job).metadata.name) is not None,
    ),
    Rule(
        at="",
        field="spec",
        cel=_unchanged_after_start(),
        message=f"no change but {_mutable_text()} after the job has started",
        next_step="Create a new job under another name.",
        # The rule compares two versions, and here is only one.
        holds=lambda _: True,
    ),
    Rule(
        at="",
        field="spec.managedBy",
        # Of the root, because the API server evaluates a rule on an absent field only there.
        cel=_same("spec", "managedBy"),
        message="no change",
        next_step="Delete the job, and create it with the other controller.",
        holds=lambda _: True,
    ),
)


def _job(value: MPTrainingJob) -> MPTrainingJob:
    return value


def _ragged_compiled(spec: JobSpec) -> bool:
    features = (spec.data.features if spec.data else None) or []
    compiled = is_tpu(spec.accelerator) or spec.jit_compile == "Always"
    return not compiled or not any(feature.ragged for feature in features)


def _first_ragged(spec: JobSpec) -> str:
    features = (spec.data.features if spec.data else None) or []
    return f"[{next(i for i, feature in enumerate(features) if feature.ragged)}].ragged"


def _one_logical_device(spec: JobSpec) -> bool:
    several = (spec.elastic.max if spec.elastic else spec.nodes or 1) > 1
    return spec.accelerator.type != "cpu" or not several or (spec.accelerator.count_per_node or 1) == 1


def _as_given(field: str, program: str, *, equal: bool) -> Clause:
    """Return the clause that a field of data is given for that program alone, or for all others."""

    def holds(spec: JobSpec) -> bool:
        same = (field_at(spec, field) is None) == (field_at(spec, program) is None)
        return same is equal

    return Clause(f"has(self.{field}) {'==' if equal else '!='} has(self.{program})", holds)


_NO_TPU = Clause("!self.accelerator.type.matches('^tpu[-0-9]')", lambda spec: not is_tpu(spec.accelerator))
_NO_TRAINED_MODEL = Clause(
    "!(has(self.program.prediction) || has(self.program.ensemble))",
    lambda spec: not spec.program.uses_trained_models,
)
_NO_VALIDATION_METRIC = Clause(
    "!self.export.monitor.startsWith('val_')", lambda spec: not spec.export.monitor.startswith("val_")
)
_rule = partial(rule, "spec")

CROSS_FIELD_RULES: tuple[Rule, ...] = (
    *_ROOT,
    *CAPACITY_RULES,
    _rule(
        "spec.data",
        absent("program.script") | absent("data"),
        "no data section beside a script, which reads its own",
        "Pass paths as program.script.arguments.",
    ),
    _rule(
        "spec.training",
        absent("program.script") | absent("training"),
        "no training section beside a script, which trains by itself",
        "Pass settings as program.script.arguments.",
    ),
    _rule(
        "spec.data",
        present("program.script") | present("data"),
        "data for every program but a script",
        "Name the TFRecords under data.train, of a prediction under data.predict.",
    ),
    _rule(
        "spec.data.train",
        absent("data") | _as_given("data.train", "program.prediction", equal=False),
        "the TFRecords to train on, and none for a prediction",
        "Name them under data.train, of a prediction under data.predict.",
    ),
    _rule(
        "spec.data.predict",
        absent("data") | _as_given("data.predict", "program.prediction", equal=True),
        "the records of program.prediction, and none for another program",
        "Name the records of a prediction under data.predict, those of training under data.train.",
    ),
    _rule(
        "spec.data.validation",
        absent("program.prediction") | absent("data.validation"),
        "no validation data for a prediction",
        "Name the records under data.predict, and set prediction.evaluate: true for the metrics.",
    ),
    _rule(
        "spec.data.validation",
        absent("program.ensemble") | absent("data") | present("data.validation"),
        "the records that an ensemble is evaluated on",
        "Add data.validation.",
    ),
    _rule(
        "spec.training",
        _NO_TRAINED_MODEL | absent("training"),
        "no training section for a prediction or an ensemble, which trains nothing",
        "Remove training; a prediction has prediction.batchSize.",
    ),
    _rule(
        "spec.precision.policy",
        _NO_TRAINED_MODEL | absent_or("precision.policy", "Auto", "float32"),
        "Auto or float32 for a prediction or an ensemble, as trained models are exported under float32",
        "Remove precision.",
    ),
    _rule(
        "spec.nodes", absent("program.ensemble") | absent_or("nodes", 1), "one node for an ensemble", "Remove nodes."
    ),
    _rule(
        "spec.checkpoint.everySteps",
        absent("program.script") | absent("checkpoint.everySteps"),
        "no everySteps for a script, which is saved at the end of its epochs",
        "Leave it out.",
    ),
    _rule(
        "spec.precision.policy",
        absent("program.script") | absent_or_not("precision.policy", "Measure"),
        "a policy other than Measure for a script, whose model is not known beforehand",
        "Write policy: Auto, or the policy itself.",
    ),
    _rule(
        "spec.data.preprocess",
        absent("program.function") | absent_or_not("data.preprocess", "auto"),
        "none or module:function for a function, which has no preprocessing known by name",
        "Write preprocess: none, or name a function of your own.",
    ),
    _rule(
        "spec.training.validationEverySteps",
        absent("training.validationEverySteps") | present("data.validation"),
        "data.validation to validate on",
        "Add data.validation, or leave validationEverySteps out.",
    ),
    _rule(
        "spec.training.validationFreq",
        absent("training.validationFreq") | present("data.validation"),
        "data.validation to validate on",
        "Add data.validation, or remove validationFreq.",
    ),
    _rule(
        "spec.training.classWeight",
        absent("training.classWeight") | absent("data.sampleWeight"),
        "classWeight or data.sampleWeight, not both, as in Keras",
        "Multiply the weights where the records are written.",
    ),
    Rule(
        "spec",
        "spec.data.features",
        "!has(self.data) || !has(self.data.features) || !(self.accelerator.type.matches('^tpu[-0-9]') || "
        "(has(self.jitCompile) && self.jitCompile == 'Always')) || "
        "!self.data.features.exists(f, has(f.ragged) && f.ragged)",
        "no ragged: true on a TPU or with jitCompile: Always, since XLA has no ragged tensors",
        "Write bucketBoundaries: [N] instead, which pads to N values.",
        _ragged_compiled,
        _first_ragged,
    ),
    _rule(
        "spec.export.monitor",
        absent("export.monitor") | _NO_VALIDATION_METRIC | present("program.script") | present("data.validation"),
        "a metric of the training data, as there is no data.validation",
        "Add data.validation, or monitor a metric without val_.",
    ),
    _rule(
        "spec.output",
        absent_or_not("training.resume", "Required") | present("output"),
        "output.uri, the folder that training.resume: Required resumes from",
        "Name the run folder under output.uri.",
    ),
    _rule(
        "spec.nodes",
        _NO_TPU | absent_or("nodes", 1),
        "no nodes for a TPU, whose topology decides them",
        "Leave nodes out and choose accelerator.topology.",
    ),
    _rule("spec.elastic", absent("elastic") | absent("nodes"), "nodes or elastic, not both", "Keep one."),
    _rule(
        "spec.elastic",
        absent("elastic") | _NO_TPU,
        "no elastic for a TPU, whose topology decides its nodes",
        "Remove elastic.",
    ),
    _rule(
        "spec.runPolicy.resizeSeconds",
        absent("runPolicy.resizeSeconds") | present("elastic"),
        "resizeSeconds beside elastic only",
        "Add elastic, or leave resizeSeconds out: the number of nodes stays.",
    ),
    _rule(
        "spec.scheduling.gang",
        absent("elastic") | absent_or("scheduling.gang", "Auto", "None"),
        "Auto or None for an elastic job, which takes the workers that get a machine",
        "Leave gang out, or write nodes instead of elastic.",
    ),
    _rule(
        "spec.elastic",
        absent("elastic") | present("program.application") | present("program.function"),
        "elastic for an application or a function only, whose batches the trainer makes",
        "Write nodes instead.",
    ),
    Rule(
        "spec",
        "spec.accelerator.countPerNode",
        "self.accelerator.type != 'cpu' || "
        "(has(self.elastic) ? self.elastic.max : has(self.nodes) ? self.nodes : 1) == 1 || "
        "!has(self.accelerator.countPerNode)"
        " || self.accelerator.countPerNode == 1",
        "1 on several CPU nodes, as MultiWorkerMirroredStrategy uses one logical device of each",
        "Leave countPerNode out, or take nodes: 1.",
        _one_logical_device,
    ),
    _rule(
        "spec.jitCompile",
        _NO_TPU | absent_or_not("jitCompile", "Never"),
        "Auto or Always on a TPU, which computes only what XLA compiled",
        "Leave jitCompile out.",
    ),
)
