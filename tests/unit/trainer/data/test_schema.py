"""The tensors in the records, and the errors if they do not match the job."""

from __future__ import annotations

import io
from functools import partial
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mptraining_api.problems import InvalidData, InvalidSpec, Problem
from mptraining_api.resolve.defaults import resolve_data
from mptraining_api.resolved_job import ResolvedData
from mptraining_api.spec import Data, Program
from mptraining_records.tfrecord.example import encode
from mptraining_records.tfrecord.features import Feature
from mptraining_records.tfrecord.manifest import Manifest
from mptraining_trainer.data.schema import Columns, decide_columns, to_features


def png(height: int, width: int) -> bytes:
    content = io.BytesIO()
    Image.fromarray(np.zeros((height, width, 3), np.uint8)).save(content, "PNG")
    return content.getvalue()


def data(**fields: Any) -> ResolvedData:
    program = Program.parse({"function": {"entryPoint": "model:build"}})
    return resolve_data(Data.parse({"train": ["a.tfrecord"], **fields}), program)[0]


def columns(records: list[dict[str, Any]], known: Manifest | None = None, **fields: Any) -> tuple[Columns, list[str]]:
    said: list[str] = []
    return decide_columns(data(**fields), known, [encode(record) for record in records], said.append), said


def manifest(*features: Feature, label: str | None = "label", classes: tuple[str, ...] | None = None) -> Manifest:
    return Manifest(name="train", features=features, label=label, classes=classes, records=1, files=())


def feature(name: str, dtype: str = "int64", **fields: Any) -> Feature:
    return Feature.model_validate({"name": name, "dtype": dtype, "shape": (), **fields})


ROW = {"x": [1.0, 2.0], "label": 3}


def test_features_are_inferred_and_reported() -> None:
    found, said = columns([ROW, ROW])
    assert found.describe() == ("label: int64 [] (label)", "x: float32 [2]")
    assert said == ["features inferred from the first records: label: int64; x: float32 [2]"]
    spec = found.example_spec()
    assert [(one.name, one.dtype, one.shape) for one in spec.inputs] == [("x", "float32", (2,))]
    assert ([label.name for label in spec.labels], spec.classes) == (["label"], None)
    for name in ("labels", "y", "class", "target"):
        assert columns([{"x": [1.0, 2.0], name: 3}])[0].labels == (name,)


def test_a_manifest_spares_the_inference_and_brings_the_classes() -> None:
    known = manifest(feature("x", "float32", shape=(2,)), feature("label"), classes=("cat", "dog"))
    found, said = columns([ROW], known)
    assert (said, found.classes, found.labels) == ([], ("cat", "dog"), ("label",))
    known = manifest(*known.features, feature("other"), classes=("cat", "dog"))
    found, _ = columns([ROW | {"other": 1}], known, label="other")
    assert (found.labels, found.classes) == (("other",), None), "the classes are those of the manifest's label"


def test_several_labels_and_a_weight_leave_the_inputs() -> None:
    found, _ = columns([{"x": [1.0], "a": 1, "b": 2.0, "w": 0.5}], labels=("b", "a"), sampleWeight="w")
    spec = found.example_spec()
    assert [one.name for one in spec.inputs] == ["x"]
    assert [one.name for one in spec.labels] == ["b", "a"]
    assert spec.weighted
    assert found.describe()[1:] == ("b: float32 [] (label)", "w: float32 [] (sample weight)", "x: float32 []")


def test_the_jobs_features_override_inferred_ones() -> None:
    known = manifest(feature("x", "float32", shape=(2,)), feature("label"))
    found, _ = columns(
        [ROW], known, features=[{"name": "x", "dtype": "float16", "shape": [2]}, {"name": "label", "dtype": "int32"}]
    )
    assert found.describe() == ("x: float16 [2]", "label: int32 [] (label)")


def features(name: str, dtype: str, **fields: Any) -> list[dict[str, Any]]:
    return [{"name": name, "dtype": dtype, **fields}, {"name": "label", "dtype": "int64"}]


image = partial(features, "image", "uint8", decode="png")
whole = partial(features, "n", "uint8")
NUMBERS = features("x", "float32", shape=[2])
PICTURE = {"image": png(4, 5), "label": 1}


def test_images_of_mixed_sizes_become_one_by_resizing() -> None:
    found, _ = columns([PICTURE], features=image(shape=[0, 0, 3], resize=[8, 6]))
    assert found.describe()[0] == "image: uint8 [8, 6, 3] from png resized to 8x6"


@pytest.mark.parametrize(
    ("fields", "end"),
    [
        ({}, "resized to 8x6, of twice that size or more decoded at 1/2, 1/4 or 1/8"),
        ({"decodeScale": "Full"}, "resized to 8x6"),
    ],
)
def test_the_scale_of_large_jpegs_is_described_and_kept_by_an_export(fields: dict[str, str], end: str) -> None:
    described = features("image", "uint8", shape=[0, 0, 3], decode="jpeg", resize=[8, 6], **fields)
    found, _ = columns([PICTURE], features=described)
    assert found.describe()[0] == f"image: uint8 [8, 6, 3] from jpeg {end}"
    assert to_features(found.columns)[0].decode_scale == fields.get("decodeScale")


@pytest.mark.parametrize(
    ("records", "fields", "kind", "message"),
    [
        ([ROW], {"label": "lable"}, InvalidData, "no feature 'lable'.*Did you mean 'label'"),
        ([ROW], {"label": "lable", "features": NUMBERS}, InvalidSpec, "'lable' is no feature.*Did you mean 'label'"),
        ([{"a": 1, "b": 2}], {}, InvalidSpec, r"data.label: missing; expected one of \['a', 'b'\]. Add data.label"),
        ([{"label": 2}], {}, InvalidSpec, "only 'label'; expected at least one input"),
        ([ROW], {"labels": ("label", "lable")}, InvalidSpec, "data.labels: 'lable' is no feature.*mean 'label'"),
        ([ROW], {"sampleWeight": "w"}, InvalidSpec, "data.sampleWeight: 'w' is no feature of the records"),
        ([ROW], {"labels": ("label", "x")}, InvalidSpec, "only 'label', 'x'; expected at least one input"),
        ([PICTURE, {"image": png(5, 5), "label": 1}], {}, InvalidData, "mixed shapes .* resize"),
        ([PICTURE], {"features": image(shape=[0, 0, 3])}, InvalidData, r"mixed shapes .* resize: \[height, width\]"),
        ([PICTURE], {"features": image()}, InvalidData, r"mixed shapes .* resize: \[height, width\]"),
        ([ROW], {"features": whole(default=-1)}, InvalidSpec, r"default: -1; expected a whole number from 0 to 255"),
        ([ROW], {"features": whole(default=0.5)}, InvalidSpec, r"\[n\].default: 0.5; expected a whole number"),
        ([ROW], {"features": whole(shape=[0], ragged=True), "label": "n"}, InvalidSpec, "ragged label.* Remove ragged"),
        ([ROW], {"features": whole(shape=[2, 0]), "label": "n"}, InvalidData, "Only the first size may vary"),
        ([PICTURE], {"features": image(shape=[5])}, InvalidSpec, r"\[5\] for an image; expected \[height, width"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_next_step(
    records: list[dict[str, Any]], fields: dict[str, Any], kind: type[Problem], message: str
) -> None:
    with pytest.raises(kind, match=message):
        columns(records, **fields)
