"""Private names of other packages are in one module, which has a contract test for each."""

from __future__ import annotations

import ast
from pathlib import Path

import mptraining_trainer

ROOT = Path(mptraining_trainer.__file__).parent
# Not of Keras or TensorFlow; `average_models` is also part of exports, which import nothing of the trainer.
OTHERS = {"_asdict", "_exit", "_fields", "_getframe", "_name", "_try_run_and_update_trial", "_"}


def private_names(module: Path) -> list[str]:
    """Return attributes and texts of private names, with their lines; those of `self` are the module's own."""
    found = []
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute):
            is_own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            name = "" if is_own else node.attr
        else:
            name = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
        if name.startswith("_") and name.isidentifier() and not name.startswith("__") and name not in OTHERS:
            found.append(f"{module.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}: {name}")
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(
            ("keras.src", "tf_keras.src", "tensorflow.python")
        ):
            found.append(f"{module.relative_to(ROOT)}:{node.lineno}: {node.module}")
    return found


def test_only_keras_internals_uses_private_names() -> None:
    modules = [module for module in ROOT.rglob("*.py") if module.name != "keras_internals.py"]
    assert [line for module in modules for line in private_names(module)] == []
    assert len(private_names(ROOT / "keras_internals.py")) > 50
