"""The fit loop on the host: build, fit, callbacks, best weights, non-finite values, bad rows, profiling."""
