"""`make bench-trainer`: the training loop against Keras' `fit` and a bare tf.function."""
