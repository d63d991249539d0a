"""Records in training order: deterministic shuffling, byte ranges and prefetching."""
