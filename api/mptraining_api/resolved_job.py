"""The resolved job: a JobSpec with every default decided by `resolve`; the trainer reads it as `job.json`.

A field that is None has the meaning that its comment states.
"""

from __future__ import annotations

from typing import Any, Literal

from mptraining_api.model import Model
from mptraining_api.outputs.fields import ExportFormat, Profile, Tracking
from mptraining_api.pods.fields import PodTemplate
from mptraining_api.spec import Elastic, Feature, KerasObject, Program, Provisioning, Scheduling, Source

VERSION = 1

Strategy = Literal["None", "Mirrored", "MultiWorkerMirrored", "TPU"]
Policy = Literal["Measure", "float32", "mixed_float16", "mixed_bfloat16"]


class Choice(Model):
    """One decision of `resolve` with its reason; printed by `mptj check` and stored in the run folder."""

    field: str
    value: str
    because: str


class ResolvedAccelerator(Model):
    """The accelerator that the workers use; on a CPU, `count_per_worker` is the number of logical devices."""

    type: str
    kind: Literal["cpu", "gpu", "tpu"]
    title: str
    count_per_worker: int
    topology: str | None = None
    provisioning: Provisioning = "OnDemand"
    # The name or path of the reservation, if any.
    reservation: str | None = None
    # The MIG profile of a slice; None for whole GPUs.
    partition: str | None = None
    compute_capability: float | None = None
    # The requested accelerator if the job fell back to the CPU, else None.
    asked_for: str | None = None


class ResolvedPrecision(Model):
    policy: Policy
    loss_scale_mode: Literal["Dynamic", "Fixed"]
    loss_scale: float


class LearningRate(Model):
    """Factor on the optimizer's learning rate or schedule, reached after `warmup_steps` of linear warm-up."""

    factor: float
    warmup_steps: int


class Placement(Model):
    """Scheduling constraints of each pod. `resources` are the limits for the accelerator, empty if the pod claims its
    devices from a DeviceClass.

    Everything here is frozen with the job: the operator's settings and the cluster's nodes may change later.
    """

    node_selector: dict[str, str]
    # `nodeSelectorTerms` of a required node affinity, one of which must hold; None: the selector is enough.
    node_affinity: tuple[dict[str, Any], ...] | None = None
    resources: dict[str, int]
    # CPU and memory that a pod requests if the job does not; None: those of a job on CPUs.
    requests: dict[str, str] | None = None
    tolerations: tuple[dict[str, Any], ...]
    device_class: str | None = None
    # Labels of places that the pods should share, the nearest first; None: no preference.
    pack_by: tuple[str, ...] | None = None


class ResolvedData(Model):
    train: tuple[str, ...]
    validation: tuple[str, ...]
    # The records of a prediction, which has neither of the two above.
    predict: tuple[str, ...] = ()
    # None: from the data's manifest, else inferred by the trainer.
    features: tuple[Feature, ...] | None
    label: str | None
    # None: the one label above. Empty: the data has no labels.
    labels: tuple[str, ...] | None = None
    sample_weight: str | None = None
    # auto | none | module:function
    preprocess: str
    shuffle: Literal["Full", "Windowed", "None"] = "Windowed"
    # None: by the size of the records.
    shuffle_buffer_size: int | None
    cache: Literal["Auto", "Memory", "Disk", "None"]
    bad_records: Literal["Fail", "Skip"]
    max_skipped: int
    remainder: Literal["Drop", "PadAndMask"]
    on_change: Literal["Refuse", "Accept"]


class ResolvedTraining(Model):
    # Exactly one of epochs and total_steps is set.
    epochs: int | None
    total_steps: int | None
    # None: the whole data.
    steps_per_epoch: int | None
    # None: at the end of every epoch.
    validation_every_steps: int | None
    # Epochs from one validation to the next.
    validation_freq: int = 1
    initial_epoch: int = 0
    class_weight: dict[str, float] | None = None
    # None: those of the function program.
    optimizer: KerasObject | None
    loss: KerasObject | None
    metrics: tuple[KerasObject, ...] | None
    gradient_accumulation_steps: int
    # None: measured by the trainer.
    steps_per_execution: int | None
    on_non_finite: Literal["Recover", "Fail"]
    # Whether TensorFlow's op determinism is enabled.
    deterministic: bool = False
    seed: int
    resume: Literal["Auto", "Never", "Required"]


class ResolvedCheckpoint(Model):
    # None: at the end of every epoch.
    every_steps: int | None
    max_to_keep: int


class ResolvedExport(Model):
    format: ExportFormat
    checkpoint: Literal["Last", "Best"]
    monitor: str | None


class ResolvedMachine(Model):
    """An alternative to the first choice: the fields of a ResolvedJob that depend on the machine."""

    accelerator: ResolvedAccelerator
    strategy: Strategy
    precision: ResolvedPrecision
    jit_compile: Literal["Always", "WherePossible", "Never"]
    workers: int
    replicas_per_worker: int
    replicas: int
    image: str | None
    placement: Placement
    choices: tuple[Choice, ...]


class ResolvedJob(Model):
    """`workers` run in parallel with `replicas_per_worker` each; all `replicas` share each step."""

    version: int = VERSION
    name: str
    accelerator: ResolvedAccelerator
    strategy: Strategy
    precision: ResolvedPrecision
    jit_compile: Literal["Always", "WherePossible", "Never"]
    keras: Literal["Keras3", "Legacy"]
    workers: int
    replicas_per_worker: int
    replicas: int
    # None for scripts, which create their own batches.
    global_batch_size: int | None
    learning_rate: LearningRate
    # None: the operator's version of the image, or this machine's Python in a local run.
    image: str | None
    placement: Placement
    program: Program
    source: Source | None
    # None for scripts, which read their data and train themselves.
    data: ResolvedData | None
    training: ResolvedTraining | None
    checkpoint: ResolvedCheckpoint
    export: ResolvedExport
    profile: Profile | None
    # Every name in it is decided.
    tracking: Tracking | None = None
    # The run folder. None: a scratch folder, from which no job can resume.
    output: str | None
    # Uid of the sweep whose trial the job belongs to.
    sweep: str | None = None
    # The name of the runtime. None: no runtime, or in a local run.
    runtime: str | None = None
    # The job's pod template, with what its runtime adds, and its scheduling. None in a run folder.
    pod_template: PodTemplate | None = None
    scheduling: Scheduling | None = None
    # The other machines that an attempt may run on, in order; `resolve.attempt.for_attempt` selects one. A trainer
    # reads the job of one attempt, which has none.
    alternatives: tuple[ResolvedMachine, ...] = ()
    # The range of an elastic job, whose `workers` are the most; None in the job of one attempt.
    workers_range: Elastic | None = None
    choices: tuple[Choice, ...]

    @property
    def per_replica_batch_size(self) -> int | None:
        """Examples per replica and step, before gradient accumulation; None for scripts."""
        return None if self.global_batch_size is None else self.global_batch_size // self.replicas
