"""`make bench-client`: the waiting time and the size of the client in a notebook."""
