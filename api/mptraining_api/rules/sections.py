"""Rules within one section: fields that require or exclude one another."""

from __future__ import annotations

import re
from typing import Any

from mptraining_api.rules.clause import (
    Clause,
    absent,
    absent_or,
    absent_or_not,
    field_at,
    given_as,
    given_other_than,
    present,
    rule,
)
from mptraining_api.rules.rule import Rule
from mptraining_api.spec import Machine


def is_tpu(accelerator: Machine) -> bool:
    """Return whether the catalogue name is that of a Cloud TPU: tpu-v6e-slice, tpu7x, …"""
    return re.match(r"tpu[-0-9]", accelerator.type) is not None


def _given(section: Any, *fields: str) -> int:
    return sum(field_at(section, field) is not None for field in fields)


_PROGRAMS = ("application", "function", "script", "prediction", "ensemble")
_TPU = Clause("self.type.matches('^tpu[-0-9]')", is_tpu)
_NO_TPU = Clause("!self.type.matches('^tpu[-0-9]')", lambda machine: not is_tpu(machine))
_GPU = Clause("self.type.startsWith('nvidia-')", lambda machine: machine.type.startswith("nvidia-"))
_NO_CPU = Clause("self.type != 'cpu'", lambda machine: machine.type != "cpu")


def _of_each_machine(field: str, clause: Clause, message: str, next_step: str) -> tuple[Rule, Rule]:
    """Return the rule for the first choice and for the alternatives."""
    first, others = "spec.accelerator", "spec.accelerator.alternatives[]"
    return (
        rule(first, f"{first}.{field}", clause, message, next_step),
        rule(others, f"{others}.{field}", clause, message, next_step),
    )


