"""Imported networks compute what the original programs did, and nothing is guessed.

With the made-up weights the logits of the two programs differ by 2e-4 (p4) to 9e-7 (p4m), so single
layers, where they differ by 6e-5 and more, are compared as well: in test_gsa_keys.py.
"""

import math
import re

import pytest
import torch

from turnwise.errors import InputError
from turnwise.groups import PlanarGroup
from turnwise.models import create_model, load, model_options, save
from turnwise.models.importing.gsa import ORIGINS, PUBLISHED_DATA, build_original, import_original
from turnwise.options import to_plain

GROUPS = ["z2", "p4", "p8", "mz2", "p4m"]
LIFT = "lifting_self_attention"


def table_of_rotations(origin, n):
    """Return the table as the authors of the programs wrote it: shifts of the numbers 0 … n − 1."""
    v, g, m = torch.meshgrid(*3 * [torch.arange(n)], indexing="ij")
    return (m + v - g) % n if origin == "gsa-nets" else (2 * g - m - v) % n


def table_with_reflections(origin, n):
    """Return the same by loops over pairs (rotation, reflection).

    Under a reflection, rotations change their sense.  In 2021 a reflection exchanges the halves of
    the table, in 2023 it adds n to the values; with a single reflection 2023 has m + v.
    """
    if origin == "ge-vit" and n == 1:
        v, _, m = torch.meshgrid(*3 * [torch.arange(2)], indexing="ij")
        return (m + v) % 2
    swaps = origin == "gsa-nets"

    def rotated(a, k, half):
        return (a + (-k if half else k)) % n

    def relation(g, m):
        (half, k), (q, a) = divmod(g, n), divmod(m, n)
        q = q ^ half if swaps else q
        value = rotated(a, -k, q) + n * q
        return value if swaps else (value + n * half) % (2 * n)

    def entry(v, g, m):
        (s, k), (t, a) = divmod(v, n), divmod(g, n)
        t = t ^ s if swaps else t
        value = relation(rotated(a, k, t) + n * t, m)
        return value if swaps else (value + n * s) % (2 * n)

    every = range(2 * n)
    return torch.tensor([[[entry(v, g, m) for m in every] for g in every] for v in every])


def stored_table(origin, group):
    make = table_with_reflections if group.reflections else table_of_rotations
    return make(origin, group.rotations)


