"""The job as Python objects: the classes of the resource (`mptraining_api.spec`) with Python's argument names.

    mptraining.TrainingJob(
        name="flowers",
        accelerator=mptraining.Accelerator(type="cpu"),
        program=mptraining.Program(application=mptraining.Application(name="cnn", classes=5)),
        data=mptraining.Data(train=["records/train-*.tfrecord"]),
        training=mptraining.Training(epochs=5, batch_size=mptraining.BatchSize(global_=64)),
    )

`mptraining.submit` and `mptraining.run_local` take it. Each class checks its arguments at once and names the invalid
one; the rules between the sections are checked when the job is submitted or run. Tuples are accepted for lists, and
NumPy's numbers for Python's.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import types
import typing
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pydantic import Field, ValidationError

from mptraining_api import spec
from mptraining_api.model import Model
from mptraining_api.problems import FieldPlace, InvalidSpec, Place, nearest
from mptraining_api.sweep.spec import SWEEP_KIND
from mptraining_api.validation.messages import EXPECTED

_METADATA = ("name", "namespace", "labels", "annotations")


class PythonArguments(Model):
    """Construction by Python's argument names, with errors that name them."""

    def __init__(self, /, **arguments: Any) -> None:
        kind = type(self)
        fields = kind.model_fields
        for name in arguments:
            if name not in fields:
                step = nearest(name, fields) or f"Arguments: {', '.join(fields)}."
                raise InvalidSpec(f"{kind.__name__}({name}=…)", "unknown argument", next_step=step)
        document = {
            fields[name].alias or name: _plain(value, f"{kind.__name__}({name}=…)")
            for name, value in arguments.items()
            if value is not None
        }
        try:
            self.__pydantic_validator__.validate_json(json.dumps(document), self_instance=self)
        except ValidationError as error:
            raise _problem(kind.__name__, error) from None

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        """Give the class the signature and the docstring that an editor or a notebook shows."""
        required_first = sorted(cls.model_fields.items(), key=lambda item: not item[1].is_required())
        cls.__signature__ = inspect.Signature(
            [
                inspect.Parameter(
                    name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=inspect.Parameter.empty if field.is_required() else field.default,
                    annotation=field.annotation,
                )
                for name, field in required_first
            ]
        )
        lines = [f"    {name}: {field.description}" for name, field in cls.model_fields.items() if field.description]
        cls.__doc__ = "\n".join([_summary(cls), *(["", "Arguments:", *lines] if lines else [])])

    def __repr_args__(self) -> Any:
        return [(name, value) for name, value in super().__repr_args__() if value is not None]


def _summary(kind: type) -> str:
    """Return the docstring of the class, else that of the class of the resource which it extends."""
    docstring = kind.__dict__.get("__doc__") or kind.__mro__[2].__doc__ or ""
    return inspect.cleandoc(docstring)


def sections(annotation: Any) -> Iterator[type[Model]]:
    """Yield the classes of the resource in the type of a field, and those of their fields."""
    if inspect.isclass(annotation) and issubclass(annotation, Model):
        yield annotation
        for field in annotation.model_fields.values():
            yield from sections(field.annotation)
    for inner in typing.get_args(annotation):
        yield from sections(inner)


# A class for each section of a job, such as Accelerator; `mptraining` has their static types.
for _kind in set(sections(spec.JobSpec)) - {spec.JobSpec}:
    globals()[_kind.__name__] = types.new_class(
        _kind.__name__, (PythonArguments, _kind), exec_body=lambda body: body.update(__module__=__name__)
    )


class TrainingJob(PythonArguments, spec.JobSpec):
    """A job for `mptraining.submit` and `mptraining.run_local`: an MPTrainingJob as a Python object."""

    name: str = Field(description="Name of the job: a DNS label of at most 50 characters.")
    namespace: str | None = Field(None, description="Namespace on a cluster; default: that of `cluster`.")
    labels: dict[str, str] | None = Field(None, description="Labels of the job.")
    annotations: dict[str, str] | None = Field(None, description="Annotations of the job.")

    def to_document(self) -> dict[str, Any]:
        """Return the MPTrainingJob as plain mappings and lists, as in a job file."""
        body = super().to_document()
        metadata = {name: body.pop(name) for name in _METADATA if name in body}
        return {"apiVersion": spec.API_VERSION, "kind": spec.KIND, "metadata": metadata, "spec": body}


def job_document(job: object, *, sweeps: bool = False) -> Mapping[str, Any]:
    """Return the job as the mapping that a job file holds; with `sweeps` also the mapping of a sweep.

    Raises InvalidSpec for anything else.
    """
    document = job.to_document() if isinstance(job, TrainingJob) else job
    if not isinstance(document, Mapping):
        other = "a file" if sweeps else "a function"
        raise InvalidSpec("job", f"{job!r} is not valid", expected=f"a TrainingJob, a file's mapping, or {other}")
    if not sweeps and document.get("kind") == SWEEP_KIND:
        step = "Give it to mptraining.sweep or submit_sweep."
        raise InvalidSpec("kind", repr(SWEEP_KIND), expected=repr(spec.KIND), next_step=step)
    return document


@contextmanager
def arguments_named(job: TrainingJob | Mapping[str, object]) -> Iterator[None]:
    """In the block, name the fields of a TrainingJob by its arguments in the problems raised."""
    try:
        yield
    except InvalidSpec as problem:
        raise (problem.renamed(_argument) if isinstance(job, TrainingJob) else problem) from None


def _argument(location: Place) -> str | Place:
    if not isinstance(location, FieldPlace):
        return location
    return _python_name(location.path.removeprefix("spec.").removeprefix("metadata."))


def _problem(kind: str, error: ValidationError) -> InvalidSpec:
    """Return the first error with the Python name of the argument; `kind` is the name of the class."""
    details = error.errors(include_url=False)
    first = details[0]
    path = ""
    for part in first["loc"]:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
    where = f"{kind}({_python_name(path)}=…)"
    if first["type"] == "missing":
        return InvalidSpec(where, "missing", next_step="Give this argument; it has no default.")
    if first["type"] == "extra_forbidden":
        return InvalidSpec(where, "unknown field")
    expected = (EXPECTED | {"model_type": "{class_name}(…)"}).get(first["type"], "").format(**first.get("ctx", {}))
    expected = expected or first["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    return InvalidSpec(where, f"{first['input']!r} is not valid", expected=expected)


def _python_name(path: str) -> str:
    snake = re.sub(r"(?<=[a-z0-9])([A-Z])", lambda match: f"_{match[1].lower()}", path)
    return re.sub(r"\bglobal\b", "global_", snake)


def _plain(value: Any, where: str) -> Any:
    """Return the value as JSON has it. Raises InvalidSpec for an object that is none."""
    if isinstance(value, Model):
        return value.to_document()
    if isinstance(value, Mapping):
        return {str(key): _plain(inner, where) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner, where) for inner in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if value is None or isinstance(value, str | int | float):
        return value
    if type(value).__module__ == "numpy":
        return value.tolist()
    step = "A Keras object is KerasObject(class_name=…, config={…})." if hasattr(value, "get_config") else ""
    raise InvalidSpec(where, f"{value!r} is not valid", expected="text, a number, a list or a mapping", next_step=step)
