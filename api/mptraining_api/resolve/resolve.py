"""Resolution of a spec to a ResolvedJob: every default is decided, each non-trivial one with its reason.

The functions are pure: the same job and settings give the same ResolvedJob on a cluster and on a laptop.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from mptraining_api.machines.node_labels import MIGStrategy, NodeLabels
from mptraining_api.outputs.fields import Tracking
from mptraining_api.resolve.batch_size import (
    PREDICTION_BATCH_SIZE,
    batch_choice,
    global_batch_size,
    learning_rate,
)
from mptraining_api.resolve.defaults import MAX_TO_KEEP, resolve_data, resolve_training
from mptraining_api.resolve.devices import Devices, requested_devices, strategy, without_accelerators
from mptraining_api.resolve.placement import placement
from mptraining_api.resolve.precision import jit_compile, keras_generation, precision
from mptraining_api.resolved_job import (
    Choice,
    LearningRate,
    ProfileSteps,
    ResolvedCheckpoint,
    ResolvedExport,
    ResolvedJob,
)
from mptraining_api.rules import check
from mptraining_api.spec import JobSpec, MPTrainingJob, Program
from mptraining_api.sweep.status import SWEEP_UID


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """Settings of the cluster or the local run that `resolve` depends on.

    `default_images` maps the kind of accelerator (cpu, gpu, tpu) to an image; `default_image` is for the other kinds.
    `default_output` is a folder for all jobs; each gets `<default_output>/<namespace>/<name>`, without the
    namespace in a local run. `default_outputs` maps a namespace to a folder for its jobs: `<folder>/<name>`.
    `node_labels` is the platform whose labels the nodes have; Auto: it is not known, so that any number of GPUs may be
    right. `mig_strategy` is that of NVIDIA's device plugin.
    """

    cpu_fallback: bool = False
    experimental_multi_host_tpu: bool = False
    node_labels: NodeLabels = "GKE"
    mig_strategy: MIGStrategy = "Mixed"
    default_image: str | None = None
    default_output: str | None = None
    default_images: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    default_outputs: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def image(self, kind: str) -> str | None:
        """Return the image for jobs that name none and compute on `kind`."""
        return self.default_images.get(kind, self.default_image)

    def output(self, namespace: str | None) -> str | None:
        """Return the parent of the run folders for jobs of that namespace that name none; None if there is none."""
        own = self.default_outputs.get(namespace or "")
        if own is not None or self.default_output is None:
            return own
        return "/".join(part for part in (self.default_output.rstrip("/"), namespace or "") if part)


def resolve(job: MPTrainingJob, settings: ClusterSettings) -> ResolvedJob:
    """Return the job with every default decided. Raises InvalidSpec if it breaks a rule or cannot work."""
    check.check(job)
    spec = job.spec
    trained_here = spec.program.is_trained_here
    wanted = requested_devices(
        spec,
        multi_host_tpu=settings.experimental_multi_host_tpu or settings.cpu_fallback,
        any_count=settings.node_labels != "GKE",
    )

    batch_size: int | None = None
    batch_choices: tuple[Choice, ...] = ()
    rate = LearningRate(factor=1.0, warmup_steps=0)
    if trained_here:
        batch_size = global_batch_size(spec, wanted)
        rate, batch_choices = learning_rate(spec, batch_size)

    devices = (
        without_accelerators(wanted, splits_in_two=_splits_in_two(spec, wanted, batch_size))
        if settings.cpu_fallback
        else wanted
    )
    if batch_size is not None:
        batch_choices = (batch_choice(spec, wanted, devices, batch_size), *batch_choices)
    # The requested devices are checked, too: a CPU fallback must not accept a job that a cluster with them refuses.
    strategy(spec, wanted)
    picked_strategy, strategy_choice = strategy(spec, devices)
    keras, keras_choice = keras_generation(spec, wanted)
    resolved_precision, precision_choice = precision(spec, wanted, devices, keras)
    jit, jit_choice = jit_compile(spec, devices, resolved_precision.policy)
    training, training_choices = resolve_training(spec, devices) if trained_here else (None, ())
    data, data_choices = (None, ()) if spec.data is None else resolve_data(spec.data, spec.program)
    output, output_choices = _output(job, settings)

    return ResolvedJob(
        name=job.metadata.name,
        accelerator=devices.accelerator,
        strategy=picked_strategy,
        precision=resolved_precision,
        jit_compile=jit,
        keras=keras,
        processes=devices.processes,
        replicas_per_process=devices.replicas_per_process,
        replicas=devices.replicas,
        global_batch_size=batch_size,
        learning_rate=rate,
        image=(spec.pod_template.image if spec.pod_template else None) or settings.image(devices.accelerator.kind),
        placement=placement(
            devices.accelerator,
            settings.node_labels,
            settings.mig_strategy,
            pack=spec.scheduling is not None and spec.scheduling.topology == "Pack" and devices.processes > 1,
        ),
        program=_program(spec.program),
        source=spec.source,
        data=data,
        training=training,
        checkpoint=_checkpoint(spec),
        export=_export(spec),
        profile=_profile(spec),
        tracking=_tracking(job),
        output=output,
        sweep=(job.metadata.labels or {}).get(SWEEP_UID),
        choices=(
            *devices.choices,
            strategy_choice,
            precision_choice,
            jit_choice,
            keras_choice,
            *batch_choices,
            *training_choices,
            *data_choices,
            *output_choices,
        ),
    )


def _splits_in_two(spec: JobSpec, wanted: Devices, batch_size: int | None) -> bool:
    """Return whether a CPU fallback on one host may use two replicas for this job."""
    if spec.program.script is None:
        # Without a batch size, the program trains nothing.
        return spec.strategy != "None" and batch_size is not None and batch_size % 2 == 0
    # A script that trains on one device without a strategy would be another program with a strategy.
    if wanted.replicas == 1:
        return False
    # A Keras 3 script may use mixed_float16 on one replica, but not on two: its loss scaling would be wrong.
    return spec.precision is None or spec.precision.policy != "mixed_float16" or spec.keras == "Legacy"


def _program(program: Program) -> Program:
    application, prediction = program.application, program.prediction
    if prediction is not None:
        decided = {"batch_size": prediction.batch_size or PREDICTION_BATCH_SIZE, "evaluate": bool(prediction.evaluate)}
        return program.model_copy(update={"prediction": prediction.model_copy(update=decided)})
    if application is None:
        return program
    filled = application.model_copy(
        update={"weights": application.weights or "none", "freeze_base": application.freeze_base or False}
    )
    return program.model_copy(update={"application": filled})


def _checkpoint(spec: JobSpec) -> ResolvedCheckpoint:
    written = spec.checkpoint
    return ResolvedCheckpoint(
        every_steps=written.every_steps if written else None,
        max_to_keep=(written.max_to_keep if written else None) or MAX_TO_KEEP,
    )


def _export(spec: JobSpec) -> ResolvedExport:
    written = spec.export
    return ResolvedExport(
        format=(written.format if written else None) or "keras",
        checkpoint=(written.checkpoint if written else None) or "Last",
        monitor=written.monitor if written else None,
    )


def _profile(spec: JobSpec) -> ProfileSteps | None:
    if spec.profile is None:
        return None
    return ProfileSteps(first_step=spec.profile.first_step, last_step=spec.profile.last_step)


def _tracking(job: MPTrainingJob) -> Tracking | None:
    written = job.spec.tracking
    if written is None or written.mlflow is None or written.mlflow.experiment is not None:
        return written
    mlflow = written.mlflow.model_copy(update={"experiment": job.metadata.name})
    return written.model_copy(update={"mlflow": mlflow})


def _output(job: MPTrainingJob, settings: ClusterSettings) -> tuple[str | None, tuple[Choice, ...]]:
    if job.spec.output is not None:
        return job.spec.output.uri, ()
    default = settings.output(job.metadata.namespace)
    if default is None:
        because = "no output is given: a scratch folder, from which nothing can be resumed"
        return None, (Choice(field="spec.output.uri", value="scratch folder", because=because),)
    folder = f"{default.rstrip('/')}/{job.metadata.name}"
    return folder, (Choice(field="spec.output.uri", value=folder, because="below the cluster's default folder"),)
