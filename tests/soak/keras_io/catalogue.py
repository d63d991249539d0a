"""The scripts in the given folder, and the additional stubs that a few of them need."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.soak.keras_io.stubs import Settings

# A folder's name may end with the year of its text; up to 2023 keras.io was written for Keras 2.
_YEAR = re.compile(r"_(20\d\d)$")
_KERAS_3 = 2024
# By the path without year and `.py`: scripts that slice off fixed numbers of rows, or train for very long.
_SETTINGS: Mapping[str, Settings] = {
    "generative/conditional_gan": Settings(rows=(64, 64), epochs=1),
    "generative/vae": Settings(predicts=4),
    "generative/wgan_gp": Settings(rows=(64, 64), epochs=1),
    "guides/writing_a_custom_training_loop_in_tensorflow": Settings(rows=(10_256, 64)),
    "guides/distributed_training_with_tensorflow": Settings(rows=(10_512, 64), epochs=1),
    "guides/functional_api": Settings(rows=(60_000, 10_000), epochs=1, steps=4),
    "guides/writing_your_own_callbacks": Settings(rows=(1_000, 128)),
    # Its validation split leaves numbers of rows that two replicas divide, as with the original data.
    "keras_recipes/antirectifier": Settings(rows=(320, 64)),
    "nlp/lstm_seq2seq": Settings(predicts=4),
    "vision/eanet": Settings(rows=(128, 32)),
    "vision/siamese_contrastive": Settings(rows=(30_256, 128), epochs=1, steps=8),
    "vision/autoencoder": Settings(epochs=1),
    "vision/attention_mil_classification": Settings(epochs=1, steps=8),
}


@dataclass(frozen=True)
class Script:
    """One program: `name` is its path below the folder, without `.py`."""

    name: str
    path: Path
    settings: Settings = field(default_factory=Settings)
    legacy: bool = False

    @property
    def title(self) -> str:
        """The name without the year of its text."""
        return undated(self.name)


def undated(name: str) -> str:
    """`vision_2023/cutmix` is `vision/cutmix`."""
    folder, _, rest = name.rpartition("/")
    return f"{_YEAR.sub('', folder)}/{rest}" if folder else rest


def scripts(folder: Path, only: Sequence[str] = ()) -> list[Script]:
    """Return the scripts below `folder` whose names contain one of `only` (all, when it is empty), sorted by name."""
    found = []
    for path in sorted(folder.glob("*/*.py")):
        name = str(path.relative_to(folder).with_suffix(""))
        if only and not any(each in name for each in only):
            continue
        year = _YEAR.search(path.parent.name)
        legacy = year is not None and int(year[1]) < _KERAS_3
        found.append(Script(name, path, _SETTINGS.get(undated(name), Settings()), legacy))
    return found
