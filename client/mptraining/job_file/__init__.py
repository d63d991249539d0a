"""Job files: their paths, and every mistake that can be found before TensorFlow starts."""
