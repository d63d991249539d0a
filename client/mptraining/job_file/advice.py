"""Advice on a resolved job before it starts, computed without a device.

Advice never refuses a job: rules and `resolve` refuse what cannot work.
"""

from __future__ import annotations

from collections.abc import Iterator

from mptraining_api import accelerators
from mptraining_api.pods.fields import claim_name
from mptraining_api.pods.images import has_moving_tag
from mptraining_api.resolve.batch_size import SCALING, scaling_rule, scaling_suggestion
from mptraining_api.resolved_job import ResolvedJob
from mptraining_api.spec import JobSpec

MOST = 6
# TF32 came with Ampere (NVIDIA A100 architecture whitepaper, 2020).
_TF32_CAPABILITY = 8.0
# Goyal et al. 2017 (arXiv:1706.02677) use warm-up whenever the rate is scaled; small factors do not need it.
_FACTOR_WITHOUT_WARMUP = 2.0


def advise(job: ResolvedJob) -> list[str]:
    """Return at most `MOST` short sentences, the costliest mistake first."""
    topics = (_interruption, _files, _precision, _learning_rate, _shapes, _metrics)
    return [sentence for topic in topics for sentence in topic(job)][:MOST]


def without_effect(spec: JobSpec, job: ResolvedJob) -> list[str]:
    """Return a sentence for each field of the spec that changes nothing in the job that it resolves to."""
    sentences = []
    if spec.scheduling is not None and job.workers == 1:
        sentences = [
            f"scheduling.{name}: {value} changes nothing for a job of one pod: leave it out, or take more workers."
            for name, value in (("gang", spec.scheduling.gang), ("topology", spec.scheduling.topology))
            if value in ("Coscheduling", "Volcano", "Pack")
        ]
    machines = [job.accelerator, *(alternative.accelerator for alternative in job.alternatives)]
    for index, machine in enumerate(machines[1:] if spec.accelerator.alternatives else ()):
        if (first := machines.index(machine)) <= index:
            same = f"alternatives[{first - 1}]" if first else "the first choice"
            sentences.append(f"accelerator.alternatives[{index}] is the same machine as {same}: remove it.")
    return sentences


def _interruption(job: ResolvedJob) -> Iterator[str]:
    is_spot = job.accelerator.provisioning == "Spot"
    if job.output is None and is_spot:
        yield "Spot without output.uri: whenever a machine is preempted, training starts again from the beginning."
    elif job.output is None:
        yield (
            "No output.uri: in a cluster nothing can be resumed, and the model has to be fetched within 600 s of the "
            "end."
        )
    elif job.training is None:
        yield "A script resumes from the last complete epoch, not from the step: keep epochs short."
    elif is_spot and job.checkpoint.every_steps is None:
        yield (
            "Spot leaves pods 15 s: what was trained since the last checkpoint (now the end of each "
            "epoch) is lost. Set checkpoint.everySteps to a few minutes' work."
        )


def _files(job: ResolvedJob) -> Iterator[str]:
    application = job.program.application
    if application is not None and application.weights == "imagenet":
        yield "weights: imagenet is downloaded by every pod: without internet, give the URI of a weights file."
    paths = [uri for uri in ((*job.data.train, *job.data.predict) if job.data else ()) if "://" not in uri]
    if paths and job.workers > 1:
        yield f"{paths[0]} is a path: the same files must be mounted in all {job.workers} pods."
    volumes = (job.pod_template and job.pod_template.volumes) or ()
    claim = next(filter(None, map(claim_name, volumes)), None)
    if claim and job.workers > 1:
        yield (
            f"All {job.workers} pods mount the claim {claim}: they start on different nodes only if its access "
            "mode is ReadWriteMany or ReadOnlyMany."
        )
    if job.image is not None and has_moving_tag(job.image):
        yield (
            f"podTemplate.image: {job.image} may be another image at each pull, and is pulled even if the node has it: "
            "name a version or a digest."
        )


