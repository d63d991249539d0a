"""Bills of materials as SPDX 2.3, out of the CycloneDX documents that `make sbom` writes. Pure.

https://spdx.github.io/spdx-spec/v2.3/
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_NOT_SAID = "NOASSERTION"
_DOCUMENT = "SPDXRef-DOCUMENT"


def spdx(bill: Mapping[str, Any]) -> dict[str, Any]:
    """Return the SPDX document with the packages and dependencies of a CycloneDX document."""
    root = bill["metadata"]["component"]
    parts = [root, *sorted(bill.get("components", ()), key=lambda each: str(each["bom-ref"]))]
    identifiers = {str(each["bom-ref"]): _identifier(each) for each in parts}
    depends = [
        {
            "spdxElementId": identifiers[each["ref"]],
            "relationshipType": "DEPENDS_ON",
            "relatedSpdxElement": identifiers[other],
        }
        for each in sorted(bill.get("dependencies", ()), key=lambda each: str(each["ref"]))
        for other in sorted(each.get("dependsOn", ()))
        if each["ref"] in identifiers and other in identifiers
    ]
    describes = {
        "spdxElementId": _DOCUMENT,
        "relationshipType": "DESCRIBES",
        "relatedSpdxElement": identifiers[str(root["bom-ref"])],
    }
    return {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": _DOCUMENT,
        "name": f"{root['name']}:{root['version']}",
        "documentNamespace": f"https://mptraining.dev/spdx/{str(bill['serialNumber']).removeprefix('urn:uuid:')}",
        "creationInfo": {
            "created": _seconds(bill["metadata"]["timestamp"]),
            "creators": ["Tool: mptraining-release"],
        },
        "packages": [_package(each, identifiers[str(each["bom-ref"])]) for each in parts],
        "relationships": [describes, *depends],
    }


def _package(part: Mapping[str, Any], identifier: str) -> dict[str, Any]:
    made: dict[str, Any] = {
        "SPDXID": identifier,
        "name": part["name"],
        "versionInfo": part.get("version", ""),
        "downloadLocation": _NOT_SAID,
        "filesAnalyzed": False,
        "licenseConcluded": _NOT_SAID,
        "licenseDeclared": _license(part),
        "copyrightText": _NOT_SAID,
    }
    if "purl" in part:
        made["externalRefs"] = [
            {"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": part["purl"]}
        ]
    return made


def _license(part: Mapping[str, Any]) -> str:
    """SPDX's own identifiers and expressions; a name of another kind is no licence that SPDX knows."""
    told = [each.get("expression") or each.get("license", {}).get("id", "") for each in part.get("licenses", ())]
    if not told or not all(told):
        return _NOT_SAID
    return told[0] if len(told) == 1 else " AND ".join(f"({each})" if " " in each else each for each in told)


def _identifier(part: Mapping[str, Any]) -> str:
    return "SPDXRef-" + re.sub(r"[^A-Za-z0-9.-]+", "-", f"{part['name']}-{part.get('version', '')}").strip("-")


def _seconds(timestamp: str) -> str:
    """SPDX takes whole seconds in UTC."""
    return re.sub(r"(\.\d+)?(\+00:00|Z)$", "Z", timestamp)
