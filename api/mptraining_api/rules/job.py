"""Rules on a job: its program, machines and training; changes after the job has started."""

from __future__ import annotations

from dataclasses import replace

from pydantic.alias_generators import to_camel

from mptraining_api.outputs.fields import Checkpoint
from mptraining_api.rules.rule import (
    Condition,
    Rule,
    allows,
    at_most_one,
    field_at,
    forbids,
    given,
    matches,
    matching,
    one_of,
    ordered,
    requires,
    rule,
    unchanged,
    within,
)
from mptraining_api.spec import JOB_NAME, JobSpec, RunPolicy

# Seconds of a job without runPolicy.pendingTimeoutSeconds: longer than a cluster autoscaler needs for a GPU machine.
PENDING_TIMEOUT = 1800

# Fields that may change after the start. The operator reads those of runPolicy from the current spec; a worker gets
# maxToKeep with its attempt.
_MUTABLE = (
    *("runPolicy.suspend", "runPolicy.activeDeadlineSeconds", "runPolicy.ttlSecondsAfterFinished"),
    "checkpoint.maxToKeep",
)
_FIXED = [
    f"spec.{field}"
    for section, model in (("", JobSpec), ("runPolicy.", RunPolicy), ("checkpoint.", Checkpoint))
    for field in (section + to_camel(name) for name in model.model_fields)
    if field not in (*_MUTABLE, "runPolicy", "checkpoint")
]


def _program(kind: str) -> Condition:
    return replace(given(f"program.{kind}"), words=f"for program.{kind}", undo="")


def _inside_source(field: str, example: str) -> Rule:
    outside = matching(field, "^/|[.][.]")
    return rule(field, ~outside, "a path inside the source", f"Write it relative to the source folder, as {example}.")


def _time_for_each_machine(spec: JobSpec) -> bool:
    limit = field_at(spec, "runPolicy.pendingTimeoutSeconds") or PENDING_TIMEOUT
    return (spec.accelerator.try_for_seconds or 0) * len(spec.accelerator.alternatives or ()) < limit


def _first_ragged(spec: JobSpec) -> str | None:
    features = (spec.data.features if spec.data and _COMPILED.holds(spec) else None) or []
    return next((f"[{index}].ragged" for index, feature in enumerate(features) if feature.ragged), None)


# v5e and v3-slice, but not v100; GKE's label values begin with tpu.
TPU_NAMES = "^(tpu|v[0-9]{1,2}([a-z-]|$))"
_TPU = matching("type", TPU_NAMES, "on a TPU")
_GPU = replace(~given("type", "cpu") & ~_TPU, words="on a GPU")
_MACHINE_RULES = (
    requires("topology", when=_TPU, because="such as 2x4"),
    forbids("topology", when=~_TPU, because="as countPerWorker and workers say how many there are"),
    requires("reservation", when=given("provisioning", "Reservation")),
    requires("provisioning", "Reservation", when=given("reservation")),
    forbids("provisioning", "FlexStart", when=given("type", "cpu"), because="as it is for GPUs and TPUs"),
    forbids("partition", when=~_GPU, fix="Remove it, or choose a GPU."),
    allows("countPerWorker", 1, when=given("partition"), because="as a process can use one slice only"),
)
_FROZEN = given("application.freezeBase", True)
_WITHOUT_WEIGHTS = given("application.name", "mlp", "cnn")
_FUNCTION, _SCRIPT = _program("function"), _program("script")
_PREDICTION, _ENSEMBLE = _program("prediction"), _program("ensemble")
_VALIDATED = replace(matching("export.monitor", "^val_") & ~_SCRIPT, words="with an export.monitor of val_*")
_TRAINED = _PREDICTION | _ENSEMBLE
_TPU_JOB = matching("accelerator.type", TPU_NAMES, "on a TPU")
_COMPILED = _TPU_JOB | given("jitCompile", "Always")
_SEVERAL_CPU_NODES = given("accelerator.type", "cpu") & Condition(
    "self.?elastic.?max.orValue(self.?workers.orValue(1)) > 1",
    lambda spec: (spec.elastic.max if spec.elastic else spec.workers or 1) > 1,
    "on several workers",
)
_RECORDS = "Name the records under data.train, of a prediction under data.predict."

