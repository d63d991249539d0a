"""Pod settings of a job."""
