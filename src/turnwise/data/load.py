"""`load_dataset`: any set by its name, as three disjoint splits in memory."""

from dataclasses import replace
from pathlib import Path

from turnwise.data.catalogue import entry
from turnwise.data.dataset import Dataset, Examples
from turnwise.data.readers.folders import PREFIX, read_folder
from turnwise.data.readers.sources import READERS, Source
from turnwise.data.resample import check_wishes, fit
from turnwise.data.splits import cut, part_per_class, val_count
from turnwise.data.storage import shelves
from turnwise.errors import InputError, require

HELD_OUT = 5_000  # of the training pictures of MNIST, Fashion-MNIST and CIFAR-10, as published
PART_SEED = 10  # of `fraction`, so that every training sees the same part


def _with_val(
    source: Source, name: str, official: bool, val_fraction: float | None, seed: int
) -> tuple[dict[str, Examples], str]:
    """The three splits, and how validation came about where we cut it."""
    if official:
        require(
            val_fraction is None,
            f"val_fraction = {val_fraction} does not apply to {name}, whose validation split is "
            "fixed; leave it out.",
        )
        return source.splits, ""
    whole = source.splits["train"]
    held_out = val_count(len(whole), HELD_OUT, val_fraction)
    train, val = cut(len(whole), held_out, seed)
    splits = {"train": whole.take(train), "val": whole.take(val), "test": source.splits["test"]}
    return splits, f"; {held_out:,} of train held out for validation by seed {seed}"


def load_dataset(  # noqa: PLR0913 - what a user may choose
    name: str,
    *,
    data_dir: str | Path | None = None,
    image_size: int | None = None,
    channels: int | None = None,
    val_fraction: float | None = None,
    seed: int = 0,
    download: bool = True,
    crop: int | None = None,
    fraction: float = 1.0,
) -> Dataset:
    """The data set `name` of the catalogue, or your own pictures as "folder:PATH".

    Files are looked for in `data_dir`, in $TURNWISE_DATA and in the user's cache, and else
    downloaded into the cache.  Examples are first cropped to the central `crop` pixels, then
    resampled to `image_size`; `channels` is 1 for luma or 3 to repeat grey.  `val_fraction` is the
    share of the training pictures held out for validation, for sets without a validation split of
    their own; `seed` chooses which.  Of the training pictures only `fraction` is kept, in every
    class alike and always the same ones; validation and test stay whole.

    >>> digits = load_dataset("digits")
    >>> len(digits.train), len(digits.val), len(digits.test), digits.channels, digits.image_size
    (4000, 500, 500, 1, 28)
    """
    check_wishes(image_size, channels, crop)
    require(seed >= 0, f"seed = {seed} must not be negative; try 0.")
    require(0 < fraction <= 1, f"fraction = {fraction} must be above 0 and at most 1; try 0.1.")
    if name.startswith(PREFIX):
        own = _own_pictures(name, image_size, channels, val_fraction, seed, crop)
        return _part(own, fraction)
    known = entry(name)
    source = READERS[name](known, shelves(data_dir, download), image_size)
    splits, how = _with_val(source, name, known.official_val, val_fraction, seed)
    rows = splits["train"].images.shape[2]
    if crop is not None and crop != rows:
        how += f"; central {crop} pixels"
    if image_size not in (None, crop or rows):
        how += f"; resampled from {crop or rows} pixels"
    fitted = {
        split: Examples(fit(part.images, image_size, channels, crop), part.labels)
        for split, part in splits.items()
    }
    loaded = Dataset(
        name=name,
        classes=known.classes,
        **fitted,
        provenance=source.provenance + how,
        licence=known.licence,
    )
    assert loaded.image_size, "asking raises unless the pictures are square"
    return _part(loaded, fraction)


def _part(whole: Dataset, fraction: float) -> Dataset:
    """The data set with a part of its training pictures, which its provenance then says."""
    if fraction == 1:
        return whole
    train = whole.train.take(part_per_class(whole.train.labels, fraction, PART_SEED))
    said = f"; {len(train):,} of {len(whole.train):,} training pictures, drawn by seed {PART_SEED}"
    return replace(whole, train=train, provenance=whole.provenance + said)


def _own_pictures(
    name: str,
    image_size: int | None,
    channels: int | None,
    val_fraction: float | None,
    seed: int,
    crop: int | None,
) -> Dataset:
    if crop is not None:
        raise InputError(
            f"crop = {crop} does not apply to {name}; write image_size={crop}, which crops each "
            "picture to its central square and resamples it."
        )
    return read_folder(name, image_size, channels, val_fraction, seed)
