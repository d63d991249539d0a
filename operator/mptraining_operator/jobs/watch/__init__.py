"""Watch streams and lists of the API server, parsed into a cache of jobs; each change queues its job."""
