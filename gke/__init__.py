"""A GKE cluster with T4 Spot, A100 and TPU v5e node pools for one job each, and its removal: docs/gke.md."""
