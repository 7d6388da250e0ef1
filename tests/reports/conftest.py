"""Small untrained models with digits: symmetry is a property of the architecture."""

import pytest
import torch

from turnwise.data import Examples, load_dataset
from turnwise.data.masks import INSTANCE_CLASSES
from turnwise.groups import PlanarGroup
from turnwise.models import create_model
from turnwise.reports.loaded_models import LoadedModel

SMALL = {
    "vit": {"patch": 7, "width": 16, "depth": 2, "heads": 2},
    "orbit_vit": {"patch": 7, "width": 16, "depth": 2, "heads": 2},
    "gsa_net": {"width": 6, "widths": [[6], [6]], "crops": [[1], [0]], "heads": 2, "window": 3},
    "turnwise_vit_nano": {},
}


@pytest.fixture(scope="session")
def small_digits():
    return load_dataset("digits", image_size=12)


@pytest.fixture
def make_model(digits, small_digits):
    """Makes a model by name, with twenty digits, two of each; smaller ones for group attention."""

    def make(name, group="C4", dtype=torch.float32, **options):
        torch.manual_seed(0)
        data = small_digits if name == "gsa_net" else digits
        options = SMALL[name] | options
        model = create_model(name, group=group, image_size=data.image_size, **options)
        for parameter in model.parameters():  # untrained heads are small, and predictions all alike
            parameter.data.add_(0.1 * torch.randn_like(parameter))
        examples = data.val.take(torch.arange(0, 500, 25))
        own = model.group if model.group.order > 1 else PlanarGroup.named(group)
        return LoadedModel(
            name, model.to(dtype).eval(), data.classes, own, examples, "digits", None
        )

    return make


class Quadrant(torch.nn.Module):
    """Predict the brightest quadrant, counted counter-clockwise: a rotation by 90° adds one."""

    group = PlanarGroup.named("C1")

    def preprocess(self, images):
        return images

    def forward(self, images):
        half = images.shape[-1] // 2
        top, bottom = images[:, 0, :half], images[:, 0, half:]
        quadrants = (top[..., half:], top[..., :half], bottom[..., :half], bottom[..., half:])
        return 9 * torch.stack([q.square().mean((-2, -1)) for q in quadrants], dim=-1)


@pytest.fixture
def quadrant():
    """A model whose predictions are known: each image has one bright spot."""
    images = torch.zeros(4, 1, 8, 8, dtype=torch.uint8)
    for label, (row, col) in enumerate([(1, 6), (1, 1), (6, 1), (6, 6)]):
        images[label, 0, row, col] = 255
    examples = Examples(images, torch.arange(4))
    classes = ("I", "II", "III", "IV")
    return LoadedModel(
        "quadrant", Quadrant(), classes, PlanarGroup.named("C4"), examples, "spots", None
    )


@pytest.fixture
def mask_models():
    """An exact U-Net and a plain one, with three random images of two instances each."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (3, 1, 16, 16), generator=generator, dtype=torch.uint8)
    labels = torch.zeros(3, 16, 16, dtype=torch.int16)
    labels[:, 2:8, 3:9], labels[:, 10:14, 6:15] = 1, 2

    def load(name):
        torch.manual_seed(0)
        sizes = {"num_classes": 3, "image_size": 16, "widths": (16, 32)}
        model = create_model(name, group="D4", **sizes).eval()
        model.classes = INSTANCE_CLASSES
        group, examples = PlanarGroup.named("D4"), Examples(images, labels)
        return LoadedModel(name, model, INSTANCE_CLASSES, group, examples, "random", None)

    return [load("turnwise_unet_nano"), load("unet")]
