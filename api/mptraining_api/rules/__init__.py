"""Validation rules that no single field can express; each one as CEL for the API server and as Python."""
