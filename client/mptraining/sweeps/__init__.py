"""Sweeps: hyperparameter search over one job, on this machine or on a cluster.

`sweep_file` reads and checks the file, `explain` estimates its cost, `driver` runs it here in a `folder` with
`trial_runs`, and `cluster` runs it on Kubernetes; `view` reads the status of either, `apply` writes the best job, and
`result` is the value in Python.
"""
