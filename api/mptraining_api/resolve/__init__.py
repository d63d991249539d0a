"""Resolution of a job: pure functions that decide every default, each with its reason."""
