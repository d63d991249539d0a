"""Script programs, which call `fit` themselves, under the job's policy, strategy, telemetry and checkpoints."""