JOB_RULES: tuple[Rule, ...] = (
    # At the root: removing and adding a subtree bypasses a rule on it, and an absent field is not evaluated.
    *within(
        "",
        matches(
            "metadata.name",
            f"^{JOB_NAME.pattern}$",
            "at most 50 small letters, digits and hyphens, a letter first and no hyphen last",
            "Pods are named <job>-<attempt>-<index>, which must fit a DNS label of 63 characters.",
        ),
        unchanged(
            "spec",
            *_FIXED,
            started="oldSelf.?status.?currentAttempt.orValue(0) > 0",
            expected=f"no change after the job has started, except of {', '.join(_MUTABLE)}",
            fix="Create a new job under another name.",
        ),
        unchanged(
            "spec.managedBy", expected="no change", fix="Delete the job, and create it for the other controller."
        ),
    ),
    *within(
        "spec.program",
        one_of("application", "function", "script", "prediction", "ensemble"),
        requires("application.weights", when=_FROZEN, because="as a frozen base would stay random"),
        forbids("application.weights", "none", when=_FROZEN, because="as a frozen base would stay random"),
        forbids("application.weights", "imagenet", when=_WITHOUT_WEIGHTS, because="which have no such weights"),
        _inside_source("script.path", "train.py"),
        rule(
            "ensemble.weights",
            ~given("ensemble.weights")
            | Condition(
                "self.ensemble.weights.size() == self.ensemble.members.size()",
                lambda program: len(program.ensemble.weights) == len(program.ensemble.members),
            ),
            "a weight for each of the members",
            "Write as many weights as members, or none for their plain mean.",
        ),
    ),
    *within("spec.source", at_most_one("configMap", "archive"), _inside_source("requirements", "requirements.txt")),
    *within("spec.accelerator", *_MACHINE_RULES),
    *within("spec.accelerator.alternatives[]", *_MACHINE_RULES),
    *within(
        "spec.training",
        at_most_one("epochs", "totalSteps"),
        at_most_one("validationFreq", "validationEverySteps"),
        rule(
            "initialEpoch",
            ~given("initialEpoch")
            | Condition(
                "self.initialEpoch == 0 || has(self.epochs) && self.initialEpoch < self.epochs",
                lambda training: training.initial_epoch < max(training.epochs or 0, 1),
            ),
            "a number below epochs, at which training ends",
            "Raise epochs, or remove initialEpoch.",
        ),
    ),
    *within(
        "spec.training.learningRateScaling",
        requires("baseBatchSize", when=given("rule", "Linear", "SquareRoot"), because="for which the rate was found"),
        requires("rule", "Linear", "SquareRoot", when=given("baseBatchSize")),
    ),
    *within(
        "spec.training.batchSize",
        one_of("perReplica", "global", fix="Keep one; the other follows from the number of replicas."),
    ),
    *within(
        "spec.precision",
        forbids("lossScale", when=given("policy", "float32", "mixed_bfloat16"), because="which need none"),
        requires("lossScale.value", when=given("lossScale.mode", "Fixed"), because="such as 1024"),
    ),
    *within(
        "spec.export",
        requires("monitor", when=given("checkpoint", "Best"), because="the metric that decides, such as val_loss"),
        requires("checkpoint", "Best", when=given("monitor")),
    ),
    *within(
        "spec.profile",
        ordered("firstStep", "lastStep"),
        rule(
            "lastStep",
            Condition("self.lastStep - self.firstStep < 1000", lambda steps: steps.last_step - steps.first_step < 1000),
            "at most 1000 steps, as a profile grows by megabytes a step",
            "Ten steps show what a step is made of.",
        ),
    ),
    *within(
        "spec.tracking.mlflow",
        matches(
            "uri",
            "^https?://[^@]+$",
            "https:// or http:// and a server, without user and password, which all readers of the job would see",
            "Set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD from a Secret, in podTemplate.env; other stores "
            "take the run afterwards: mptj track RUN --to mlflow --uri URI.",
        ),
    ),
    *within("spec.elastic", ordered("min", "max")),
    *within(
        "spec",
        matches(
            "managedBy",
            # As of a batch/v1 Job: a domain-prefixed path.
            "^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/[A-Za-z0-9/._~-]+$",
            "a domain and a path, as example.com/farm or mptraining.dev/operator",
            "Leave it out for this operator.",
        ),
        forbids("data", when=_SCRIPT, because="which reads its own", fix="Pass paths as program.script.arguments."),
        forbids("training", when=_SCRIPT, because="which trains by itself", fix="Use program.script.arguments."),
        requires("data.train", when=~_SCRIPT & ~_PREDICTION, fix=_RECORDS),
        forbids("data.train", when=_PREDICTION, fix=_RECORDS),
        requires("data.predict", when=_PREDICTION, fix=_RECORDS),
        forbids("data.predict", when=~_PREDICTION, fix=_RECORDS),
        forbids("data.validation", when=_PREDICTION, fix="Use data.predict and prediction.evaluate: true."),
        requires("data.validation", when=_ENSEMBLE, because="on which it is evaluated"),
        forbids("training", when=_TRAINED, because="which trains nothing"),
        allows("precision.policy", "Auto", "float32", when=_TRAINED, because="as models are exported under float32"),
        allows("workers", 1, when=_ENSEMBLE),
        forbids("checkpoint.everySteps", when=_SCRIPT, because="which is saved at the end of its epochs"),
        forbids("precision.policy", "Measure", when=_SCRIPT, because="whose model is not known beforehand"),
        forbids("data.preprocess", "auto", when=_FUNCTION, because="whose preprocessing is not known by name"),
        requires("data.validation", when=given("training.validationEverySteps")),
        requires("data.validation", when=given("training.validationFreq")),
        requires("data.validation", when=_VALIDATED, fix="Add it, or monitor another metric."),
        at_most_one("training.classWeight", "data.sampleWeight", fix="Keep one; multiply the weights in the records."),
        Rule(
            "",
            "data.features",
            f"!({(given('data.features') & _COMPILED).cel} && self.data.features.exists(f, has(f.ragged) && f.ragged))",
            "no ragged: true on a TPU or with jitCompile: Always, since XLA has no ragged tensors",
            "Write bucketBoundaries: [N] instead, which pads to N values.",
            _first_ragged,
        ),
        requires("output", when=given("training.resume", "Required"), because="whose uri is the run folder"),
        allows("workers", 1, when=_TPU_JOB, because="whose topology decides them", fix="Choose accelerator.topology."),
        at_most_one("workers", "elastic"),
        forbids("elastic", when=_TPU_JOB, because="whose topology decides its workers"),
        requires("elastic", when=given("runPolicy.resizeSeconds")),
        allows("scheduling.gang", "Auto", "None", when=given("elastic"), because="which takes the workers that come"),
        forbids("elastic", when=_SCRIPT | _TRAINED, because="whose batches the trainer does not make"),
        allows("accelerator.countPerWorker", 1, when=_SEVERAL_CPU_NODES, because="of which one logical device is used"),
        forbids("jitCompile", "Never", when=_TPU_JOB, because="which computes only what XLA compiled"),
        requires("accelerator.alternatives", when=given("accelerator.tryForSeconds")),
        rule(
            "accelerator.tryForSeconds",
            # The wait for a queue's admission does not count.
            ~(given("accelerator.tryForSeconds") & given("accelerator.alternatives"))
            | given("scheduling.queueName")
            | Condition(
                "self.accelerator.tryForSeconds * size(self.accelerator.alternatives) < "
                f"self.?runPolicy.?pendingTimeoutSeconds.orValue({PENDING_TIMEOUT})",
                _time_for_each_machine,
            ),
            f"less than runPolicy.pendingTimeoutSeconds ({PENDING_TIMEOUT} if absent) divided by the number of "
            "alternatives, so that the last one is tried too",
            "Raise runPolicy.pendingTimeoutSeconds, or lower tryForSeconds.",
        ),
    ),
)
