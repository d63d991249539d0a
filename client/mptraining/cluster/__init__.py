"""Jobs on a Kubernetes cluster: connection, submission, status, logs and the trained model."""
