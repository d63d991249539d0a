"""Index of a data set: position and length of every record, range reads, disk cache and verification."""
