"""The layout of the tree that neither Python nor a reader misinterprets."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
SOURCE_ROOTS = ("api", "operator", "trainer", "client")
# The folders that test, measure and build the product.
TOOLS = ("hack", "tests/soak", "tests/testbed")
SAYS_NOTHING = {"utils", "util", "helpers", "helper", "common", "misc", "manager", "managers"}
# Written in two halves, so that this file does not match itself.
FORBIDDEN = (
    *("/" + "work/", "/" + "root/"),
    *("pypi" + ".org", "pythonhosted" + ".org", "proxy.golang" + ".org", "sum.golang" + ".org"),
    *("registry.npmjs" + ".org", "conda.anaconda" + ".org"),
)


def packages() -> list[Path]:
    """Return the folders with modules, without those that contain only their marker file."""
    found = (folder for root in SOURCE_ROOTS for folder in sorted((ROOT / root).glob("mptraining*")))
    return [folder for folder in found if any(folder.glob("*.py"))]


def modules() -> list[Path]:
    return [path for folder in packages() for path in sorted(folder.rglob("*.py"))]


def tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True).stdout
    return [path for name in listed.split("\0") if name and (path := ROOT / name).is_file()]


def test_a_source_root_is_no_package() -> None:
    # With an __init__.py, `operator` would hide the standard library's for everything started in this folder.
    found = [ROOT / root / "__init__.py" for root in SOURCE_ROOTS]
    assert [path for path in found if path.exists()] == []
    # The tools under tests/ are packages; the tests are not.
    of_tools = [ROOT / tool for tool in TOOLS if tool.startswith("tests/")]
    found = [path for path in (ROOT / "tests").rglob("__init__.py") if not any(map(path.is_relative_to, of_tools))]
    assert found == []
    assert [path for path in (*modules(), *(ROOT / "tests").rglob("*.py")) if path.name == "operator.py"] == []
    assert [path for path in modules() if path.stem in SAYS_NOTHING] == []


def test_python_works_in_this_folder() -> None:
    # Its folder `operator` must not stand for the module of that name, which the interpreter and `-m` import.
    code = "import collections, operator; assert operator.add(1, 2) == 3; import runpy, sys"
    code += "\nsys.argv = ['pytest', '--version']; runpy.run_module('pytest', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=False, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("pytest"), done.stderr


def folders() -> list[Path]:
    found = {path.parent for root in TOOLS for path in (ROOT / root).rglob("*.py")}
    # Modules in `site` replace third-party ones, whose names and places they have.
    return sorted({path.parent for path in modules()} | {path for path in found if "site" not in path.parts})


def test_a_folder_says_what_it_is_for() -> None:
    for folder in folders():
        assert ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))), folder


def test_no_file_names_a_place_of_one_machine() -> None:
    found = []
    for path in tracked():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found += [f"{path.relative_to(ROOT)}: {each}" for each in FORBIDDEN if each in text]
    assert found == []


def test_a_public_function_is_no_module_of_the_same_name() -> None:
    # An imported module becomes an attribute of its package, in place of the function.
    names = "attach, compare, load_run, run_local, submit"
    code = f"import mptraining; from mptraining import {names}; print([callable(each) for each in ({names})])"
    code += f"\nprint([callable(getattr(mptraining, each)) for each in {names.split(', ')}])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=False, text=True)
    assert done.stdout == 2 * f"{5 * [True]}\n", done.stderr
