"""Rules between sections: fields that a script, a function or a TPU excludes; changes after the job has started."""

from __future__ import annotations

from pydantic.alias_generators import to_camel

from mptraining_api.model import Model
from mptraining_api.outputs.fields import Checkpoint
from mptraining_api.rules.capacity import CAPACITY_RULES
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


def _script_data(spec: JobSpec) -> bool:
    return spec.program.script is None or spec.data is None


def _script_training(spec: JobSpec) -> bool:
    return spec.program.script is None or spec.training is None


def _training_of_models(spec: JobSpec) -> bool:
    return not spec.program.uses_trained_models or spec.training is None


def _precision_of_models(spec: JobSpec) -> bool:
    policy = spec.precision.policy if spec.precision else None
    return not spec.program.uses_trained_models or policy in (None, "Auto", "float32")


def _train_data(spec: JobSpec) -> bool:
    return spec.data is None or (spec.data.train is None) == (spec.program.prediction is not None)


def _validation_of_prediction(spec: JobSpec) -> bool:
    return spec.program.prediction is None or spec.data is None or spec.data.validation is None


def _predict_data(spec: JobSpec) -> bool:
    return spec.data is None or (spec.data.predict is not None) == (spec.program.prediction is not None)


def _ensemble_data(spec: JobSpec) -> bool:
    return spec.program.ensemble is None or spec.data is None or spec.data.validation is not None


def _ensemble_nodes(spec: JobSpec) -> bool:
    return spec.program.ensemble is None or spec.nodes is None or spec.nodes == 1


def _script_checkpoints(spec: JobSpec) -> bool:
    return spec.program.script is None or spec.checkpoint is None or spec.checkpoint.every_steps is None


def _script_precision(spec: JobSpec) -> bool:
    return spec.program.script is None or spec.precision is None or spec.precision.policy != "Measure"


def _needs_data(spec: JobSpec) -> bool:
    return spec.program.script is not None or spec.data is not None


def _preprocess_of_function(spec: JobSpec) -> bool:
    return spec.program.function is None or spec.data is None or spec.data.preprocess != "auto"


def _validation_steps(spec: JobSpec) -> bool:
    if spec.training is None or spec.training.validation_every_steps is None:
        return True
    return spec.data is not None and spec.data.validation is not None


def _validation_freq(spec: JobSpec) -> bool:
    if spec.training is None or spec.training.validation_freq is None:
        return True
    return spec.data is not None and spec.data.validation is not None


def _class_and_sample_weights(spec: JobSpec) -> bool:
    weighted = spec.data is not None and spec.data.sample_weight is not None
    return not weighted or spec.training is None or spec.training.class_weight is None


def _ragged_compiled(spec: JobSpec) -> bool:
    features = (spec.data.features if spec.data else None) or []
    compiled = is_tpu(spec.accelerator) or spec.jit_compile == "Always"
    return not compiled or not any(feature.ragged for feature in features)


def _first_ragged(spec: JobSpec) -> str:
    features = (spec.data.features if spec.data else None) or []
    return f"[{next(i for i, feature in enumerate(features) if feature.ragged)}].ragged"


def _monitor_validation(spec: JobSpec) -> bool:
    if spec.export is None or spec.export.monitor is None or not spec.export.monitor.startswith("val_"):
        return True
    return spec.program.script is not None or (spec.data is not None and spec.data.validation is not None)


def _resume_output(spec: JobSpec) -> bool:
    return spec.training is None or spec.training.resume != "Required" or spec.output is not None


def _nodes_of_tpu(spec: JobSpec) -> bool:
    return not is_tpu(spec.accelerator) or spec.nodes is None or spec.nodes == 1


def _nodes_or_elastic(spec: JobSpec) -> bool:
    return spec.nodes is None or spec.elastic is None


def _elastic_machines(spec: JobSpec) -> bool:
    return spec.elastic is None or not is_tpu(spec.accelerator)


def _resized(spec: JobSpec) -> bool:
    return spec.run_policy is None or spec.run_policy.resize_seconds is None or spec.elastic is not None


