"""What a policy of mixed precision causes: messages of TensorFlow and Keras, and old names in a program."""

from __future__ import annotations

import pytest

from mptraining_trainer.scripts.error_hints import Circumstances, next_step
from mptraining_trainer.scripts.old_names import old_mixed_precision

WITH_STEP = [
    "Exception encountered when calling Sampling.call().\n\n\x1b[1mCould not automatically infer the output shape / "
    "dtype of 'sampling' (of type Sampling). Either the `Sampling.call()` method is incorrect, or you need to "
    "implement the `Sampling.compute_output_spec() / compute_output_shape()` method. Error encountered:\n\nInput 'y' "
    "of 'Mul' Op has type float32 that does not match type bfloat16 of argument 'x'.\x1b[0m",
    'in user code:\n\n    File "gan.py", line 4, in step  *\n        x = tf.concat([a, b], axis=0)\n\n    TypeError: '
    "Tensors in list passed to 'values' of 'ConcatV2' Op have types [bfloat16, float32] that don't all match.",
    'Exception encountered when calling layer "features" (type Features).\n\nTensor conversion requested dtype float32 '
    "for Tensor with dtype bfloat16: <tf.Tensor 'features/Cast:0' shape=(None, 784) dtype=bfloat16>",
    "Incompatible type conversion requested to type float32 for `tf.Variable of type bfloat16. (Variable: <…>)",
    "cannot compute AddV2 as input #1(zero-based) was expected to be a float tensor but is a bfloat16 tensor [Op:Add]",
    "cannot compute AddV2 as input #1(zero-based) was expected to be a half tensor but is a float tensor [Op:AddV2]",
    "Value for attr 'T' of bfloat16 is not in the list of allowed values: float, double\n\t; NodeDef: {{node Decoder}}",
    "Value passed to parameter 'input' has DataType bfloat16 not in list of allowed values: float64, float32, float16",
    "Input 'predictions' of 'InTopKV2' Op has type bfloat16 that does not match expected type of float32.",
    "Trying to read variable with wrong dtype. Expected float got bfloat16 for '{{node AssignVariableOp}}'",
    'Tensor("cond/Identity:0", shape=(2,), dtype=bfloat16) and Tensor("cond/Identity:0", shape=(2,), dtype=float32) '
    "have different types",
    "TensorArray dtype is float32 but Op is trying to write dtype bfloat16",
    "Loop var x enters the loop with type <dtype: 'float32'> but has type <dtype: 'bfloat16'> after 1 iteration.",
    "indices[0,3] = 4100 is not in [0, 4100)",
]
WITHOUT = [
    "Unable to automatically build the model. Please build it yourself before calling fit/evaluate/predict. Received: "
    "args=<KerasTensor shape=(4, 28, 28, 1), dtype=bfloat16, sparse=False, ragged=False, name=keras_tensor>",
    "Exception encountered when calling StandardizedConv2DWithOverride.call().\n\n\x1b[1mAttr 'padding' of 'Conv2D' Op "
    'passed string \'valid\' not in: "SAME", "VALID", "EXPLICIT".\x1b[0m\n\nArguments received by '
    "StandardizedConv2DWithOverride.call():\n  • inputs=tf.Tensor(shape=(64, 13, 13, 32), dtype=bfloat16)",
    "Exception encountered when calling LSTMCell.call().\n\nShape must be rank 1 but is rank 2 for '{{node BiasAdd}} = "
    'BiasAdd[T=DT_BFLOAT16, data_format="NHWC"](MatMul, Squeeze)\' with input shapes: [0,1024], [0,1024].\n\nArguments '
    "received by LSTMCell.call():\n  • inputs=tf.Tensor(shape=(0, 23), dtype=bfloat16)",
    "Exception encountered when calling Lambda.call().\n\nWe could not automatically infer the shape of the Lambda's "
    "output. Please specify the `output_shape` argument for this Lambda layer.\n\nArguments received by Lambda.call():"
    "\n  • args=('<KerasTensor shape=(None, 16, 256, 16), dtype=bfloat16, sparse=False, name=keras_tensor_17>',)",
    "Value for attr 'T' of string is not in the list of allowed values: float, double, int32, bfloat16, half, variant",
    "You must feed a value for placeholder tensor 'cond/Placeholder_2' with dtype int32",
    "Input 'y' of 'Mul' Op has type float32 that does not match type int32 of argument 'x'. inputs: dtype=bfloat16",
]


def _step(message: str, policy: str = "mixed_bfloat16") -> str:
    under = Circumstances(policy=policy, policy_of_job=policy, replicas=1, in_job_scope=False, legacy=False)
    return next_step(TypeError(message), under) or ""


@pytest.mark.parametrize("message", WITH_STEP)
def test_two_dtypes_that_meet_are_of_the_policy(message: str) -> None:
    assert "set precision: {policy: float32}" in _step(message)
    assert not _step(message, "float32")


@pytest.mark.parametrize("message", WITHOUT)
def test_a_dtype_among_the_arguments_is_not_of_the_policy(message: str) -> None:
    assert not _step(message)


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
