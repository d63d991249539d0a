"""The texts of a release, each a pure function: changelog, notes, checksums, provenance."""
