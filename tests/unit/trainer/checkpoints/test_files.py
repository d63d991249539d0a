"""Array files of a checkpoint whose checksum is right and whose content is not: an older checkpoint is used instead."""

from __future__ import annotations

from pathlib import Path

import google_crc32c
import numpy as np
import pytest
from safetensors.numpy import save

from mptraining_trainer.checkpoints import files

_TWO_ROWS = {"0 [rows from 000000000000]": np.zeros((1, 2)), "0 [rows from 000000000001]": np.zeros((1, 3))}


@pytest.mark.parametrize(
    ("content", "why"),
    [
        pytest.param(b"", "model.safetensors is damaged: .*header too small", id="empty"),
        pytest.param(b"\xff" * 20, "model.safetensors is damaged: .*header", id="no-header"),
        pytest.param(save({"0": np.zeros(4)})[:-1], "model.safetensors is damaged: ", id="cut-off"),
        pytest.param(save(_TWO_ROWS), "model.safetensors: parts that do not fit together", id="parts-of-two-arrays"),
    ],
)
def test_a_file_that_is_no_array_file_is_damaged(tmp_path: Path, content: bytes, why: str) -> None:
    """Found by fuzzing: safetensors' own error is no ValueError, which ended the attempt."""
    (tmp_path / "model.safetensors").write_bytes(content)
    known = files.FileState(bytes=len(content), crc32c=google_crc32c.value(content))
    with pytest.raises(ValueError, match=why):
        files.read(str(tmp_path), {"model.safetensors": known})
