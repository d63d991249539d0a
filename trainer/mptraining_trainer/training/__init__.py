"""The fit loop on the host: build, callbacks, non-finite values, profiling."""
