"""Conversions of layouts, written as loops; which are views; and actions that are group actions."""

import itertools

import pytest
import torch

from turnwise.errors import InputError
from turnwise.geometry import layouts
from turnwise.geometry.grids import pixel_centres
from turnwise.geometry.layouts import action_on, on_maps, to_field
from turnwise.groups import PlanarGroup, act_on_points, assert_equivariant

BATCH, CHANNELS, ORDER, ROWS, COLS = 2, 3, 4, 2, 5


def entry(b, c, g, row, col):
    """A different number for each entry of the features of this module."""
    return (((b * CHANNELS + c) * ORDER + g) * ROWS + row) * COLS + col


def filled(shape, index):
    """Return a tensor with `entry(...)` at `index(b, c, g, row, col)`, written by loops."""
    x = torch.full(shape, -1.0)
    sizes = (BATCH, CHANNELS, ORDER, ROWS, COLS)
    for position in itertools.product(*map(range, sizes)):
        x[index(*position)] = entry(*position)
    assert x.min() == 0, "every entry is written"
    return x


@pytest.fixture
def examples():
    """The same features in every layout with a group axis."""
    shapes = {
        "regular": (BATCH, CHANNELS, ORDER, ROWS, COLS),
        "field": (BATCH, ORDER, ROWS, COLS, CHANNELS),
        "tokens": (BATCH, ROWS * COLS, ORDER, CHANNELS),
        "maps": (BATCH, ORDER * CHANNELS, ROWS, COLS),
    }
    indices = {
        "regular": lambda b, c, g, row, col: (b, c, g, row, col),
        "field": lambda b, c, g, row, col: (b, g, row, col, c),
        "tokens": lambda b, c, g, row, col: (b, row * COLS + col, g, c),
        "maps": lambda b, c, g, row, col: (b, g * CHANNELS + c, row, col),
    }
    return {name: filled(shapes[name], indices[name]) for name in shapes}


CONVERSIONS = [  # and what they take besides the features
    ("maps", "regular", (ORDER,)), ("maps", "field", (ORDER,)), ("maps", "tokens", (ORDER,)),
    ("regular", "maps", ()), ("regular", "field", ()), ("regular", "tokens", ()),
    ("field", "maps", ()), ("field", "regular", ()), ("field", "tokens", ()),
    ("tokens", "maps", (ROWS, COLS)), ("tokens", "regular", (ROWS, COLS)),
    ("tokens", "field", (ROWS, COLS)),
]  # fmt: skip


def converter(old, new):
    return getattr(layouts, f"{old}_to_{new}")


@pytest.mark.parametrize(("old", "new", "sizes"), CONVERSIONS)
def test_conversions_are_those_of_the_definition(examples, old, new, sizes):
    assert torch.equal(converter(old, new)(examples[old], *sizes), examples[new])


def is_view(x, of):
    return x.untyped_storage().data_ptr() == of.untyped_storage().data_ptr()


@pytest.mark.parametrize(
    ("old", "new", "sizes"),
    [
        ("maps", "regular", (ORDER,)), ("maps", "field", (ORDER,)), ("regular", "field", ()),
        ("field", "regular", ()), ("tokens", "regular", (ROWS, COLS)),
        ("tokens", "field", (ROWS, COLS)), ("tokens", "maps", (ROWS, COLS)),
    ],
)  # fmt: skip
def test_these_conversions_are_views(examples, old, new, sizes):
    assert is_view(converter(old, new)(examples[old], *sizes), examples[old])


@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
def test_regular_features_of_maps_become_maps_without_a_copy(examples, memory):
    """Also after an elementwise operation, and in the same memory format."""
    maps = examples["maps"].contiguous(memory_format=memory)
    regular = layouts.maps_to_regular(maps, ORDER)
    assert is_view(layouts.regular_to_maps(regular), maps)
    activated = torch.relu(regular - 3)
    assert is_view(layouts.regular_to_maps(activated), activated)
    assert layouts.regular_to_maps(activated).is_contiguous(memory_format=memory)


def test_control_contiguous_regular_features_are_copied(examples):
    assert not is_view(layouts.regular_to_maps(examples["regular"]), examples["regular"])


def test_tokens_of_maps_are_a_view_which_is_contiguous_in_channels_last(examples):
    maps, tokens = examples["maps"], examples["tokens"]
    last = maps.contiguous(memory_format=torch.channels_last)
    for given in (maps, last):
        assert is_view(layouts.maps_to_tokens(given, ORDER), given)
    assert layouts.maps_to_tokens(last, ORDER).is_contiguous()
    assert not layouts.maps_to_tokens(maps, ORDER).is_contiguous()
    back = layouts.tokens_to_maps(tokens, ROWS, COLS)
    assert back.is_contiguous(memory_format=torch.channels_last)


def test_a_function_of_maps_is_applied_to_images_and_to_regular_features(examples):
    pool = torch.nn.AvgPool2d((1, 5))
    image = torch.rand(2, 3, 2, 5)
    assert torch.equal(on_maps(pool, image), pool(image))
    regular = layouts.maps_to_regular(examples["maps"], ORDER)
    pooled = on_maps(pool, regular)
    torch.testing.assert_close(pooled, regular.mean(4, keepdim=True))
    seen = []
    on_maps(lambda maps: seen.append(maps) or maps, regular)
    assert torch.equal(seen[0], examples["maps"])
    assert is_view(seen[0], examples["maps"])


