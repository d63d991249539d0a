"""`make bench BENCH=trainer`: the training loop against Keras' `fit` and a bare tf.function."""
