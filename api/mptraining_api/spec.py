"""The MPTrainingJob resource as a user writes it, without defaults; `resolve` decides those.

Every list, map and string is bounded and no field is a union, so that the CRD can be generated from the models
(`crd`). Constraints between fields (exactly one program, a count that fits the topology) are in `rules`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, StringConstraints

from mptraining_api.accelerators import canonical_type
from mptraining_api.model import Arguments, Count, EntryPoint, Model, Name, NonNegative, Uri, Word
from mptraining_api.outputs.fields import Checkpoint, Export, Output, Profile, Tracking
from mptraining_api.pods.fields import PodTemplate
from mptraining_api.problems import nearest
from mptraining_api.programs.fields import Application, Ensemble, Function, Prediction, Script
from mptraining_api.validation import api_versions, job_text, patterns
from mptraining_api.validation.yaml_text import YamlDocument

LabelValue = Annotated[str, StringConstraints(min_length=1, max_length=63, pattern=patterns.LABEL_VALUE)]


Provisioning = Literal["OnDemand", "Spot", "FlexStart", "Reservation"]
# A reservation of the own project, or of another one on GKE; on EKS the id of a capacity reservation.
Reservation = Annotated[str, StringConstraints(pattern=patterns.RESERVATION, max_length=150)]


class Machine(Model):
    """One kind of node: the accelerator and how the machine is provided."""

    type: Annotated[Word, AfterValidator(canonical_type)] = Field(
        description="Canonical name of the catalogue: cpu, t4, a100, v5e, …"
    )
    count_per_worker: Annotated[int, Field(ge=1, le=64)] | None = Field(
        None, description="Accelerators of each worker; for cpu, the number of logical devices."
    )
    topology: Annotated[str, StringConstraints(pattern=patterns.TOPOLOGY, max_length=11)] | None = Field(
        None, description="TPU only: the slice's chips, such as 2x4 or 4x4x4."
    )
    provisioning: Provisioning | None = Field(
        None,
        description="OnDemand; Spot for preemptible machines; FlexStart for machines for at most 7 days; Reservation.",
    )
    reservation: Reservation | None = Field(
        None, description="Name of the reservation, or projects/PROJECT/reservations/NAME; on EKS its id."
    )
    partition: Annotated[str, StringConstraints(pattern=patterns.PARTITION, max_length=8)] | None = Field(
        None, description="MIG profile of a slice of the GPU, such as 3g.20gb."
    )


MOST_ALTERNATIVES = 7
MOST_WORKERS = 1024


class Accelerator(Machine):
    """The accelerator of each worker, and those that the job takes instead, in order."""

    alternatives: Annotated[list[Machine], Field(min_length=1, max_length=MOST_ALTERNATIVES)] | None = Field(
        None, description="Machines that are tried in this order when the first choice does not come."
    )
    try_for_seconds: Count | None = Field(
        None, description="With alternatives: how long an attempt waits for its machines before the next are tried."
    )


class Elastic(Model):
    """The number of workers of an attempt, decided by what can be placed."""

    min: Annotated[int, Field(ge=1, le=MOST_WORKERS)] = Field(
        description="An attempt starts with at least so many workers."
    )
    max: Annotated[int, Field(ge=1, le=MOST_WORKERS)] = Field(
        description="An attempt starts with at most so many workers."
    )


class Feature(Model):
    """One feature of the records and how it is decoded to a tensor."""

    name: Name = Field(description="Key of the feature in tf.train.Example.")
    # fmt: off
    dtype: Literal[
        "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64",
        "float16", "bfloat16", "float32", "float64", "bool", "string",
    ] = Field(description="Type of the tensor.")
    # fmt: on
    shape: Annotated[list[NonNegative], Field(max_length=8)] | None = Field(
        None, description="Shape of one example; 0 for a variable size: the first one is padded in each batch."
    )
    decode: Literal["jpeg", "png", "raw", "tensor"] | None = Field(
        None,
        description="jpeg, png, raw for a tensor's bytes in little-endian C order, tensor for tf.io.serialize_tensor.",
    )
    resize: Annotated[list[Count], Field(min_length=2, max_length=2)] | None = Field(
        None, description="Height and width that images are resized to."
    )
    decode_scale: Literal["Auto", "Full"] | None = Field(
        None,
        description="Auto: with resize, a JPEG of at least twice that size is decoded at 1/2, 1/4 or 1/8 of its own. "
        "Full: at its own size.",
    )
    sequence: bool | None = Field(
        None, description="The feature is a feature list of tf.train.SequenceExample; its steps are the first size."
    )
    default: float | None = Field(
        None, description="Value of a feature that a record does not have, and of the padding of a variable size."
    )
    default_text: Annotated[str, StringConstraints(max_length=1024)] | None = Field(
        None, description="Like default, for dtype string."
    )
    bucket_boundaries: Annotated[list[Count], Field(min_length=1, max_length=64)] | None = Field(
        None, description="Sizes that a variable first size is padded to: the smallest one that fits the batch."
    )
    ragged: bool | None = Field(
        None, description="A variable size stays a tf.RaggedTensor instead of being padded; not with XLA or on TPUs."
    )
    length_name: Name | None = Field(
        None, description="Name of a further input with the first size of each example before padding, int32."
    )


class Shuffle(Model):
    """Shuffling of the records."""

    mode: Literal["Full", "Windowed", "None"] | None = Field(
        None,
        description="Full: a new permutation of all records in every epoch, each read by itself. Windowed: a "
        "permutation of blocks of records, and of the records in a window of them. None: the order of the files.",
    )
    buffer_size: NonNegative | None = Field(
        None, description="Windowed: the records in a window; 0 is the same as mode: None."
    )


class BadRecords(Model):
    """Handling of records that cannot be read."""

    action: Literal["Fail", "Skip"] | None = Field(None, description="Fail, or Skip that record alone.")
    max_skipped: NonNegative | None = Field(None, description="With Skip: the job fails if more records are skipped.")


class Data(Model):
    """TFRecords and how they are batched. Not for scripts, which read their own data."""

    train: Annotated[list[Uri], Field(min_length=1, max_length=64)] | None = Field(
        None, description="URIs or paths of TFRecord files; wildcards allowed. Required, except for a prediction."
    )
    validation: Annotated[list[Uri], Field(min_length=1, max_length=64)] | None = Field(
        None, description="Like train; every example counts exactly once."
    )
    predict: Annotated[list[Uri], Field(min_length=1, max_length=64)] | None = Field(
        None, description="Like train, for program.prediction: the records to predict, with or without labels."
    )
    features: Annotated[list[Feature], Field(min_length=1, max_length=128)] | None = Field(
        None, description="The features of the records, with their types and shapes."
    )
    label: Name | None = Field(None, description="Name of the feature that is the label.")
    labels: Annotated[list[Name], Field(max_length=32)] | None = Field(
        None,
        description="Instead of label, the features that are labels, for a model with several outputs: by the names of "
        "the outputs, or in their order. An empty list: the data has no labels.",
    )
    sample_weight: Name | None = Field(
        None, description="Name of the feature with the weight of each example, as fit(sample_weight=...)."
    )
    preprocess: EntryPoint | None = Field(None, description="auto (the application's own), none, or module:function.")
    shuffle: Shuffle | None = Field(None, description="Shuffling of the records.")
    cache: Literal["Auto", "Memory", "Disk", "None"] | None = Field(
        None, description="Cache of the examples between epochs. Auto: in memory or on the disk, if they fit."
    )
    bad_records: BadRecords | None = Field(None, description="Handling of records that cannot be read.")
    remainder: Literal["Drop", "PadAndMask"] | None = Field(
        None, description="The last, smaller batch of an epoch: dropped, or padded with masked examples."
    )
    on_change: Literal["Refuse", "Accept"] | None = Field(
        None, description="Whether to resume when the data has changed since the checkpoint: Refuse or Accept."
    )


class LossScale(Model):
    """Loss scaling under mixed_float16."""

    mode: Literal["Dynamic", "Fixed"] | None = Field(
        None, description="Dynamic halves on overflow and doubles after 2000 good steps; Fixed keeps value."
    )
    value: Annotated[float, Field(ge=1, le=2**31)] | None = Field(
        None, description="The fixed scale, or the initial scale of Dynamic."
    )


class Precision(Model):
    """The precision policy of the model."""

    policy: Literal["Auto", "Measure", "float32", "mixed_float16", "mixed_bfloat16"] | None = Field(
        None, description="Auto follows the accelerator; Measure compares the policies on the job's model and device."
    )
    loss_scale: LossScale | None = Field(None, description="Loss scaling under mixed_float16.")


class Program(Model):
    """The program of the job: exactly one of application, function, script, prediction, ensemble."""

    application: Application | None = Field(None, description="A model by name.")
    function: Function | None = Field(None, description="A function that returns the model.")
    script: Script | None = Field(None, description="An unmodified training script.")
    prediction: Prediction | None = Field(None, description="Predict with a trained model; nothing is trained.")
    ensemble: Ensemble | None = Field(None, description="Average trained models; nothing is trained.")

    @property
    def is_trained_here(self) -> bool:
        """Whether the trainer's own loop trains the model: an application or a function."""
        return self.application is not None or self.function is not None

    @property
    def uses_trained_models(self) -> bool:
        """Whether nothing is trained: a prediction or an ensemble."""
        return self.prediction is not None or self.ensemble is not None


