"""A search with KerasTuner in the form of its guide "Getting started", on data that need no download."""

from __future__ import annotations

# Evaluates the best model after the search.
BEST = 'print("BEST", tuner.get_best_models()[0].evaluate(x, y, verbose=0))\n'
SUMMARY = """
tuner.results_summary()
print("SCORES", sorted(float(trial.score) for trial in tuner.oracle.trials.values()))
"""
# Searches that are compared begin with the same weights.
SEEDED = "import keras\nkeras.utils.set_random_seed(3)\n"


def tuner_script(
    *,
    trials: int,
    rows: int = 64,
    columns: int = 4,
    units: tuple[int, int] = (4, 32),
    highest_rate: float = 1e-1,
    epochs: int = 2,
    before: str = "",
) -> str:
    """Return a build function and a RandomSearch with overwrite=True; `before` is code before the search. `units` are
    the fewest, also their step, and the most.
    """
    return f"""
import keras, keras_tuner, numpy as np
x = np.random.default_rng(0).normal(size=({rows}, {columns})).astype("float32")
y = x.sum(1, keepdims=True)

def build_model(hp):
    units = hp.Int("units", {units[0]}, {units[1]}, step={units[0]})
    model = keras.Sequential([keras.Input(({columns},)), keras.layers.Dense(units), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(hp.Float("lr", 1e-4, {highest_rate}, sampling="log")), "mse")
    return model

tuner = keras_tuner.RandomSearch(
    build_model, "val_loss", {trials}, seed=5, overwrite=True, directory="my_dir", project_name="hello")
{before}tuner.search(x, y, epochs={epochs}, batch_size=16, validation_data=(x, y))
"""
