"""Records in training order: deterministic shuffling, byte sources and prefetching."""
