"""Old names of mixed precision are found in a program's text, each with its replacement."""

from __future__ import annotations

from mptraining_trainer.scripts.old_names import old_mixed_precision


def test_old_names_of_mixed_precision_have_a_translation() -> None:
    text = (
        "import tensorflow as tf\n"
        "policy = tf.keras.mixed_precision.experimental.Policy('mixed_float16')\n"
        "tf.keras.mixed_precision.experimental.set_policy(policy)\n"
        "opt = tf.train.experimental.enable_mixed_precision_graph_rewrite(opt)\n"
        "tf.config.optimizer.set_experimental_options({'auto_mixed_precision': True})\n"
    )
    found = old_mixed_precision(text)
    assert [old.line for old in found] == [3, 4, 5]
    assert "set_global_policy" in found[0].change
    assert all("precision: {policy: mixed_float16}" in old.change for old in found[1:])
    assert old_mixed_precision("config.set_policy(3)") == ()
    assert old_mixed_precision("!pip install") == ()
