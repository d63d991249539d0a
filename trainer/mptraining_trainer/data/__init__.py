"""Records of a data set on their way to the batches of a replica."""
