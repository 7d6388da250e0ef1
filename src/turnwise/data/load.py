"""`load_dataset`: any data set by its name, as three disjoint splits in memory."""

from dataclasses import replace
from pathlib import Path

import torch

from turnwise.data.catalogue import entry
from turnwise.data.dataset import Dataset, Examples, Target
from turnwise.data.masks import fit_masks, is_mask
from turnwise.data.readers import Source, find_reader
from turnwise.data.readers.own import read_own
from turnwise.data.reading import Reading
from turnwise.data.sources import own_reader
from turnwise.data.splits import hold_out, sample_per_class, strata_of, val_count
from turnwise.data.storage import data_folders
from turnwise.data.transforms import check_image_options, fit_images
from turnwise.errors import InputError, require

HELD_OUT = 5_000  # of the training images of MNIST, Fashion-MNIST and CIFAR-10, as published
FRACTION_SEED = 10  # of `fraction`, so that every training run sees the same part


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
    reading: Reading | None = None,
) -> Dataset:
    """Load a data set of the catalogue, or your own images (docs/how-to/own-images.md).

    Args:
        name: the name in the catalogue, "folder:PATH", or the path of a .csv, .parquet or .npz.
        data_dir: the folder to search first; then follow $TURNWISE_DATA and the user's cache.
        image_size: resample to squares of this many pixels, after `crop`.
        channels: 1 converts colour to luma, 3 repeats grey.
        val_fraction: the share of train to hold out for validation, for sets without an official
            validation split.
        seed: chooses which images are held out.
        download: download missing files into the cache.
        crop: keep only the central `crop` pixels.
        fraction: the share of train to keep, equal in every class and the same in every call;
            validation and test stay whole.
        reading: how your own images are read, grouped and checked.

    >>> digits = load_dataset("digits")
    >>> len(digits.train), len(digits.val), len(digits.test), digits.channels, digits.image_size
    (1500, 500, 500, 1, 28)
    """
    check_image_options(image_size, channels, crop)
    require(seed >= 0, f"seed = {seed} must not be negative; try 0.")
    require(0 < fraction <= 1, f"fraction = {fraction} must be above 0 and at most 1; try 0.1.")
    if own_reader(name):
        if crop is not None:
            raise InputError(
                f"crop = {crop} does not apply to {name}; write image_size={crop}, which crops "
                "each image to its central square and resamples it."
            )
        own = read_own(
            name, reading or Reading(), image_size=image_size, channels=channels,
            val_fraction=val_fraction, seed=seed,
        )  # fmt: skip
        return _keep_fraction(own, fraction)
    known = entry(name)
    require(
        reading is None or not reading.reads_differently,
        f"{name} is read as it is published; leave out the settings for images of your own.",
    )
    source = find_reader(known.reader)(known, data_folders(data_dir, download), image_size)
    splits, note = _with_val(source, name, known.official_val, val_fraction, seed)
    rows = splits["train"].images.shape[2]
    if crop is not None and crop != rows:
        note += f"; central {crop} pixels"
    if image_size not in (None, crop or rows):
        note += f"; resampled from {crop or rows} pixels"
    fitted = {
        split: fit_examples(part, image_size, channels, crop) for split, part in splits.items()
    }
    loaded = Dataset(
        name=name,
        target=Target(known.target, known.classes),
        train=fitted["train"],
        val=fitted["val"],
        test=fitted["test"],
        provenance=source.provenance + note,
        licence=known.licence,
    )
    assert loaded.image_size, "the property raises unless the images are square"
    return _keep_fraction(loaded, fraction)


def _with_val(
    source: Source, name: str, official: bool, val_fraction: float | None, seed: int
) -> tuple[dict[str, Examples], str]:
    """Return the three splits, and a note on how validation was held out."""
    if official:
        require(
            val_fraction is None,
            f"val_fraction = {val_fraction} does not apply to {name}, whose validation split is "
            "fixed; leave it out.",
        )
        return source.splits, ""
    whole = source.splits["train"]
    held_out = val_count(len(whole), HELD_OUT, val_fraction)
    train, val = hold_out(len(whole), held_out, seed)
    splits = {"train": whole.take(train), "val": whole.take(val), "test": source.splits["test"]}
    return splits, f"; {held_out:,} of train held out for validation by seed {seed}"


def fit_examples(
    part: Examples, image_size: int | None, channels: int | None, crop: int | None
) -> Examples:
    """Return the examples with images, and masks if they have any, as requested."""
    targets = fit_masks(part.targets, image_size, crop) if is_mask(part.targets) else part.targets
    return replace(
        part, images=fit_images(part.images, image_size, channels, crop), targets=targets
    )


def _keep_fraction(whole: Dataset, fraction: float) -> Dataset:
    """Return the data set with a fraction of its training images, noted in its provenance."""
    if fraction == 1:
        return whole
    strata = torch.from_numpy(strata_of(whole.train, whole.target)).argmax(1)
    train = whole.train.take(sample_per_class(strata, fraction, FRACTION_SEED))
    counts = f"{len(train):,} of {len(whole.train):,} training images"
    note = f"; {counts}, drawn by seed {FRACTION_SEED}"
    return replace(whole, train=train, provenance=whole.provenance + note)
