"""The ways to train a task that are timed against each other: this loop, `fit`, a bare tf.function.

Each `Contender` runs a given number of steps and returns their time; `rounds` calls them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import tensorflow as tf

from hack.bench.trainer import tasks
from hack.bench.trainer.jobs import trainers_strategy
from hack.bench.trainer.rounds import Measured
from hack.bench.trainer.tasks import Task
from mptraining_trainer.keras_backend import Keras, load
from mptraining_trainer.model.compiled import CompiledModel
from mptraining_trainer.step.steps_per_execution import StepsPerExecution
from mptraining_trainer.step.train_loop import Loop, StepPlan, make_iterator

Kind = Literal["loop", "fit", "bare"]
# With several steps per execution `fit` requires whole executions.
MULTIPLE = 32


@dataclass(frozen=True)
class Setting:
    """One contender: `fused` steps in one execution (None: measured by the loop itself, `fit`'s default)."""

    kind: Kind
    task: tasks.TaskName
    keras: Literal["Keras3", "Legacy"] = "Keras3"
    replicas: int = 1
    fused: int | None = None
    # `fit` alone: Keras 3 compiles a step with XLA by default.
    jit: bool | None = None
    policy: str = "float32"


class Contender(Protocol):
    """Runs steps in multiples of `MULTIPLE`: as many to warm up first."""

    def train(self, steps: int) -> Measured: ...


def make(setting: Setting) -> Contender:
    """Return the contender with its model and data; nothing is compiled yet."""
    strategy = make_strategy(setting.kind, setting.replicas)
    keras = load(setting.keras)
    keras.set_seed(7)
    keras.set_policy(setting.policy)
    kinds: dict[Kind, Any] = {"loop": LoopContender, "fit": FitContender, "bare": BareContender}
    contender: Contender = kinds[setting.kind](setting, keras, strategy)
    return contender


def make_strategy(kind: Kind, replicas: int) -> Any:
    if kind == "loop":
        return trainers_strategy(replicas)
    if replicas == 1:
        return tf.distribute.get_strategy()
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * replicas)
    return tf.distribute.MirroredStrategy([f"CPU:{index}" for index in range(replicas)])


class Stopwatch:
    """Wall-clock and CPU time from its creation to `stop`."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def stop(self, steps: int) -> Measured:
        return Measured(steps, time.perf_counter() - self._wall, time.process_time() - self._cpu)


def _timed(run: Callable[[int], None], steps: int) -> Measured:
    """Run the steps to warm up, and again for their time."""
    run(steps)
    watch = Stopwatch()
    run(steps)
    return watch.stop(steps)


def _make_loop(keras: Keras, strategy: Any, task: Task) -> tuple[Loop, Any]:
    """Return the loop as the trainer builds it, with its distributed iterator."""
    with strategy.scope():
        model = tasks.model(keras.module, task)
        optimizer = tasks.optimizer(keras.module, task)
        model.compile(optimizer, tasks.loss(keras.module), metrics=[tasks.accuracy(keras.module)])
        compiled = CompiledModel(keras, model)
        compiled.build(next(iter(tasks.dataset(task, task.batch, ()))))
        # As for data that is kept in memory.
        plan = StepPlan(task.batch * strategy.num_replicas_in_sync, measures_waiting=False)
        loop = Loop(strategy, compiled, optimizer, plan)
    return loop, make_iterator(strategy, lambda: tasks.dataset(task, task.batch, ()))


class LoopContender:
    """Our loop, with its pace between two executions."""

    def __init__(self, setting: Setting, keras: Keras, strategy: Any) -> None:
        self._loop, self._iterator = _make_loop(keras, strategy, tasks.TASKS[setting.task])
        self._pace = StepsPerExecution.begin(setting.fused)
        self._loop.execute(self._iterator, 1)

    def train(self, steps: int) -> Measured:
        return _timed(self._run, steps)

    def _run(self, left: int) -> None:
        while left > 0:
            now = min(left, self._pace.steps)
            before = time.perf_counter()
            self._loop.execute(self._iterator, now)
            if now == self._pace.steps:
                self._pace = self._pace.adjust((time.perf_counter() - before) / now)
            left -= now


class FitContender:
    """`model.fit` without a progress bar, which favours it. Epoch 1 is timed."""

    def __init__(self, setting: Setting, keras: Keras, strategy: Any) -> None:
        task = tasks.TASKS[setting.task]
        with strategy.scope():
            self._model = tasks.model(keras.module, task)
            jit = {} if setting.jit is None else {"jit_compile": setting.jit}
            self._model.compile(
                tasks.optimizer(keras.module, task),
                tasks.loss(keras.module),
                metrics=[tasks.accuracy(keras.module)],
                **({"steps_per_execution": setting.fused} if setting.fused else {}),
                **jit,
            )
        self._data = tasks.dataset(task, task.batch * setting.replicas)
        self._callback = _epoch_timer(keras)

    def train(self, steps: int) -> Measured:
        self._model.fit(self._data, epochs=2, steps_per_epoch=steps, verbose=0, callbacks=[self._callback])
        measured: Measured = self._callback.measured
        return measured


def _epoch_timer(keras: Keras) -> Any:
    class EpochTimer(keras.module.callbacks.Callback):  # type: ignore[misc, name-defined]
        """Times the second epoch; has no hook for batches, which would slow `fit` down."""

        def on_epoch_begin(self, *_: Any, **__: Any) -> None:
            self._watch = Stopwatch()

        def on_epoch_end(self, *_: Any, **__: Any) -> None:
            self.measured = self._watch.stop(self.params["steps"])

    return EpochTimer()


class BareContender:
    """Code that an expert writes by hand: fused steps over the iterator, the loss and one metric, one read."""

    def __init__(self, setting: Setting, keras: Keras, strategy: Any) -> None:
        task = tasks.TASKS[setting.task]
        module = keras.module
        self._fused = setting.fused or MULTIPLE
        with strategy.scope():
            model, optimizer = tasks.model(module, task), tasks.optimizer(module, task)
            loss = tasks.loss(module, reduction="none")
            mean, accuracy = module.metrics.Mean(), tasks.accuracy(module)
            optimizer.build(model.trainable_variables)
        examples = float(task.batch * setting.replicas)

        def step(inputs: Any, labels: Any) -> None:
            with tf.GradientTape() as tape:
                predictions = model(inputs, training=True)
                values = loss(labels, predictions)
                objective = tf.reduce_sum(values) / examples
            gradients = tape.gradient(objective, [variable.value for variable in model.trainable_variables])
            optimizer.apply(gradients)
            mean.update_state(values)
            accuracy.update_state(labels, predictions)

        @tf.function  # type: ignore[untyped-decorator]
        def execute(iterator: Any, steps: Any) -> Any:
            for _ in tf.range(steps):
                if setting.replicas == 1:
                    step(*next(iterator))
                else:
                    strategy.run(step, args=next(iterator))
            return tf.stack([mean.result(), accuracy.result()])

        self._execute = execute
        if setting.replicas == 1:
            self._iterator = iter(tasks.dataset(task, task.batch))
        else:
            self._iterator = iter(
                strategy.distribute_datasets_from_function(lambda context: tasks.dataset(task, task.batch))
            )
        self._execute(self._iterator, tf.constant(1)).numpy()

    def train(self, steps: int) -> Measured:
        return _timed(self._run, steps)

    def _run(self, left: int) -> None:
        while left > 0:
            now = min(left, self._fused)
            self._execute(self._iterator, tf.constant(now)).numpy()
            left -= now
