"""One program trained by plain `fit` or by this trainer, in child processes."""
