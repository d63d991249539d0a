"""The default of every optional field of the spec: text for `kubectl explain`, and the value, where it is one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from mptraining_api import accelerators
from mptraining_api.resolve import defaults
from mptraining_api.resolve.batch_size import KERAS_BATCH_SIZE, PREDICTION_BATCH_SIZE
from mptraining_api.resolve.precision import INITIAL_LOSS_SCALE
from mptraining_api.rules.capacity import PENDING_TIMEOUT
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


def _none(meaning: str = "") -> Default:
    return Default(f"none{f': {meaning}' if meaning else ''}")


_FIELDS = Default("its fields' defaults")
_OPERATOR = "of the operator's settings"
_TPU_BATCH = accelerators.lookup("tpu-v5-lite-podslice").multiple
_LEARNING_RATE = (defaults.ADAM.config or {})["learning_rate"]

# By the path below spec; [] for the items of a list. Fields of Kubernetes' own objects are not in it.
DEFAULTS: Mapping[str, Default] = MappingProxyType(
    {
        "accelerator.countPerNode": Default(
            "1 for cpu; the smallest machine's number of GPUs; for a TPU, by the topology"
        ),
        "accelerator.topology": _none(),
        "accelerator.provisioning": _value("OnDemand"),
        "accelerator.tryForSeconds": Default(
            "runPolicy.pendingTimeoutSeconds divided by the number of machines; in a queue, no limit"
        ),
        "accelerator.reservation": _none("provisioning: Reservation requires it"),
        "accelerator.partition": _none("whole GPUs"),
        "accelerator.alternatives": _none("the job waits for its one kind of machine"),
        "accelerator.alternatives[].countPerNode": Default("as for accelerator.countPerNode"),
        "accelerator.alternatives[].topology": _none(),
        "accelerator.alternatives[].provisioning": Default("OnDemand"),
        "accelerator.alternatives[].reservation": _none("provisioning: Reservation requires it"),
        "accelerator.alternatives[].partition": _none("whole GPUs"),
        "nodes": _value(1),
        "elastic": _none("nodes are fixed"),
        "strategy": _value("Auto"),
        "precision": _FIELDS,
        "precision.policy": _value(
            "Auto", ": float32 on CPUs, mixed_float16 on GPUs with Tensor Cores, mixed_bfloat16 on TPUs"
        ),
        "precision.lossScale": _FIELDS,
        "precision.lossScale.mode": _value("Dynamic"),
        "precision.lossScale.value": _value(INITIAL_LOSS_SCALE),
        "jitCompile": _value("Auto", ": on TPUs, and on GPUs in mixed precision"),
        "keras": _value("Auto", ": Keras3, but Legacy on TPUs and for scripts on several nodes"),
        "program.application": _none(),
        "program.application.weights": Default("none, which initializes them at random", "none"),
        "program.application.classes": Default("from the data's manifest"),
        "program.application.freezeBase": Default("false", value=False),
        "program.function": _none(),
        "program.function.arguments": _none(),
        "program.script": _none(),
        "program.script.arguments": _none(),
        "program.prediction": _none(),
        "program.prediction.to": Default("predictions.parquet in the run folder"),
        "program.prediction.key": _none("the file and the number of the record in it"),
        "program.prediction.batchSize": _value(PREDICTION_BATCH_SIZE),
        "program.prediction.evaluate": Default("false", value=False),
        "program.ensemble": _none(),
        "program.ensemble.weights": _none("all members have the same weight"),
        "source": _none("the code is in the image, or for a local run beside the job file"),
        "source.configMap": _none(),
        "source.configMap.sha256": _none("the ConfigMap's entries are the files"),
        "source.archive": _none(),
        "source.requirements": _none(),
        "data": _none("a script reads its own"),
        "data.train": _none("a prediction has data.predict"),
        "data.validation": _none(),
        "data.predict": _none(),
        "data.features": Default("from the manifest, else inferred from the first records, and logged"),
        "data.features[].shape": Default("a scalar"),
        "data.features[].decode": _none("the values of the feature"),
        "data.features[].resize": _none(),
        "data.features[].decodeScale": Default("Auto"),
        "data.features[].sequence": Default("false: a feature of tf.train.Example, or of the context"),
        "data.features[].default": _none("a record without the feature is damaged, padding is 0"),
        "data.features[].defaultText": _none("a record without the feature is damaged, padding is the empty text"),
        "data.features[].bucketBoundaries": _none("the longest example of the batch"),
        "data.features[].ragged": Default("false"),
        "data.features[].lengthName": _none(),
        "data.label": Default("the manifest's, else a feature called label, labels, y, class or target"),
        "data.labels": _none(),
        "data.sampleWeight": _none(),
        "data.preprocess": Default("auto for an application, none for a function"),
        "data.shuffle": _FIELDS,
        "data.shuffle.mode": _value("Windowed"),
        "data.shuffle.bufferSize": Default(
            "as many records as make 256 MiB, at least 10,000 and at most 1,048,576; 64 MiB of records in random order"
        ),
        "data.cache": _value("Auto"),
        "data.badRecords": _FIELDS,
        "data.badRecords.action": _value("Fail"),
        "data.badRecords.maxSkipped": _none("Skip requires it"),
        "data.remainder": _value("Drop"),
        "data.onChange": _value("Refuse"),
        "training": _FIELDS,
        "training.epochs": _value(1, ", if totalSteps is not given"),
        "training.totalSteps": _none(),
        "training.stepsPerEpoch": Default("those of all the data"),
        "training.validationEverySteps": _none("at the end of every epoch"),
        "training.validationFreq": _value(1),
        "training.initialEpoch": _value(0),
        "training.classWeight": _none(),
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
            [each.to_document() for each in defaults.METRICS],
        ),
        "training.metrics[].config": Default("Keras' defaults"),
        "training.gradientAccumulationSteps": _value(1),
        "training.stepsPerExecution": Default("measured"),
        "training.onNonFinite": _value("Recover"),
        "training.deterministic": _value("Auto", ": they are not"),
        "training.seed": _value(0),
        "training.resume": _value("Auto", ": from the newest checkpoint, if there is one"),
        "checkpoint": _FIELDS,
        "checkpoint.everySteps": _none("at the end of every epoch"),
        "checkpoint.maxToKeep": _value(defaults.MAX_TO_KEEP),
        "export": _FIELDS,
        "export.format": _value("keras"),
        "export.checkpoint": _value("Last"),
        "export.monitor": _none("Best requires it"),
        "profile": _none(),
        "tracking": _none("TensorBoard's scalars are written in any case"),
        "tracking.mlflow": _none(),
        "tracking.mlflow.experiment": Default("the job's name"),
        "tracking.wandb": _none(),
        "output": Default(
            "a folder below the output of the runtime, else a folder in the pod, which is deleted with it"
        ),
        "managedBy": _value(MANAGED_BY_OPERATOR),
        "runPolicy": _FIELDS,
        "runPolicy.backoffLimit": _value(defaults.BACKOFF_LIMIT),
        "runPolicy.infrastructureRetries": _value(defaults.INFRASTRUCTURE_RETRIES),
        "runPolicy.activeDeadlineSeconds": _none(),
        "runPolicy.pendingTimeoutSeconds": _value(PENDING_TIMEOUT),
        "runPolicy.progressDeadlineSeconds": _none(),
        "runPolicy.resizeSeconds": _value(defaults.RESIZE_SECONDS),
        "runPolicy.ttlSecondsAfterFinished": _none("the job is kept"),
        "runPolicy.suspend": Default("false"),
        "scheduling": _FIELDS,
        "scheduling.queueName": _none(),
        "scheduling.workloadPriorityClassName": _none("the priority of the pods"),
        "scheduling.priorityClassName": Default("that of the runtime"),
        "scheduling.schedulerName": Default(f"default-scheduler, or that of gangSchedulers {_OPERATOR}"),
        "scheduling.gang": _value("Auto", f": what the cluster serves of gangSchedulers {_OPERATOR}, else None"),
        "scheduling.topology": _value("Spread"),
        "runtime": Default(f"that of the namespace in defaultRuntimes {_OPERATOR}, else default"),
        "podTemplate": Default("its fields' defaults, after what the runtime sets"),
        "podTemplate.image": Default("that of the runtime, which is that of the operator's version"),
        "podTemplate.imagePullSecrets": Default("those of the runtime"),
        "podTemplate.env": _none(),
        "podTemplate.envFrom": _none(),
        "podTemplate.resources": _FIELDS,
        "podTemplate.resources.requests": Default(
            "a share of the smallest machine with the accelerator; cpu 250m and memory 512Mi on CPUs"
        ),
        "podTemplate.resources.limits": _none(),
        "podTemplate.volumes": _none(),
        "podTemplate.volumeMounts": _none(),
        "podTemplate.serviceAccountName": Default("default"),
        "podTemplate.nodeSelector": _none(),
        "podTemplate.tolerations": _none(),
        "podTemplate.labels": Default(f"pods.labels {_OPERATOR}"),
        "podTemplate.annotations": _none(),
        "podTemplate.affinity": _none(),
        "podTemplate.topologySpreadConstraints": Default("several workers on different nodes if possible"),
        "podTemplate.runtimeClassName": _none(),
        "podTemplate.initContainers": _none(),
        "podTemplate.dnsPolicy": _value("ClusterFirst"),
        "podTemplate.dnsConfig": _none(),
        "podTemplate.lifecycle": _none(),
    }
)