# The key of an archive in a ConfigMap. Keys have no slashes, so that source with folders needs an archive.
CONFIG_MAP_ARCHIVE = "source.tgz"

Sha256 = Annotated[str, StringConstraints(pattern=patterns.SHA256, max_length=64)]


class ConfigMapSource(Model):
    """Source files in a ConfigMap of the job's namespace: its entries, or an archive in its entry source.tgz."""

    name: Name = Field(description="Name of the ConfigMap.")
    sha256: Sha256 | None = Field(None, description="SHA-256 of the archive in its entry source.tgz.")


class Archive(Model):
    """Source files in an archive, verified before it is unpacked."""

    uri: Uri = Field(description="gs://bucket/<sha256>.tgz")
    sha256: Sha256 = Field(description="SHA-256 of the archive, in hexadecimal.")


class Source(Model):
    """Source code of the program. Absent: it is in the image, or in the folder of the job file of a local run."""

    config_map: ConfigMapSource | None = Field(None, description="Source in a ConfigMap.")
    archive: Archive | None = Field(None, description="Source in an archive.")
    requirements: Annotated[str, StringConstraints(min_length=1, max_length=512)] | None = Field(
        None, description="Path of a requirements file inside the source."
    )


class RunPolicy(Model):
    """Limits on retries and time."""

    backoff_limit: Annotated[int, Field(ge=0, le=1000)] | None = Field(
        None, description="Maximum number of retries after program errors."
    )
    infrastructure_retries: Annotated[int, Field(ge=0, le=10000)] | None = Field(
        None, description="Maximum number of retries after lost machines."
    )
    active_deadline_seconds: Count | None = Field(None, description="The job fails when it has run for longer.")
    pending_timeout_seconds: Count | None = Field(
        None, description="The job fails when its pods have been pending for longer."
    )
    progress_deadline_seconds: Count | None = Field(
        None, description="The job is restarted after this time without a step."
    )
    resize_seconds: Count | None = Field(
        None, description="With elastic: the shortest time from the start of an attempt to one with more workers."
    )
    ttl_seconds_after_finished: NonNegative | None = Field(
        None, description="Time from the end of the job to its deletion."
    )
    suspend: bool | None = Field(None, description="Stop at a checkpoint and release the machines.")


