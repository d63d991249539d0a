"""Loaded by Python itself at its start, because this folder is on PYTHONPATH: puts the stubs of downloads in place."""

import sys
from pathlib import Path

# At the end, so that nothing of this repository hides what a script imports.
sys.path.append(str(Path(__file__).resolve().parents[4]))
from tests.soak.keras_io import stubs

stubs.install()
