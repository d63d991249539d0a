"""Advice on a resolved job before it starts, computed without a device.

Advice never refuses a job: rules and `resolve` refuse what cannot work.
"""

from __future__ import annotations

from collections.abc import Iterator

from mptraining_api import accelerators
from mptraining_api.pods.images import has_moving_tag
from mptraining_api.resolve.attempt import divisors, possible_workers
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
    sentences = [
        *_interruption(job),
        *_one_size(job),
        *_file_locations(job),
        *_image(job),
        *_precision(job),
        *_learning_rate(job),
        *_shapes(job),
        *_metrics(job),
    ]
    return sentences[:MOST]


def without_effect(spec: JobSpec, job: ResolvedJob) -> list[str]:
    """Return a sentence for each field of the spec that changes nothing in the job that it resolves to."""
    sentences = []
    scheduling = spec.scheduling
    if scheduling is not None and job.workers == 1:
        fields = {"gang": scheduling.gang, "topology": scheduling.topology}
        sentences += [
            f"scheduling.{name}: {value} changes nothing for a job of one pod: leave it out, or take more workers."
            for name, value in fields.items()
            if value in ("Coscheduling", "Volcano", "Pack")
        ]
    machines = [job.accelerator, *(each.accelerator for each in job.alternatives)]
    for index, machine in enumerate(machines[1:] if spec.accelerator.alternatives else ()):
        if (first := machines.index(machine)) <= index:
            same = f"alternatives[{first - 1}]" if first else "the first choice"
            sentences.append(f"accelerator.alternatives[{index}] is the same machine as {same}: remove it.")
    if spec.runtime in ("null", "none") and job.runtime is None:
        sentences.append(
            f'runtime: "{spec.runtime}" names a runtime of the cluster: write runtime: None for none, or leave it out '
            "for that of the namespace."
        )
    return sentences


def _interruption(job: ResolvedJob) -> Iterator[str]:
    spot = job.accelerator.provisioning == "Spot"
    script = job.training is None
    if job.output is None:
        if spot:
            yield (
                "Spot without output.uri: whenever a machine is preempted, training starts again from the beginning."
            )
        else:
            yield (
                "No output.uri: in a cluster nothing can be resumed, and the model has to be fetched within 600 s of "
                "the end."
            )
        return
    if script:
        yield "A script resumes from the last complete epoch, not from the step: keep epochs short."
    elif spot and job.checkpoint.every_steps is None:
        yield (
            "Spot leaves pods 15 s: what was trained since the last checkpoint (now the end of each "
            "epoch) is lost. Set checkpoint.everySteps to a few minutes' work."
        )


def _one_size(job: ResolvedJob) -> Iterator[str]:
    if job.workers_range is None or len(possible_workers(job)) > 1:
        return
    least, most = job.workers_range.min, job.workers_range.max
    fewer = divisors(1, least - 1, job.replicas_per_worker, job.global_batch_size)
    since = "" if least == most else f", {most}, since the others cannot share {job.global_batch_size} examples evenly"
    wider = f"min: {fewer[-1]}" if fewer else "a larger max"
    yield f"elastic: {{min: {least}, max: {most}}} has one number of workers{since}: write workers: {most}, or {wider}."


def _file_locations(job: ResolvedJob) -> Iterator[str]:
    application = job.program.application
    if application is not None and application.weights == "imagenet":
        yield ("weights: imagenet is downloaded by every pod: without internet, give the URI of a weights file.")
    paths = [uri for uri in ((*job.data.train, *job.data.predict) if job.data else ()) if "://" not in uri]
    if paths and job.workers > 1:
        yield f"{paths[0]} is a path: the same files must be mounted in all {job.workers} pods."


def _image(job: ResolvedJob) -> Iterator[str]:
    if job.image is not None and has_moving_tag(job.image):
        yield (
            f"podTemplate.image: {job.image} may be another image at each pull, and is pulled even if the node has it: "
            "name a version or a digest."
        )


