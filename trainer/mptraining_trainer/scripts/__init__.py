"""What is set up around a training script, so that it runs here as it runs in Keras."""
