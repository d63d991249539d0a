"""Kueue's objects of a job: the Job that holds its place in a queue, and its Workload for MultiKueue."""
