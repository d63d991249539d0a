"""Validation rules over several fields, each as CEL for the API server and as Python."""