def _elastic_gang(spec: JobSpec) -> bool:
    gang = spec.scheduling.gang if spec.scheduling else None
    return spec.elastic is None or gang in (None, "Auto", "None")


def _elastic_program(spec: JobSpec) -> bool:
    return spec.elastic is None or spec.program.is_trained_here


def _logical_devices(spec: JobSpec) -> bool:
    several = (spec.elastic.max if spec.elastic else spec.nodes or 1) > 1
    return spec.accelerator.type != "cpu" or not several or (spec.accelerator.count_per_node or 1) == 1


def _tpu_compiles(spec: JobSpec) -> bool:
    return not is_tpu(spec.accelerator) or spec.jit_compile != "Never"


CROSS_FIELD_RULES: tuple[Rule, ...] = (
    *_ROOT,
    *CAPACITY_RULES,
    Rule(
        "spec",
        "spec.data",
        "!has(self.program.script) || !has(self.data)",
        "no data section beside a script, which reads its own",
        "Pass paths as program.script.arguments.",
        _script_data,
    ),
    Rule(
        "spec",
        "spec.training",
        "!has(self.program.script) || !has(self.training)",
        "no training section beside a script, which trains by itself",
        "Pass settings as program.script.arguments.",
        _script_training,
    ),
    Rule(
        "spec",
        "spec.data",
        "has(self.program.script) || has(self.data)",
        "data for every program but a script",
        "Name the TFRecords under data.train, of a prediction under data.predict.",
        _needs_data,
    ),
    Rule(
        "spec",
        "spec.data.train",
        "!has(self.data) || has(self.data.train) != has(self.program.prediction)",
        "the TFRecords to train on, and none for a prediction",
        "Name them under data.train, of a prediction under data.predict.",
        _train_data,
    ),
    Rule(
        "spec",
        "spec.data.predict",
        "!has(self.data) || has(self.data.predict) == has(self.program.prediction)",
        "the records of program.prediction, and none for another program",
        "Name the records of a prediction under data.predict, those of training under data.train.",
        _predict_data,
    ),
    Rule(
        "spec",
        "spec.data.validation",
        "!has(self.program.prediction) || !has(self.data) || !has(self.data.validation)",
        "no validation data for a prediction",
        "Name the records under data.predict, and set prediction.evaluate: true for the metrics.",
        _validation_of_prediction,
    ),
    Rule(
        "spec",
        "spec.data.validation",
        "!has(self.program.ensemble) || !has(self.data) || has(self.data.validation)",
        "the records that an ensemble is evaluated on",
        "Add data.validation.",
        _ensemble_data,
    ),
    Rule(
        "spec",
        "spec.training",
        "!(has(self.program.prediction) || has(self.program.ensemble)) || !has(self.training)",
        "no training section for a prediction or an ensemble, which trains nothing",
        "Remove training; a prediction has prediction.batchSize.",
        _training_of_models,
    ),
    Rule(
        "spec",
        "spec.precision.policy",
        "!(has(self.program.prediction) || has(self.program.ensemble)) || !has(self.precision) || "
        "!has(self.precision.policy) || self.precision.policy in ['Auto', 'float32']",
        "Auto or float32 for a prediction or an ensemble, as trained models are exported under float32",
        "Remove precision.",
        _precision_of_models,
    ),
    Rule(
        "spec",
        "spec.nodes",
        "!has(self.program.ensemble) || !has(self.nodes) || self.nodes == 1",
        "one node for an ensemble",
        "Remove nodes.",
        _ensemble_nodes,
    ),
    Rule(
        "spec",
        "spec.checkpoint.everySteps",
        "!has(self.program.script) || !has(self.checkpoint) || !has(self.checkpoint.everySteps)",
        "no everySteps for a script, which is saved at the end of its epochs",
        "Leave it out.",
        _script_checkpoints,
    ),
    Rule(
        "spec",
        "spec.precision.policy",
        "!has(self.program.script) || !has(self.precision) || !has(self.precision.policy)"
        " || self.precision.policy != 'Measure'",
        "a policy other than Measure for a script, whose model is not known beforehand",
        "Write policy: Auto, or the policy itself.",
        _script_precision,
    ),
    Rule(
        "spec",
        "spec.data.preprocess",
        "!has(self.program.__function__) || !has(self.data) || !has(self.data.preprocess) || "
        "self.data.preprocess != 'auto'",
        "none or module:function for a function, which has no preprocessing known by name",
        "Write preprocess: none, or name a function of your own.",
        _preprocess_of_function,
    ),
    Rule(
        "spec",
        "spec.training.validationEverySteps",
        "!has(self.training) || !has(self.training.validationEverySteps)"
        " || (has(self.data) && has(self.data.validation))",
        "data.validation to validate on",
        "Add data.validation, or leave validationEverySteps out.",
        _validation_steps,
    ),
    Rule(
        "spec",
        "spec.training.validationFreq",
        "!has(self.training) || !has(self.training.validationFreq) || (has(self.data) && has(self.data.validation))",
        "data.validation to validate on",
        "Add data.validation, or remove validationFreq.",
        _validation_freq,
    ),
    Rule(
        "spec",
        "spec.training.classWeight",
        "!has(self.training) || !has(self.training.classWeight) || !has(self.data) || !has(self.data.sampleWeight)",
        "classWeight or data.sampleWeight, not both, as in Keras",
        "Multiply the weights where the records are written.",
        _class_and_sample_weights,
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
    Rule(
        "spec",
        "spec.export.monitor",
        "!has(self.export) || !has(self.export.monitor) || !self.export.monitor.startsWith('val_')"
        " || has(self.program.script) || (has(self.data) && has(self.data.validation))",
        "a metric of the training data, as there is no data.validation",
        "Add data.validation, or monitor a metric without val_.",
        _monitor_validation,
    ),
    Rule(
        "spec",
        "spec.output",
        "!has(self.training) || !has(self.training.resume) || self.training.resume != 'Required' || has(self.output)",
        "output.uri, the folder that training.resume: Required resumes from",
        "Name the run folder under output.uri.",
        _resume_output,
    ),
    Rule(
        "spec",
        "spec.nodes",
        "!self.accelerator.type.matches('^tpu[-0-9]') || !has(self.nodes) || self.nodes == 1",
        "no nodes for a TPU, whose topology decides them",
        "Leave nodes out and choose accelerator.topology.",
        _nodes_of_tpu,
    ),
    Rule(
        "spec",
        "spec.elastic",
        "!has(self.elastic) || !has(self.nodes)",
        "nodes or elastic, not both",
        "Keep one.",
        _nodes_or_elastic,
    ),
    Rule(
        "spec",
        "spec.elastic",
        "!has(self.elastic) || !self.accelerator.type.matches('^tpu[-0-9]')",
        "no elastic for a TPU, whose topology decides its nodes",
        "Remove elastic.",
        _elastic_machines,
    ),
    Rule(
        "spec",
        "spec.runPolicy.resizeSeconds",
        "!has(self.runPolicy) || !has(self.runPolicy.resizeSeconds) || has(self.elastic)",
        "resizeSeconds beside elastic only",
        "Add elastic, or leave resizeSeconds out: the number of nodes stays.",
        _resized,
    ),
    Rule(
        "spec",
        "spec.scheduling.gang",
        "!has(self.elastic) || !has(self.scheduling) || !has(self.scheduling.gang) || "
        "self.scheduling.gang in ['Auto', 'None']",
        "Auto or None for an elastic job, which takes the workers that get a machine",
        "Leave gang out, or write nodes instead of elastic.",
        _elastic_gang,
    ),
    Rule(
        "spec",
        "spec.elastic",
        "!has(self.elastic) || has(self.program.application) || has(self.program.__function__)",
        "elastic for an application or a function only, whose batches the trainer makes",
        "Write nodes instead.",
        _elastic_program,
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
        _logical_devices,
    ),
    Rule(
        "spec",
        "spec.jitCompile",
        "!self.accelerator.type.matches('^tpu[-0-9]') || !has(self.jitCompile) || self.jitCompile != 'Never'",
        "Auto or Always on a TPU, which computes only what XLA compiled",
        "Leave jitCompile out.",
        _tpu_compiles,
    ),
)
