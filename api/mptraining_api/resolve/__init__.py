"""Pure functions that decide every default of a job, each with its reason."""