SECTION_RULES: tuple[Rule, ...] = (
    rule(
        "spec.program",
        "spec.program",
        Clause(
            "(has(self.application) ? 1 : 0) + (has(self.__function__) ? 1 : 0) + (has(self.script) ? 1 : 0)"
            " + (has(self.prediction) ? 1 : 0) + (has(self.ensemble) ? 1 : 0) == 1",
            lambda program: _given(program, *_PROGRAMS) == 1,
        ),
        "exactly one of application, function, script, prediction and ensemble",
        "Keep the one that is to run.",
    ),
    *_of_each_machine("topology", _NO_TPU | present("topology"), "the slice's topology, such as 2x4", "Add topology."),
    *_of_each_machine(
        "topology",
        _TPU | absent("topology"),
        "no topology but for a TPU",
        "Leave it out; countPerNode and nodes say how many there are.",
    ),
    *_of_each_machine(
        "provisioning",
        absent_or_not("provisioning", "Reservation") | present("reservation"),
        "the name of the reservation beside provisioning: Reservation",
        "Add reservation, or change provisioning.",
    ),
    *_of_each_machine(
        "reservation",
        absent("reservation") | given_as("provisioning", "Reservation"),
        "provisioning: Reservation beside reservation",
        "Write provisioning: Reservation, or leave reservation out.",
    ),
    *_of_each_machine(
        "provisioning",
        _NO_CPU | absent_or_not("provisioning", "FlexStart"),
        "OnDemand, Spot or Reservation for cpu, as flex-start is for GPUs and TPUs",
        "Leave it out.",
    ),
    *_of_each_machine(
        "type",
        _GPU | absent("partition"),
        "a GPU, as partition is for GPUs",
        "Leave out partition, or choose a GPU.",
    ),
    *_of_each_machine(
        "countPerNode",
        absent("partition") | absent_or("countPerNode", 1),
        "1 with partition, as a process can use one slice only",
        "Leave countPerNode out, or take more nodes.",
    ),
    rule(
        "spec.accelerator",
        "spec.accelerator.tryForSeconds",
        absent("tryForSeconds") | present("alternatives"),
        "tryForSeconds beside alternatives only",
        "Add alternatives, or use runPolicy.pendingTimeoutSeconds, which fails the job.",
    ),
    rule(
        "spec.elastic",
        "spec.elastic.max",
        Clause("self.min <= self.max", lambda elastic: elastic.min <= elastic.max),
        "a number of nodes not below min",
        "Exchange the two.",
    ),
    rule(
        "spec.precision",
        "spec.precision.lossScale",
        absent("lossScale") | absent_or_not("policy", "float32", "mixed_bfloat16"),
        "no lossScale but for mixed_float16, the only policy that needs one",
        "Leave it out.",
    ),
    rule(
        "spec.precision.lossScale",
        "spec.precision.lossScale.value",
        absent_or_not("mode", "Fixed") | present("value"),
        "the scale that mode: Fixed keeps",
        "Add value, such as 1024, or write mode: Dynamic.",
    ),
    rule(
        "spec.program",
        "spec.program.application.weights",
        absent_or("application.freezeBase", False) | given_other_than("application.weights", "none"),
        "imagenet or a weights file under a frozen base, which would stay random",
        "Add weights, or write freezeBase: false.",
    ),
    rule(
        "spec.program",
        "spec.program.application.weights",
        absent_or_not("application.name", "mlp", "cnn") | absent_or_not("application.weights", "imagenet"),
        "none or the URI of a weights file, as mlp and cnn have no imagenet weights",
        "Write weights: none.",
    ),
    rule(
        "spec.program.script.path",
        "spec.program.script.path",
        Clause(
            "!self.startsWith('/') && !self.contains('..')", lambda path: not path.startswith("/") and ".." not in path
        ),
        "a path inside the source",
        "Write it relative to the source folder, such as train.py.",
    ),
    rule(
        "spec.program.ensemble",
        "spec.program.ensemble.weights",
        absent("weights")
        | Clause(
            "self.weights.size() == self.members.size()",
            lambda ensemble: len(ensemble.weights) == len(ensemble.members),
        ),
        "a weight for each of the members",
        "Write as many weights as members, or none for their plain mean.",
    ),
    rule(
        "spec.source",
        "spec.source",
        absent("configMap") | absent("archive"),
        "one of configMap and archive",
        "Keep one.",
    ),
    rule(
        "spec.source",
        "spec.source.requirements",
        absent("requirements")
        | Clause("!self.requirements.startsWith('/')", lambda source: not source.requirements.startswith("/")),
        "a path inside the source",
        "Write it relative to the source folder, such as requirements.txt.",
    ),
    rule(
        "spec.training",
        "spec.training.totalSteps",
        absent("epochs") | absent("totalSteps"),
        "epochs or totalSteps, not both",
        "Keep one.",
    ),
    rule(
        "spec.training",
        "spec.training.initialEpoch",
        absent_or("initialEpoch", 0)
        | Clause(
            "(has(self.epochs) && self.initialEpoch < self.epochs)",
            lambda training: training.epochs is not None and training.initial_epoch < training.epochs,
        ),
        "a number below epochs, as in fit(initial_epoch=...)",
        "Training begins at initialEpoch and ends at epochs: raise epochs, or remove initialEpoch.",
    ),
    rule(
        "spec.training",
        "spec.training.validationFreq",
        absent("validationFreq") | absent("validationEverySteps"),
        "validationFreq (epochs) or validationEverySteps, not both",
        "Keep one.",
    ),
    rule(
        "spec.training.batchSize",
        "spec.training.batchSize",
        Clause("has(self.perReplica) != has(self.global)", lambda size: _given(size, "perReplica", "global") == 1),
        "exactly one of perReplica and global",
        "Keep one; the other follows from the number of replicas.",
    ),
    rule(
        "spec.training.learningRateScaling",
        "spec.training.learningRateScaling.baseBatchSize",
        absent_or("rule", "None") | present("baseBatchSize"),
        "the global batch size that the learning rate was found for",
        "Add baseBatchSize, or write rule: None.",
    ),
    rule(
        "spec.training.learningRateScaling",
        "spec.training.learningRateScaling.rule",
        absent("baseBatchSize") | given_other_than("rule", "None"),
        "Linear or SquareRoot beside baseBatchSize",
        "Add rule: Linear (SGD) or rule: SquareRoot (Adam), or leave baseBatchSize out.",
    ),
    rule(
        "spec.export",
        "spec.export.monitor",
        absent_or_not("checkpoint", "Best") | present("monitor"),
        "the metric that decides which checkpoint is best",
        "Add monitor, such as val_loss.",
    ),
    rule(
        "spec.export",
        "spec.export.checkpoint",
        absent("monitor") | given_as("checkpoint", "Best"),
        "Best beside monitor",
        "Write checkpoint: Best, or leave monitor out.",
    ),
    rule(
        "spec.profile",
        "spec.profile.lastStep",
        Clause("self.firstStep <= self.lastStep", lambda profile: profile.first_step <= profile.last_step),
        "a step not before firstStep",
        "Exchange the two.",
    ),
    rule(
        "spec.profile",
        "spec.profile.lastStep",
        Clause("self.lastStep - self.firstStep < 1000", lambda profile: profile.last_step - profile.first_step < 1000),
        "at most 1000 steps, as a profile grows by megabytes a step",
        "Ten steps show what a step is made of.",
    ),
    rule(
        "spec.tracking.mlflow",
        "spec.tracking.mlflow.uri",
        Clause(
            "self.uri.startsWith('https://') || self.uri.startsWith('http://')",
            lambda mlflow: mlflow.uri.startswith(("https://", "http://")),
        ),
        "https:// or http:// and a server",
        "Other stores take the run afterwards: mptj export RUN --to mlflow --uri URI.",
    ),
    rule(
        "spec.tracking.mlflow",
        "spec.tracking.mlflow.uri",
        Clause("!self.uri.contains('@')", lambda mlflow: "@" not in mlflow.uri),
        "a URI without user and password, since everyone who may read the job sees it",
        "Set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD from a Secret, in podTemplate.env.",
    ),
)
