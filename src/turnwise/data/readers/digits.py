"""The 5,000 handwritten digits that ship with turnwise, so that every example runs offline.

`digits.md` beside this file says where they come from; `tools/make_digits.py` made the file.
"""

from pathlib import Path

from turnwise.data.dataset import Examples
from turnwise.data.readers.arrays import need, read_arrays, to_examples
from turnwise.data.splits import cut_per_class

PATH = Path(__file__).with_name("digits.npz")
_PER_CLASS = {"train": 400, "val": 50, "test": 50}
_SEED = 0  # of the fixed splits; not the user's seed


def read_digits() -> dict[str, Examples]:
    """Train, val and test: 400, 50 and 50 pictures of each digit, the same in every call."""
    arrays = read_arrays(PATH)
    images, labels = need(arrays, "images", PATH), need(arrays, "labels", PATH)
    pictures = to_examples(images, labels, PATH, classes=10, channels=1)
    parts = cut_per_class(pictures.labels, tuple(_PER_CLASS.values()), _SEED)
    return {split: pictures.take(part) for split, part in zip(_PER_CLASS, parts, strict=True)}
