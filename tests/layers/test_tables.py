"""Tables survive casts and are made after `to_empty`; hooks of parts are found."""

import pytest
import torch
from torch import nn

from turnwise.layers.tables import has_hooks
from turnwise.models import create_model

MODELS = {
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


@pytest.mark.parametrize(("name", "options"), [*MODELS.items(), IRREPS])
@torch.no_grad()
def test_a_cast_to_16_bits_and_back_keeps_the_tables(name, options):
    torch.manual_seed(0)
    model = create_model(name, **options).eval()
    images, state = torch.rand(2, 1, 28, 28), {k: v.clone() for k, v in model.state_dict().items()}
    expected = model(images)
    model.bfloat16().float().load_state_dict(state)
    torch.testing.assert_close(model(images), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("name", "options"), [*MODELS.items(), IRREPS])
@torch.no_grad()
def test_a_model_from_the_meta_device_gets_its_tables_from_to_empty(name, options):
    torch.manual_seed(0)
    model, images = create_model(name, **options).eval(), torch.rand(2, 1, 28, 28)
    with torch.device("meta"):
        empty = create_model(name, **options).eval()
    empty.to_empty(device="cpu").load_state_dict(model.state_dict())
    torch.testing.assert_close(empty(images), model(images), rtol=0, atol=1e-6)


REGISTER = (
    "register_forward_hook",
    "register_forward_pre_hook",
    "register_full_backward_hook",
    "register_full_backward_pre_hook",
)


@pytest.mark.parametrize("register", REGISTER)
def test_hooks_of_a_part_are_found(register):
    module = nn.Sequential(nn.Sequential(nn.Linear(2, 2)), nn.ReLU())
    assert not has_hooks(module)
    handle = getattr(module[0][0], register)(lambda *args: None)
    assert has_hooks(module)
    handle.remove()
    assert not has_hooks(module)


@pytest.mark.parametrize("register", REGISTER)
def test_hooks_of_the_module_itself_do_not_count(register):
    module = nn.Sequential(nn.Linear(2, 2))
    getattr(module, register)(lambda *args: None)
    assert not has_hooks(module)
