"""keras.io's code examples and guides, unchanged, under plain Keras and under the trainer."""
