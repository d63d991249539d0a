"""Command line interface `mptj`."""
