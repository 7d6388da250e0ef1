"""Tables of a model survive casts, and are made later where there was no memory for them."""

import pytest
import torch

from turnwise.models import create_model

MADE = {
    "turnwise_vit_nano": {"group": "C16", "width": 64},
    "roto_resnet18": {"group": "D4", "widths": [8, 8, 16, 16], "depths": [1, 1, 1, 1]},
    "g_cnn": {"group": "C8"},
    "group_performer": {"group": "D4", "width": 32, "depth": 1},
    "performer": {"width": 16, "depth": 2, "heads": 2},
    "relative_performer": {"width": 16, "depth": 2, "heads": 2},
    "clipped_relative_performer": {"width": 16, "depth": 2, "heads": 2},
    "gsa_net": {"group": "D4", "width": 6, "widths": [[6]], "heads": 1, "window": 3},
}
IRREPS = ("turnwise_vit_nano", {"group": "D4", "width": 64, "basis": "irreps"})


@pytest.mark.parametrize(("name", "options"), [*MADE.items(), IRREPS])
@torch.no_grad()
def test_back_from_sixteen_bits_with_the_old_weights(name, options):
    torch.manual_seed(0)
    model = create_model(name, **options).eval()
    images, kept = torch.rand(2, 1, 28, 28), {k: v.clone() for k, v in model.state_dict().items()}
    right = model(images)
    model.bfloat16().float().load_state_dict(kept)
    torch.testing.assert_close(model(images), right, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("name", "options"), [*MADE.items(), IRREPS])
@torch.no_grad()
def test_made_without_memory_and_filled_later(name, options):
    torch.manual_seed(0)
    model, images = create_model(name, **options).eval(), torch.rand(2, 1, 28, 28)
    with torch.device("meta"):
        empty = create_model(name, **options).eval()
    empty.to_empty(device="cpu").load_state_dict(model.state_dict())
    torch.testing.assert_close(empty(images), model(images), rtol=0, atol=1e-6)
