"""HTTPS endpoint for the workers' progress reports, and the writer of `status.progress`."""
