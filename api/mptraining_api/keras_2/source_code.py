"""Static detection of Keras 2 code (TensorFlow up to 2.15), requirements and images, which need `keras: Legacy`.

Each sign is code that Keras 3 refuses and tf_keras 2.21 accepts; tests/e2e/trainer/test_keras_of_script.py runs them
under both. The source is parsed, not imported or executed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from mptraining_api.keras_2.names import (
    CLASS_ARGUMENTS,
    KERAS_2_ONLY,
    KERAS_3_ONLY,
    LAYER_ARGUMENTS,
    METHOD_ARGUMENTS,
    METHODS,
    TF_KERAS_LIBRARIES,
)
from mptraining_api.programs.source_text import parse_source

# Maximum number of assignments and operators to follow from a path to its text.
_MAX_DEPTH = 8
_SAVED_MODELS = (".keras", ".h5", ".hdf5")


@dataclass(frozen=True, slots=True)
class Sign:
    """One construct in the source: its line (from 1; 0 for none), its text, and the difference in Keras 3."""

    line: int
    code: str
    why: str

    def __str__(self) -> str:
        return f"{self.code} in line {self.line} ({self.why})" if self.line else f"{self.code} ({self.why})"


@dataclass(frozen=True, slots=True)
class KerasCode:
    """Signs of the Keras generation in a source.

    `imports_keras`: it imports `keras` itself, which is Keras 3 in every job. `ignored` are arguments that tf_keras
    accepts and does not use.
    """

    keras_2: tuple[Sign, ...] = ()
    keras_3: tuple[Sign, ...] = ()
    ignored: tuple[Sign, ...] = ()
    imports_keras: bool = False

    @property
    def needs_legacy(self) -> bool:
        """Return whether the source has signs of Keras 2 and none of Keras 3, and does not import `keras`."""
        return bool(self.keras_2) and not self.keras_3 and not self.imports_keras

    def __add__(self, other: KerasCode) -> KerasCode:
        return KerasCode(
            self.keras_2 + other.keras_2,
            self.keras_3 + other.keras_3,
            self.ignored + other.ignored,
            self.imports_keras or other.imports_keras,
        )


def detect_in_source(text: str) -> KerasCode:
    """Return the signs in a program's source, in the order of lines; none if it is not Python."""
    try:
        tree = parse_source(text)
        if tree is None:
            return KerasCode()
        visitor = _KerasVisitor(tree)
        visitor.visit(tree)
    except (SyntaxError, ValueError, RecursionError):
        return KerasCode()
    return KerasCode(
        tuple(sorted(visitor.keras_2, key=lambda sign: sign.line)),
        tuple(sorted(visitor.keras_3, key=lambda sign: sign.line)),
        tuple(sorted(visitor.ignored, key=lambda sign: sign.line)),
        visitor.imports_keras,
    )


_PIN = re.compile(r"^\s*([A-Za-z0-9._-]+)\s*(?:\[[^\]]*\])?\s*((?:[=<>~!]=?=?\s*[\w.*+!-]+\s*,?\s*)+)")
_CLAUSE = re.compile(r"(===|==|~=|<=|<)\s*(\d+(?:\.\d+)*)")
_TENSORFLOW = frozenset({"tensorflow", "tensorflow-cpu", "tensorflow-gpu", "tensorflow-macos", "tensorflow-intel"})


def detect_in_requirements(text: str) -> KerasCode:
    """Return the lines of a requirements file that need TensorFlow before 2.16 or Keras before 3."""
    signs = []
    for number, line in enumerate(text.splitlines(), start=1):
        pin = _PIN.match(line)
        if pin is None:
            continue
        name = re.sub(r"[-_.]+", "-", pin[1]).lower()
        limit = (2, 16) if name in _TENSORFLOW else (3,) if name == "keras" else None
        if limit is not None and any(_only_before(limit, *clause) for clause in _CLAUSE.findall(pin[2])):
            signs.append(Sign(number, line.partition("#")[0].strip(), "of Keras 2"))
    return KerasCode(tuple(signs))


_IMAGE = re.compile(r"tensorflow/tensorflow:(\d+)\.(\d+)|deeplearning-platform-release/tf2?-\w+[.:](\d+)-(\d+)")


def detect_in_image(image: str | None) -> KerasCode:
    """Return a sign if the tag of a container image is that of TensorFlow before 2.16."""
    numbers = _IMAGE.search(image or "")
    if numbers is None:
        return KerasCode()
    version = tuple(int(number) for number in numbers.groups() if number is not None)
    return KerasCode((Sign(0, f"image {image}", "of Keras 2"),)) if version < (2, 16) else KerasCode()


