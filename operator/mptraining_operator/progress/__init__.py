"""The HTTPS endpoint to which workers report progress, and the writer of `status.progress`."""
