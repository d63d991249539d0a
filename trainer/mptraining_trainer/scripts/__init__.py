"""Programs that call `fit` themselves: our policy, strategy, telemetry and checkpoints around them."""
