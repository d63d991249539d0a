"""Implementation of `mptraining.tensorflow_cloud`: arguments, job document, local backend."""