def group_buffers(group):
    """Return what the programs store of a group: its neutral element, elements and relations."""
    angle = (group.elements % group.rotations).double() * (2 * math.pi / group.rotations)
    reflection = 1.0 - 2.0 * (group.elements // group.rotations).double()
    elements = torch.stack([angle, reflection], -1) if group.reflections else angle[:, None]
    return {
        "_identity": elements[0].float(),
        "_elements": elements,
        "_relative_positions": torch.zeros(group.order, group.order, dtype=torch.long),
    }


def with_buffers(weights, origin, group, sides):
    """Return a state dict as the programs write it: buffers of the group are in every layer."""
    state = {f"group.{name}": values for name, values in group_buffers(group).items()}
    state |= weights
    for key in [key for key in weights if key.endswith(".query.weight")]:
        layer = key.removesuffix(".query.weight")
        state |= {f"{layer}.group.{name}": v for name, v in group_buffers(group).items()}
        for axis in ("row", "col"):
            state[f"{layer}.{axis}_indices"] = torch.zeros(1).expand(group.order, *sides)
        if layer != LIFT:
            state[f"{layer}.g_indices"] = stored_table(origin, group)
    return state


@pytest.fixture(scope="session")
def golden_state(golden_weights):
    """Return a function that makes the whole state dict of a golden network, window 5."""

    def make(origin, name):
        weights = golden_weights(f"net_rotmnist_{name}_p5")
        return with_buffers(weights, origin, PlanarGroup.named(name), sides=(5, 5))

    return make


@pytest.fixture
def state(golden_state):
    """Return the state dict of GSA-Nets with p4; a test may change it."""
    return golden_state("gsa-nets", "p4")


def refusal(state, origin="gsa-nets"):
    with pytest.raises(InputError) as refused:
        build_original(state, origin)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def distance(found, wanted):
    return float((found.double() - wanted).abs().max() / wanted.abs().max())


@torch.no_grad()
def logits_for(model, golden, origin, name, dtype=torch.float32):
    image = golden(origin, f"net_rotmnist_{name}_p5.input")
    return model.to(dtype)(image.to(dtype))


def test_the_keys_are_those_of_the_originals(golden_state, keys):
    """They are listed in the golden files, which name repeated buffers once."""
    case = keys["net_rotmnist_p4m_p5"]
    listed = dict(case["parameters"] + case["buffers"])
    made = {key: list(v.shape) for key, v in golden_state("ge-vit", "p4m").items()}
    repeated = {key for key in made if re.search(r".\.group\._", key)}
    assert {key: made[key] for key in made.keys() - repeated} == listed


@pytest.mark.parametrize("name", GROUPS)
@pytest.mark.parametrize("origin", ORIGINS)
def test_the_logits_are_those_of_the_original(tmp_path, golden_state, golden, origin, name):
    torch.save(golden_state(origin, name), tmp_path / "net.pt")
    model = import_original(tmp_path / "net.pt", origin)
    assert not model.training
    wanted = golden(origin, f"net_rotmnist_{name}_p5.logits").double()
    found = logits_for(model, golden, origin, name)
    error = distance(found, wanted)
    assert error < 2e-6
    if name != "z2":
        (other,) = set(ORIGINS) - {origin}
        theirs = golden(other, f"net_rotmnist_{name}_p5.logits").double()
        assert distance(found, theirs) > 3 * error
    if name not in ("p8", "p4m"):  # which are slow
        assert distance(logits_for(model, golden, origin, name, torch.float64), wanted) < 4e-7


def exchange(state, one, other):
    """Exchange the weights of two parts of the network."""
    for key in [key for key in state if one in key]:
        partner = key.replace(one, other)
        state[key], state[partner] = state[partner], state[key]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (".query.", ".key."),
        (".row_embedding.", ".col_embedding."),
        ("transformer.0.", "transformer.1."),
        ("mlp.1.layer_norm.weight", "mlp.1.layer_norm.bias"),
    ],
)
def test_negative_control_exchanged_weights_change_the_logits(state, golden, one, other):
    exchange(state, one, other)
    wanted = golden("gsa-nets", "net_rotmnist_p4_p5.logits").double()
    model = build_original(state, "gsa-nets")
    assert distance(logits_for(model, golden, "gsa-nets", "p4"), wanted) > 1e-3


@pytest.mark.parametrize("name", [*GROUPS, "p12", "p16", "p8m"])
@pytest.mark.parametrize("origin", ORIGINS)
def test_the_tables_are_those_that_the_programs_store(origin, name):
    group = PlanarGroup.named(name)
    assert torch.equal(ORIGINS[origin].stored_table(group), stored_table(origin, group))


@pytest.mark.parametrize("name", GROUPS)
@pytest.mark.parametrize(("origin", "model"), [("gsa-nets", "gsa_net"), ("ge-vit", "ge_vit")])
def test_the_options_are_inferred_from_the_file(golden_state, origin, model, name):
    found = build_original(golden_state(origin, name), origin).config
    assert found.name == model
    expected = {
        "group": PlanarGroup.named(name).name,
        "num_classes": 10,
        "in_chans": 1,
        "image_size": 28,
        "variant": ORIGINS[origin].variant,
        "data": "rotmnist",
        "window": 5,
        "heads": 9,
        "transposed": name != "mz2",  # which has no use for it
    }
    assert found.options == to_plain(model_options(model)) | expected


def test_a_parallel_model_inside_a_dict_is_read_alike(tmp_path, state):
    wrapped = {"model": {f"module.{key}": v for key, v in state.items()}, "epoch": 300}
    torch.save(wrapped, tmp_path / "net.pt")
    found = import_original(str(tmp_path / "net.pt"), "gsa-nets").state_dict()
    wanted = build_original(state, "gsa-nets").state_dict()
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[key], wanted[key]) for key in wanted)


