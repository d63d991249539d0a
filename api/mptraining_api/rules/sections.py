"""Rules within one section: fields that require or exclude one another."""

from __future__ import annotations

import re
from collections.abc import Callable

from mptraining_api.outputs.fields import Export, MLflow, Profile
from mptraining_api.programs.fields import Ensemble
from mptraining_api.rules.rule import Rule
from mptraining_api.spec import (
    Accelerator,
    BatchSize,
    LearningRateScaling,
    LossScale,
    Machine,
    Precision,
    Program,
    Source,
    Training,
)


def _given(*values: object) -> int:
    return sum(value is not None for value in values)


def is_tpu(accelerator: Machine) -> bool:
    """Return whether the catalogue name is that of a Cloud TPU: tpu-v6e-slice, tpu7x, …"""
    return re.match(r"tpu[-0-9]", accelerator.type) is not None


def _program_count(program: Program) -> bool:
    return _given(program.application, program.function, program.script, program.prediction, program.ensemble) == 1


def _tpu_topology(accelerator: Machine) -> bool:
    return not is_tpu(accelerator) or accelerator.topology is not None


def _topology_of_tpu(accelerator: Machine) -> bool:
    return is_tpu(accelerator) or accelerator.topology is None


def _tried_first(accelerator: Accelerator) -> bool:
    return accelerator.try_for_seconds is None or accelerator.alternatives is not None


def _reservation_named(accelerator: Machine) -> bool:
    return accelerator.provisioning != "Reservation" or accelerator.reservation is not None


def _reservation_used(accelerator: Machine) -> bool:
    return accelerator.reservation is None or accelerator.provisioning == "Reservation"


def _flex_start_of_accelerator(accelerator: Machine) -> bool:
    return accelerator.type != "cpu" or accelerator.provisioning != "FlexStart"


def _part_of_gpu(accelerator: Machine) -> bool:
    return accelerator.type.startswith("nvidia-") or accelerator.partition is None


def _one_part(accelerator: Machine) -> bool:
    return accelerator.partition is None or accelerator.count_per_node in (None, 1)


def _loss_scale_used(precision: Precision) -> bool:
    return precision.loss_scale is None or precision.policy not in ("float32", "mixed_bfloat16")


def _fixed_value(scale: LossScale) -> bool:
    return scale.mode != "Fixed" or scale.value is not None


def _frozen_base(program: Program) -> bool:
    application = program.application
    if application is None or not application.freeze_base:
        return True
    return application.weights is not None and application.weights != "none"


def _own_weights(program: Program) -> bool:
    application = program.application
    return application is None or application.name not in ("mlp", "cnn") or application.weights != "imagenet"


def _one_source(source: Source) -> bool:
    return _given(source.config_map, source.archive) <= 1


def _requirements(source: Source) -> bool:
    return source.requirements is None or not source.requirements.startswith("/")


def _epochs(training: Training) -> bool:
    return _given(training.epochs, training.total_steps) <= 1


def _batch(size: BatchSize) -> bool:
    return _given(size.per_replica, size.global_) == 1


def _initial_epoch(training: Training) -> bool:
    return not training.initial_epoch or (training.epochs is not None and training.initial_epoch < training.epochs)


def _base(scaling: LearningRateScaling) -> bool:
    return scaling.rule not in ("Linear", "SquareRoot") or scaling.base_batch_size is not None


def _base_used(scaling: LearningRateScaling) -> bool:
    return scaling.base_batch_size is None or scaling.rule in ("Linear", "SquareRoot")


def _best(export: Export) -> bool:
    return export.checkpoint != "Best" or export.monitor is not None


def _monitor(export: Export) -> bool:
    return export.monitor is None or export.checkpoint == "Best"


def _profile(profile: Profile) -> bool:
    return profile.first_step <= profile.last_step


def _profile_length(profile: Profile) -> bool:
    return profile.last_step - profile.first_step < 1000


def _web_server(mlflow: MLflow) -> bool:
    return mlflow.uri.startswith(("https://", "http://"))


def _no_credentials(mlflow: MLflow) -> bool:
    return "@" not in mlflow.uri


def _script_inside(path: str) -> bool:
    return not path.startswith("/") and ".." not in path


def _weights(ensemble: Ensemble) -> bool:
    return ensemble.weights is None or len(ensemble.weights) == len(ensemble.members)


