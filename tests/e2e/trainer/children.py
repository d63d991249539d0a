"""A script that uses child processes, threads and signals in every usual way; it prints one line for each.

It runs under plain Python and as a job, which must print the same. What is forked and trains comes first: TensorFlow
does not survive a fork after its first use, under plain Python too.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import faulthandler
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.context import BaseContext
from typing import Any

import keras
import numpy as np

PATIENCE = 120


def train(seed: int, epochs: int = 2) -> list[float]:
    keras.utils.set_random_seed(seed)
    x = np.random.default_rng(seed).normal(size=(64, 4)).astype("float32")
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    losses = model.fit(x, x.sum(axis=1), batch_size=16, epochs=epochs, verbose=0).history["loss"]
    return [round(loss, 5) for loss in losses]


def fold(seed: int, results: Any) -> None:
    results.put((train(seed), keras.config.dtype_policy().name))


def folds(context: BaseContext, seeds: tuple[int, ...]) -> list[Any]:
    results, found = context.Queue(), []
    for seed in seeds:
        child = context.Process(target=fold, args=(seed, results))  # type: ignore[attr-defined]
        child.start()
        found.append(results.get(timeout=PATIENCE))
        child.join()
    return found


def square(number: int) -> int:
    return number * number


def pool() -> list[int]:
    with multiprocessing.get_context("fork").Pool(2) as workers:
        return workers.map(square, range(4))


def terminate() -> int | None:
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
    child.start()
    child.terminate()
    child.join(PATIENCE)
    if child.exitcode is None:
        child.kill()
    return child.exitcode


def executor() -> list[int]:
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("fork")) as workers:
        return list(workers.map(square, range(4)))


def command() -> tuple[int, str]:
    program = "import signal; print('up', signal.getsignal(signal.SIGTERM), flush=True); signal.pause()"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        said = child.stdout.readline().strip()
        child.terminate()
        return child.wait(PATIENCE), said


def forked(end: Callable[[], object]) -> int:
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        end()
        os._exit(9)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def exits() -> list[int]:
    return [forked(lambda: sys.exit(7)), forked(lambda: os._exit(3)), forked(lambda: int("no number"))]


def state_of_signals() -> None:
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    print("  child", signal.getsignal(signal.SIGTERM), mask, signal.set_wakeup_fd(-1), flush=True)
    os._exit(0)


def handlers() -> list[str]:
    seen = []
    for number in (signal.SIGUSR1, signal.SIGCHLD, signal.SIGALRM, signal.SIGINT):
        before = signal.signal(number, lambda number, _: seen.append(signal.Signals(number).name))
        os.kill(os.getpid(), number)
        time.sleep(0.01)
        signal.signal(number, before)
    return seen


def loop() -> str:
    async def main() -> str:
        told: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, told.set_result, "SIGUSR2")
        os.kill(os.getpid(), signal.SIGUSR2)
        return await told

    return asyncio.run(main())


class Rows(keras.utils.PyDataset):  # type: ignore[misc]
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        x = np.full((8, 4), index, "float32")
        return x, x.sum(axis=1)


def data_set() -> list[float]:
    keras.utils.set_random_seed(2)
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1, kernel_initializer="zeros")])
    model.compile(keras.optimizers.SGD(0.001), "mse")
    rows = Rows(workers=2, use_multiprocessing=True)
    return [round(loss, 5) for loss in model.fit(rows, epochs=2, shuffle=False, verbose=0).history["loss"]]


def thread() -> list[float]:
    found: list[float] = []
    training = threading.Thread(target=lambda: found.extend(train(4)))
    training.start()
    training.join()
    return found


ROWS: dict[str, Callable[[], object]] = {
    "Pool as a context manager": pool,
    "Process.terminate": terminate,
    "ProcessPoolExecutor": executor,
    "subprocess": command,
    "signals of a forked child": lambda: forked(state_of_signals),
    "exit codes of forked children": exits,
    "folds by fork": lambda: folds(multiprocessing.get_context("fork"), (1, 2, 3)),
    "folds by spawn": lambda: folds(multiprocessing.get_context("spawn"), (1,)),
    "folds by forkserver": lambda: folds(multiprocessing.get_context("forkserver"), (2,)),
    "own signal handlers": handlers,
    "signals of asyncio": loop,
    "PyDataset with processes": data_set,
    "fit in a thread": thread,
    "fit": lambda: train(5),
}

if __name__ == "__main__":
    faulthandler.enable()
    atexit.register(print, "ROW atexit |")
    for name, row in ROWS.items():
        print("ROW", name, "|", row(), flush=True)
    # A daemon's work ends with the program, a thread's is waited for.
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
    threading.Thread(target=lambda: print("ROW fit in the last thread |", train(6), flush=True)).start()
    subprocess.Popen(["sleep", "5"])
    sys.exit()
