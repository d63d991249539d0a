"""The board of a cluster: one server for all users, each of whom sees the jobs that Kubernetes lets them see."""
