"""A release from end to end: published on loopback, installed from there alone on kind, tampered with in five ways.

Read `__main__` (the order, and the tables); `checkout` makes a version to release, `stranger` installs it without the
repository, `on_kind` on a cluster, `tampering` changes what was published.
"""
