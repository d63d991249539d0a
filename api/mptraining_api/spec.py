"""MPTrainingJob as a user writes it: intent only, every default left out (`resolve` decides those, with reasons).

Every list, map and string is bounded and no field is a union, so that the same models become the CRD (`crd`). What
one field alone cannot say (exactly one program, a count against a topology) stands in `rules`. Here is the whole; each
section has a module of its own, `spec_<section>`.
"""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import Field, StringConstraints

from mptraining_api.model import Arguments, Count, EntryPoint, Model, Name, NonNegative, Text, Uri, Word
from mptraining_api.problems import InvalidSpec


class Provisioning(StrEnum):
    ON_DEMAND = "OnDemand"
    SPOT = "Spot"


class Accelerator(Model):
    """What each node of the job computes on."""

    type: Word = Field(
        description="Canonical name of the catalogue: cpu, nvidia-tesla-t4, nvidia-tesla-a100, tpu-v5-lite-podslice, …"
    )
    count_per_node: Annotated[int, Field(ge=1, le=64)] | None = Field(
        None, description="Accelerators on each node; for cpu, the number of logical devices."
    )
    topology: Annotated[str, StringConstraints(pattern=r"^[0-9]{1,3}(x[0-9]{1,3}){1,2}$", max_length=11)] | None = (
        Field(None, description="TPU only: the slice's chips, such as 2x4 or 4x4x4.")
    )
    provisioning: Provisioning | None = Field(
        None, description="OnDemand, or Spot for machines that may be taken away."
    )


class Feature(Model):
    """One feature of the records and how it becomes a tensor."""

    name: Name = Field(description="Key of the feature in tf.train.Example.")
    dtype: Literal["uint8", "int32", "int64", "float16", "float32", "float64", "bool", "string"] = Field(
        description="Type of the tensor."
    )
    shape: Annotated[list[NonNegative], Field(max_length=8)] | None = Field(
        None, description="Shape of one example; 0 stands for a size that varies. Absent: a scalar."
    )
    decode: Literal["jpeg", "png", "raw"] | None = Field(
        None, description="jpeg, png, or raw for a tensor's bytes in little-endian C order."
    )
    resize: Annotated[list[Count], Field(min_length=2, max_length=2)] | None = Field(
        None, description="Height and width that images are resized to."
    )


class Shuffle(Model):
    """How far records are mixed."""

    buffer_size: NonNegative | None = Field(None, description="Records mixed with one another; 0 keeps the order.")


class BadRecords(Model):
    """What happens to a record that cannot be read."""

    action: Literal["Fail", "Skip"] | None = Field(None, description="Fail, or Skip that record alone.")
    max_skipped: NonNegative | None = Field(None, description="With Skip: more than this fails the job.")


class Data(Model):
    """TFRecords and how they become batches. Not for scripts, which read their own data."""

    train: Annotated[list[Uri], Field(min_length=1, max_length=64)] = Field(
        description="URIs or paths of TFRecord files; wildcards allowed."
    )
    validation: Annotated[list[Uri], Field(min_length=1, max_length=64)] | None = Field(
        None, description="Like train; every example counts exactly once."
    )
    features: Annotated[list[Feature], Field(min_length=1, max_length=128)] | None = Field(
        None, description="Absent: from the manifest, else inferred from the first records, and said."
    )
    label: Name | None = Field(None, description="Name of the feature that is the label. Absent: the manifest's.")
    labels: Annotated[list[Name], Field(max_length=32)] | None = Field(
        None,
        description="Instead of label, the features that are labels, for a model with several outputs: by the names of "
        "the outputs, or in their order. An empty list: the data has no labels.",
    )
    sample_weight: Name | None = Field(
        None, description="Name of the feature with the weight of each example, as fit(sample_weight=...)."
    )
    preprocess: EntryPoint | None = Field(None, description="auto (the application's own), none, or module:function.")
    shuffle: Shuffle | None = Field(None, description="How far records are mixed.")
    cache: Literal["Auto", "Memory", "Disk", "None"] | None = Field(
        None, description="Where examples are kept between epochs. Auto: in memory or on the disk, where they fit."
    )
    bad_records: BadRecords | None = Field(None, description="What happens to a record that cannot be read.")
    remainder: Literal["Drop", "PadAndMask"] | None = Field(
        None, description="The last, smaller batch of an epoch: dropped, or padded with masked examples."
    )
    on_change: Literal["Refuse", "Accept"] | None = Field(
        None, description="When the data changed since the checkpoint was made."
    )


