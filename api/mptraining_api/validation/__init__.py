"""Mistakes in job files: YAML with the line of each field, the models' errors in plain words, names of Keras."""