class Scheduling(Model):
    """Queue, priority, scheduler and gang of the pods."""

    queue_name: LabelValue | None = Field(None, description="Kueue's local queue.")
    workload_priority_class_name: Name | None = Field(
        None, description="Kueue's WorkloadPriorityClass: the job's priority in its queue, not that of its pods."
    )
    priority_class_name: Name | None = Field(None, description="PriorityClass of the pods.")
    scheduler_name: Word | None = Field(None, description="Scheduler of the pods.")
    gang: Literal["Auto", "Coscheduling", "Volcano", "None"] | None = Field(
        None, description="Scheduler that places all workers or none, by a PodGroup of scheduler-plugins or of Volcano."
    )
    topology: Literal["Spread", "Pack"] | None = Field(
        None, description="Spread: on different machines, if possible. Pack: these also near one another."
    )


class BatchSize(Model):
    """Examples per step: per replica, or over all replicas."""

    per_replica: Count | None = Field(None, description="Examples per replica and step.")
    global_: Count | None = Field(None, alias="global", description="Examples per step over all replicas.")


class KerasObject(Model):
    """A Keras object in the serialization format of Keras."""

    class_name: Name = Field(description="Class name as Keras writes it: Adam, SparseCategoricalCrossentropy, ...")
    config: Arguments | None = Field(None, description="The class' arguments, schedules included.")