class Checkpoint(Model):
    """How often the training state is saved."""

    every_steps: Count | None = Field(None, description="Steps between checkpoints. Absent: every epoch.")
    max_to_keep: Annotated[int, Field(ge=1, le=1000)] | None = Field(None, description="Checkpoints kept.")


class Export(Model):
    """The trained model as a file, always under the float32 policy."""

    format: Literal["keras", "saved_model"] | None = Field(None, description="keras, or saved_model for serving.")
    checkpoint: Literal["Last", "Best"] | None = Field(None, description="Which weights are exported.")
    monitor: Name | None = Field(None, description="With Best: the metric that decides, such as val_loss.")


class Profile(Model):
    """A range of steps recorded for TensorBoard's profiler, on every worker, into `tensorboard/` of the run folder."""

    first_step: NonNegative = Field(description="First step recorded; steps count from 1.")
    last_step: NonNegative = Field(description="Last step recorded.")


class Output(Model):
    """The run folder: checkpoints, events, the model."""

    uri: Uri = Field(description="gs://bucket/folder, or a path of a mounted volume.")


Labels = Annotated[dict[Annotated[str, StringConstraints(max_length=317)], Text], Field(max_length=64)]
# A quantity (8, "500m", "16Gi") is the one value that Kubernetes itself writes as a number or a string.
Quantity = Annotated[
    int | Annotated[str, StringConstraints(max_length=64)],
    Field(json_schema_extra={"x-kubernetes-int-or-string": True}),
]
Quantities = Annotated[dict[Annotated[str, StringConstraints(max_length=253)], Quantity], Field(max_length=16)]
# Kubernetes' own objects inside the closed list; the API server checks them when the pod is made.
KubernetesObject = Annotated[dict[str, Any], Field(max_length=64)]
KubernetesObjects = Annotated[list[KubernetesObject], Field(max_length=64)]
# What Kubernetes' `restricted` pod security admits, and images. Storage by other names (nfs, a disk) comes by a
# PersistentVolume, which an administrator makes or a storage class.
VOLUME_KINDS = (
    *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "image"),
    *("persistentVolumeClaim", "projected", "secret"),
)
# The rest of Kubernetes' VolumeSource (core/v1, 1.34).
OTHER_VOLUME_KINDS = (
    *("hostPath", "awsElasticBlockStore", "azureDisk", "azureFile", "cephfs", "cinder", "fc", "flexVolume", "flocker"),
    *("gcePersistentDisk", "gitRepo", "glusterfs", "iscsi", "nfs", "photonPersistentDisk", "portworxVolume"),
    *("quobyte", "rbd", "scaleIO", "storageos", "vsphereVolume"),
)
_OBJECT = {"type": "object", "additionalProperties": True, "maxProperties": 64}
# CEL sees no field of a Kubernetes object but those that the schema names. A kind that it does not name is dropped or
# refused as unknown, so that no volume of it is made.
_VOLUME = {
    "additionalProperties": False,
    "properties": {
        "name": {"type": "string", "maxLength": 63, "description": "For volumeMounts."},
        **{kind: {**_OBJECT, "description": "As in a pod."} for kind in VOLUME_KINDS},
        **{kind: {**_OBJECT, "description": "Refused."} for kind in OTHER_VOLUME_KINDS},
    },
}
_NAME = {"properties": {"name": {"type": "string", "maxLength": 253, "description": "Name of the variable."}}}
Volumes = Annotated[
    list[Annotated[dict[str, Any], Field(max_length=64, json_schema_extra=_VOLUME)]], Field(max_length=64)
]
Variables = Annotated[
    list[Annotated[dict[str, Any], Field(max_length=64, json_schema_extra=_NAME)]], Field(max_length=256)
]


class Resources(Model):
    """Requests and limits of the trainer container."""

    requests: Quantities | None = Field(None, description="Such as cpu, memory, ephemeral-storage.")
    limits: Quantities | None = Field(None, description="Such as cpu, memory, ephemeral-storage.")


