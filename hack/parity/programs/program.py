"""A Keras program as a value: each field is one choice of its author, the first value of a field the simplest."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

# Values of each field, the simplest first; `strategies` draws from them.
FORMS = ("sequential", "functional", "subclass")
INPUTS = ("vector", "integers", "image", "tokens", "tokens_lstm", "sequence", "fixed", "several", "several_list")
EXTRAS = (
    *["batchnorm", "dropout", "dropouts", "l2", "activity", "add_loss", "frozen"],
    *["frozen_inside", "shared", "unused", "stateful", "adapted", "no_config", "float8"],
)
TASKS = ("regression", "vector", "binary", "classes", "onehot", "tokens", "image", "unlabelled")
RANKS = ("B1", "B")
OUTPUTS = ("one", "list", "named", "dict", "without_loss")
LOSS_FORMS = (
    *["string", "class", "keras_function", "function"],
    *["scalar_function", "subclass", "subclass_kwargs", "subclass_bare"],
)
REDUCTIONS = ("default", "sum_over_batch_size", "sum", "mean", "mean_with_sample_weight", "none")
OVERRIDES = ("none", "compute_loss", "compute_loss_super", "compute_metrics", "train_step", "test_step", "both_steps")
OPTIMIZERS = (
    *["SGD", "Momentum", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta"],
    *["Adamax", "Nadam", "Ftrl", "Adafactor", "Lion", "Own", "Multi"],
)
EMAS = ("none", "ema", "overwrite")
CLIPPINGS = ("none", "clipnorm", "global_clipnorm", "clipvalue")
SCHEDULES = ("none", "exponential", "piecewise", "cosine")
REMAINDERS = ("Drop", "PadAndMask")
POLICIES = ("float32", "mixed_bfloat16", "mixed_float16")
STRATEGIES = ("Auto", "None")

# Losses of each task: names that both generations know.
LOSSES: dict[str, tuple[str, ...]] = {
    "regression": (
        "mean_squared_error",
        "mean_absolute_error",
        "huber",
        "log_cosh",
        "poisson",
        "mean_squared_logarithmic_error",
        "mean_absolute_percentage_error",
    ),
    "vector": ("mean_squared_error", "mean_absolute_error", "huber", "log_cosh", "cosine_similarity"),
    "binary": ("binary_crossentropy", "hinge", "squared_hinge", "mean_squared_error", "binary_focal_crossentropy"),
    "classes": ("sparse_categorical_crossentropy",),
    "onehot": ("categorical_crossentropy", "kl_divergence", "categorical_hinge", "mean_squared_error"),
    "tokens": ("sparse_categorical_crossentropy",),
    "image": ("mean_squared_error", "mean_absolute_error", "huber"),
    # Its custom compute_loss or train_step has the loss.
    "unlabelled": ("mean_squared_error",),
}
METRICS: dict[str, tuple[str, ...]] = {
    "regression": ("mae", "mse", "RootMeanSquaredError", "mean_absolute_error", "R2Score"),
    "vector": ("mae", "mse", "RootMeanSquaredError", "cosine_similarity", "CosineSimilarity"),
    "binary": ("accuracy", "binary_accuracy", "AUC", "Precision", "Recall", "BinaryAccuracy"),
    "classes": ("accuracy", "sparse_categorical_accuracy", "SparseTopKCategoricalAccuracy", "acc"),
    "onehot": ("accuracy", "categorical_accuracy", "mse", "TopKCategoricalAccuracy", "Precision"),
    "tokens": ("accuracy", "sparse_categorical_accuracy", "sparse_categorical_crossentropy"),
    "image": ("mae", "mse", "RootMeanSquaredError"),
    "unlabelled": (),
}
OWN_METRICS = ("own_function", "own_metric", "own_nan")


# Names of features in the sources; labels are also the names of outputs. Sizes of inputs and the number of classes.
LABEL, SECOND, WEIGHT = "label", "second", "weight"
TOKENS, WIDTH, CLASSES = 5, 6, 3


@dataclass(frozen=True)
class Program:
    """The choices of a Keras program's author. `problem` is the reason why a combination is no program."""

    generation: str = "Keras3"
    # The model
    form: str = "sequential"
    inputs: str = "vector"
    extras: tuple[str, ...] = ()
    outputs: str = "one"
    override: str = "none"
    # The prediction, and the labels
    task: str = "regression"
    head: str = "plain"
    dtype: str = "float32"
    rank: str = "B1"
    # compile
    loss: str = "mean_squared_error"
    loss_form: str = "string"
    reduction: str = "default"
    loss_weights: bool = False
    metrics: tuple[str, ...] = ()
    weighted_metrics: tuple[str, ...] = ()
    optimizer: str = "SGD"
    ema: str = "none"
    clipping: str = "none"
    weight_decay: bool = False
    decay_excludes: bool = False
    loss_scale: bool = False
    schedule: str = "none"
    # fit
    class_weight: bool = False
    sample_weight: str = "none"
    callbacks: tuple[str, ...] = ()
    validation: str = "none"
    rows: int = 12
    batch: int = 12
    epochs: int = 1
    initial_epoch: int = 0
    # The job
    remainder: str = "Drop"
    accumulation: int = 1
    steps_per_execution: int = 1
    policy: str = "float32"
    strategy: str = "Auto"
    workers: bool = False
    # A named case, for people; comparisons ignore it.
    name: str = field(default="", compare=False)

    def to_json(self) -> str:
        """Return one line, without fields that have their simplest value."""
        plain = Program()
        written = {key: value for key, value in dataclasses.asdict(self).items() if value != getattr(plain, key)}
        return json.dumps(written, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Program:
        given: dict[str, Any] = json.loads(text)
        fields: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in given.items()
        }
        return cls(**fields)

    @property
    def key(self) -> str:
        """Return the program's identity in a file of results: the same for the same choices, whatever its name."""
        return hashlib.sha256(dataclasses.replace(self, name="").to_json().encode()).hexdigest()[:16]

    @property
    def legacy(self) -> bool:
        return self.generation == "Legacy"

    @property
    def second_task(self) -> str | None:
        """Return the task of the second output."""
        return None if self.outputs in ("one", "without_loss") else "regression"

    @property
    def several(self) -> bool:
        return self.inputs in ("several", "several_list")

    @property
    def masked_sequence(self) -> bool:
        return self.inputs in ("tokens", "tokens_lstm", "sequence")