def _precision(job: ResolvedJob) -> Iterator[str]:
    accelerator = accelerators.lookup(job.accelerator.type)
    policy, title = job.precision.policy, accelerator.title
    capability = accelerator.compute_capability or 0.0
    if policy == "mixed_float16" and accelerator.kind == "gpu":
        if job.precision.loss_scale_mode == "Fixed":
            yield ("A fixed loss scale is not reduced on overflow: steps are skipped for as long as it is too high.")
        elif "mixed_bfloat16" not in accelerator.policies:
            yield f"{title} has no bfloat16. Under mixed_float16 a few skipped steps at the start are normal."
    if policy == "mixed_float16" and accelerator.kind == "cpu":
        # Measured on one AVX512 core with TensorFlow 2.21: 0.12 (convolutions) to 0.63 (dense) of float32's speed.
        yield ("mixed_float16 is emulated on a CPU: a convolutional network ran 8 times slower than with float32.")
    if policy == "float32" and accelerator.kind == "gpu":
        if capability >= _TF32_CAPABILITY:
            yield (
                f"float32 on {title} multiplies in TF32 already; a mixed policy also halves the memory of activations."
            )
        elif "mixed_float16" in accelerator.policies:
            yield f"float32 leaves the Tensor Cores of {title} idle; mixed_float16 uses them."
    if policy == "float32" and accelerator.kind == "tpu":
        yield f"float32 uses twice the memory traffic of mixed_bfloat16 on {title}."


def _learning_rate(job: ResolvedJob) -> Iterator[str]:
    factor = job.learning_rate.factor
    if job.training is None:
        return
    decided = any(choice.field == SCALING for choice in job.choices)
    # After a fallback to the CPU the number of replicas is not the one requested, so that this advice would be wrong.
    as_requested = job.accelerator.asked_for is None
    size, accumulated = job.per_replica_batch_size, job.training.gradient_accumulation_steps
    if size and job.replicas * accumulated > 1 and factor == 1.0 and as_requested and not decided:
        update = size * job.replicas * accumulated
        optimizer = job.training.optimizer.class_name if job.training.optimizer else None
        written = scaling_suggestion(
            optimizer, size, update, steps_per_epoch=job.training.steps_per_epoch, total_steps=job.training.total_steps
        )
        yield (
            f"An update sees {update} examples, and the learning rate stays as written: if it was found for {size} on "
            f"one device, {written}."
        )
    rule = job.training.optimizer and scaling_rule(job.training.optimizer.class_name)
    if factor != 1.0 and rule == "SquareRoot" and any(choice.because.startswith("Linear") for choice in job.choices):
        assert job.training.optimizer is not None
        yield f"rule: Linear is for SGD; {job.training.optimizer.class_name} wants SquareRoot."
    if factor > _FACTOR_WITHOUT_WARMUP and job.learning_rate.warmup_steps == 0:
        yield (f"The learning rate is multiplied by {factor:g} at once: warmupSteps keeps the first steps stable.")


def _shapes(job: ResolvedJob) -> Iterator[str]:
    multiple = accelerators.lookup(job.accelerator.type).multiple
    # On TPUs the batch size per core should be a multiple of 8, features of 128 (Cloud TPU performance guide).
    batch_multiple = min(multiple, 8)
    batches = _batches(job)
    uneven = [(size, workers) for workers, size in batches.items() if size % batch_multiple]
    if uneven:
        (size, workers), *others = uneven
        found = f"{size} examples per replica{_with_workers(job, workers)}"
        found += "".join(f", {size} with {workers}" for size, workers in others)
        yield f"{found}: {job.accelerator.title} is fastest with a multiple of {batch_multiple}."
    if job.program.function is not None and multiple > 1 and job.precision.policy != "float32":
        yield (
            f"Widths and channels that are multiples of {multiple} fill {job.accelerator.title}'s "
            "matrix units; the output layer need not be one."
        )
    workers, size = next(iter(batches.items()), (0, 16))
    if size < 16 and job.replicas > 1:
        where = _with_workers(job, workers)
        yield f"BatchNormalization sees the {size} examples of its own replica only{where and f',{where}'}."


def _batches(job: ResolvedJob) -> dict[int, int]:
    """Return the examples per replica by the number of workers, the most workers first; empty for scripts."""
    total = job.global_batch_size
    if total is None:
        return {}
    if job.workers_range is None:
        return {job.workers: total // job.replicas}
    return {workers: total // (workers * job.replicas_per_worker) for workers in reversed(possible_workers(job))}


def _with_workers(job: ResolvedJob, workers: int) -> str:
    return "" if job.workers_range is None else f" with {workers} worker{'s' * (workers > 1)}"


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
        yield (
            f"On the CPU instead of {job.accelerator.asked_for}: speed and memory measured here say nothing about it."
        )
