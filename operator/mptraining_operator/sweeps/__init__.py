"""Hyperparameter sweeps: MPTrainingSweeps are watched, their plans are applied, and their trials are MPTrainingJobs."""
