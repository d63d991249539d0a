"""The training loop: Keras' own loss and metrics in every replica, and what keeps the numbers finite."""
