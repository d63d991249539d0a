"""Next steps for a script's errors, by their messages: the lines of the script or the field of the job to change."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable
from dataclasses import dataclass

from mptraining_trainer.scripts import old_names


@dataclass(frozen=True)
class Circumstances:
    """The settings of the script's run: the policy of its layers and of the job, replicas, generation of Keras."""

    policy: str
    policy_of_job: str
    replicas: int
    in_job_scope: bool
    legacy: bool
    # The script imports `keras`, which is Keras 3 under any setting of the job.
    bare: bool = False

    @property
    def set_legacy(self) -> str:
        return "keras: Legacy, and import tf_keras in place of keras" if self.bare else "keras: Legacy"

    @property
    def dtype(self) -> str:
        return self.policy.removeprefix("mixed_")

    @property
    def whose(self) -> str:
        return "the job's" if self.policy == self.policy_of_job else "the script's own"

    @property
    def wider(self) -> str:
        is_of_job = self.policy == self.policy_of_job
        return "set precision: {policy: float32}" if is_of_job else "leave set_global_policy out"


# TensorFlow's messages for a strategy's variables that are used outside `strategy.run`.
_CUSTOM_LOOP = (
    "not available outside the replica context",
    "Please use `tf.keras.losses.Reduction.SUM` or",
    "`merge_call` called while defining a new graph",
    "must be called in a replica context",
    "inside replica context",
    "`apply_gradients() cannot be called in cross-replica context",
    "outside of a replica context",
    "called in cross-replica context",
)
_SIZES = re.compile(
    r"Inputs to operation \S*(?:AddN|add_n)\S* of type AddN must have the same size and shape"
    r"|AddN.* != "
    r"|Incompatible shapes.*between op and assigned input"
    r"|Value for attr 'T' of string is not in the list",
    re.IGNORECASE | re.DOTALL,
)
_HALF = re.compile(r"\b(float16|bfloat16|half)\b", re.IGNORECASE)
# TensorFlow's messages, with dtypes, for mixed dtypes or for a dtype that an operation does not support.
_MISMATCH = re.compile(
    r"has type \S+ that does not match (?:expected )?type (?:of )?\S+"
    r"|have types \[[^\]]*\] that don't all match"
    r"|dtype=\w+\) and .{1,100} have different types"
    r"|onversion requested (?:dtype \S+ for \w+ with dtype|to type \S+ for .?tf\.Variable of type) \S+"
    r"|expected to be an? \S+ tensor but is an? \S+ tensor"
    r"|Value for attr '\w+' of \S+ is not in the list of allowed values"
    r"|has DataType \S+ not in list of allowed values"
    r"|must have the same dtype, got \S+ != \S+"
    r"|with wrong dtype\. Expected \S+ got \S+"
    r"|dtype is \S+ but Op is trying to write dtype \S+"
    r"|enters the loop with type .{1,25} but has type .{1,25} after"
)
_TOO_LATE = re.compile("after initialization|after being initialized|have been initialized")
_INDEX = re.compile(r"indices\[.*\] = \d+ is not in \[0, \d+\)")
_TPU = re.compile(r"Please provide a TPU Name to connect to|TPUs? (?:not found|in the cluster)", re.IGNORECASE)


@dataclass(frozen=True)
class _Hint:
    """The change to make after the errors that `is_meant` accepts by their text; `change` has fields of the run."""

    is_meant: Callable[[str, Circumstances], bool]
    change: str


def _on_replicas_of_keras_3(run: Circumstances) -> bool:
    return run.replicas > 1 and not run.legacy