def _only_before(limit: tuple[int, ...], operator: str, version: str) -> bool:
    """Return whether all versions that the clause allows are before `limit`."""
    parts = tuple(map(int, version.split(".")))
    if operator == "<":
        return tuple(map(int, re.sub(r"(\.0+)+$", "", version).split("."))) <= limit
    # ~=2.3 means any 2.x from 2.3 on, ~=2.3.0 any 2.3.x.
    fixed = parts[:-1] if operator == "~=" else parts
    return fixed[: len(limit)] < limit[: len(fixed)]


@dataclass
class _KerasVisitor(ast.NodeVisitor):
    tree: ast.Module
    keras_2: list[Sign] = field(default_factory=list)
    keras_3: list[Sign] = field(default_factory=list)
    ignored: list[Sign] = field(default_factory=list)
    imports_keras: bool = False

    def __post_init__(self) -> None:
        self.names: dict[str, str] = {}
        self.values: dict[str, ast.expr | None] = {}
        self.defined: set[str] = set()
        self.models: set[str] = set()
        self.optimizers: set[str] = set()
        self._collect()

    # --- names and values -------------------------------------------------------------------------------------------

    def _collect(self) -> None:
        """Collect imports, values of names that are assigned once, and names of functions, before visiting."""
        for node in ast.walk(self.tree):
            self._import(node)
            self._value(node)
        for name, value in self.values.items():
            # K = tf.keras.backend
            if isinstance(value, ast.Attribute) and name not in self.names and (full := self._qualified(value)):
                self.names[name] = full
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
                kind = self._keras(node.value.func) or ""
                targets = {_last(target) for target in node.targets}
                if kind in ("Sequential", "Model") or kind.startswith(("models.", "applications.")):
                    self.models |= targets
                elif kind.startswith("optimizers."):
                    self.optimizers |= targets

    def _import(self, node: ast.AST) -> None:
        match node:
            case ast.Import():
                for alias in node.names:
                    root = alias.name.partition(".")[0]
                    self.names[alias.asname or root] = alias.name if alias.asname else root
            case ast.ImportFrom(module=str(module), level=0):
                for alias in node.names:
                    self.names[alias.asname or alias.name] = f"{module}.{alias.name}"

    def _value(self, node: ast.AST) -> None:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                self.defined.add(name)
                self.values[name] = None
            case ast.arg(arg=name) | ast.AugAssign(target=ast.Name(id=name)):
                self.values[name] = None
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                self.values[name] = None if name in self.values else value
            case ast.Name(id=name, ctx=ast.Store()):
                # The target of a plain assignment is visited here, too, after the assignment itself.
                self.values.setdefault(name, None)

    def _qualified(self, node: ast.expr) -> str | None:
        """Return the qualified name of an expression, beginning with its module."""
        name = _dotted(node)
        if name is None:
            return None
        first, dot, rest = name.partition(".")
        return self.names[first] + dot + rest if first in self.names else None

    def _keras(self, node: ast.expr) -> str | None:
        """Return the name below `tf.keras` or `keras`, such as `layers.Dense`."""
        full = self._qualified(node)
        for root in ("tensorflow.keras.", "tensorflow.compat.v2.keras.", "keras.", "tf_keras."):
            if full is not None and full.startswith(root):
                return full.removeprefix(root)
        return None

    def _is_model(self, node: ast.expr) -> bool:
        name = _last(node)
        return "model" in name.lower() or name in self.models

    def _is_optimizer(self, node: ast.expr) -> bool:
        name = _last(node)
        return "optimizer" in name.lower() or name == "opt" or name in self.optimizers

    def _path_end(self, node: ast.expr | None, depth: int = 0) -> str | None:
        """Return the end of the path that an expression results in; None if it is not a literal."""
        text: str | None = None
        if depth > _MAX_DEPTH:
            return None
        match node:
            case ast.Constant(value=str(text)) | ast.JoinedStr(values=[*_, ast.Constant(value=str(text))]):
                pass
            case ast.BinOp(op=ast.Add() | ast.Div(), right=part):
                text = self._path_end(part, depth + 1)
            case ast.BinOp(op=ast.Mod(), left=part):
                text = self._path_end(part, depth + 1) or ""
                text = None if re.search(r"%[\w.()]*$", text) else text
            case ast.Name(id=name):
                text = self._path_end(self.values.get(name), depth + 1)
            case ast.Call(func=ast.Attribute(attr="format", value=part)):
                text = self._path_end(part, depth + 1) or ""
                text = None if text.endswith("}") else text
            case ast.Call(func=function, args=[*_, part]) if _last(function) in ("join", "Path", "str", "fspath"):
                text = self._path_end(part, depth + 1)
        return text

    def _wrong_suffix(self, path: ast.expr | None, *suffixes: str) -> str | None:
        """Return the known end of the path if it has none of `suffixes`."""
        text = self._path_end(path)
        if not text or text.endswith(suffixes):
            return None
        return text

    # --- signs ------------------------------------------------------------------------------------------------------

    def _add_sign(self, node: ast.AST, why: str, code: str | None = None) -> None:
        self.keras_2.append(Sign(getattr(node, "lineno", 0), code or _short(node), why))

    def visit_Try(self, node: ast.Try) -> None:
        """Skip the body of a try with handlers: the program handles both generations itself."""
        body = [] if node.handlers else node.body
        for statement in [*body, *node.handlers, *node.orelse, *node.finalbody]:
            self.visit(statement)

    def visit_If(self, node: ast.If) -> None:
        if any(isinstance(part, ast.Attribute) and part.attr == "__version__" for part in ast.walk(node.test)):
            return
        self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._check_import(node, alias.name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if node.module and not node.level:
            for alias in node.names:
                self._check_import(node, f"{node.module}.{alias.name}")

    def _check_import(self, node: ast.stmt, full: str) -> None:
        root = full.partition(".")[0]
        # keras.utils and keras.datasets work with models of both generations.
        self.imports_keras |= root == "keras" and not full.startswith(("keras.utils.", "keras.datasets."))
        for name, why in TF_KERAS_LIBRARIES.items():
            if full == name or full.startswith(f"{name}."):
                self._add_sign(node, why, f"import {full}")
        if root in ("keras_hub", "keras_cv", "keras_nlp"):
            self.keras_3.append(Sign(node.lineno, f"import {full}", "needs Keras 3"))
        if re.match(r"transformers\.TF[A-Z]", full):
            self._add_sign(node, "transformers' TensorFlow models are those of tf_keras", f"import {full}")
        self._check_name(node, full)

    def _check_name(self, node: ast.AST, full: str) -> None:
        for root in ("tensorflow.keras.", "tensorflow.compat.v2.keras.", "keras."):
            if not full.startswith(root):
                continue
            name = full.removeprefix(root)
            for known, signs, why in (
                (KERAS_2_ONLY, self.keras_2, "not in Keras 3"),
                (KERAS_3_ONLY, self.keras_3, "new in Keras 3"),
            ):
                if any(part in known for part in _prefixes(name)):
                    signs.append(Sign(getattr(node, "lineno", 0), full.replace("tensorflow.", "tf.", 1), why))

    def visit_Attribute(self, node: ast.Attribute) -> None:
        full = self._qualified(node)
        if full is not None:
            self._check_name(node, full)
            for name, why in TF_KERAS_LIBRARIES.items():
                if full == name and "." in name:
                    self._add_sign(node, why)
            return
        if node.attr == "lr" and self._is_optimizer(node.value):
            self._add_sign(node, "learning_rate is its name in Keras 3")
        elif node.attr in METHODS and node.attr not in self.defined:
            self._add_sign(node, METHODS[node.attr], f".{node.attr}")
        elif node.attr == "minimize" and _last(node.value) in self.optimizers:
            self._add_sign(node, "Keras 3's optimizers have apply_gradients alone")
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        """Add signs for assignments to os.environ."""
        match node:
            case ast.Assign(targets=[ast.Subscript(slice=ast.Constant(value="TF_USE_LEGACY_KERAS"))]):
                if isinstance(node.value, ast.Constant) and str(node.value.value).lower() in ("1", "true"):
                    self._add_sign(node, "the program's own request", "TF_USE_LEGACY_KERAS")
            case ast.Assign(targets=[ast.Subscript(slice=ast.Constant(value="KERAS_BACKEND"))]):
                self.keras_3.append(Sign(node.lineno, "KERAS_BACKEND", "of Keras 3"))
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        kind = self._keras(node.func)
        if kind is not None:
            self._check_class(node, kind)
        elif isinstance(node.func, ast.Attribute):
            self._check_method(node, node.func)
        self.generic_visit(node)

    def _check_class(self, node: ast.Call, kind: str) -> None:
        given = {keyword.arg for keyword in node.keywords if keyword.arg}
        wrong = given & (CLASS_ARGUMENTS.get(kind, set()) | (LAYER_ARGUMENTS if kind.startswith("layers.") else set()))
        for argument in sorted(wrong):
            self._add_sign(node, "not an argument in Keras 3", f"{kind}({argument}=)")
        if kind.startswith("optimizers.") and "legacy" not in kind and "lr" in given:
            name = kind.removeprefix("optimizers.")
            self.ignored.append(Sign(node.lineno, f"{name}(lr=)", "tf_keras ignores it: write learning_rate="))
        self._check_paths(node, kind)

    def _check_method(self, node: ast.Call, function: ast.Attribute) -> None:
        name, owner = function.attr, function.value
        given = {keyword.arg for keyword in node.keywords if keyword.arg}
        right = self._is_optimizer(owner) if name == "apply_gradients" else self._is_model(owner)
        if right and name not in self.defined:
            for argument in sorted(given & METHOD_ARGUMENTS.get(name, frozenset())):
                self._add_sign(node, "not an argument in Keras 3", f".{name}({argument}=)")
            self._check_model_paths(node, name)
        match node.args:
            case [ast.Constant(value=str(text)), *_] if name == "add_weight":
                self._add_sign(node, "the first argument is the shape in Keras 3", f"add_weight({text!r}, …)")
            case [ast.Constant(value="TF_USE_LEGACY_KERAS"), *_] if name == "setdefault":
                self._add_sign(node, "the program's own request", "TF_USE_LEGACY_KERAS")

    def _check_paths(self, node: ast.Call, kind: str) -> None:
        """Add signs for file formats that Keras 3 does not write or read."""
        if kind == "callbacks.ModelCheckpoint":
            weights = any(
                keyword.arg == "save_weights_only"
                and not (isinstance(keyword.value, ast.Constant) and not keyword.value.value)
                for keyword in node.keywords
            )
            path = _argument(node, 0, "filepath")
            text = self._wrong_suffix(path, ".weights.h5") if weights else self._wrong_suffix(path, ".keras", ".h5")
            if text is not None:
                self._add_sign(
                    node, f"Keras 3 writes {'.weights.h5' if weights else '.keras'}", f"ModelCheckpoint({text!r})"
                )
        elif kind in ("models.save_model", "saving.save_model", "models.load_model", "saving.load_model"):
            at = 1 if "save" in kind.rpartition(".")[2] else 0
            text = self._wrong_suffix(_argument(node, at, "filepath"), *_SAVED_MODELS)
            if text is not None:
                self._add_sign(node, "Keras 3 knows .keras and .h5", f"{kind.rpartition('.')[2]}({text!r})")

    def _check_model_paths(self, node: ast.Call, method: str) -> None:
        suffixes = {"save": _SAVED_MODELS, "save_weights": (".weights.h5",)}.get(method)
        text = self._wrong_suffix(_argument(node, 0, "filepath"), *suffixes) if suffixes else None
        if text is not None:
            self._add_sign(node, f"Keras 3 writes {(suffixes or ('',))[0]}", f".{method}({text!r})")
        if method == "load_weights":
            text = self._wrong_suffix(_argument(node, 0, "filepath"), ".h5", ".hdf5", ".keras", ".weights.json")
            if text is not None:
                self._add_sign(node, "Keras 3 reads .weights.h5", f".load_weights({text!r})")


def _argument(node: ast.Call, at: int, name: str) -> ast.expr | None:
    for keyword in node.keywords:
        if keyword.arg == name:
            return keyword.value
    return node.args[at] if len(node.args) > at else None


def _dotted(node: ast.AST) -> str | None:
    """Return `a.b.c` as written; None for any other expression."""
    if isinstance(node, ast.Attribute):
        before = _dotted(node.value)
        return None if before is None else f"{before}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else None


def _last(node: ast.AST) -> str:
    """Return the last part of `a.b.c`; empty for any other expression."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _prefixes(name: str) -> Iterator[str]:
    parts = name.split(".")
    return (".".join(parts[:end]) for end in range(1, len(parts) + 1))


def _short(node: ast.AST) -> str:
    text = ast.unparse(node).partition("\n")[0]
    return text if len(text) <= 60 else text[:57] + "…"
