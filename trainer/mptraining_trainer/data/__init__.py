"""TFRecords to batches: schema, decoding, preprocessing, caching, splits and input statistics."""
