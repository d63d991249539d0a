"""Rules within `spec.data`: features, labels, weights, shuffling and damaged records."""

from __future__ import annotations

from mptraining_api.rules.rule import Rule
from mptraining_api.spec import BadRecords, Data, Feature, Shuffle


def _preprocess(data: Data) -> bool:
    return data.preprocess is None or data.preprocess in ("auto", "none") or ":" in data.preprocess


def _label_known(data: Data) -> bool:
    if data.label is None or data.features is None:
        return True
    return any(feature.name == data.label for feature in data.features)


def _labels_known(data: Data) -> bool:
    known = None if data.features is None else {feature.name for feature in data.features}
    labels = data.labels or []
    return len(labels) == len(set(labels)) and (known is None or set(labels) <= known)


def _weight_known(data: Data) -> bool:
    if data.sample_weight is None or data.features is None:
        return True
    return any(feature.name == data.sample_weight for feature in data.features)


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


def _resize(feature: Feature) -> bool:
    return feature.resize is None or feature.decode in ("jpeg", "png")


def _raw(feature: Feature) -> bool:
    return feature.decode != "raw" or feature.shape is not None


def _image_shape(feature: Feature) -> bool:
    if feature.decode not in ("jpeg", "png") or not feature.shape:
        return True
    return len(feature.shape) in (3, 4) and feature.shape[-1] in (
        (0, 1, 3) if feature.decode == "jpeg" else (0, 1, 3, 4)
    )


def _image(feature: Feature) -> bool:
    return feature.decode in (None, "tensor") or feature.dtype != "string"


def _default(feature: Feature) -> bool:
    return feature.default is None or feature.dtype != "string"


def _default_text(feature: Feature) -> bool:
    return feature.default_text is None or feature.dtype == "string"


def _variable(feature: Feature) -> bool:
    """Return whether fields for a variable first size belong to one; an image's first size is its height."""
    if feature.bucket_boundaries is None and feature.length_name is None and not (feature.ragged or feature.sequence):
        return True
    shape = feature.shape or [1]
    return shape[0] == 0 and (feature.decode not in ("jpeg", "png") or len(shape) == 4)


def _ragged(feature: Feature) -> bool:
    return not feature.ragged or feature.bucket_boundaries is None


def _buffer_used(shuffle: Shuffle) -> bool:
    if shuffle.mode is None or shuffle.buffer_size is None:
        return True
    return shuffle.mode == "Windowed" and shuffle.buffer_size > 0


def _skip(bad: BadRecords) -> bool:
    return bad.action != "Skip" or bad.max_skipped is not None


def _max_skipped(bad: BadRecords) -> bool:
    return bad.max_skipped is None or bad.action == "Skip"


DATA_RULES: tuple[Rule, ...] = (
    Rule(
        "spec.data",
        "spec.data.preprocess",
        "!has(self.preprocess) || self.preprocess in ['auto', 'none'] || self.preprocess.contains(':')",
        "auto, none or module:function",
        "Write the module and the function with a colon between them.",
        _preprocess,
    ),
    Rule(
        "spec.data",
        "spec.data.label",
        "!has(self.label) || !has(self.features) || self.features.exists(f, f.name == self.label)",
        "the name of one of data.features",
        "Add the label to data.features, or correct its name.",
        _label_known,
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
    Rule(
        "spec.data",
        "spec.data.labels",
        "!has(self.labels) || !has(self.label)",
        "label or labels, not both",
        "Remove label.",
        lambda data: data.labels is None or data.label is None,
    ),
    Rule(
        "spec.data",
        "spec.data.sampleWeight",
        "!has(self.sampleWeight) || !has(self.features) || self.features.exists(f, f.name == self.sampleWeight)",
        "the name of one of data.features",
        "Add the weight to data.features, or correct its name.",
        _weight_known,
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
    Rule(
        "spec.data.features[]",
        "spec.data.features[].resize",
        "!has(self.resize) || (has(self.decode) && self.decode in ['jpeg', 'png'])",
        "resize for images only",
        "Add decode: jpeg or decode: png.",
        _resize,
    ),
    Rule(
        "spec.data.features[]",
        "spec.data.features[].shape",
        "!has(self.decode) || self.decode != 'raw' || has(self.shape)",
        "the shape of the tensor whose bytes are stored",
        "Add shape.",
        _raw,
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
    Rule(
        "spec.data.features[]",
        "spec.data.features[].dtype",
        "!has(self.decode) || self.decode == 'tensor' || self.dtype != 'string'",
        "the type of the decoded pixels or numbers, such as uint8",
        "Write dtype: uint8.",
        _image,
    ),
    Rule(
        "spec.data.features[]",
        "spec.data.features[].default",
        "!has(self.default) || self.dtype != 'string'",
        "defaultText for dtype string",
        "Write defaultText.",
        _default,
    ),
    Rule(
        "spec.data.features[]",
        "spec.data.features[].defaultText",
        "!has(self.defaultText) || self.dtype == 'string'",
        "default for numbers",
        "Write default.",
        _default_text,
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
    Rule(
        "spec.data.features[]",
        "spec.data.features[].ragged",
        "!has(self.ragged) || !self.ragged || !has(self.bucketBoundaries)",
        "ragged or bucketBoundaries, not both",
        "Remove one of them.",
        _ragged,
    ),
    Rule(
        "spec.data.shuffle",
        "spec.data.shuffle.bufferSize",
        "!has(self.mode) || !has(self.bufferSize) || (self.mode == 'Windowed' && self.bufferSize > 0)",
        "no bufferSize but for mode: Windowed, and there at least 1",
        "Leave bufferSize out, or write mode: Windowed and a size.",
        _buffer_used,
    ),
    Rule(
        "spec.data.badRecords",
        "spec.data.badRecords.maxSkipped",
        "!has(self.action) || self.action != 'Skip' || has(self.maxSkipped)",
        "how many records action: Skip may leave out",
        "Add maxSkipped.",
        _skip,
    ),
    Rule(
        "spec.data.badRecords",
        "spec.data.badRecords.action",
        "!has(self.maxSkipped) || (has(self.action) && self.action == 'Skip')",
        "Skip beside maxSkipped",
        "Write action: Skip, or leave maxSkipped out.",
        _max_skipped,
    ),
)
