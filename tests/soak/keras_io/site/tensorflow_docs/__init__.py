"""The part of tensorflow_docs that scripts import."""
