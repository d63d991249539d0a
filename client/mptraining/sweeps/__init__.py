"""Sweeps: hyperparameter search over one job, on this machine or on a cluster.

`sweep_file` reads and checks the file, `cost` is the size of its search, `driver` runs it here in a `folder` with
`trial_runs`, and `cluster` runs it on Kubernetes; `view` reads the status of either, `best_job` writes
the best job, and `result` is the value in Python.
"""
