"""`mptj`, the command line."""
