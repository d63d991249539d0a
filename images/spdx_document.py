"""A bill of materials as SPDX 2.3: the same packages, licences and hashes as its CycloneDX form."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from io import StringIO

from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component
from license_expression import ExpressionError
from spdx_tools.common.spdx_licensing import spdx_licensing
from spdx_tools.spdx.model import (
    Actor,
    ActorType,
    CreationInfo,
    Document,
    ExternalPackageRef,
    ExternalPackageRefCategory,
    Package,
    PackagePurpose,
    Relationship,
    RelationshipType,
    SpdxNoAssertion,
)
from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document
from spdx_tools.spdx.writer.json.json_writer import write_document_to_stream

_ID = "SPDXRef-DOCUMENT"
_VERSION = "SPDX-2.3"


def spdx_text(bom: Bom) -> str:
    """The document as JSON. Raises ValueError where spdx-tools finds it invalid. The same bill gives the same bytes."""
    root = bom.metadata.component
    assert root is not None
    names = {component: f"SPDXRef-Package-{component.name.replace('_', '-')}" for component in bom.components}
    image = Package(
        spdx_id="SPDXRef-Image",
        name=root.name,
        version=root.version,
        download_location=SpdxNoAssertion(),
        files_analyzed=False,
        primary_package_purpose=PackagePurpose.CONTAINER,
    )
    parts = [_package(component, name) for component, name in sorted(names.items(), key=lambda each: each[1])]
    contains = [Relationship(image.spdx_id, RelationshipType.CONTAINS, part.spdx_id) for part in parts]
    by_reference = {component.bom_ref: name for component, name in names.items()}
    requires = [
        Relationship(by_reference[each.ref], RelationshipType.DEPENDS_ON, by_reference[needed.ref])
        for each in sorted(bom.dependencies, key=lambda each: str(each.ref))
        if each.ref in by_reference
        for needed in sorted(each.dependencies, key=lambda each: str(each.ref))
    ]
    about = CreationInfo(
        spdx_version=_VERSION,
        spdx_id=_ID,
        name=f"{root.name}:{root.version}",
        document_namespace=f"https://spdx.org/spdxdocs/{root.name.replace('/', '-')}-{bom.serial_number}",
        creators=[Actor(ActorType.TOOL, "mptraining-sbom")],
        # The same locks are the same bill, whenever it is written.
        created=datetime(1970, 1, 1, tzinfo=UTC).replace(tzinfo=None),
    )
    described = Relationship(_ID, RelationshipType.DESCRIBES, image.spdx_id)
    document = Document(about, packages=[image, *parts], relationships=[described, *contains, *requires])
    wrong = validate_full_spdx_document(document, _VERSION)
    if wrong:
        raise ValueError(f"not {_VERSION}: {wrong[0].validation_message}")
    text = StringIO()
    write_document_to_stream(document, text, validate=False)
    return json.dumps(json.loads(text.getvalue()), indent=1) + "\n"


def _package(component: Component, name: str) -> Package:
    [files] = component.external_references
    hashes = ", ".join(sorted(each.content for each in files.hashes))
    told = " AND ".join(sorted(_told(each) for each in component.licenses))
    try:
        declared = spdx_licensing.parse(told, validate=True) if told else SpdxNoAssertion()
    except ExpressionError:
        # A name that is in no list of SPDX, such as "BSD License".
        declared = SpdxNoAssertion()
    return Package(
        spdx_id=name,
        name=component.name,
        version=component.version,
        download_location=SpdxNoAssertion(),
        files_analyzed=False,
        license_concluded=SpdxNoAssertion(),
        license_declared=declared,
        license_comment=told or None,
        # One package has one checksum in SPDX; a lock accepts the files of several platforms.
        comment=f"SHA-256 of each file that the lock accepts: {hashes}",
        external_references=[
            ExternalPackageRef(ExternalPackageRefCategory.PACKAGE_MANAGER, "purl", str(component.purl))
        ],
    )


def _told(license: object) -> str:
    return str(getattr(license, "value", None) or getattr(license, "id", None) or getattr(license, "name", ""))
