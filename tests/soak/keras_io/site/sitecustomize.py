"""Installs the stubs of downloads; Python imports this module at its start, because its folder is on PYTHONPATH."""

import sys
from pathlib import Path

# At the end, so that nothing of this repository hides what a script imports.
sys.path.append(str(Path(__file__).resolve().parents[4]))
from tests.soak.keras_io import stubs

stubs.install()
