"""Rules within `spec.data`: features, labels, weights, shuffling and damaged records."""

from __future__ import annotations

from mptraining_api.rules.clause import Clause, absent, absent_or, absent_or_not, field_at, given_as, present, rule
from mptraining_api.rules.rule import Rule
from mptraining_api.spec import Data, Feature, Shuffle


def _labels_known(data: Data) -> bool:
    known = None if data.features is None else {feature.name for feature in data.features}
    labels = data.labels or []
    return len(labels) == len(set(labels)) and (known is None or set(labels) <= known)


def _weight_is_no_label(data: Data) -> bool:
    return data.sample_weight is None or data.sample_weight not in (data.label, *(data.labels or ()))


def _names_once(data: Data) -> bool:
    names = [feature.name for feature in data.features or ()]
    names += [feature.length_name for feature in data.features or () if feature.length_name is not None]
    return len(names) == len(set(names))


def _wrong_name(data: Data) -> str:
    features = data.features or []
    names = [each.name for each in features]
    for index, name in enumerate(names):
        if name in names[:index]:
            return f"[{index}].name"
    lengths = [each.length_name for each in features]
    wrong = (i for i, name in enumerate(lengths) if name is not None and name in (*names, *lengths[:i]))
    return f"[{next(wrong)}].lengthName"


def _image_shape(feature: Feature) -> bool:
    if feature.decode not in ("jpeg", "png") or not feature.shape:
        return True
    return len(feature.shape) in (3, 4) and feature.shape[-1] in (
        (0, 1, 3) if feature.decode == "jpeg" else (0, 1, 3, 4)
    )


def _variable(feature: Feature) -> bool:
    """Return whether fields for a variable first size belong to one; an image's first size is its height."""
    if feature.bucket_boundaries is None and feature.length_name is None and not (feature.ragged or feature.sequence):
        return True
    shape = feature.shape or [1]
    return shape[0] == 0 and (feature.decode not in ("jpeg", "png") or len(shape) == 4)


def _buffer_used(shuffle: Shuffle) -> bool:
    if shuffle.mode is None or shuffle.buffer_size is None:
        return True
    return shuffle.mode == "Windowed" and shuffle.buffer_size > 0


def _names_feature(field: str) -> Clause:
    """Return the clause that a field of data names a feature, if the features are known."""
    named = Clause(
        f"self.features.exists(f, f.name == self.{field})",
        lambda data: any(feature.name == field_at(data, field) for feature in data.features),
    )
    return absent(field) | absent("features") | named


_NO_TEXT = Clause("self.dtype != 'string'", lambda feature: feature.dtype != "string")

