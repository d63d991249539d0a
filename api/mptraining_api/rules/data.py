"""Rules within `spec.data`: features, labels, weights, shuffling and damaged records."""

from __future__ import annotations

from mptraining_api.rules.rule import (
    Condition,
    Rule,
    at_most_one,
    distinct,
    field_at,
    forbids,
    given,
    matches,
    requires,
    rule,
    within,
)
from mptraining_api.spec import Data, Feature


def _names_features(field: str, cel_names: str) -> Rule:
    """Return the rule that the field has names of features, if the features are known."""

    def holds(data: Data) -> bool:
        value, known = field_at(data, field), {feature.name for feature in data.features or ()}
        return known.issuperset([value] if isinstance(value, str) else value)

    named = Condition(f"{cel_names}.all(n, self.features.exists(f, f.name == n))", holds)
    condition = ~(given(field) & given("features")) | named
    return rule(field, condition, "only names of data.features", "Add the feature there, or correct its name.")


def _image_shape(feature: Feature) -> bool:
    channels = (0, 1, 3) if feature.decode == "jpeg" else (0, 1, 3, 4)
    return not feature.shape or (len(feature.shape) in (3, 4) and feature.shape[-1] in channels)


_IMAGE = given("decode", "jpeg", "png")
_TEXT = given("dtype", "string")
# An image's first size is its height, so that only a list of images has a variable one.
_VARIABLE_SIZE = Condition(
    "has(self.shape) && self.shape.size() > 0 && self.shape[0] == 0",
    lambda feature: bool(feature.shape) and feature.shape[0] == 0,
) & (~_IMAGE | Condition("self.shape.size() == 4", lambda feature: len(feature.shape) == 4))
_NEEDS_VARIABLE_SIZE = given("bucketBoundaries") | given("lengthName") | given("ragged", True) | given("sequence", True)

DATA_RULES: tuple[Rule, ...] = (
    *within(
        "spec.data",
        matches(
            "preprocess",
            "^(auto|none)$|:",
            "auto, none or module:function",
            "Write the module and the function with a colon between them.",
        ),
        _names_features("label", "[self.label]"),
        _names_features("labels", "self.labels"),
        _names_features("sampleWeight", "[self.sampleWeight]"),
        at_most_one("label", "labels", fix="Remove label."),
        distinct("labels", fix="Remove the label that is listed twice."),
        rule(
            "sampleWeight",
            Condition(
                "!has(self.sampleWeight) || ((!has(self.label) || self.label != self.sampleWeight) && "
                "(!has(self.labels) || !self.labels.exists(l, l == self.sampleWeight)))",
                lambda data: data.sample_weight is None or data.sample_weight not in (data.label, *(data.labels or ())),
            ),
            "a feature that is no label",
            "Name the feature with the weights.",
        ),
        distinct(
            "features", "name", "lengthName", fix="Remove the feature that is listed twice, or rename its lengthName."
        ),
        forbids("shuffle.bufferSize", when=given("shuffle.mode", "Full", "None")),
        forbids("shuffle.bufferSize", 0, when=given("shuffle.mode", "Windowed"), fix="Write mode: None, or a size."),
        requires("badRecords.maxSkipped", when=given("badRecords.action", "Skip"), because="after which the job fails"),
        requires("badRecords.action", "Skip", when=given("badRecords.maxSkipped")),
    ),
    *within(
        "spec.data.features[]",
        requires("decode", "jpeg", "png", when=given("resize")),
        requires("decode", "jpeg", when=given("decodeScale"), because="as others are decoded at full size"),
        requires("shape", when=given("decode", "raw"), because="as the stored bytes have none"),
        rule(
            "shape",
            ~_IMAGE
            | Condition(
                "!has(self.shape) || self.shape.size() == 0 || "
                "(self.shape.size() in [3, 4] && (self.shape[self.shape.size() - 1] in [0, 1, 3] || "
                "(self.decode == 'png' && self.shape[self.shape.size() - 1] == 4)))",
                _image_shape,
            ),
            "[height, width, channels] of an image, or [0, height, width, channels] of a list of them, with 1 or 3 "
            "channels, of a PNG also 4",
            "Write 1 for grey images, 3 for colours, or 4 for colours and transparency.",
        ),
        forbids(
            "dtype",
            "string",
            when=given("decode", "jpeg", "png", "raw"),
            because="but the type of the pixels or numbers",
            fix="Write dtype: uint8.",
        ),
        forbids("default", when=_TEXT, fix="Write defaultText."),
        requires("dtype", "string", when=given("defaultText"), fix="Write default for numbers."),
        rule(
            "shape",
            ~_NEEDS_VARIABLE_SIZE | _VARIABLE_SIZE,
            "a variable first size for bucketBoundaries, lengthName, ragged and sequence: [0], [0, 3], [0, 64, 64, 3]",
            "Write 0 as the first size, or remove these fields.",
        ),
        forbids("ragged", True, when=given("bucketBoundaries"), fix="Remove one of them."),
    ),
)