def test_an_imported_model_is_saved_and_loaded(tmp_path, golden_state, golden):
    model = build_original(golden_state("ge-vit", "mz2"), "ge-vit")
    again = load(save(model, tmp_path / "model"))
    assert again.config == model.config
    first, second = (logits_for(m, golden, "ge-vit", "mz2") for m in (model, again))
    assert torch.equal(first, second)
    assert torch.equal(again.preprocess.mean, torch.tensor([0.1307]))
    assert torch.equal(again.preprocess.spread, torch.tensor([0.3081]))


# The numbers of the blocks in the list `transformer` of the programs, and that of the head.
NUMBERS = {
    "rotmnist": ([0, 1, 3, 4, 5], 6),
    "cifar10": ([0, 3, 8, 11, 16, 19], 22),
    "pcam": ([1, 5, 8, 12], 16),
}
RENAMED = {
    r"^norm\.": "lifting_normalization.layer_norm.",
    r"^lift\.": f"{LIFT}.",
    r"\.norm_in\.": ".attention.0.layer_norm.",
    r"\.norm_out\.": ".attention.3.layer_norm.",
    r"\.attention\.(project|place|pose)": r".attention.2.\1",
    r"\.project\.to_output\.": ".wout.",
    r"\.project\.to_": ".",
    r"\.place\.(row|col)\.spread\.": r".\1_embedding.0.",
    r"\.place\.(row|col)\.norm\.": r".\1_embedding.1.layer_norm.",
    r"\.place\.(row|col)\.mix\.": r".\1_embedding.3.",
    r"\.pose$": ".group_embedding.weight",
    r"\.mlp\.([14])\.": r".mlp.\1.layer_norm.",
    r"\.shortcut\.": ".shortcut.0.",
}


def their_key(key, data, entries):
    """Return the key of our parameter in their program; `entries` are the parts of our stages."""
    blocks, head = NUMBERS[data]
    if key == "head.weight":
        return f"transformer.{head}.weight"
    if key.startswith("stages."):
        _, stage, part, rest = key.split(".", 3)
        between = rest in ("weight", "bias")  # a norm between two blocks
        before = [e for e in entries if e < (int(stage), int(part))]
        number = blocks[len(before) // (1 if data == "rotmnist" else 2)]
        key = f"transformer.{number + 1}.layer_norm.{rest}" if between else f"{number}.{rest}"
        key = key if between else f"transformer.{key}"
    for ours, theirs in RENAMED.items():
        key = re.sub(ours, theirs, key)
    return key


def their_values(key, values, heads=9):
    """Reorder channels from head by head to channel by channel; linear maps are convolutions."""
    if re.search(r"to_(query|key|value)", key):
        values = values.unflatten(0, (heads, -1)).transpose(0, 1).flatten(0, 1)
    if key.endswith("to_output.weight"):
        values = values.unflatten(1, (heads, -1)).transpose(1, 2).flatten(1)
    flat = values.ndim == 1 or key.endswith("pose")
    takes_image = key.startswith("lift") and "to_output" not in key
    ones = 0 if flat else 2 if takes_image or ".place." in key else 3
    return values.clone().view(*values.shape, *ones * [1])


def state_of(model, origin, sides=(5, 5)):
    """Return the state dict that the program would have written for this model."""
    data = model.config.options["data"]
    weights = {key: v.detach() for key, v in model.named_parameters()}
    entries = {tuple(map(int, key.split(".")[1:3])) for key in weights if key.startswith("stages")}
    theirs = {their_key(key, data, entries): their_values(key, v) for key, v in weights.items()}
    assert len(theirs) == len(weights)
    return with_buffers(theirs, origin, model.group, sides)


@pytest.fixture
def published():
    """Return a function that makes a model of a published layout with random weights."""

    def make(origin, data, group, window=5, num_classes=10):
        images = PUBLISHED_DATA[data]
        model = create_model(
            ORIGINS[origin].model, group=group, num_classes=num_classes, data=data, window=window,
            in_chans=len(images.mean), image_size=images.size, variant=ORIGINS[origin].variant,
        )  # fmt: skip
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter)
        return model

    return make


