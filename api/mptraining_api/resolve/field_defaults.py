"""Defaults of the optional fields of the spec: text for `kubectl explain`, and the value, where it is one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from mptraining_api import accelerators
from mptraining_api.resolve import defaults
from mptraining_api.resolve.batch_size import KERAS_BATCH_SIZE, PREDICTION_BATCH_SIZE
from mptraining_api.resolve.precision import INITIAL_LOSS_SCALE
from mptraining_api.rules.job import PENDING_TIMEOUT
from mptraining_api.spec import MANAGED_BY_OPERATOR


@dataclass(frozen=True, slots=True)
class Default:
    """`text` follows "Default: ". `value`, if given, in a job file means the same as an absent field."""

    text: str
    value: Any = None


def _value(value: str | float, how: str = "") -> Default:
    """Return a default with its value, and `how` Auto decides or where else it does not apply."""
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return Default(f"{text}{how}", value)


def _none(meaning: str) -> Default:
    return Default(f"none: {meaning}")


_OPERATOR = "of the operator's settings"
_TPU_BATCH = accelerators.lookup("v5e").multiple
_LEARNING_RATE = (defaults.ADAM.config or {})["learning_rate"]

# By the path below spec; [] for the items of a list. Without an entry, an absent field has no effect.
DEFAULTS: Mapping[str, Default] = MappingProxyType(
    {
        "accelerator.countPerWorker": Default(
            "1 for cpu; the smallest machine's number of GPUs; for a TPU, by the topology"
        ),
        "accelerator.provisioning": _value("OnDemand"),
        "accelerator.tryForSeconds": Default(
            "runPolicy.pendingTimeoutSeconds divided by the number of machines; in a queue, no limit"
        ),
        "accelerator.reservation": _none("provisioning: Reservation requires it"),
        "accelerator.partition": _none("whole GPUs"),
        "accelerator.alternatives": _none("the job waits for its one kind of machine"),
        "accelerator.alternatives[].countPerWorker": Default("as for accelerator.countPerWorker"),
        "accelerator.alternatives[].provisioning": Default("OnDemand"),
        "accelerator.alternatives[].reservation": _none("provisioning: Reservation requires it"),
        "accelerator.alternatives[].partition": _none("whole GPUs"),
        "workers": _value(1),
        "elastic": _none("workers are fixed"),
        "strategy": _value("Auto"),
        "precision.policy": _value(
            "Auto", ": float32 on CPUs, mixed_float16 on GPUs with Tensor Cores, mixed_bfloat16 on TPUs"
        ),
        "precision.lossScale.mode": _value("Dynamic"),
        "precision.lossScale.value": _value(INITIAL_LOSS_SCALE),
        "jitCompile": _value("Auto", ": on TPUs, and on GPUs in mixed precision"),
        "keras": _value("Auto", ": Keras3, but Legacy on TPUs and for scripts on several workers"),
        "program.application.weights": Default("none, which initializes them at random", "none"),
        "program.application.classes": Default("from the data's manifest"),
        "program.application.freezeBase": Default("false", value=False),
        "program.prediction.to": Default("predictions.parquet in the run folder"),
        "program.prediction.key": _none("the file and the number of the record in it"),
        "program.prediction.batchSize": _value(PREDICTION_BATCH_SIZE),
        "program.prediction.evaluate": Default("false", value=False),
        "program.ensemble.weights": _none("all members have the same weight"),
        "source": _none("the code is in the image, or for a local run beside the job file"),
        "source.configMap.sha256": _none("the ConfigMap's entries are the files"),
        "data": _none("a script reads its own"),
        "data.train": _none("a prediction has data.predict"),
        "data.features": Default("from the manifest, else inferred from the first records, and logged"),
        "data.features[].shape": Default("a scalar"),
        "data.features[].decode": _none("the values of the feature"),
        "data.features[].decodeScale": Default("Auto"),
        "data.features[].sequence": Default("false: a feature of tf.train.Example, or of the context"),
        "data.features[].default": _none("a record without the feature is damaged, padding is 0"),
        "data.features[].defaultText": _none("a record without the feature is damaged, padding is the empty text"),
        "data.features[].bucketBoundaries": _none("the longest example of the batch"),
        "data.features[].ragged": Default("false"),
        "data.label": Default("the manifest's, else a feature called label, labels, y, class or target"),
        "data.preprocess": Default("auto for an application, none for a function"),
        "data.shuffle.mode": _value("Windowed"),
        "data.shuffle.bufferSize": Default(
            "as many records as make 256 MiB, at least 10,000 and at most 1,048,576; 64 MiB of records in random order"
        ),
        "data.cache": _value("Auto"),
        "data.badRecords.action": _value("Fail"),
        "data.badRecords.maxSkipped": _none("Skip requires it"),
        "data.remainder": _value("Drop"),
        "data.onChange": _value("Refuse"),
        "training.epochs": _value(1, ", if totalSteps is not given"),
        "training.stepsPerEpoch": Default("those of all the data"),
        "training.validationEverySteps": _none("at the end of every epoch"),
        "training.validationFreq": _value(1),
        "training.initialEpoch": _value(0),
        "training.batchSize": Default(
            f"perReplica: {KERAS_BATCH_SIZE}, on a TPU {_TPU_BATCH}", {"perReplica": KERAS_BATCH_SIZE}
        ),
        "training.batchSize.perReplica": Default("global divided by the number of replicas"),
        "training.batchSize.global": Default("perReplica times the number of replicas"),
        "training.optimizer": Default(
            f"{defaults.ADAM.class_name}, learning rate {_LEARNING_RATE:g}; for a function, its own, if any",
            defaults.ADAM.to_document(),
        ),
        "training.optimizer.config": Default("Keras' defaults"),
        "training.learningRateScaling": _none("the learning rate stays as written"),
        "training.learningRateScaling.rule": Default("None", "None"),
        "training.learningRateScaling.baseBatchSize": _none("a rule requires it"),
        "training.learningRateScaling.warmupSteps": _value(0),
        "training.loss": Default(
            f"{defaults.LOSS.class_name}(from_logits=True); for a function, its own, else by output and label",
            defaults.LOSS.to_document(),
        ),
        "training.loss.config": Default("Keras' defaults"),
        "training.metrics": Default(
            f"{defaults.METRICS[0].class_name}; for a function, its own",
            [metric.to_document() for metric in defaults.METRICS],
        ),
        "training.metrics[].config": Default("Keras' defaults"),
        "training.gradientAccumulationSteps": _value(1),
        "training.stepsPerExecution": Default("measured"),
        "training.onNonFinite": _value("Recover"),
        "training.deterministic": _value("Auto", ": they are not"),
        "training.seed": _value(0),
        "training.resume": _value("Auto", ": from the newest checkpoint, if there is one"),
        "checkpoint.everySteps": _none("at the end of every epoch"),
        "checkpoint.maxToKeep": _value(defaults.MAX_TO_KEEP),
        "export.format": _value("keras"),
        "export.checkpoint": _value("Last"),
        "export.monitor": _none("Best requires it"),
        "tracking": _none("TensorBoard's scalars are written in any case"),
        "tracking.mlflow.experiment": Default("the job's name"),
        "output": Default(
            "a folder below the output of the runtime, else a folder in the pod, which is deleted with it"
        ),
        "managedBy": _value(MANAGED_BY_OPERATOR),
        "runPolicy.backoffLimit": _value(defaults.BACKOFF_LIMIT),
        "runPolicy.infrastructureRetries": _value(defaults.INFRASTRUCTURE_RETRIES),
        "runPolicy.pendingTimeoutSeconds": _value(PENDING_TIMEOUT),
        "runPolicy.resizeSeconds": _value(defaults.RESIZE_SECONDS),
        "runPolicy.ttlSecondsAfterFinished": _none("the job is kept"),
        "runPolicy.suspend": Default("false"),
        "scheduling.workloadPriorityClassName": _none("the priority of the pods"),
        "scheduling.priorityClassName": Default("that of the runtime"),
        "scheduling.schedulerName": Default(f"default-scheduler, or that of gangSchedulers {_OPERATOR}"),
        "scheduling.gang": _value("Auto", f": what the cluster serves of gangSchedulers {_OPERATOR}, else None"),
        "scheduling.topology": _value("Spread"),
        "runtime": Default(f"that of the namespace in defaultRuntimes {_OPERATOR}, else default"),
        "podTemplate": Default("its fields' defaults, after what the runtime sets"),
        "podTemplate.image": Default("that of the runtime, which is that of the operator's version"),
        "podTemplate.imagePullSecrets": Default("those of the runtime"),
        "podTemplate.resources.requests": Default(
            "a share of the smallest machine with the accelerator; cpu 250m and memory 512Mi on CPUs"
        ),
        "podTemplate.serviceAccountName": Default("default"),
        "podTemplate.labels": Default(f"pods.labels {_OPERATOR}"),
        "podTemplate.topologySpreadConstraints": Default("several workers on different nodes if possible"),
        "podTemplate.dnsPolicy": _value("ClusterFirst"),
    }
)
