"""Messages about mistakes."""

from __future__ import annotations

import pytest

from mptraining_api.problems import nearest

MODELS = ("VGG16", "VGG19", "ResNet50", "ResNet101", "MobileNetV2", "mse", "MSE")


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("vgg16", "VGG16"),
        ("Resnet50", "ResNet50"),
        ("RESNET_50", "ResNet50"),
        ("MobilNetV2", "MobileNetV2"),
        pytest.param("Mse", "mse", id="two spellings: the one that shares more letters"),
        pytest.param("MSEE", "MSE", id="two spellings: the other"),
    ],
)
def test_the_nearest_name_whatever_its_case(word: str, meant: str) -> None:
    assert nearest(word, MODELS) == f"Did you mean {meant!r}?"


def test_a_name_that_is_not_near_is_not_suggested() -> None:
    assert nearest("nothing", ["demo", "tests", "notes", "points"]) == ""
