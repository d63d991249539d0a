"""Events, progress reports, error messages and secret values of a worker."""
