"""The decision to compile a step, and the notice if it cannot be compiled."""

from __future__ import annotations

from typing import Any

import pytest

from mptraining_api.problems import InvalidProgram
from mptraining_api.resolved_job import ResolvedJob
from mptraining_trainer.keras_backend import Keras
from mptraining_trainer.step.xla import can_compile, must_disable_xla
from tests.jobs import resolved_job


def job(wanted: str, replicas: int) -> ResolvedJob:
    return resolved_job(accelerator={"type": "t4", "countPerWorker": replicas}, jitCompile=wanted)


def model(keras: Keras, *, synchronized: bool) -> Any:
    layers = keras.module.layers
    inner = keras.module.Sequential(
        [layers.Input((3,)), layers.BatchNormalization(synchronized=synchronized, name="norm")]
    )
    return keras.module.Sequential([layers.Input((3,)), inner, layers.Dense(2)])


@pytest.mark.parametrize(
    ("wanted", "synchronized", "replicas", "compiled"),
    [
        ("Auto", False, 1, True),
        ("Auto", False, 4, True),
        ("Auto", True, 1, True),
        ("Auto", True, 4, False),
        ("Always", False, 4, True),
        ("Always", True, 1, True),
        ("Never", False, 1, False),
        ("Never", True, 4, False),
    ],
)
def test_a_step_is_compiled_where_it_can_be(
    keras: Keras, wanted: str, synchronized: bool, replicas: int, compiled: bool
) -> None:
    said: list[tuple[str, str]] = []
    found = can_compile(
        job(wanted, replicas), keras, model(keras, synchronized=synchronized), lambda *words: said.append(words)
    )
    assert found == compiled
    is_reported = wanted == "Auto" and not compiled
    expected = "XLA is off: synchronized BatchNormalization (norm) cannot be compiled"
    assert said == ([("NotCompiled", expected)] if is_reported else [])


def test_asking_for_what_cannot_be_compiled_is_refused_with_the_layer(keras: Keras) -> None:
    with pytest.raises(InvalidProgram, match=r"spec.jitCompile: 'Always' .*\(norm\) on 4 replicas\. Set jitCompile"):
        can_compile(job("Always", 4), keras, model(keras, synchronized=True), lambda *words: None)


SAID = """Failed getting HLO text: 'Detected unsupported operations when trying to compile graph __inference_f_1546[] on
XLA_CPU_JIT: EagerPyFunc (No registered 'EagerPyFunc' OpKernel for XLA_CPU_JIT devices compatible with node {{node
EagerPyFunc}}){{node EagerPyFunc}}"""


def test_an_operation_that_xla_lacks_is_named() -> None:
    said: list[tuple[str, str]] = []
    assert must_disable_xla(job("Auto", 1), SAID, lambda *words: said.append(words))
    assert said == [("NotCompiled", "XLA is off: it has no kernel for EagerPyFunc")]
    with pytest.raises(InvalidProgram, match=r"spec.jitCompile: 'Always' with .* no kernel for: EagerPyFunc"):
        must_disable_xla(job("Always", 1), SAID, lambda *words: said.append(words))
    for error in (None, "Out of memory"):
        assert not must_disable_xla(job("Auto", 1), error, lambda *_: pytest.fail("left to the first step"))