def _of_each_machine(
    field: str, cel: str, message: str, next_step: str, holds: Callable[[Machine], bool]
) -> tuple[Rule, Rule]:
    """Return the rule for the first choice and for the alternatives."""
    first, others = "spec.accelerator", "spec.accelerator.alternatives[]"
    return (
        Rule(first, f"{first}.{field}", cel, message, next_step, holds),
        Rule(others, f"{others}.{field}", cel, message, next_step, holds),
    )


_MACHINE_RULES: tuple[Rule, ...] = (
    *_of_each_machine(
        "topology",
        "!self.type.matches('^tpu[-0-9]') || has(self.topology)",
        "the slice's topology, such as 2x4",
        "Add topology.",
        _tpu_topology,
    ),
    *_of_each_machine(
        "topology",
        "self.type.matches('^tpu[-0-9]') || !has(self.topology)",
        "no topology but for a TPU",
        "Leave it out; countPerNode and nodes say how many there are.",
        _topology_of_tpu,
    ),
    *_of_each_machine(
        "provisioning",
        "!has(self.provisioning) || self.provisioning != 'Reservation' || has(self.reservation)",
        "the name of the reservation beside provisioning: Reservation",
        "Add reservation, or change provisioning.",
        _reservation_named,
    ),
    *_of_each_machine(
        "reservation",
        "!has(self.reservation) || (has(self.provisioning) && self.provisioning == 'Reservation')",
        "provisioning: Reservation beside reservation",
        "Write provisioning: Reservation, or leave reservation out.",
        _reservation_used,
    ),
    *_of_each_machine(
        "provisioning",
        "self.type != 'cpu' || !has(self.provisioning) || self.provisioning != 'FlexStart'",
        "OnDemand, Spot or Reservation for cpu, as flex-start is for GPUs and TPUs",
        "Leave it out.",
        _flex_start_of_accelerator,
    ),
    *_of_each_machine(
        "type",
        "self.type.startsWith('nvidia-') || !has(self.partition)",
        "a GPU, as partition is for GPUs",
        "Leave out partition, or choose a GPU.",
        _part_of_gpu,
    ),
    *_of_each_machine(
        "countPerNode",
        "!has(self.partition) || !has(self.countPerNode) || self.countPerNode == 1",
        "1 with partition, as a process can use one slice only",
        "Leave countPerNode out, or take more nodes.",
        _one_part,
    ),
)


