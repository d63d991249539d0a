"""Licences of the packages in the images' bills of materials, against a list of allowed ones."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

# Without duties beyond a notice, or (MPL) with duties on changes of its own files alone.
ALLOWED = frozenset(
    (
        *("0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "ISC", "MIT", "MIT-0", "MIT-CMU"),
        *("MPL-2.0", "PSF-2.0", "Unlicense", "Zlib"),
    )
)
# What packages write that name no identifier of SPDX, in lower case.
_NAMES = {
    "3-clause bsd license": "BSD-3-Clause",
    "apache 2.0": "Apache-2.0",
    "apache license 2.0": "Apache-2.0",
    "apache license version 2.0": "Apache-2.0",
    "apache software license": "Apache-2.0",
    # Of two or three clauses: both are allowed.
    "bsd": "BSD-3-Clause",
    "bsd 3-clause": "BSD-3-Clause",
    "bsd license": "BSD-3-Clause",
    "isc license": "ISC",
    "mit license": "MIT",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
}


@dataclass(frozen=True)
class Finding:
    """A package whose licence is not allowed; empty if it states none."""

    package: str
    license: str
    images: tuple[str, ...]


def stated(component: Mapping[str, Any]) -> str:
    """Return the licence of a component of a CycloneDX bill as one expression; empty if there is none."""
    found = []
    for each in component.get("licenses", ()):
        text = each.get("expression") or each["license"].get("id") or each["license"]["name"]
        found.append(_NAMES.get(text.lower(), text))
    # Two classifiers are two licences that both hold.
    return " AND ".join(found)


def is_allowed(expression: str) -> bool:
    """Return whether every part joined by AND has an allowed alternative."""
    parts = re.split(r"\s+AND\s+", expression.replace("(", "").replace(")", ""))
    return bool(expression) and all(
        any(each.strip() in ALLOWED for each in re.split(r"\s+OR\s+", part)) for part in parts
    )


def check(bills: Mapping[str, Mapping[str, Any]], exceptions: Iterable[str]) -> tuple[list[Finding], list[str]]:
    """Return the findings of all images, and the exceptions that no package needs; `*` in them is any text."""
    of_package: dict[tuple[str, str], list[str]] = {}
    for image, bill in bills.items():
        for component in bill["components"]:
            of_package.setdefault((component["name"], stated(component)), []).append(image)
    refused = {key: images for key, images in of_package.items() if not is_allowed(key[1])}
    known = {each: re.compile(re.escape(each).replace(r"\*", ".*")) for each in exceptions}
    findings = [
        Finding(package, license, tuple(images))
        for (package, license), images in sorted(refused.items())
        if not any(pattern.fullmatch(package) for pattern in known.values())
    ]
    unused = [each for each, pattern in known.items() if not any(pattern.fullmatch(name) for name, _ in refused)]
    return findings, unused
