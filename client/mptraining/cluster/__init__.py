"""Kubernetes jobs: connection, submission, status, logs and the trained model."""
