"""The training step: Keras' own loss and metrics in every replica, and what several replicas need besides."""
