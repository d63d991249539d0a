"""The one function of gdown that scripts call; it writes a synthetic file."""

from pathlib import Path
from typing import Any

from tests.soak.keras_io import files


def download(url: str, output: str, **_: Any) -> str:
    Path(output).write_bytes(files.content(url))
    return output
