"""Benchmarks, the kind cluster, images, the site: what only maintainers run."""