class PodTemplate(Model):
    """The closed list of what a job may say about its pods."""

    image: Annotated[str, StringConstraints(min_length=1, max_length=512)] | None = Field(
        None, description="Trainer image. Absent: the operator's own version."
    )
    image_pull_secrets: KubernetesObjects | None = Field(None, description="As in a pod.")
    env: Variables | None = Field(None, description="As in a container.")
    env_from: KubernetesObjects | None = Field(None, description="As in a container.")
    resources: Resources | None = Field(None, description="Of the trainer container, accelerators aside.")
    volumes: Volumes | None = Field(None, description="As in a pod; no hostPath, nfs and the like.")
    volume_mounts: KubernetesObjects | None = Field(None, description="As in a container.")
    service_account_name: Name | None = Field(None, description="Service account of the pods.")
    node_selector: Labels | None = Field(None, description="Added to the accelerator's own.")
    tolerations: KubernetesObjects | None = Field(None, description="Added to the accelerator's own.")
    labels: Labels | None = Field(None, description="Added to the pods.")
    annotations: Labels | None = Field(None, description="Added to the pods.")


class LossScale(Model):
    """How the loss is scaled under mixed_float16."""

    mode: Literal["Dynamic", "Fixed"] | None = Field(
        None, description="Dynamic halves on overflow and doubles after 2000 good steps; Fixed keeps value."
    )
    value: Annotated[float, Field(ge=1, le=2**31)] | None = Field(
        None, description="The fixed scale, or where Dynamic begins."
    )


class Precision(Model):
    """Which numbers the model computes with."""

    policy: Literal["Auto", "Measure", "float32", "mixed_float16", "mixed_bfloat16"] | None = Field(
        None,
        description="Auto follows the accelerator; Measure lets the real model on the real device decide.",
    )
    loss_scale: LossScale | None = Field(None, description="Loss scaling under mixed_float16.")


class Application(Model):
    """A model by name: any of keras.applications, or mlp, or cnn."""

    name: Word = Field(description="ResNet50, EfficientNetV2B0, ..., mlp, cnn.")
    weights: Uri | None = Field(None, description="none, imagenet, or the URI of a weights file.")
    classes: Count | None = Field(None, description="Number of classes of the head. Absent: from the data's manifest.")
    freeze_base: bool | None = Field(None, description="Train the head only.")


