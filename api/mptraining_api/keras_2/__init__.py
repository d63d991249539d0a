"""Detection of programs that are written for Keras 2 and need tf_keras."""