class LearningRateScaling(Model):
    """Scaling of the learning rate with the global batch size."""

    rule: Literal["None", "Linear", "SquareRoot"] | None = Field(
        None, description="Linear suits SGD, SquareRoot suits Adam."
    )
    base_batch_size: Count | None = Field(None, description="Global batch size that the learning rate was found for.")
    warmup_steps: NonNegative | None = Field(None, description="Steps over which the learning rate rises from zero.")


class Training(Model):
    """Settings of the training loop. Not for scripts."""

    epochs: Count | None = Field(None, description="Passes over the training data; or give totalSteps.")
    total_steps: Count | None = Field(None, description="Steps in all; or give epochs.")
    steps_per_epoch: Count | None = Field(None, description="Steps of an epoch.")
    validation_every_steps: Count | None = Field(None, description="Steps from one validation to the next.")
    validation_freq: Count | None = Field(
        None, description="Epochs from one validation to the next, as fit(validation_freq=...)."
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
    learning_rate_scaling: LearningRateScaling | None = Field(
        None, description="Scaling of the learning rate with the batch size."
    )
    loss: KerasObject | None = Field(None, description="Keras serialization.")
    metrics: Annotated[list[KerasObject], Field(max_length=32)] | None = Field(None, description="Keras serialization.")
    gradient_accumulation_steps: Annotated[int, Field(ge=1, le=4096)] | None = Field(
        None, description="Batches whose gradients are averaged into one update."
    )
    steps_per_execution: Annotated[int, Field(ge=1, le=10000)] | None = Field(
        None, description="Steps that one call on the device executes."
    )
    on_non_finite: Literal["Recover", "Fail"] | None = Field(
        None, description="What to do when the loss or the weights become non-finite."
    )
    deterministic: Literal["Auto", "Always", "Never"] | None = Field(
        None, description="Whether operations on a GPU are deterministic, which makes them slower."
    )
    seed: NonNegative | None = Field(None, description="Seed of weights, dropout and record order.")
    resume: Literal["Auto", "Never", "Required"] | None = Field(
        None, description="Whether to resume from a checkpoint."
    )


GROUP, VERSION, API_VERSION = api_versions.GROUP, api_versions.VERSION, api_versions.API_VERSION
KIND: Literal["MPTrainingJob"] = job_text.KIND

# The value of spec.managedBy for this operator, as an absent field.
MANAGED_BY_OPERATOR = f"{GROUP}/operator"


def other_controller(managed_by: str | None) -> str | None:
    """Describe the other controller that spec.managedBy names; None for this operator."""
    if managed_by in (None, MANAGED_BY_OPERATOR):
        return None
    hint = nearest(managed_by, (MANAGED_BY_OPERATOR,))
    return f"a controller of that name has the job, and this operator leaves it alone. {hint}".strip(" .")


# Annotation of a job: while it is "true", the operator leaves the job and its children alone.
PAUSED = f"{GROUP}/paused"


def is_paused(annotations: Mapping[str, object] | None) -> bool:
    """Return whether a job with these annotations is paused."""
    return str((annotations or {}).get(PAUSED, "")).strip().lower() == "true"


# A worker's pod is named <job>-<attempt>-<index>, which must be a DNS label of at most 63 characters.
JOB_NAME = re.compile(r"[a-z]([-a-z0-9]{0,48}[a-z0-9])?")


# A job that names this runtime has none, also where its namespace has one.
NO_RUNTIME = "None"
RuntimeName = Annotated[str, StringConstraints(pattern=patterns.RUNTIME, max_length=63)]


class JobSpec(Model):
    """Desired state of the job: a program, data, an accelerator."""

    accelerator: Accelerator = Field(description="The accelerator of each worker.")
    workers: Annotated[int, Field(ge=1, le=MOST_WORKERS)] | None = Field(
        None, description="Number of machines; for a TPU, the topology determines it."
    )
    elastic: Elastic | None = Field(
        None, description="Instead of workers: each attempt has as many machines as there are, between min and max."
    )
    strategy: Literal["Auto", "None"] | None = Field(
        None,
        description="Auto selects the tf.distribute strategy; None for one device or a script that creates its own.",
    )
    precision: Precision | None = Field(None, description="The precision policy of the model.")
    jit_compile: Literal["Auto", "Always", "Never"] | None = Field(
        None, description="Whether XLA compiles the training step."
    )
    keras: Literal["Auto", "Keras3", "Legacy"] | None = Field(None, description="Keras 3, or Legacy for tf_keras.")
    program: Program = Field(description="The program: one of application, function, script, prediction, ensemble.")
    source: Source | None = Field(None, description="Source code of the program.")
    data: Data | None = Field(None, description="TFRecords and how they are batched.")
    training: Training | None = Field(None, description="Settings of the training loop.")
    checkpoint: Checkpoint | None = Field(None, description="Checkpoints of the training state.")
    export: Export | None = Field(None, description="Export of the trained model.")
    profile: Profile | None = Field(None, description="A range of steps to profile for TensorBoard.")
    tracking: Tracking | None = Field(None, description="Servers that get the metrics, beside the run folder.")
    output: Output | None = Field(None, description="The run folder.")
    managed_by: Word | None = Field(
        None,
        description="Controller of the job, as of a batch/v1 Job; this operator leaves a job of another one alone.",
    )
    run_policy: RunPolicy | None = Field(None, description="Limits on retries and time.")
    scheduling: Scheduling | None = Field(None, description="Queue, priority and scheduler of the pods.")
    runtime: RuntimeName | None = Field(
        None, description="Runtime of the cluster, a named set of pod settings: `mptj runtimes`; None for none."
    )
    pod_template: PodTemplate | None = Field(None, description="The pod settings that a job may change.")


class Metadata(Model):
    """The fields of Kubernetes' ObjectMeta that a local run needs; others are ignored."""

    model_config = Model.model_config | {"extra": "ignore"}

    name: str
    namespace: str | None = None
    uid: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class MPTrainingJob(Model):
    """One resource: apiVersion, kind, metadata, spec. The operator writes `status`, which is not read here."""

    api_version: api_versions.ApiVersion = API_VERSION
    kind: Literal["MPTrainingJob"] = KIND
    metadata: Metadata
    spec: JobSpec

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """Load the job from the YAML file at `path`. The models validate it, but `rules` and `resolve` do not yet.

        Raises InvalidSpec with the file or the field.
        """
        return cls.parse_written(job_text.load_job_text(path))

    @classmethod
    def parse_written(cls, written: YamlDocument) -> Self:
        """Parse a job as it was written. Raises InvalidSpec with every mistake and its line."""
        job, invalid = cls.validate_document(written.content)
        if job is None:
            raise written.located(field.problem for field in invalid)
        return job