@pytest.mark.parametrize("layout", ["regular", "field", "tokens", "maps"])
def test_every_layout_of_the_group_converts_to_a_field(examples, layout):
    assert torch.equal(to_field(examples[layout], layout, ORDER, (ROWS, COLS)), examples["field"])


def test_layouts_without_a_group_axis_convert_to_a_field_of_one_element():
    image = torch.rand(2, 3, ROWS, COLS)
    expected = image.permute(0, 2, 3, 1)[:, None]
    assert torch.equal(to_field(image, "image", ORDER), expected)
    tokens = image.flatten(2).mT
    assert torch.equal(to_field(tokens, "plain_tokens", ORDER, (ROWS, COLS)), expected)


def test_tokens_form_a_square_unless_a_grid_is_given():
    assert to_field(torch.rand(2, 9, 4, 3), "tokens", 4).shape == (2, 4, 3, 3, 3)
    with pytest.raises(InputError, match="10 tokens do not form a square; give rows_cols"):
        to_field(torch.rand(2, 10, 4, 3), "tokens", 4)


def test_an_unknown_layout_or_a_wrong_group_axis_is_rejected():
    with pytest.raises(InputError, match="unknown layout 'token'"):
        to_field(torch.rand(2, 9, 4, 3), "token", 4)
    with pytest.raises(InputError, match=r"shape \(2, 3, 4, 2, 5\) have 4 group elements, not 8"):
        to_field(torch.rand(2, 3, 4, 2, 5), "regular", 8)
    with pytest.raises(InputError, match="unknown layout with rows and columns 'tokens'"):
        action_on("tokens")


LAYOUTS_WITH_ROWS = {  # name -> shape for a group of the given order
    "image": lambda order: (2, 3, 3, 5),
    "regular": lambda order: (2, 3, order, 3, 5),
    "field": lambda order: (2, order, 3, 5, 3),
    "maps": lambda order: (2, order * 3, 3, 5),
}


@pytest.mark.parametrize("name", ["C4", "D2", "D4"])
@pytest.mark.parametrize("layout", LAYOUTS_WITH_ROWS)
def test_actions_are_group_actions(layout, name):
    """1·x = x and g·(h·x) = (gh)·x, on a rectangle; and only 1 fixes x."""
    group, act = PlanarGroup.named(name), action_on(layout)
    shape = LAYOUTS_WITH_ROWS[layout](group.order)
    x = torch.arange(float(torch.Size(shape).numel())).view(shape)
    assert torch.equal(act(group, 0, x), x)
    for g, h in itertools.product(range(group.order), repeat=2):
        assert torch.equal(act(group, g, act(group, h, x)), act(group, group.compose(g, h), x))
    assert all(not torch.equal(act(group, g, x), x) for g in range(1, group.order))


def test_the_action_on_regular_features_is_the_definition():
    """(g F)(h, x) = F(g⁻¹h, g⁻¹x), one by one, on D4."""
    group, x = PlanarGroup.named("D4"), torch.rand(1, 2, 8, 3, 5)
    centres = pixel_centres(3, 5)
    for g in range(8):
        transformed = action_on("regular")(group, g, x)
        targets = pixel_centres(*transformed.shape[3:])
        for h, row, col in itertools.product(range(8), range(3), range(5)):
            target = act_on_points(group, g, centres[row, col])
            newrow, newcol = torch.nonzero((targets == target).all(-1))[0]
            found = transformed[0, :, group.compose(g, h), newrow, newcol]
            assert torch.equal(found, x[0, :, h, row, col])


@pytest.mark.parametrize("name", ["C4", "D4"])
def test_actions_agree_between_layouts(name):
    group = PlanarGroup.named(name)
    maps = torch.rand(2, 3 * group.order, 3, 5)
    regular = layouts.maps_to_regular(maps, group.order)
    field = layouts.maps_to_field(maps, group.order)
    for g in range(group.order):
        expected = action_on("maps")(group, g, maps)
        from_regular = layouts.regular_to_maps(action_on("regular")(group, g, regular))
        from_field = layouts.field_to_maps(action_on("field")(group, g, field))
        assert torch.equal(from_regular, expected)
        assert torch.equal(from_field, expected)


def test_actions_measure_equivariance_and_reject_a_sum_over_half_the_group():
    x, act = torch.randn(1, 3, 8, 5, 5), action_on("regular")
    assert_equivariant(torch.relu, "D4", x, act_in=act, act_out=act)
    with pytest.raises(AssertionError, match="not equivariant under D4"):
        assert_equivariant(lambda x: x[:, :, :4].sum(2), "D4", x, act_in=act,
                           act_out=action_on("image"))  # fmt: skip


@pytest.mark.parametrize("channels", [1, 3])
def test_convolutions_infer_in_channels_last_and_train_on_a_cpu_in_the_usual_format(channels):
    images, conv = torch.rand(2, channels, 6, 6), torch.nn.Conv2d(channels, 4, 3)
    with torch.no_grad():
        changed = layouts.for_convolutions(images, training=False)
        assert torch.equal(changed, images)
        assert conv(changed).is_contiguous(memory_format=torch.channels_last)
        assert layouts.for_convolutions(images, training=True) is images
        torch.testing.assert_close(conv(changed), conv(images))
    assert layouts.for_convolutions(images, training=False) is images


def test_convolutions_in_any_format_can_be_vectorised():
    images = torch.rand(2, 3, 1, 6, 6)
    with torch.no_grad():
        changed = torch.func.vmap(lambda x: layouts.for_convolutions(x, training=False))(images)
    assert torch.equal(changed, images)
