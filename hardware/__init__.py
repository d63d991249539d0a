"""`make hardware`: what an accelerator gives a job, measured through the trainer and written to docs/hardware.md."""
