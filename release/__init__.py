"""A release: distributions, images, chart, install.yaml, bills of materials, provenance, signatures, published last.

Read `plan` (what a release makes, and what refuses it; pure), `__main__` (the command), `build` and `publish` (the
steps); `documents` has the texts, each other module one kind of artifact.
"""
