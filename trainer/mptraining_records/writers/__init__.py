"""Writers in background threads, for what a run reports while it trains."""
