"""`make sbom`: a bill of materials for each image, made of its locks, valid by CycloneDX's own schema."""

from __future__ import annotations

import json
import re
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from tests.left_out import leave_out

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / "build" / "sbom-tools" / "bin" / "python"
IMAGES = {
    "operator": ["operator"],
    "board": ["board"],
    **{f"trainer-{kind}": ["trainer", f"tensorflow-{kind}"] for kind in ("cpu", "gpu")},
}
IMAGES["trainer-tpu"] = ["trainer", "tensorflow-tpu"]
VALIDATE = (
    "import pathlib, sys; from cyclonedx.validation.json import JsonStrictValidator;"
    "from cyclonedx.schema import SchemaVersion;"
    "validator = JsonStrictValidator(SchemaVersion.V1_6);"
    "sys.exit('\\n'.join(str(wrong) for text in sys.argv[1:]"
    " if (wrong := validator.validate_str(pathlib.Path(text).read_text('utf-8')))) or 0)"
)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(PYTHON), *arguments], cwd=ROOT, capture_output=True, check=False, text=True, timeout=240)


@pytest.fixture(scope="module")
def bills(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not PYTHON.exists():
        leave_out("no build/sbom-tools: run `make sbom`")
    folder = tmp_path_factory.mktemp("sbom")
    done = run("-W", "error", "images/sbom.py", str(folder), "--metadata", sysconfig.get_path("purelib"))
    assert done.returncode == 0, done.stderr
    return folder


def read(folder: Path, image: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / f"{image}.cdx.json").read_text(encoding="utf-8"))
    return found


# Markers of other systems, and of later versions of Python.
_OTHERS = r"win32|Windows|Darwin|Emscripten|implementation_name == 'pypy'|python_full_version >="


def locked(image: str) -> dict[str, str]:
    """Names and versions on Linux with Python 3.11, read with other means than the bill's."""
    found = {}
    for lock in IMAGES[image]:
        text = (ROOT / "images" / f"{lock}.lock").read_text(encoding="utf-8")
        for name, version, marker in re.findall(r"^([\w.-]+)==(\S+)(?: ; (.*?))? \\$", text, re.MULTILINE):
            if not re.search(
                r"win32|Windows|Darwin|Emscripten|implementation_name == 'pypy'|python_full_version >=", marker
            ):
                found[name] = version
    return found


@pytest.mark.parametrize("image", IMAGES)
def test_every_package_of_the_locks_has_version_purl_and_hashes(bills: Path, image: str) -> None:
    bill = read(bills, image)
    assert {each["name"]: each["version"] for each in bill["components"]} == locked(image)
    texts = "".join((ROOT / "images" / f"{lock}.lock").read_text(encoding="utf-8") for lock in IMAGES[image])
    for each in bill["components"]:
        assert each["purl"] == f"pkg:pypi/{each['name']}@{each['version']}"
        (files,) = each["externalReferences"]
        assert files["hashes"]
        assert all(hash["alg"] == "SHA-256" and f"sha256:{hash['content']}" in texts for hash in files["hashes"])
    assert bill["metadata"]["component"]["name"] == f"mptraining/{image.partition('-')[0]}"


def test_the_bills_meet_cyclonedx_s_schema_and_a_wrong_one_would_not(bills: Path, tmp_path: Path) -> None:
    files = sorted(str(each) for each in bills.glob("*.cdx.json"))
    assert [Path(each).name for each in files] == [f"{image}.cdx.json" for image in sorted(IMAGES)]
    done = run("-c", VALIDATE, *files)
    assert done.returncode == 0, done.stderr
    wrong = read(bills, "operator")
    wrong["components"][0]["licence"] = "?"
    (tmp_path / "wrong.json").write_text(json.dumps(wrong))
    assert "licence" in run("-c", VALIDATE, str(tmp_path / "wrong.json")).stderr


_VALIDATE_SPDX = (
    "import sys; from spdx_tools.spdx.parser.parse_anything import parse_file;"
    "from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document;"
    "found = [str(wrong) for file in sys.argv[1:] for wrong in validate_full_spdx_document(parse_file(file))];"
    "sys.exit('\\n'.join(found) or 0)"
)


def test_the_spdx_form_is_valid_and_has_the_same_packages(bills: Path) -> None:
    done = run("-c", _VALIDATE_SPDX, str(bills / "operator.spdx.json"), str(bills / "trainer-gpu.spdx.json"))
    assert done.returncode == 0, done.stderr
    for image in IMAGES:
        document = json.loads((bills / f"{image}.spdx.json").read_text(encoding="utf-8"))
        assert document["spdxVersion"] == "SPDX-2.3"
        found = {
            each["externalRefs"][0]["referenceLocator"] for each in document["packages"] if each.get("externalRefs")
        }
        assert found == {each["purl"] for each in read(bills, image)["components"]}
        declared = {each["name"]: each.get("licenseDeclared") for each in document["packages"]}
        assert image != "operator" or (declared["kopf"], declared["certifi"]) == ("MIT", "MPL-2.0")


def test_the_dependency_that_adds_a_package_is_recorded(bills: Path) -> None:
    bill = read(bills, "operator")
    known = {each["bom-ref"] for each in bill["components"]}
    edges = {each["ref"]: set(each.get("dependsOn", ())) for each in bill["dependencies"]}
    names = {ref.removeprefix("pkg:pypi/").partition("@")[0] for ref in edges["image"]}
    assert {"kopf", "kubernetes", "aiohttp", "pydantic"} <= names
    assert any(ref.startswith("pkg:pypi/multidict@") for ref in edges[next(e for e in known if "/aiohttp@" in e)])
    # Every package of an image is a dependency of another or of the image.
    assert set().union(*edges.values()) == known


@pytest.mark.parametrize(("image", "most"), [("operator", 0), ("board", 0), ("trainer-cpu", 2)])
def test_licences_are_known_where_the_packages_are_installed_here(bills: Path, image: str, most: int) -> None:
    unknown = [each["name"] for each in read(bills, image)["components"] if not each.get("licenses")]
    assert len(unknown) <= most, unknown


def test_the_same_locks_make_the_same_bytes(bills: Path, tmp_path: Path) -> None:
    assert run("images/sbom.py", str(tmp_path), "--metadata", sysconfig.get_path("purelib")).returncode == 0
    for file in bills.iterdir():
        assert (tmp_path / file.name).read_bytes() == file.read_bytes()


def test_without_hashes_nothing_is_written() -> None:
    program = (
        "import sys; sys.path.insert(0, 'images'); import sbom;"
        "print([each.name for each in sbom.entries('a==1 \\\\\\n    --hash=sha256:' + '0' * 64)]);"
        "list(sbom.entries('b==1\\n    # via a'))"
    )
    done = run("-c", program)
    assert done.stdout == "['a']\n", done.stderr
    assert "'b==1': expected NAME==VERSION with SHA-256 hashes. Run `make lock`." in done.stderr
