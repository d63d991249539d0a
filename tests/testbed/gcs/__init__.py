"""Object storage: fake-gcs-server, and a proxy in front of it with latency, rates and faults."""
