"""The one function of imageio that scripts call: an animation, written as a file of its frames."""

from pathlib import Path
from typing import Any

import numpy as np


def mimsave(uri: str, ims: Any, *_: Any, **__: Any) -> None:
    """Write the frames as they are, without a codec."""
    Path(uri).write_bytes(np.asarray(ims).tobytes())
