"""Builders of the Kubernetes objects of a job: Indexed Job, ConfigMap, Service, NetworkPolicy; pure functions."""
