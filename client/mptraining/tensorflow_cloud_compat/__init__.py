"""Implementation of `mptraining.tensorflow_cloud`: arguments, and the job that they describe."""
