"""Export of a run's metrics to TensorBoard, MLflow and Weights & Biases, from the events in its run folder."""
