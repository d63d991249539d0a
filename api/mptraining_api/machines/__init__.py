"""Machines with accelerators on Kubernetes platforms: node labels and taints, sizes, default requests."""
