"""Names and sizes in the sources of programs."""

from __future__ import annotations

# The name of each kind of feature; labels are also the names of outputs.
LABEL, SECOND, WEIGHT = "label", "second", "weight"
TOKENS, WIDTH, CLASSES = 5, 6, 3
