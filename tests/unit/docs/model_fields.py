"""Fields of the models by their names in YAML."""

from __future__ import annotations

from typing import get_args

from mptraining_api.model import Model


def find_field(model: type[Model], path: list[str]) -> None:
    """Fail if a model has no such field."""
    for name in path:
        field = next((field for field in model.model_fields.values() if field.alias == name), None)
        assert field is not None, f"{model.__name__} has no {name}"
        inner = [each for each in (field.annotation, *get_args(field.annotation)) if isinstance(each, type)]
        model = next((each for each in inner if issubclass(each, Model)), model)
