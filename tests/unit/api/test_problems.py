"""Messages about mistakes."""

from __future__ import annotations

from mptraining_api.problems import nearest

MODELS = ("VGG16", "VGG19", "ResNet50", "ResNet101", "MobileNetV2", "mse", "MSE")


def test_the_nearest_name_whatever_its_case() -> None:
    # Of two spellings the one that shares more letters.
    meant = {"vgg16": "VGG16", "RESNET_50": "ResNet50", "MobilNetV2": "MobileNetV2", "Mse": "mse", "MSEE": "MSE"}
    assert {word: nearest(word, MODELS) for word in meant} == {w: f"Did you mean {m!r}?" for w, m in meant.items()}
    assert nearest("nothing", ["demo", "tests", "notes", "points"]) == ""