def _precision(job: ResolvedJob) -> Iterator[str]:
    accelerator = accelerators.lookup(job.accelerator.type)
    title = accelerator.title
    match job.precision.policy, accelerator.kind:
        case "mixed_float16", "gpu" if job.precision.loss_scale_mode == "Fixed":
            yield "A fixed loss scale is not reduced on overflow: steps are skipped for as long as it is too high."
        case "mixed_float16", "gpu" if "mixed_bfloat16" not in accelerator.policies:
            yield f"{title} has no bfloat16. Under mixed_float16 a few skipped steps at the start are normal."
        case "mixed_float16", "cpu":
            # Measured on one AVX512 core with TensorFlow 2.21: 0.12 (convolutions) to 0.63 (dense) of float32's speed.
            yield "mixed_float16 is emulated on a CPU: a convolutional network ran 8 times slower than with float32."
        case "float32", "gpu" if (accelerator.compute_capability or 0.0) >= _TF32_CAPABILITY:
            yield (
                f"float32 on {title} multiplies in TF32 already; a mixed policy also halves the memory of activations."
            )
        case "float32", "gpu" if "mixed_float16" in accelerator.policies:
            yield f"float32 leaves the Tensor Cores of {title} idle; mixed_float16 uses them."
        case "float32", "tpu":
            yield f"float32 uses twice the memory traffic of mixed_bfloat16 on {title}."


def _learning_rate(job: ResolvedJob) -> Iterator[str]:
    training, factor, size = job.training, job.learning_rate.factor, job.per_replica_batch_size
    if training is None:
        return
    optimizer = training.optimizer.class_name if training.optimizer else None
    is_decided = any(choice.field == SCALING for choice in job.choices)
    # After a fallback to the CPU the number of replicas is not the one requested, so that this advice would be wrong.
    as_requested = job.accelerator.asked_for is None
    update = (size or 0) * job.replicas * training.gradient_accumulation_steps
    if size and update > size and factor == 1.0 and as_requested and not is_decided:
        written = scaling_suggestion(
            optimizer, size, update, steps_per_epoch=training.steps_per_epoch, total_steps=training.total_steps
        )
        yield (
            f"An update sees {update} examples, and the learning rate stays as written: if it was found for {size} on "
            f"one device, {written}."
        )
    is_linear = any(choice.because.startswith("Linear") for choice in job.choices)
    if factor != 1.0 and is_linear and optimizer and scaling_rule(optimizer) == "SquareRoot":
        yield f"rule: Linear is for SGD; {optimizer} wants SquareRoot."
    if factor > _FACTOR_WITHOUT_WARMUP and job.learning_rate.warmup_steps == 0:
        yield f"The learning rate is multiplied by {factor:g} at once: warmupSteps keeps the first steps stable."


def _shapes(job: ResolvedJob) -> Iterator[str]:
    """Yield advice on batches of a replica, those of an elastic job with all its workers, and on layers."""
    multiple, size = accelerators.lookup(job.accelerator.type).multiple, job.per_replica_batch_size
    # On TPUs the batch size per core should be a multiple of 8, features of 128 (Cloud TPU performance guide).
    if size is not None and size % min(multiple, 8):
        title = job.accelerator.title
        yield f"{size} examples per replica: {title} is fastest with a multiple of {min(multiple, 8)}."
    if job.program.function is not None and multiple > 1 and job.precision.policy != "float32":
        yield (
            f"Widths and channels that are multiples of {multiple} fill {job.accelerator.title}'s "
            "matrix units; the output layer need not be one."
        )
    if size is not None and size < 16 and job.replicas > 1:
        yield f"BatchNormalization sees the {size} examples of its own replica only."


def _metrics(job: ResolvedJob) -> Iterator[str]:
    if job.data is not None and not job.data.validation:
        yield "No data.validation: the metrics are those of the training data only."
    if job.data is not None and job.data.shuffle == "None":
        yield "data.shuffle None: records are seen in the order in which they are stored."
    if job.data is not None and job.data.shuffle == "Full" and job.data.cache != "Memory":
        yield (
            "data.shuffle Full reads every record by itself: records of less than 32 KiB in a bucket are read several "
            "times as fast in mode: Windowed."
        )
    if job.accelerator.asked_for is not None:
        yield f"On the CPU instead of {job.accelerator.asked_for}: speed and memory measured here say nothing about it."
