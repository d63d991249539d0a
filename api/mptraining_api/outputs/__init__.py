"""Records of a run: the fields of a job about them, and metrics by step."""
