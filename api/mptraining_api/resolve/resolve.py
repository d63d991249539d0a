"""Resolution of a spec to a ResolvedJob: every default is decided, each non-trivial one with its reason.

The functions are pure: the same job and settings give the same ResolvedJob on a cluster and on a laptop.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from mptraining_api.machines.node_labels import MIGStrategy, NodeLabels
from mptraining_api.outputs.fields import ExportFormat, Tracking
from mptraining_api.problems import InvalidSpec
from mptraining_api.resolve import alternatives
from mptraining_api.resolve.attempt import divisors
from mptraining_api.resolve.batch_size import PREDICTION_BATCH_SIZE, batch_choice, global_batch_size, learning_rate
from mptraining_api.resolve.defaults import MAX_TO_KEEP, resolve_data, resolve_training
from mptraining_api.resolve.devices import Devices, check_kernels, requested_devices, strategy, without_accelerators
from mptraining_api.resolve.placement import placement, with_claim
from mptraining_api.resolve.precision import Keras, jit_compile, precision
from mptraining_api.resolve.runtime_settings import DEFAULT, RuntimeImages
from mptraining_api.resolve.runtimes import Chosen, Runtimes, with_runtime
from mptraining_api.resolved_job import (
    Choice,
    LearningRate,
    Placement,
    ResolvedCheckpoint,
    ResolvedExport,
    ResolvedJob,
    ResolvedMachine,
)
from mptraining_api.rules import check
from mptraining_api.spec import JobSpec, MPTrainingJob, Program, other_controller
from mptraining_api.sweep.status import SWEEP_UID


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """Settings of the cluster or the local run that `resolve` depends on.

    `device_classes` maps an accelerator to the DeviceClass that jobs claim it from.
    `node_labels` is the platform whose labels the nodes have; Auto: it is not known, so that any number of GPUs may be
    right. `mig_strategy` is that of NVIDIA's device plugin.
    """

    cpu_fallback: bool = False
    node_labels: NodeLabels = "GKE"
    mig_strategy: MIGStrategy = "Mixed"
    # None: unknown, as without a cluster.
    runtimes: Runtimes | None = None
    # The name of a runtime by namespace.
    default_runtimes: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    device_classes: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


def resolve(job: MPTrainingJob, settings: ClusterSettings) -> ResolvedJob:
    """Return the job with every default decided. Raises InvalidSpec if it breaks a rule or cannot work."""
    check.check(job)
    chosen = with_runtime(job, settings.runtimes, settings.default_runtimes)
    if chosen.job is not job:
        check.check(chosen.job)
    return _resolve(chosen, settings)


def _resolve(chosen: Chosen, settings: ClusterSettings) -> ResolvedJob:
    job = chosen.job
    spec = job.spec
    trained_here = spec.program.is_trained_here
    requested = requested_devices(spec, settings.node_labels)

    batch_size: int | None = None
    batch_choices: tuple[Choice, ...] = ()
    rate = LearningRate(factor=1.0, warmup_steps=0)
    if trained_here:
        batch_size = global_batch_size(spec, requested)
        rate, batch_choices = learning_rate(spec, batch_size)

    on_others = alternatives.jobs(job, batch_size)
    for option in on_others:
        alternatives.located(option, check.check, option.job)
    others = [
        (option, alternatives.located(option, requested_devices, option.job.spec, settings.node_labels))
        for option in on_others
    ]
    # The GPU image of a runtime is its administrator's decision, as podTemplate.image is the user's.
    if chosen.name == DEFAULT or chosen.named.images.gpu is None:
        check_kernels(spec, requested)
        for option, there in others:
            alternatives.located(option, check_kernels, option.job.spec, there)
    for option, there in others:
        alternatives.check_replicas(option, requested, there)
    keras, keras_choice = alternatives.one_keras_generation(spec, requested, others)
    devices = _available(spec, requested, settings, batch_size)
    images = chosen.runtime.images
    first = _machine(spec, requested, settings, images, keras, batch_size)
    if batch_size is not None:
        batch_choices = (batch_choice(spec, requested, devices, batch_size), *batch_choices)
    training, training_choices = resolve_training(spec, devices) if trained_here else (None, ())
    data, data_choices = (None, ()) if spec.data is None else resolve_data(spec.data, spec.program)
    output, output_choices = _output(chosen)

    resolved = ResolvedJob(
        name=job.metadata.name,
        **{name: value for name, value in first if name != "choices"},
        keras=keras,
        global_batch_size=batch_size,
        learning_rate=rate,
        program=_program(spec.program),
        source=spec.source,
        data=data,
        training=training,
        checkpoint=_checkpoint(spec),
        export=_export(spec, keras),
        profile=spec.profile,
        tracking=_tracking(job),
        output=output,
        sweep=(job.metadata.labels or {}).get(SWEEP_UID),
        runtime=None if chosen.name == DEFAULT else chosen.name,
        pod_template=spec.pod_template,
        scheduling=spec.scheduling,
        workers_range=spec.elastic,
        choices=(
            *chosen.choices,
            *_controller_choice(spec),
            *_image_choice(chosen, devices.accelerator.kind),
            *first.choices,
            keras_choice,
            *batch_choices,
            *_sizes(spec, devices, batch_size),
            *training_choices,
            *data_choices,
            *output_choices,
        ),
    )
    placed = [
        alternatives.located(option, _machine, option.job.spec, there, settings, images, keras, batch_size)
        for option, there in others
    ]
    alternatives.check_sizes(resolved, placed)
    # A cluster without accelerators has none of the machines: the job runs on the CPU and looks for no other.
    return resolved if devices.accelerator.asked_for else resolved.model_copy(update={"alternatives": tuple(placed)})


def _sizes(spec: JobSpec, devices: Devices, batch_size: int | None) -> tuple[Choice, ...]:
    """Return the numbers of workers of an elastic job as a choice."""
    if spec.elastic is None or batch_size is None:
        return ()
    sizes = divisors(spec.elastic.min, spec.elastic.max, devices.replicas_per_worker, batch_size)
    because = f"the numbers of workers whose replicas share {batch_size} examples evenly; the batch stays as it is"
    return (Choice(field="spec.elastic", value=", ".join(map(str, sizes)), because=because),)


def _available(spec: JobSpec, requested: Devices, settings: ClusterSettings, batch_size: int | None) -> Devices:
    """Return the devices that the workers have: those of a CPU in a cluster without accelerators."""
    if not settings.cpu_fallback:
        return requested
    return without_accelerators(requested, splits_in_two=_splits_in_two(spec, requested, batch_size))


def _machine(
    spec: JobSpec,
    requested: Devices,
    settings: ClusterSettings,
    images: RuntimeImages,
    keras: Keras,
    batch_size: int | None,
) -> ResolvedMachine:
    """Return what depends on the machine of `spec`. Raises InvalidSpec."""
    devices = _available(spec, requested, settings, batch_size)
    # The requested devices are checked, too: a CPU fallback must not accept a job that a cluster with them refuses.
    strategy(spec, requested)
    picked_strategy, strategy_choice = strategy(spec, devices)
    resolved_precision, precision_choice = precision(spec, requested, devices, keras)
    jit, jit_choice = jit_compile(spec, devices, resolved_precision.policy)
    written_image = spec.pod_template.image if spec.pod_template else None
    return ResolvedMachine(
        accelerator=devices.accelerator,
        strategy=picked_strategy,
        precision=resolved_precision,
        jit_compile=jit,
        workers=devices.workers,
        replicas_per_worker=devices.replicas_per_worker,
        replicas=devices.replicas,
        image=written_image or getattr(images, devices.accelerator.kind),
        placement=_placement(spec, settings, devices),
        choices=(*devices.choices, strategy_choice, precision_choice, jit_choice),
    )


def _placement(spec: JobSpec, settings: ClusterSettings, devices: Devices) -> Placement:
    packed = spec.scheduling is not None and spec.scheduling.topology == "Pack" and devices.workers > 1
    placed = placement(devices.accelerator, settings.node_labels, settings.mig_strategy, pack=packed)
    return with_claim(placed, devices.accelerator, settings.device_classes)


def _image_choice(chosen: Chosen, kind: str) -> tuple[Choice, ...]:
    image, template = getattr(chosen.runtime.images, kind), chosen.job.spec.pod_template
    if image is None or (template and template.image):
        return ()
    because = chosen.because(getattr(chosen.named.images, kind))
    return (Choice(field="spec.podTemplate.image", value=image, because=because),)


def _controller_choice(spec: JobSpec) -> tuple[Choice, ...]:
    because = other_controller(spec.managed_by)
    if because is None:
        return ()
    return (Choice(field="spec.managedBy", value=str(spec.managed_by), because=because),)


def _splits_in_two(spec: JobSpec, requested: Devices, batch_size: int | None) -> bool:
    """Return whether a CPU fallback on one worker may use two replicas for this job."""
    # One replica stays one, as `mptj check` reports it; a script would be another program with a strategy.
    if requested.replicas == 1:
        return False
    if spec.program.script is None:
        # Without a batch size, the program trains nothing.
        return batch_size is not None and batch_size % 2 == 0
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


def _export(spec: JobSpec, keras: Keras) -> ResolvedExport:
    written = spec.export
    form: ExportFormat = (written.format if written else None) or "keras"
    if keras == "Legacy" and form not in ("keras", "saved_model"):
        raise InvalidSpec(
            "spec.export.format",
            f"{form!r} with tf_keras, which has no such export",
            expected="keras or saved_model",
            next_step="Write saved_model and convert it, or train with keras: Keras3.",
        )
    return ResolvedExport(
        format=form,
        checkpoint=(written.checkpoint if written else None) or "Last",
        monitor=written.monitor if written else None,
    )


def _tracking(job: MPTrainingJob) -> Tracking | None:
    written = job.spec.tracking
    if written is None or written.mlflow is None or written.mlflow.experiment is not None:
        return written
    mlflow = written.mlflow.model_copy(update={"experiment": job.metadata.name})
    return written.model_copy(update={"mlflow": mlflow})


def _output(chosen: Chosen) -> tuple[str | None, tuple[Choice, ...]]:
    job, parent = chosen.job, chosen.runtime.output
    if job.spec.output is not None:
        return job.spec.output.uri, ()
    if parent is None:
        because = "no output is given: a scratch folder, from which nothing can be resumed"
        return None, (Choice(field="spec.output.uri", value="scratch folder", because=because),)
    folder = "/".join(part for part in (parent.rstrip("/"), job.metadata.namespace, job.metadata.name) if part)
    because = chosen.because(chosen.named.output)
    return folder, (Choice(field="spec.output.uri", value=folder, because=because),)