def problem(program: Program) -> str | None:  # noqa: PLR0911, PLR0912, PLR0915 - a list of rules
    """Return why Keras has no such program, or why its result would be meaningless; None for a program."""
    p = program
    if p.legacy and ({"float8", "dropouts"} & {*p.extras} or p.loss_scale or p.optimizer == "Multi"):
        return "features of Keras 3"
    if p.loss_scale and p.policy == "mixed_float16":
        return "LossScaleOptimizer of Keras 3 divides by the factor and does not multiply by it"
    if "float8" in p.extras and p.ema != "none":
        return "Keras 3 fails to overwrite what has no average"
    if "float8" in p.extras and p.override in ("train_step", "both_steps"):
        return "the largest gradients of the mean over a replica's rows are larger"
    if "float8" in p.extras and p.inputs == "fixed":
        return "the LSTM has no float8"
    if p.inputs == "fixed" and (p.form != "sequential" or p.accumulation > 1 or p.remainder != "Drop"):
        return "a fixed batch size: one form of it, and batches that have it"
    if p.legacy and p.inputs == "fixed" and p.strategy != "None":
        return "tf_keras has no stateful RNNs in the scope of a strategy"
    if p.policy == "mixed_float16" and p.optimizer == "Own":
        return "LossScaleOptimizer of Keras 3 does not call its apply_gradients, that of tf_keras with an argument"
    if p.inputs == "fixed" and p.validation != "none":
        return "the last batch of validation is not full"
    if p.decay_excludes and not p.weight_decay and p.optimizer != "AdamW":
        return "no weights decay"
    if "batch_rate" in p.callbacks and (p.steps_per_execution != 1 or p.accumulation > 1 or p.optimizer == "Multi"):
        return "a hook for each batch, which sets the rate"
    if "batch_rate" in p.callbacks and (p.schedule != "none" or {"reduce_rate", "scheduler"} & {*p.callbacks}):
        return "one sets the rate"
    if p.optimizer == "Multi" and (
        p.schedule != "none" or p.clipping != "none" or {"reduce_rate", "scheduler"} & {*p.callbacks}
    ):
        return "optimizers inside have rates of their own"
    if p.outputs == "without_loss" and p.form != "functional":
        return "an output without a loss is written for functional models"
    if p.several and p.form == "sequential":
        return "a Sequential model has one input"
    if p.inputs == "several_list" and p.form == "subclass":
        return "only a functional model says that its inputs are a list"
    if p.outputs != "one" and p.form == "sequential":
        return "a Sequential model has one output"
    if p.outputs == "named" and p.form == "subclass":
        return "outputs of a subclass have no names but a dict's keys"
    if p.outputs == "without_loss" and not p.legacy and (p.metrics or p.weighted_metrics):
        return "with metrics, Keras 3 wants a label for each output"
    if p.outputs == "without_loss" and p.sample_weight != "none":
        return "a weight is of one output"
    if p.outputs != "one" and p.override in ("compute_loss", "train_step", "both_steps", "test_step"):
        return "the overrides here are written for one output"
    if p.task == "tokens" and not p.masked_sequence:
        return "labels for each token need tokens"
    if p.task == "image" and p.inputs != "image":
        return "labels that are images need images"
    if p.task in ("tokens", "image") and (p.outputs != "one" or p.override == "compute_loss"):
        return "one output, with Keras' own loss"
    if p.initial_epoch >= p.epochs:
        return "no epoch is left"
    if p.task == "unlabelled" and (
        p.inputs != "vector" or p.outputs != "one" or p.override not in ("compute_loss", "both_steps")
    ):
        return "without labels, a program computes its own loss of its input"
    if p.task == "unlabelled" and (p.loss_form != "string" or p.metrics or p.weighted_metrics):
        return "without labels, Keras' own losses and metrics compare nothing"
    if p.loss not in LOSSES[p.task]:
        return f"{p.loss} is no loss of {p.task}"
    if p.task in ("vector", "onehot", "unlabelled") and p.dtype != "float32":
        return "vectors are float32"
    if p.task in ("classes", "tokens") and p.dtype not in ("int64", "int32", "uint8", "float32"):
        return "class numbers are numbers"
    if p.task == "image" and p.dtype not in ("float32", "uint8"):
        return "images are uint8 or float32"
    if p.task == "regression" and p.dtype == "bool":
        return "truth values are no quantities"
    if p.task not in ("regression", "binary", "classes") and p.rank != "B1":
        return "the shape of these labels is given"
    if p.head == "logits" and p.task not in ("binary", "classes", "onehot", "tokens"):
        return "only classes have logits"
    if p.head == "logits" and (p.loss_form in ("string", "keras_function") or "crossentropy" not in p.loss):
        return "from_logits is an argument of the class"
    if p.head == "rank1" and p.task not in ("regression", "binary"):
        return "only one number can lose its axis"
    if p.reduction != "default" and p.loss_form not in ("class", "subclass", "subclass_kwargs"):
        return "only an object has a reduction"
    if p.reduction in ("mean", "mean_with_sample_weight") and p.legacy:
        return "reductions of Keras 3"
    if p.loss_form not in ("string", "class", "keras_function") and p.head == "logits":
        return "own losses take probabilities"
    if p.loss_weights and p.outputs == "one":
        return "one output is not weighed here"
    if p.sample_weight == "token" and p.task != "tokens":
        return "weights of tokens need tokens"
    if p.legacy and p.task == "image" and p.sample_weight != "none":
        return "tf_keras does not weigh losses of more than two axes by example"
    if not p.legacy and p.class_weight and p.sample_weight != "none":
        return "Keras 3 takes one of the two"
    if not p.legacy and p.outputs == "named" and p.sample_weight != "none":
        return "Keras 3 looks one weight up by the name of an output"
    if p.legacy and p.reduction == "none":
        return "fit of tf_keras cannot report a loss that is no number"
    if p.class_weight and (p.outputs != "one" or p.task not in ("binary", "classes", "onehot")):
        return "class weights need classes"
    if p.rows < p.batch or (p.remainder == "Drop" and p.rows % (p.batch * p.accumulation)):
        return "Keras has no Drop: the count must be divisible"
    if p.remainder == "PadAndMask" and p.rows % (p.batch * p.accumulation) == 0:
        return "nothing to pad"
    if p.weight_decay and p.optimizer in ("AdamW",):
        return "AdamW has one already"
    if p.schedule != "none" and {"reduce_rate", "scheduler"} & set(p.callbacks):
        return "Keras refuses to set a rate that is a schedule"
    if "scheduler" in p.callbacks and "reduce_rate" in p.callbacks:
        return "one of them sets the rate"
    if p.validation == "none" and {"early_stopping", "reduce_rate", "checkpoint"} & set(p.callbacks):
        return "the callbacks here look at val_loss"
    if p.validation == "second" and {"early_stopping", "reduce_rate", "checkpoint"} & set(p.callbacks):
        return "the callbacks here look at val_loss in each epoch"
    known = {*METRICS[p.task], *OWN_METRICS}
    if p.task == "unlabelled" and p.sample_weight != "none":
        return "fit has no weights of rows without labels"
    if not {*p.metrics, *p.weighted_metrics} <= known:
        return "a metric of another task"
    if {*p.metrics} & {*p.weighted_metrics}:
        return "a metric twice"
    if p.head == "rank1" and "R2Score" in (*p.metrics, *p.weighted_metrics):
        return "R2Score needs two axes"
    if p.legacy and p.head == "rank1" and {"accuracy", "acc"} & {*p.metrics, *p.weighted_metrics}:
        return "tf_keras' accuracy of numbers without an axis compares the places of the largest in the batch"
    if "dropout" in p.extras and p.legacy:
        return "tf_keras draws other masks in each program"
    if p.legacy and p.policy == "mixed_float16" and p.override in ("train_step", "both_steps"):
        return "written for the LossScaleOptimizer of Keras 3"
    counting = {"batchnorm", "dropout", "dropouts", "stateful"} & set(p.extras)
    if p.accumulation > 1 and (p.override in ("train_step", "both_steps") or counting):
        return "accumulation is compared with the larger batch, which has other statistics and fewer calls"
    if p.accumulation > 1 and p.clipping != "none" and p.inputs in ("tokens", "tokens_lstm"):
        return "TensorFlow clips each row of an embedding's sparse gradient; an accumulated one is dense"
    weighed = p.reduction == "mean_with_sample_weight" and (p.class_weight or p.sample_weight != "none")
    if p.accumulation > 1 and (p.task == "tokens" or weighed):
        return "accumulation is compared with the larger batch, whose mask or sum of weights is another"
    return None
