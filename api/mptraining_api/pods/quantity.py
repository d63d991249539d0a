"""Kubernetes' quantities, such as 8, "500m" and "16Gi", and requests above their limits."""

from __future__ import annotations

import re
from fractions import Fraction

from mptraining_api.pods.fields import PodTemplate, Resources
from mptraining_api.problems import InvalidSpec

_QUANTITY = re.compile(r"([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))(?:([KMGTPE]i)|([numkMGTPE])|[eE]([+-]?[0-9]{1,2}))?")
_BINARY: dict[str, int] = {f"{letter}i": 1024**power for power, letter in enumerate("KMGTPE", start=1)}
_DECIMAL = {
    letter: Fraction(1000) ** power for letter, power in zip("numkMGTPE", (-3, -2, -1, 1, 2, 3, 4, 5, 6), strict=True)
}


def amount(quantity: int | str) -> Fraction | None:
    """Return the number of a quantity; None if it is none."""
    found = _QUANTITY.fullmatch(str(quantity))
    if found is None:
        return None
    number, binary, decimal, exponent = found.groups()
    scale = _BINARY.get(binary, 1) * _DECIMAL.get(decimal, Fraction(1))
    return Fraction(number) * scale * Fraction(f"1e{exponent or 0}")


def check_requests(template: PodTemplate | None, own: PodTemplate | None = None, runtime: str = "") -> None:
    """Raise InvalidSpec for a container with a request above its limit, which the API server refuses in a pod.

    `template` is what `own`, that of the job, and the one of the runtime make together. It is no rule of the CRD: a
    comparison of quantities in CEL is beyond the API server's budget of cost.
    """
    if template is None:
        return
    written = _resources(own if runtime else template)
    for container, (_, resources) in _resources(template).items():
        for name, request, limit in _above_limits(resources):
            field, given = written.get(container, ("", Resources()))
            asked, limited = name in (given.requests or {}), name in (given.limits or {})
            theirs = f" from the runtime {runtime}"
            if asked:
                raise InvalidSpec(
                    f"spec.podTemplate.{field}.requests.{name}",
                    f"{request}, above limits.{name}: {limit}{'' if limited else theirs}",
                    expected="no request above its limit",
                    next_step="Raise the limit, or lower the request.",
                )
            if limited:
                raise InvalidSpec(
                    f"spec.podTemplate.{field}.limits.{name}",
                    f"{limit}, below requests.{name}: {request}{theirs}",
                    expected="no limit below its request",
                    next_step=f"Raise the limit, or give requests.{name} too.",
                )
            raise InvalidSpec(
                "spec.runtime",
                f"the runtime {runtime} has requests.{name}: {request} above limits.{name}: {limit}"
                + (f" in its init container {container}" if container else ""),
                expected="no request above its limit",
                next_step="The owner of the cluster corrects the runtime; another one may do until then.",
            )


def _resources(template: PodTemplate | None) -> dict[str, tuple[str, Resources]]:
    """Return field and resources of each init container by its name, and of the trainer's container by no name."""
    if template is None:
        return {}
    found = {"": ("resources", template.resources or Resources())}
    for index, each in enumerate(template.init_containers or ()):
        found[each.name] = (f"initContainers[{index}].resources", each.resources or Resources())
    return found


def _above_limits(resources: Resources) -> list[tuple[str, int | str, int | str]]:
    """Return names, requests and limits; what is no quantity is left to the API server."""
    found = []
    for name, request in (resources.requests or {}).items():
        limit = (resources.limits or {}).get(name, "")
        wanted, most = amount(request), amount(limit)
        if wanted is not None and most is not None and wanted > most:
            found.append((name, request, limit))
    return found
