"""What a run records: the fields of a job about it, metrics by step, and the run on tracking servers."""
