"""Writes scikit-learn's handwritten digits, 1,797 real images of 8x8 pixels, as .npz files for `mptj records convert`.

Source: the test set of E. Alpaydin, C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning
Repository (1998), as it ships inside scikit-learn. Pixels are counts from 0 to 16; here they become uint8 greys.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

TRAIN = 1437


def main(folder: Path) -> None:
    digits = load_digits()
    images = np.round(digits.images / 16 * 255).astype(np.uint8)[..., np.newaxis]
    # The file is ordered by writer; a fixed shuffle gives both parts all of them.
    order = np.random.default_rng(7).permutation(len(images))
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in (("train", order[:TRAIN]), ("held-out", order[TRAIN:])):
        np.savez(folder / f"{name}.npz", image=images[rows], label=digits.target[rows].astype(np.int64))
    print(f"{TRAIN} digits to train on, {len(images) - TRAIN} held out")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