DATA_RULES: tuple[Rule, ...] = (
    rule(
        "spec.data",
        "spec.data.preprocess",
        absent_or("preprocess", "auto", "none")
        | Clause("self.preprocess.contains(':')", lambda data: ":" in data.preprocess),
        "auto, none or module:function",
        "Write the module and the function with a colon between them.",
    ),
    rule(
        "spec.data",
        "spec.data.label",
        _names_feature("label"),
        "the name of one of data.features",
        "Add the label to data.features, or correct its name.",
    ),
    Rule(
        "spec.data",
        "spec.data.labels",
        "!has(self.labels) || (self.labels.all(l, self.labels.exists_one(m, m == l)) && (!has(self.features) || "
        "self.labels.all(l, self.features.exists(f, f.name == l))))",
        "names of data.features, each once",
        "Add the label to data.features, or correct its name.",
        _labels_known,
    ),
    rule(
        "spec.data",
        "spec.data.labels",
        absent("labels") | absent("label"),
        "label or labels, not both",
        "Remove label.",
    ),
    rule(
        "spec.data",
        "spec.data.sampleWeight",
        _names_feature("sampleWeight"),
        "the name of one of data.features",
        "Add the weight to data.features, or correct its name.",
    ),
    Rule(
        "spec.data",
        "spec.data.sampleWeight",
        "!has(self.sampleWeight) || ((!has(self.label) || self.label != self.sampleWeight) && (!has(self.labels) || "
        "!self.labels.exists(l, l == self.sampleWeight)))",
        "a feature that is no label",
        "Name the feature with the weights.",
        _weight_is_no_label,
    ),
    Rule(
        "spec.data",
        "spec.data.features",
        "!has(self.features) || self.features.all(f, self.features.exists_one(g, g.name == f.name) && "
        "(!has(f.lengthName) || (!self.features.exists(g, g.name == f.lengthName) && "
        "self.features.exists_one(g, has(g.lengthName) && g.lengthName == f.lengthName))))",
        "every name once",
        "Remove the feature that is listed twice, or choose another lengthName.",
        _names_once,
        _wrong_name,
    ),
    rule(
        "spec.data.features[]",
        "spec.data.features[].resize",
        absent("resize") | given_as("decode", "jpeg", "png"),
        "resize for images only",
        "Add decode: jpeg or decode: png.",
    ),
    rule(
        "spec.data.features[]",
        "spec.data.features[].decodeScale",
        absent("decodeScale") | given_as("decode", "jpeg"),
        "decodeScale for JPEGs only",
        "Remove decodeScale: others are decoded at full size.",
    ),
    rule(
        "spec.data.features[]",
        "spec.data.features[].shape",
        absent_or_not("decode", "raw") | present("shape"),
        "the shape of the tensor whose bytes are stored",
        "Add shape.",
    ),
    Rule(
        "spec.data.features[]",
        "spec.data.features[].shape",
        "!has(self.decode) || !(self.decode in ['jpeg', 'png']) || !has(self.shape) || self.shape.size() == 0 || "
        "(self.shape.size() in [3, 4] && (self.shape[self.shape.size() - 1] in [0, 1, 3] || "
        "(self.decode == 'png' && self.shape[self.shape.size() - 1] == 4)))",
        "[height, width, channels] of an image, or [0, height, width, channels] of a list of them, with 1 or 3 "
        "channels, of a PNG also 4",
        "Write 1 for grey images, 3 for colours, or 4 for colours and transparency.",
        _image_shape,
    ),
    rule(
        "spec.data.features[]",
        "spec.data.features[].dtype",
        absent_or("decode", "tensor") | _NO_TEXT,
        "the type of the decoded pixels or numbers, such as uint8",
        "Write dtype: uint8.",
    ),
    rule(
        "spec.data.features[]",
        "spec.data.features[].default",
        absent("default") | _NO_TEXT,
        "defaultText for dtype string",
        "Write defaultText.",
    ),
    rule(
        "spec.data.features[]",
        "spec.data.features[].defaultText",
        absent("defaultText") | Clause("self.dtype == 'string'", lambda feature: feature.dtype == "string"),
        "default for numbers",
        "Write default.",
    ),
    Rule(
        "spec.data.features[]",
        "spec.data.features[].shape",
        "(!has(self.bucketBoundaries) && !has(self.lengthName) && !(has(self.ragged) && self.ragged) && "
        "!(has(self.sequence) && self.sequence)) || (has(self.shape) && self.shape.size() > 0 && self.shape[0] == 0 "
        "&& (!has(self.decode) || !(self.decode in ['jpeg', 'png']) || self.shape.size() == 4))",
        "a variable first size for bucketBoundaries, lengthName, ragged and sequence: [0], [0, 3], [0, 64, 64, 3]",
        "Write 0 as the first size, or remove these fields.",
        _variable,
    ),
    rule(
        "spec.data.features[]",
        "spec.data.features[].ragged",
        absent_or("ragged", False) | absent("bucketBoundaries"),
        "ragged or bucketBoundaries, not both",
        "Remove one of them.",
    ),
    Rule(
        "spec.data.shuffle",
        "spec.data.shuffle.bufferSize",
        "!has(self.mode) || !has(self.bufferSize) || (self.mode == 'Windowed' && self.bufferSize > 0)",
        "no bufferSize but for mode: Windowed, and there at least 1",
        "Leave bufferSize out, or write mode: Windowed and a size.",
        _buffer_used,
    ),
    rule(
        "spec.data.badRecords",
        "spec.data.badRecords.maxSkipped",
        absent_or_not("action", "Skip") | present("maxSkipped"),
        "how many records action: Skip may leave out",
        "Add maxSkipped.",
    ),
    rule(
        "spec.data.badRecords",
        "spec.data.badRecords.action",
        absent("maxSkipped") | given_as("action", "Skip"),
        "Skip beside maxSkipped",
        "Write action: Skip, or leave maxSkipped out.",
    ),
)
