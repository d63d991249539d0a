"""Position and length of every record of a data set, and checks of their checksums."""