SECTION_RULES: tuple[Rule, ...] = (
    Rule(
        "spec.program",
        "spec.program",
        "(has(self.application) ? 1 : 0) + (has(self.__function__) ? 1 : 0) + (has(self.script) ? 1 : 0)"
        " + (has(self.prediction) ? 1 : 0) + (has(self.ensemble) ? 1 : 0) == 1",
        "exactly one of application, function, script, prediction and ensemble",
        "Keep the one that is to run.",
        _program_count,
    ),
    *_MACHINE_RULES,
    Rule(
        "spec.accelerator",
        "spec.accelerator.tryForSeconds",
        "!has(self.tryForSeconds) || has(self.alternatives)",
        "tryForSeconds beside alternatives only",
        "Add alternatives, or use runPolicy.pendingTimeoutSeconds, which fails the job.",
        _tried_first,
    ),
    Rule(
        "spec.elastic",
        "spec.elastic.max",
        "self.min <= self.max",
        "a number of nodes not below min",
        "Exchange the two.",
        lambda elastic: elastic.min <= elastic.max,
    ),
    Rule(
        "spec.precision",
        "spec.precision.lossScale",
        "!has(self.lossScale) || !has(self.policy) || !(self.policy in ['float32', 'mixed_bfloat16'])",
        "no lossScale but for mixed_float16, the only policy that needs one",
        "Leave it out.",
        _loss_scale_used,
    ),
    Rule(
        "spec.precision.lossScale",
        "spec.precision.lossScale.value",
        "!has(self.mode) || self.mode != 'Fixed' || has(self.value)",
        "the scale that mode: Fixed keeps",
        "Add value, such as 1024, or write mode: Dynamic.",
        _fixed_value,
    ),
    Rule(
        "spec.program",
        "spec.program.application.weights",
        "!has(self.application) || !has(self.application.freezeBase) || !self.application.freezeBase"
        " || (has(self.application.weights) && self.application.weights != 'none')",
        "imagenet or a weights file under a frozen base, which would stay random",
        "Add weights, or write freezeBase: false.",
        _frozen_base,
    ),
    Rule(
        "spec.program",
        "spec.program.application.weights",
        "!has(self.application) || !(self.application.name in ['mlp', 'cnn']) || "
        "!has(self.application.weights)"
        " || self.application.weights != 'imagenet'",
        "none or the URI of a weights file, as mlp and cnn have no imagenet weights",
        "Write weights: none.",
        _own_weights,
    ),
    Rule(
        "spec.program.script.path",
        "spec.program.script.path",
        "!self.startsWith('/') && !self.contains('..')",
        "a path inside the source",
        "Write it relative to the source folder, such as train.py.",
        _script_inside,
    ),
    Rule(
        "spec.program.ensemble",
        "spec.program.ensemble.weights",
        "!has(self.weights) || self.weights.size() == self.members.size()",
        "a weight for each of the members",
        "Write as many weights as members, or none for their plain mean.",
        _weights,
    ),
    Rule(
        "spec.source",
        "spec.source",
        "!(has(self.configMap) && has(self.archive))",
        "one of configMap and archive",
        "Keep one.",
        _one_source,
    ),
    Rule(
        "spec.source",
        "spec.source.requirements",
        "!has(self.requirements) || !self.requirements.startsWith('/')",
        "a path inside the source",
        "Write it relative to the source folder, such as requirements.txt.",
        _requirements,
    ),
    Rule(
        "spec.training",
        "spec.training.totalSteps",
        "!(has(self.epochs) && has(self.totalSteps))",
        "epochs or totalSteps, not both",
        "Keep one.",
        _epochs,
    ),
    Rule(
        "spec.training",
        "spec.training.initialEpoch",
        "!has(self.initialEpoch) || self.initialEpoch == 0 || (has(self.epochs) && self.initialEpoch < self.epochs)",
        "a number below epochs, as in fit(initial_epoch=...)",
        "Training begins at initialEpoch and ends at epochs: raise epochs, or remove initialEpoch.",
        _initial_epoch,
    ),
    Rule(
        "spec.training",
        "spec.training.validationFreq",
        "!(has(self.validationFreq) && has(self.validationEverySteps))",
        "validationFreq (epochs) or validationEverySteps, not both",
        "Keep one.",
        lambda training: training.validation_freq is None or training.validation_every_steps is None,
    ),
    Rule(
        "spec.training.batchSize",
        "spec.training.batchSize",
        "has(self.perReplica) != has(self.global)",
        "exactly one of perReplica and global",
        "Keep one; the other follows from the number of replicas.",
        _batch,
    ),
    Rule(
        "spec.training.learningRateScaling",
        "spec.training.learningRateScaling.baseBatchSize",
        "!has(self.rule) || self.rule == 'None' || has(self.baseBatchSize)",
        "the global batch size that the learning rate was found for",
        "Add baseBatchSize, or write rule: None.",
        _base,
    ),
    Rule(
        "spec.training.learningRateScaling",
        "spec.training.learningRateScaling.rule",
        "!has(self.baseBatchSize) || (has(self.rule) && self.rule != 'None')",
        "Linear or SquareRoot beside baseBatchSize",
        "Add rule: Linear (SGD) or rule: SquareRoot (Adam), or leave baseBatchSize out.",
        _base_used,
    ),
    Rule(
        "spec.export",
        "spec.export.monitor",
        "!has(self.checkpoint) || self.checkpoint != 'Best' || has(self.monitor)",
        "the metric that decides which checkpoint is best",
        "Add monitor, such as val_loss.",
        _best,
    ),
    Rule(
        "spec.export",
        "spec.export.checkpoint",
        "!has(self.monitor) || (has(self.checkpoint) && self.checkpoint == 'Best')",
        "Best beside monitor",
        "Write checkpoint: Best, or leave monitor out.",
        _monitor,
    ),
    Rule(
        "spec.profile",
        "spec.profile.lastStep",
        "self.firstStep <= self.lastStep",
        "a step not before firstStep",
        "Exchange the two.",
        _profile,
    ),
    Rule(
        "spec.profile",
        "spec.profile.lastStep",
        "self.lastStep - self.firstStep < 1000",
        "at most 1000 steps, as a profile grows by megabytes a step",
        "Ten steps show what a step is made of.",
        _profile_length,
    ),
    Rule(
        "spec.tracking.mlflow",
        "spec.tracking.mlflow.uri",
        "self.uri.startsWith('https://') || self.uri.startsWith('http://')",
        "https:// or http:// and a server",
        "Other stores take the run afterwards: mptj export RUN --to mlflow --uri URI.",
        _web_server,
    ),
    Rule(
        "spec.tracking.mlflow",
        "spec.tracking.mlflow.uri",
        "!self.uri.contains('@')",
        "a URI without user and password, since everyone who may read the job sees it",
        "Set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD from a Secret, in podTemplate.env.",
        _no_credentials,
    ),
)
