"""Hyperparameter sweeps: the MPTrainingSweep resource, its proposals, and the plan of its trials."""
