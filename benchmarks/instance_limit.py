"""What three classes of pixels can reach at best: instances grouped from the true classes.

    TURNWISE_DATA=FOLDER python benchmarks/instance_limit.py

On the validation images of nuclei: AP of the instances that `group_instances` makes of the true
background, inside and border; and the Dice of each class when the true masks are moved by one
pixel, which shows how much of a Dice is lost to the width of the border.  The record goes to
benchmarks/instance_limit.jsonl.
"""

import sys
from pathlib import Path

import torch.nn.functional as F
from records import append_record

from turnwise.data import load_dataset
from turnwise.data.instances import THRESHOLDS, group_instances, match_instances
from turnwise.data.masks import INSTANCE_CLASSES, pixel_classes
from turnwise.data.pixel_scores import class_overlaps

HERE = Path(__file__).parent
NAME = sys.argv[1] if len(sys.argv) > 1 else "nuclei"


def main() -> None:
    labels = load_dataset(NAME).val.targets
    classes = pixel_classes(labels)
    right = F.one_hot(classes.clamp_min(0), len(INSTANCE_CLASSES)).movedim(-1, 1).float()
    ap = match_instances(group_instances(right), labels)["ap"].nanmean(0).tolist()
    moved = class_overlaps(classes[:, :, :-1], classes[:, :, 1:], len(INSTANCE_CLASSES))["dice"]
    dice = moved.nanmean(0).tolist()
    figures = {
        "data": NAME,
        "images": len(labels),
        "ap_of_true_classes": dict(zip(map(str, THRESHOLDS), ap, strict=True)),
        "dice_moved_by_one_pixel": dict(zip(INSTANCE_CLASSES, dice, strict=True)),
    }
    print("\n".join(f"{key}: {value}" for key, value in figures.items()))
    append_record(HERE / "instance_limit.jsonl", "python benchmarks/instance_limit.py", figures)


if __name__ == "__main__":
    main()
