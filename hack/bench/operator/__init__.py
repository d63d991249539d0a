"""`make bench BENCH=operator`: the operator against Kubeflow's training-operator and against Jobs created by hand."""
