"""TFRecord framing, tf.train.Example, features and the manifest of a data set."""
