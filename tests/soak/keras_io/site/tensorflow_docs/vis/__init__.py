"""The part of tensorflow_docs that shows files in notebooks."""
