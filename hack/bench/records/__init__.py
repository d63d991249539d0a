"""`make bench BENCH=records`: the reader of records against TensorFlow's, Python's and the limit of the network."""