def assert_same_weights(found, wanted):
    found, wanted = dict(found.named_parameters()), dict(wanted.named_parameters())
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[key], wanted[key]) for key in wanted)


def test_exported_keys_are_the_golden_ones(published, keys):
    state = state_of(published("gsa-nets", "rotmnist", "C4"), "gsa-nets")
    for key, shape in keys["net_rotmnist_p4_p5"]["parameters"]:
        assert list(state[key].shape) == shape


@pytest.mark.parametrize("data", NUMBERS)
@pytest.mark.parametrize(("origin", "group"), [("gsa-nets", "C4"), ("ge-vit", "D1")])
def test_every_published_layout_is_imported_exactly(published, origin, data, group):
    model = published(origin, data, group, num_classes=2 if data == "pcam" else 10)
    found = build_original(state_of(model, origin), origin, upright=True)
    assert_same_weights(found, model)
    assert found.config.options | {"heads": 9} == model.config.options | {"heads": 9}
    assert found.preprocess.mean.tolist() == pytest.approx(PUBLISHED_DATA[data].mean)
    assert found.preprocess.spread.tolist() == pytest.approx(PUBLISHED_DATA[data].std)


def test_networks_without_dropout_layers_are_imported(published):
    """Without dropout after pools the entries have other numbers, in the same order."""
    model = published("gsa-nets", "cifar10", "C1")
    renumbered = {8: 7, 9: 8, 11: 10, 12: 11, 16: 14, 17: 15, 19: 17, 20: 18, 22: 20}
    state = {
        re.sub(
            r"(?<=transformer\.)\d+", lambda n: str(renumbered.get(int(n[0]), n[0])), key
        ): values
        for key, values in state_of(model, "gsa-nets").items()
    }
    assert_same_weights(build_original(state, "gsa-nets"), model)


@pytest.mark.parametrize("window", [3, 9, 27])
def test_the_window_is_inferred(published, window):
    model = published("gsa-nets", "rotmnist", "C1", window=window)
    found = build_original(state_of(model, "gsa-nets", sides=(window, window)), "gsa-nets")
    assert found.config.options["window"] == window


def test_global_attention_is_inferred(published):
    model = published("ge-vit", "rotmnist", "C4", window=28)
    found = build_original(state_of(model, "ge-vit", sides=(28,) * 4), "ge-vit")
    assert found.config.options["window"] == 28
    assert found.lift.project.plan.neighbourhood.window == 0
    assert_same_weights(found, model)


@pytest.mark.parametrize("name", ["p4", "p8", "mz2", "p4m"])
def test_a_wrong_origin_is_refused_and_the_right_one_named(tmp_path, golden_state, name):
    for origin, other in (("gsa-nets", "ge-vit"), ("ge-vit", "gsa-nets")):
        torch.save(golden_state(origin, name), tmp_path / "net.pt")
        words = f"net.pt cannot be imported: these weights come from {origin}, not from {other}"
        with pytest.raises(InputError, match=words):
            import_original(tmp_path / "net.pt", other)


def test_both_programs_agree_under_the_trivial_group(golden_state):
    first, second = (build_original(golden_state("gsa-nets", "z2"), origin) for origin in ORIGINS)
    images = torch.rand(1, 1, 28, 28)
    torch.testing.assert_close(first(images), second(images))


def test_tables_of_neither_program_are_refused(state):
    state["transformer.3.attention.2.g_indices"] = torch.zeros(4, 4, 4, dtype=torch.long)
    assert "its g_indices are not those of C4 in gsa-nets or ge-vit" in refusal(state)


def test_tables_may_be_absent(state):
    plain = {key: v for key, v in state.items() if not key.endswith("g_indices")}
    assert_same_weights(build_original(plain, "gsa-nets"), build_original(state, "gsa-nets"))


def test_an_unknown_origin_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"'gsa-net'\. Did you mean 'gsa-nets'"):
        import_original(tmp_path / "net.pt", "gsa-net")


def test_another_network_is_refused():
    message = refusal(torch.nn.Conv2d(3, 3, 3).state_dict())
    assert "no lifting_self_attention.query.weight of 4 axes, but for instance weight;" in message
    assert message.endswith("give the state dict of a network of gsa-nets or ge-vit.")


