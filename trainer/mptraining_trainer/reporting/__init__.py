"""Events, progress reports and error messages of a worker."""
