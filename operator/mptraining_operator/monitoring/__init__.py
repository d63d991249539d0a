"""Access to the metrics of a replica, metrics of single jobs, and diagnostics on a signal."""
