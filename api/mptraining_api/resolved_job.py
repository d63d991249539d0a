"""The job with every default decided: what `resolve` makes of a JobSpec and the trainer reads as `job.json`.

Nothing here is absent because nobody thought of it: None means what its comment says.
"""

from __future__ import annotations

from typing import Any, Literal

from mptraining_api.model import Model
from mptraining_api.spec import Feature, KerasObject, Program, Source

VERSION = 1

Strategy = Literal["None", "Mirrored", "MultiWorkerMirrored", "TPU"]
Policy = Literal["Measure", "float32", "mixed_float16", "mixed_bfloat16"]


class Choice(Model):
    """One thing that `resolve` decided, and why; shown by `mptj check` and kept in the run folder."""

    field: str
    value: str
    because: str


class ResolvedAccelerator(Model):
    """What the processes will really compute on; on a CPU `count_per_node` is the number of logical devices."""

    type: str
    kind: Literal["cpu", "gpu", "tpu"]
    title: str
    count_per_node: int
    topology: str | None = None
    provisioning: Literal["OnDemand", "Spot"] = "OnDemand"
    compute_capability: float | None = None
    # The accelerator that was asked for, when the job fell back to the CPU; else None.
    asked_for: str | None = None


class ResolvedPrecision(Model):
    policy: Policy
    loss_scale_mode: Literal["Dynamic", "Fixed"]
    loss_scale: float


class LearningRate(Model):
    """The optimizer's own rate (or schedule) is multiplied by `factor` after rising over `warmup_steps`."""

    factor: float
    warmup_steps: int


class Placement(Model):
    """Where Kubernetes puts each pod. `resources` are the accelerator's limits."""

    node_selector: dict[str, str]
    resources: dict[str, int]
    tolerations: tuple[dict[str, Any], ...]


class ResolvedData(Model):
    train: tuple[str, ...]
    validation: tuple[str, ...]
    # None: from the manifest, else inferred by the trainer.
    features: tuple[Feature, ...] | None
    label: str | None
    # None: the one label above. Empty: no labels.
    labels: tuple[str, ...] | None = None
    sample_weight: str | None = None
    # auto | none | module:function
    preprocess: str
    shuffle_buffer_size: int
    cache: Literal["Auto", "Memory", "Disk", "None"]
    bad_records: Literal["Fail", "Skip"]
    max_skipped: int
    remainder: Literal["Drop", "PadAndMask"]
    on_change: Literal["Refuse", "Accept"]


class ResolvedTraining(Model):
    # Exactly one of epochs and total_steps is given.
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
    # None: the function program's own.
    optimizer: KerasObject | None
    loss: KerasObject | None
    metrics: tuple[KerasObject, ...] | None
    gradient_accumulation_steps: int
    # None: measured by the trainer.
    steps_per_execution: int | None
    on_non_finite: Literal["Recover", "Fail"]
    # Whether TensorFlow's op determinism is on. A job that an older version froze has no such field.
    deterministic: bool = False
    seed: int
    resume: Literal["Auto", "Never", "Required"]


class ResolvedCheckpoint(Model):
    # None: at the end of every epoch.
    every_steps: int | None
    max_to_keep: int


class ResolvedExport(Model):
    format: Literal["keras", "saved_model"]
    checkpoint: Literal["Last", "Best"]
    monitor: str | None


class ProfileSteps(Model):
    first_step: int
    last_step: int


class ResolvedJob(Model):
    """`processes` run side by side, each with `replicas_per_process`; together `replicas` share every step."""

    version: int = VERSION
    name: str
    accelerator: ResolvedAccelerator
    strategy: Strategy
    precision: ResolvedPrecision
    jit_compile: Literal["Always", "WherePossible", "Never"]
    keras: Literal["Keras3", "Legacy"]
    processes: int
    replicas_per_process: int
    replicas: int
    # None for scripts, which batch by themselves.
    global_batch_size: int | None
    learning_rate: LearningRate
    # None: the operator's own version, or this machine's Python in a local run.
    image: str | None
    placement: Placement
    program: Program
    source: Source | None
    # None for scripts, which read their own data and train by themselves.
    data: ResolvedData | None
    training: ResolvedTraining | None
    checkpoint: ResolvedCheckpoint
    export: ResolvedExport
    profile: ProfileSteps | None
    # The run folder. None: a scratch folder, nothing to resume from.
    output: str | None
    choices: tuple[Choice, ...]

    @property
    def per_replica_batch_size(self) -> int | None:
        """Examples per replica and step, before accumulation; None for scripts."""
        return None if self.global_batch_size is None else self.global_batch_size // self.replicas
