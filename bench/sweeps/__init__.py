"""Figures of hyperparameter sweeps on scikit-learn's digits."""