class Function(Model):
    """A Python function that returns a keras.Model, or a dict of model, loss, optimizer, metrics and more."""

    entry_point: Annotated[EntryPoint, StringConstraints(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")] = Field(
        description="module:function, importable from the source."
    )
    arguments: Arguments | None = Field(None, description="Keyword arguments of the function.")


class Script(Model):
    """An unmodified training script; its own model.fit trains."""

    path: Annotated[str, StringConstraints(min_length=1, max_length=512)] = Field(
        description="Path of the script inside the source."
    )
    arguments: Annotated[list[Text], Field(max_length=256)] | None = Field(
        None, description="Command line arguments of the script."
    )


class Program(Model):
    """What is trained: exactly one of application, function, script."""

    application: Application | None = Field(None, description="A model by name.")
    function: Function | None = Field(None, description="A function that returns the model.")
    script: Script | None = Field(None, description="A training script of your own.")


# The entry of a ConfigMap that holds an archive; its keys have no slashes, so folders need one.
CONFIG_MAP_ARCHIVE = "source.tgz"

Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$", max_length=64)]


class ConfigMapSource(Model):
    """Source files in a ConfigMap of the job's namespace: its entries, or an archive in its entry source.tgz."""

    name: Name = Field(description="Name of the ConfigMap.")
    sha256: Sha256 | None = Field(
        None, description="SHA-256 of the archive in its entry source.tgz. Absent: its entries are the files."
    )


class Archive(Model):
    """Source files in an archive, verified before it is unpacked."""

    uri: Uri = Field(description="gs://bucket/<sha256>.tgz")
    sha256: Sha256 = Field(description="SHA-256 of the archive, in hexadecimal.")


class Source(Model):
    """Where the program's code comes from. Absent: it is in the image, or beside the job file of a local run."""

    config_map: ConfigMapSource | None = Field(None, description="Source in a ConfigMap.")
    archive: Archive | None = Field(None, description="Source in an archive.")
    requirements: Annotated[str, StringConstraints(min_length=1, max_length=512)] | None = Field(
        None, description="Path of a requirements file inside the source."
    )


class RunPolicy(Model):
    """How often and how long the job may try."""

    backoff_limit: Annotated[int, Field(ge=0, le=1000)] | None = Field(
        None, description="Retries after program errors."
    )
    infrastructure_retries: Annotated[int, Field(ge=0, le=10000)] | None = Field(
        None, description="Retries after lost machines."
    )
    active_deadline_seconds: Count | None = Field(None, description="Running longer than this fails the job.")
    pending_timeout_seconds: Count | None = Field(None, description="Waiting longer for machines fails the job.")
    progress_deadline_seconds: Count | None = Field(None, description="No step for this long restarts the job.")
    ttl_seconds_after_finished: NonNegative | None = Field(
        None, description="The job is deleted this long after it ended."
    )
    suspend: bool | None = Field(None, description="Stop at a checkpoint and give the machines back.")


class Scheduling(Model):
    """Who decides when and where the pods run."""

    queue_name: Word | None = Field(None, description="Kueue's local queue.")
    priority_class_name: Name | None = Field(None, description="PriorityClass of the pods.")
    scheduler_name: Word | None = Field(None, description="Scheduler of the pods.")


class BatchSize(Model):
    """Examples per step: per replica, or over all replicas."""

    per_replica: Count | None = Field(None, description="Examples per replica and step.")
    global_: Count | None = Field(None, alias="global", description="Examples per step over all replicas.")


class KerasObject(Model):
    """A Keras object in Keras' own serialization."""

    class_name: Name = Field(description="Class name as Keras writes it: Adam, SparseCategoricalCrossentropy, ...")
    config: Arguments | None = Field(None, description="The class' arguments, schedules included.")


class LearningRateScaling(Model):
    """How the learning rate follows the global batch size."""

    rule: Literal["None", "Linear", "SquareRoot"] | None = Field(
        None, description="Linear suits SGD, SquareRoot suits Adam."
    )
    base_batch_size: Count | None = Field(None, description="Global batch size that the learning rate was found for.")
    warmup_steps: NonNegative | None = Field(None, description="Steps over which the learning rate rises from zero.")


class Training(Model):
    """How the model is trained. Not for scripts."""

    epochs: Count | None = Field(None, description="Passes over the training data; or give totalSteps.")
    total_steps: Count | None = Field(None, description="Steps in all; or give epochs.")
    steps_per_epoch: Count | None = Field(None, description="Steps that count as an epoch. Absent: the whole data.")
    validation_every_steps: Count | None = Field(None, description="Absent: at the end of every epoch.")
    validation_freq: Count | None = Field(
        None, description="Epochs from one validation to the next, as fit(validation_freq=...). Absent: 1."
    )
    initial_epoch: NonNegative | None = Field(
        None, description="Number of the first epoch, from 0, as fit(initial_epoch=...): training ends at epochs."
    )
    class_weight: Annotated[dict[str, Annotated[float, Field(ge=0)]], Field(min_length=1, max_length=1024)] | None = (
        Field(
            None,
            description='Weight of the examples of each class, by its number: {"0": 1.0, "1": 5.0}, as '
            "fit(class_weight=...).",
        )
    )
    batch_size: BatchSize | None = Field(None, description="perReplica or global.")
    optimizer: KerasObject | None = Field(None, description="Keras serialization, learning rate schedules included.")
    learning_rate_scaling: LearningRateScaling | None = Field(None, description="Learning rate against batch size.")
    loss: KerasObject | None = Field(None, description="Keras serialization.")
    metrics: Annotated[list[KerasObject], Field(max_length=32)] | None = Field(None, description="Keras serialization.")
    gradient_accumulation_steps: Annotated[int, Field(ge=1, le=4096)] | None = Field(
        None, description="Batches whose gradients are averaged into one update."
    )
    steps_per_execution: Annotated[int, Field(ge=1, le=10000)] | None = Field(
        None, description="Steps fused into one call of the device. Absent: measured."
    )
    on_non_finite: Literal["Recover", "Fail"] | None = Field(
        None, description="When loss or weights stop being numbers."
    )
    deterministic: Literal["Auto", "Always", "Never"] | None = Field(
        None, description="Whether operations give the same bits each time on a GPU, at the price of speed."
    )
    seed: NonNegative | None = Field(None, description="Seed of weights, dropout and record order.")
    resume: Literal["Auto", "Never", "Required"] | None = Field(None, description="Whether to go on from a checkpoint.")


GROUP = "mptraining.dev"
VERSION = "v1alpha1"
API_VERSION: Literal["mptraining.dev/v1alpha1"] = "mptraining.dev/v1alpha1"
KIND: Literal["MPTrainingJob"] = "MPTrainingJob"

# A worker's pod is <job>-<attempt>-<index> and must stay a DNS label of 63 characters.
JOB_NAME = re.compile(r"[a-z]([-a-z0-9]{0,48}[a-z0-9])?")


class JobSpec(Model):
    """What the user wants: a program, data, an accelerator."""

    accelerator: Accelerator = Field(description="What each node computes on.")
    nodes: Annotated[int, Field(ge=1, le=1024)] | None = Field(
        None, description="Machines of the job; a TPU's topology decides its own."
    )
    strategy: Literal["Auto", "None"] | None = Field(
        None,
        description="Auto picks the tf.distribute strategy; None for one device or a script that makes its own.",
    )
    precision: Precision | None = Field(None, description="Which numbers the model computes with.")
    jit_compile: Literal["Auto", "Always", "Never"] | None = Field(None, description="XLA.")
    keras: Literal["Auto", "Keras3", "Legacy"] | None = Field(None, description="Keras 3, or Legacy for tf_keras.")
    program: Program = Field(description="What is trained: exactly one of application, function, script.")
    source: Source | None = Field(None, description="Where the program's code comes from.")
    data: Data | None = Field(None, description="TFRecords and how they become batches.")
    training: Training | None = Field(None, description="How the model is trained.")
    checkpoint: Checkpoint | None = Field(None, description="How often the training state is saved.")
    export: Export | None = Field(None, description="The trained model as a file.")
    profile: Profile | None = Field(None, description="A range of steps recorded for TensorBoard's profiler.")
    output: Output | None = Field(None, description="The run folder.")
    run_policy: RunPolicy | None = Field(None, description="How often and how long the job may try.")
    scheduling: Scheduling | None = Field(None, description="Who decides when and where the pods run.")
    pod_template: PodTemplate | None = Field(None, description="What a job may say about its pods.")


class Metadata(Model):
    """The part of Kubernetes' metadata that a local run needs; the rest is kept for the API server."""

    model_config = Model.model_config | {"extra": "ignore"}

    name: str
    namespace: str | None = None
    uid: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class MPTrainingJob(Model):
    """One file: apiVersion, kind, metadata, spec. `status` is the operator's and is not read here."""

    api_version: Literal["mptraining.dev/v1alpha1"] = API_VERSION
    kind: Literal["MPTrainingJob"] = KIND
    metadata: Metadata
    spec: JobSpec

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """The job in the YAML file at `path`, checked by the models alone (`rules` and `resolve` check the rest).

        Raises InvalidSpec naming the file or the field.
        """
        file = Path(path)
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            cause = getattr(error, "strerror", None) or "not a text file"
            raise InvalidSpec(str(path), cause, expected="an MPTrainingJob in YAML") from None
        return cls.parse_yaml(text, where=str(path))

    @classmethod
    def parse_yaml(cls, text: str, *, where: str = "job") -> Self:
        """The job written in `text`; objects of other kinds, such as its volume claim, may stand beside it.

        Raises InvalidSpec.
        """
        try:
            documents = [document for document in yaml.safe_load_all(text) if document is not None]
        except yaml.YAMLError as error:
            line = str(error).replace("\n", " ")
            raise InvalidSpec(
                where, f"not YAML: {line}", next_step="Mend the indentation or quote the value."
            ) from None
        jobs = [each for each in documents if isinstance(each, dict) and each.get("kind") == KIND] or documents
        if len(jobs) != 1 or not isinstance(jobs[0], dict):
            raise InvalidSpec(where, f"{len(jobs)} documents", expected="exactly one MPTrainingJob")
        document = {key: value for key, value in jobs[0].items() if key != "status"}
        if document.get("kind") != KIND or document.get("apiVersion") != API_VERSION:
            found = f"{document.get('apiVersion')!r}, {document.get('kind')!r}"
            raise InvalidSpec(where, f"apiVersion and kind are {found}", expected=f"{API_VERSION!r}, {KIND!r}")
        return cls.parse(document)
