"""Conversion of Kubeflow's TFJob: `convert` makes an MPTrainingJob of it, and reports what became of each field."""