# The first that is meant counts.
_HINTS = (
    _Hint(
        lambda text, run: (
            "has no attribute" in text
            and ("'set_policy'" in text or ("mixed_precision" in text and "'experimental'" in text))
        ),
        old_names.OLD_MIXED_PRECISION["set_policy"],
    ),
    _Hint(
        lambda text, run: "has no attribute 'enable_mixed_precision_graph_rewrite'" in text,
        old_names.OLD_MIXED_PRECISION["enable_mixed_precision_graph_rewrite"],
    ),
    _Hint(
        lambda text, run: bool(_TPU.search(text)),
        "The job connects to its TPU before the script starts: delete TPUClusterResolver, "
        "experimental_connect_to_cluster, initialize_tpu_system and TPUStrategy, and ask for the TPU by "
        "accelerator: {type: v5e, topology: 2x4}.",
    ),
    _Hint(
        lambda text, run: bool(_TOO_LATE.search(text)),
        "TensorFlow runs already, with the devices and threads of the job: delete the line, and set accelerator.",
    ),
    _Hint(
        lambda text, run: run.in_job_scope and any(words in text for words in _CUSTOM_LOOP),
        "A custom loop on <replicas> replicas calls its step by strategy.run(step, args=(batch,)), with batches of "
        "strategy.experimental_distribute_dataset(dataset), strategy = tf.distribute.get_strategy() and a loss divided "
        "by the global batch size; or set accelerator.countPerWorker: 1, where the loop runs as it is, or "
        "strategy: None for a strategy of the script's own.",
    ),
    _Hint(
        lambda text, run: _on_replicas_of_keras_3(run) and bool(_SIZES.search(text)),
        "Keras 3 needs every first batch, that of the validation too, to be divisible by the <replicas> replicas, and "
        "no text as input: take a batch_size that is a multiple of <replicas> with drop_remainder=True, or "
        "<set_legacy>.",
    ),
    _Hint(
        lambda text, run: _on_replicas_of_keras_3(run) and "You must feed a value for placeholder tensor" in text,
        "On <replicas> replicas no variable can be made within a traced step: build layers and optimizers before fit "
        "(optimizer.build(model.trainable_variables)), or set accelerator.countPerWorker: 1.",
    ),
    _Hint(
        lambda text, run: _on_replicas_of_keras_3(run) and "Unable to automatically build the model" in text,
        "On <replicas> replicas Keras 3 calls the model before it trains: give it a call that takes a batch, build all "
        "of its layers before fit, or set accelerator.countPerWorker: 1 or <set_legacy>.",
    ),
    _Hint(
        lambda text, run: not run.legacy and old_names.is_keras_2_message(text),
        "This is Keras 2 code, which tf_keras runs: set <set_legacy>.",
    ),
    _Hint(
        lambda text, run: run.policy.startswith("mixed_") and _is_dtype_error(text),
        "Layers compute in <dtype> under <whose> policy <policy>, and the script was written for float32: <wider>, or "
        "cast with tf.cast(…, tf.float32) where the two meet.",
    ),
)


def next_step(error: BaseException, run: Circumstances) -> str | None:
    """Return the change to the script or the job, in one line; None for an unknown error."""
    text = f"{type(error).__name__}: {error}"
    if _assigns_a_callback_s_model(error):
        text = f"{text}\n{old_names.CALLBACK_MODEL}"
    change = next((hint.change for hint in _HINTS if hint.is_meant(text, run)), None)
    return change and re.sub("<([a-z_]+)>", lambda field: str(getattr(run, field[1])), change)


def _assigns_a_callback_s_model(error: BaseException) -> bool:
    """Return whether the error is an assignment of `model` in a Keras callback, whose property has no setter."""
    if "property 'model' of" not in str(error) or "has no setter" not in str(error):
        return False
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    classes = type(frame.f_locals.get("self")).__mro__
    return any((base.__module__.partition(".")[0], base.__name__) == ("keras", "Callback") for base in classes)


def _is_dtype_error(text: str) -> bool:
    # Only these patterns count: Keras adds the call's arguments, which have the policy's dtype, to every message.
    return bool(_INDEX.search(text)) or any(_HALF.search(match[0]) for match in _MISMATCH.finditer(text))
