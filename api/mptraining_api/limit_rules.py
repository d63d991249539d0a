"""Administrator's limits on a job, and the text of a refusal."""

from __future__ import annotations

from collections.abc import Iterator

from mptraining_api.admin_limits import JobLimits
from mptraining_api.pods.images import is_in_registry, matches, parse_image, parse_location
from mptraining_api.problems import OutsideLimits
from mptraining_api.resolve.attempt import machines, possible_workers
from mptraining_api.resolve.runtime_settings import DEFAULT
from mptraining_api.resolve.runtimes import Runtimes
from mptraining_api.resolved_job import ResolvedJob
from mptraining_api.spec import MPTrainingJob

_ASK = "Ask the operator's administrator."


def check_limits(
    job: MPTrainingJob,
    resolved: ResolvedJob,
    runtimes: Runtimes,
    *,
    operator_namespace: str = "",
    operator_account: str = "",
) -> None:
    """Raise OutsideLimits, naming the limit, if the job can never be admitted, however long it waits.

    The limits are those of the job's runtime and of `default`. The workers are those of the resolved job. Images of a
    runtime are always allowed.
    """
    namespace, template = job.metadata.namespace, resolved.pod_template
    if operator_namespace and namespace == operator_namespace:
        mistake = f"{namespace!r} is the operator's own, with its account and its certificate"
        raise OutsideLimits("metadata.namespace", mistake, next_step="Make the job in another namespace.")
    account = template.service_account_name if template else None
    # An account of that name in another namespace is not this operator's, but most likely that of another operator.
    if operator_account and account == operator_account:
        step = "Name an account made for this job's data."
        where = "spec.podTemplate.serviceAccountName"
        raise OutsideLimits(where, f"{account!r} is the operator's own name", next_step=step)
    for name in dict.fromkeys((DEFAULT, resolved.runtime or DEFAULT)):
        if name in runtimes:
            _check(job, resolved, runtimes[name].limits, f"runtimes.{name}.limits")


def _check(job: MPTrainingJob, resolved: ResolvedJob, limits: JobLimits, name: str) -> None:
    """Raise OutsideLimits; `name` is the path of the limits in the operator's settings.

    Machines and images of a runtime are not checked.
    """
    accelerator = job.spec.accelerator
    for index, machine in enumerate([accelerator, *(accelerator.alternatives or ())]):
        if limits.accelerators and machine.type not in limits.accelerators:
            where = f"spec.accelerator{f'.alternatives[{index - 1}]' if index else ''}.type"
            expected = f"one of {', '.join(limits.accelerators)}"
            mistake = f"{machine.type!r} is outside {name}.accelerators"
            raise OutsideLimits(where, mistake, expected=expected, next_step=_ASK)
    lists = (("images", limits.images), ("registries", limits.registries))
    named = " and ".join(f"{name}.{field} ({', '.join(allowed)})" for field, allowed in lists if allowed)
    for field, text in _images(job) if named else ():
        try:
            image = parse_image(text)
        except ValueError:
            mistake = f"{text!r} is no image, such as registry.example.com/team/trainer:1"
            raise OutsideLimits(f"spec.{field}", mistake, next_step="Fix the name.") from None
        allowed = any(matches(image, parse_image(pattern)) for pattern in limits.images)
        if not allowed and not any(is_in_registry(image, parse_location(registry)) for registry in limits.registries):
            raise OutsideLimits(f"spec.{field}", f"{text!r} is outside {named}", next_step=_ASK)
    # An elastic job takes what the limits leave.
    elastic = resolved.workers_range is not None
    workers = possible_workers(resolved)[0] if elastic else max(attempt.workers for attempt in machines(resolved))
    for limit, most in (
        ("workersPerJob", limits.workers_per_job),
        ("workersPerNamespace", limits.workers_per_namespace),
    ):
        if most is not None and workers > most:
            where = f"spec.{'elastic.min' if elastic else 'workers'}"
            mistake = f"{workers} workers are more than {name}.{limit} allows"
            raise OutsideLimits(where, mistake, expected=f"at most {most}", next_step=_ASK)


def _images(job: MPTrainingJob) -> Iterator[tuple[str, str]]:
    """Yield the field and name of each image in the job: those of its containers and of image volumes."""
    template = job.spec.pod_template
    if template is None:
        return
    if template.image is not None:
        yield "podTemplate.image", template.image
    for index, container in enumerate(template.init_containers or ()):
        yield f"podTemplate.initContainers[{index}].image", container.image
    for index, volume in enumerate(template.volumes or ()):
        source = volume.get("image")
        if isinstance(source, dict):
            yield f"podTemplate.volumes[{index}].image.reference", str(source.get("reference") or "")
