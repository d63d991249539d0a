"""Administrator's limits as rules: a predicate for the operator and the text of a refusal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from mptraining_api.admin_limits import JobLimits, RuntimeLimits
from mptraining_api.pods.images import is_in_registry, matches, parse_image, parse_location
from mptraining_api.problems import OutsideLimits
from mptraining_api.resolve.attempt import machines, possible_nodes
from mptraining_api.resolved_job import ResolvedJob
from mptraining_api.spec import Machine, MPTrainingJob

_ASK = "Ask the operator's administrator."


@dataclass(frozen=True, slots=True)
class Candidate:
    """A job that is to start, and what limits it; `name` is the path of the limits in the operator's settings."""

    job: MPTrainingJob
    resolved: ResolvedJob
    limits: JobLimits
    name: str = "limits"
    operator_namespace: str = ""
    operator_account: str = ""


# The words of a refusal, by their names in braces.
Words = dict[str, str]


@dataclass(frozen=True, slots=True)
class LimitRule:
    """`refused` returns the words of a refusal, which the texts name in braces; None inside the limit.

    `where`, `found`, `expected` and `next_step` are those of OutsideLimits.
    """

    where: str
    found: str
    next_step: str
    refused: Callable[[Candidate], Words | None]
    expected: str = ""

    def problem(self, words: Words) -> OutsideLimits:
        """Return the exception with the words in place of their names."""
        return OutsideLimits(
            self.where.format(**words),
            self.found.format(**words),
            expected=self.expected.format(**words),
            next_step=self.next_step.format(**words),
        )


def check_limits(
    job: MPTrainingJob,
    resolved: ResolvedJob,
    limits: JobLimits,
    *,
    runtime_limits: RuntimeLimits | None = None,
    operator_namespace: str = "",
    operator_account: str = "",
) -> None:
    """Raise OutsideLimits, naming the limit, if the job can never be admitted, however long it waits.

    The nodes are those of the resolved job. The operator's own default images are always allowed.
    """
    candidate = Candidate(
        job, resolved, limits, operator_namespace=operator_namespace, operator_account=operator_account
    )
    candidates = [candidate]
    if runtime_limits is not None and resolved.runtime is not None:
        own = JobLimits(**{name: getattr(runtime_limits, name) for name in RuntimeLimits.model_fields})
        candidates.append(replace(candidate, limits=own, name=f"runtimes.{resolved.runtime.name}.limits"))
    for each in candidates:
        for rule in LIMIT_RULES:
            words = rule.refused(each)
            if words is not None:
                raise rule.problem(words)


def _machines(candidate: Candidate) -> Iterator[tuple[str, Machine]]:
    """Yield the field and each machine that the job names; those of its runtime are left out, not refused."""
    accelerator = candidate.job.spec.accelerator
    yield "accelerator", accelerator
    for index, machine in enumerate(accelerator.alternatives or ()):
        yield f"accelerator.alternatives[{index}]", machine


def _own_namespace(candidate: Candidate) -> Words | None:
    namespace = candidate.job.metadata.namespace
    refused = candidate.operator_namespace and namespace == candidate.operator_namespace
    return {"namespace": str(namespace)} if refused else None


def _own_account(candidate: Candidate) -> Words | None:
    runtime = candidate.resolved.runtime
    template = runtime.pod_template if runtime else candidate.job.spec.pod_template
    account = template.service_account_name if template else None
    # An account of that name in another namespace is not this operator's, but most likely that of another operator.
    refused = candidate.operator_account and account == candidate.operator_account
    return {"account": str(account)} if refused else None


def _accelerator(candidate: Candidate) -> Words | None:
    allowed = candidate.limits.accelerators
    for field, machine in _machines(candidate):
        if allowed and machine.type not in allowed:
            words = {"machineField": field, "type": machine.type, "accelerators": ", ".join(allowed)}
            return {**words, "limits": candidate.name}
    return None


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


def _no_image(candidate: Candidate) -> Words | None:
    if not candidate.limits.images and not candidate.limits.registries:
        return None
    for field, text in _images(candidate.job):
        try:
            parse_image(text)
        except ValueError:
            return {"badField": field, "badImage": text}
    return None


def _image(candidate: Candidate) -> Words | None:
    limits = candidate.limits
    lists = (("images", limits.images), ("registries", limits.registries))
    named = " and ".join(f"{candidate.name}.{name} ({', '.join(allowed)})" for name, allowed in lists if allowed)
    if not named:
        return None
    for field, text in _images(candidate.job):
        image = parse_image(text)
        allowed = any(matches(image, parse_image(each)) for each in limits.images)
        if not allowed and not any(is_in_registry(image, parse_location(each)) for each in limits.registries):
            return {"imageField": field, "image": text, "imageLimits": named}
    return None


def _nodes(name: str, most: Callable[[JobLimits], int | None]) -> LimitRule:
    def refused(candidate: Candidate) -> Words | None:
        limit = most(candidate.limits)
        # An elastic job takes what the limits leave.
        least = possible_nodes(candidate.resolved)[0] if candidate.resolved.nodes_range else None
        nodes = max(attempt.processes for attempt in machines(candidate.resolved)) if least is None else least
        if limit is None or nodes <= limit:
            return None
        where = "nodes" if least is None else "elastic.min"
        return {f"{name}Field": where, f"{name}Found": str(nodes), name: str(limit), "limits": candidate.name}

    return LimitRule(
        where=f"spec.{{{name}Field}}",
        found=f"{{{name}Found}} nodes are more than {{limits}}.{name} allows",
        expected=f"at most {{{name}}}",
        next_step=_ASK,
        refused=refused,
    )


LIMIT_RULES = (
    LimitRule(
        where="metadata.namespace",
        found="'{namespace}' is the operator's own, with its account and its certificate",
        next_step="Make the job in another namespace.",
        refused=_own_namespace,
    ),
    LimitRule(
        where="spec.podTemplate.serviceAccountName",
        found="'{account}' is the operator's own name",
        next_step="Name an account made for this job's data.",
        refused=_own_account,
    ),
    LimitRule(
        where="spec.{machineField}.type",
        found="'{type}' is outside {limits}.accelerators",
        expected="one of {accelerators}",
        next_step=_ASK,
        refused=_accelerator,
    ),
    LimitRule(
        where="spec.{badField}",
        found="'{badImage}' is no image, such as registry.example.com/team/trainer:1",
        next_step="Fix the name.",
        refused=_no_image,
    ),
    LimitRule(where="spec.{imageField}", found="'{image}' is outside {imageLimits}", next_step=_ASK, refused=_image),
    _nodes("nodesPerJob", lambda limits: limits.nodes_per_job),
    _nodes("nodesPerNamespace", lambda limits: limits.nodes_per_namespace),
)
