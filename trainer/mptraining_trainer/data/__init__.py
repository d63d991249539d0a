"""From records to batches: schema, decoding, preprocessing, caching and splits."""
