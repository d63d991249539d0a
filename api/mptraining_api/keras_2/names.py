"""Names and arguments that differ between Keras 2 (tf_keras 2.21) and Keras 3.15, for `source_code`."""

from __future__ import annotations

# Public names of `tf.keras` in tf_keras 2.21 that Keras 3.15 does not have, with all names below them.
KERAS_2_ONLY = frozenset(
    {
        "applications.regnet", "applications.resnet_rs", "backend.experimental", "backend.function",
        "backend.in_test_phase", "backend.in_train_phase", "backend.learning_phase", "backend.learning_phase_scope",
        "backend.local_conv1d", "backend.local_conv2d", "backend.manual_variable_initialization",
        "backend.normalize_batch_in_training", "backend.placeholder", "backend.print_tensor",
        "backend.random_binomial", "backend.reset_uids", "backend.set_learning_phase", "callbacks.BaseLogger",
        "callbacks.experimental", "constraints.RadialConstraint", "constraints.radial_constraint", "dtensor",
        "estimator", "experimental", "layers.AbstractRNNCell", "layers.DenseFeatures", "layers.LocallyConnected1D",
        "layers.LocallyConnected2D", "layers.experimental", "metrics.MeanRelativeError", "metrics.MeanTensor",
        "metrics.experimental", "models.experimental", "models.model_from_config", "optimizers.experimental",
        "optimizers.legacy", "utils.GeneratorEnqueuer", "utils.OrderedEnqueuer", "utils.SequenceEnqueuer",
        "utils.SidecarEvaluator", "utils.experimental", "utils.warmstart_embedding_matrix",
    }
)  # fmt: skip
# Public names of `tf.keras` in Keras 3.15 that tf_keras 2.21 does not have: a program with them is for Keras 3.
KERAS_3_ONLY = frozenset(
    {
        "Variable", "KerasTensor", "Operation", "StatelessScope", "RematScope", "Function", "remat", "config",
        "activations.glu", "activations.hard_silu", "activations.leaky_relu", "activations.log_softmax",
        "activations.relu6", "activations.silu", "callbacks.SwapEMAWeights", "callbacks.OrbaxCheckpoint",
        "distillation", "distribution", "dtype_policies", "layers.AugMix", "layers.AutoContrast", "layers.CutMix",
        "layers.FlaxLayer", "layers.JaxLayer", "layers.MelSpectrogram", "layers.MixUp", "layers.Pipeline",
        "layers.RMSNormalization", "layers.RandAugment", "layers.RandomColorJitter", "layers.RandomErasing",
        "layers.RandomGrayscale", "layers.RandomHue", "layers.RandomSaturation", "layers.RandomShear",
        "layers.STFTSpectrogram", "layers.TFSMLayer", "layers.TorchModuleWrapper", "losses.CTC", "losses.Circle",
        "losses.Dice", "losses.Tversky", "mixed_precision.set_dtype_policy", "ops", "optimizers.Lamb",
        "optimizers.Muon", "quantizers", "random", "tree", "utils.PyDataset", "utils.bounding_boxes",
    }
)  # fmt: skip
# Constructor arguments that Keras 2 accepts and Keras 3 refuses; LAYER_ARGUMENTS are those of every layer.
LAYER_ARGUMENTS = frozenset({"batch_input_shape", "dynamic"})
CLASS_ARGUMENTS = {
    "layers.Attention": {"causal"},
    "layers.AdditiveAttention": {"causal"},
    "layers.BatchNormalization": {"fused", "virtual_batch_size"},
    "layers.GRU": {"time_major"},
    "layers.LSTM": {"time_major"},
    "layers.RNN": {"time_major"},
    "layers.SimpleRNN": {"time_major"},
    "callbacks.ModelCheckpoint": {"period", "options"},
    "callbacks.TensorBoard": {"write_grads", "batch_size"},
}
_FIT_ARGUMENTS = frozenset({"workers", "use_multiprocessing", "max_queue_size"})
METHOD_ARGUMENTS = {
    "fit": _FIT_ARGUMENTS,
    "evaluate": _FIT_ARGUMENTS,
    "predict": _FIT_ARGUMENTS,
    "compile": {"experimental_run_tf_function", "sample_weight_mode"},
    "save_weights": {"save_format"},
    "apply_gradients": {"name", "experimental_aggregate_gradients"},
}
# Methods with names unique to Keras. A function of that name in the program suppresses the sign.
METHODS = {
    "fit_generator": "model.fit takes generators",
    "evaluate_generator": "model.evaluate takes generators",
    "predict_generator": "model.predict takes generators",
    "reset_states": "reset_state is its name in Keras 3",
    "get_scaled_loss": "scale_loss is its name in Keras 3",
    "get_unscaled_gradients": "Keras 3's optimizer divides by itself",
    "add_update": "assign to variables in call",
}
# Libraries whose layers and models need tf_keras since TensorFlow 2.16.
TF_KERAS_LIBRARIES = {
    "tensorflow_hub.KerasLayer": "tensorflow_hub's layer is one of tf_keras",
    "tensorflow_probability.layers": "tensorflow_probability's layers are those of tf_keras",
    "tensorflow_model_optimization": "tensorflow_model_optimization needs tf_keras",
    "tensorflow_recommenders": "tensorflow_recommenders needs tf_keras",
    "tensorflow_ranking": "tensorflow_ranking needs tf_keras",
    "tensorflow_addons": "tensorflow_addons is for Keras 2",
    "tf_keras": "it is Keras 2",
}