@pytest.mark.parametrize(
    "lost", [f"{LIFT}.query.weight", f"{LIFT}.wout.weight", f"{LIFT}.row_indices"]
)
def test_a_key_that_determines_the_sizes_must_exist(state, lost):
    del state[lost]
    assert f"it has no {lost} of" in refusal(state)


def test_a_network_without_its_classifier_is_refused(state):
    del state["transformer.6.weight"]
    assert "it has no transformer.5.weight of 5 axes" in refusal(state)


def test_the_group_must_be_in_the_file(state):
    plain = {key: v for key, v in state.items() if "group._" not in key}
    assert "it has no group._elements of 2 axes" in refusal(plain)


@pytest.mark.parametrize("shape", [(4, 3), (5, 2)])
def test_a_group_of_another_kind_is_refused(state, shape):
    for key in state:
        if key.endswith("group._elements"):
            state[key] = torch.zeros(shape)
    assert f"is {shape[0]} x {shape[1]}; a group of n rotations has n x 1" in refusal(state)


def test_another_layout_is_refused_and_the_known_ones_named(state):
    fewer = {key: v for key, v in state.items() if not key.startswith("transformer.5.")}
    message = refusal(fewer)
    assert "it has in_chans 1, width 20 and blocks of 20, 20, 20, 20, which no published" in message
    assert "rotmnist: in_chans 1, width 20 and blocks of 20, 20, 20, 20, 20;" in message
    assert "cifar10: in_chans 3, width 96 and blocks of 96, 96, 192, 192, 192, 192;" in message
    assert "pcam: in_chans 3, width 12 and blocks of 24, 48, 48, 96)." in message


def test_a_network_with_one_batch_norm_among_layer_norms_is_refused(state):
    state["transformer.0.attention.0.running_mean"] = torch.zeros(20)
    assert "missing are lifting_normalization.weight" in refusal(state)


@pytest.mark.parametrize(
    "shape",
    [(4, 29, 29), (4, 28, 28), (4, 0, 0), (4, 5, 7), (8, 5, 5), (4, *4 * [32]), (4, *4 * [27])],
)
def test_an_impossible_window_is_refused(state, shape):
    for key in state:
        if key.endswith(".row_indices"):
            state[key] = torch.zeros(1).expand(shape)
    assert "must be 4 x P x P with a window P below 28, or 4 x 28 x 28 x 28 x 28." in refusal(state)


def test_even_and_mixed_windows_are_refused(state):
    state["transformer.0.attention.2.row_indices"] = torch.zeros(4, 7, 7)
    assert "its layers have different windows; they must share one." in refusal(state)
    for key in state:
        if key.endswith(".row_indices"):
            state[key] = torch.zeros(4, 4, 4)
    assert "window = 4" in refusal(state)


def test_heads_must_share_the_queries(state):
    state[f"{LIFT}.query.weight"] = torch.zeros(91, 1, 1, 1)
    assert "queries = 91 must be a multiple of 10 (the heads share them)" in refusal(state)


def test_missing_unexpected_and_misshapen_keys_are_named(state):
    del state["transformer.0.mlp.0.weight"]
    state["transformer.0.shortcut.0.weight"] = torch.zeros(20, 20, 1, 1, 1)
    state["transformer.1.mlp.0.weight"] = torch.zeros(20, 10, 1, 1, 1)
    assert refusal(state).endswith(
        "but missing are transformer.0.mlp.0.weight; unexpected are "
        "transformer.0.shortcut.0.weight; of another shape are transformer.1.mlp.0.weight "
        "(20 x 10 x 1 x 1 x 1, not 10 x 20)."
    )


def test_a_layout_without_its_norms_is_refused(published):
    state = state_of(published("gsa-nets", "pcam", "C1"), "gsa-nets")
    plain = {k: v for k, v in state.items() if not re.match(r"transformer\.\d+\.layer_norm", k)}
    assert "missing are transformer.2.layer_norm.weight, " in refusal(plain)
