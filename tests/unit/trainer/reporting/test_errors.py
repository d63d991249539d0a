"""Errors that TensorFlow raises, as one line with a next step and the right outcome."""

from __future__ import annotations

import re
from typing import Any

import pytest
import tensorflow as tf

from mptraining_api import outcomes
from mptraining_api.problems import Diverged
from mptraining_api.resolved_job import ResolvedJob
from mptraining_trainer.reporting.errors import to_problem
from tests.jobs import resolved_job


def job(nodes: int = 1, *, function: bool = False) -> ResolvedJob:
    program = {"program": {"function": {"entryPoint": "model:build"}}} if function else {}
    return resolved_job(nodes=nodes, **program)


def error(kind: Any, message: str) -> Any:
    return kind(None, None, message)


# TensorFlow's wording: the location, then the cause, then the location again.
GRAPH = "Graph execution error:\n\nDetected at node X defined at (most recent call last):\n{}\n\t [[{{{{node X}}}}]]"
LOST = "Collective ops is aborted by: The following tasks are unhealthy (stopped sending heartbeats)"


@pytest.mark.parametrize(
    ("raised", "nodes", "reason", "message"),
    [
        (error(tf.errors.UnavailableError, GRAPH.format(LOST)), 2, "PeerLost", LOST),
        (error(tf.errors.AbortedError, "RecvBuf expects a different step"), 2, "PeerLost", "a different step"),
        (error(tf.errors.DeadlineExceededError, "Barrier timed out"), 2, "PeerLost", "Barrier timed out"),
        (RuntimeError("Connection reset by peer"), 2, "PeerLost", "whole gang starts again"),
        (RuntimeError("my own mistake"), 2, "ProgramFailed", "RuntimeError: my own mistake"),
        (error(tf.errors.UnavailableError, "no such thing"), 1, "ProgramFailed", "UnavailableError: no such thing"),
        (error(tf.errors.ResourceExhaustedError, "OOM when allocating tensor"), 1, "ProgramFailed", "Lower training"),
        (MemoryError(), 1, "ProgramFailed", "MemoryError. Lower training.batchSize"),
        (
            error(tf.errors.InvalidArgumentError, "{{function_node __wrapped__IteratorGetNext}} Invalid PNG data"),
            1,
            "InvalidData",
            "Invalid PNG data.*mptj records verify",
        ),
        (
            error(
                tf.errors.InvalidArgumentError,
                GRAPH.format(
                    "Received a label value of 12 which is outside the valid range of [0, 10).  Label values: 1 12 3"
                ),
            ),
            1,
            "InvalidData",
            r"^spec.data.label: Received a label value of 12 which is outside the valid range of \[0, 10\)\. Give",
        ),
        (
            error(tf.errors.UnimplementedError, "A deterministic GPU implementation of FooOp is not available."),
            1,
            "InvalidProgram",
            "FooOp is not available.*set training.deterministic: Never",
        ),
        (ValueError("odd"), 1, "ProgramFailed", "^ValueError: odd$"),
    ],
)
def test_each_error_has_its_outcome(raised: Exception, nodes: int, reason: str, message: str) -> None:
    problem = to_problem(raised, job(nodes))
    assert problem.reason == reason
    assert outcomes.by_reason(problem.reason).reason == reason
    problem_line = str(problem)
    assert "\n" not in problem_line
    assert "Graph execution error" not in problem_line

    assert re.search(message if "^" in message or ".*" in message else re.escape(message), problem_line)


def test_an_error_that_tensorflow_found_while_tracing_the_users_model_is_the_programs() -> None:
    raised = ValueError("in user code:\n\n    File model.py, line 3, in call\n\n    ValueError: shapes do not fit")
    problem = to_problem(raised, job(function=True))
    assert (problem.reason, problem.found) == ("InvalidProgram", "ValueError: shapes do not fit")


def test_a_problem_inside_another_error_is_reported_and_a_long_message_cut() -> None:
    cause = Diverged("step 3", "no number")
    around = RuntimeError("around it")
    around.__cause__ = cause
    assert to_problem(around, job()) is cause
    assert len(to_problem(ValueError("x" * 5000), job()).found) < 600
