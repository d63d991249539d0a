"""`make bench-operator`: the operator against Kubeflow's training-operator and against Jobs created by hand."""
