"""Accuracy under mixed policies against float32: whole jobs on scikit-learn's digits, five seeds each."""
