"""An embedding is one vector per image, whatever the backbone returns; its orbit is invariant."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from turnwise.errors import InputError
from turnwise.groups import equivariance_error
from turnwise.inference import Predictor
from turnwise.models import create_model
from turnwise.models.contract import Model
from turnwise.models.embedding import Embedding, is_embedding
from turnwise.models.orbits import orbit

IMAGES = torch.rand(3, 3, 12, 12, dtype=torch.float64)


class Tokens(nn.Module):
    """Returns tokens as transformers does: a class token, then patches."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, 5, 4, stride=4)
        self.position = nn.Parameter(torch.randn(9, 5))
        self.config = SimpleNamespace(hidden_size=5)

    def forward(self, images):
        patches = self.patches(images).flatten(2).mT + self.position
        first = patches.square().mean(1, keepdim=True)
        return SimpleNamespace(last_hidden_state=torch.cat([first, patches], 1), pooler_output=None)


class Timm(nn.Module):
    """Separates features and head as timm does."""

    def __init__(self):
        super().__init__()
        self.body, self.fc, self.num_features = nn.Conv2d(3, 6, 3), nn.Linear(6, 2), 6

    def forward_features(self, images):
        return self.body(images).relu()

    def forward_head(self, features, pre_logits=False):
        pooled = features[:, :, 0, 0]  # depends on the orientation
        return pooled if pre_logits else self.fc(pooled)


BACKBONES = {
    "tokens": Tokens,
    "timm": Timm,
    "vectors": lambda: nn.Sequential(nn.Flatten(), nn.Linear(432, 7)),
    "own": lambda: create_model(
        "vit", in_chans=3, image_size=12, patch=4, width=8, depth=1, heads=2
    ),
}
WIDTHS = {"tokens": 5, "timm": 6, "vectors": 7, "own": 8}


@pytest.fixture(params=BACKBONES)
def kind(request):
    return request.param


def embedding(kind, **options):
    return Embedding(BACKBONES[kind](), **options).double().eval()


def test_the_embedding_is_a_model_without_classes(kind):
    model = embedding(kind)
    assert isinstance(model, Model) and is_embedding(model)
    assert model(IMAGES).shape == (3, WIDTHS[kind])
    assert model.num_features == (0 if kind == "vectors" else WIDTHS[kind])


@pytest.mark.parametrize("combine", ["mean", "max"])
def test_the_orbit_is_invariant_and_the_backbone_is_not(kind, combine):
    model = embedding(kind)
    assert equivariance_error(orbit(model, "D4", combine=combine), "D4", IMAGES) < 1e-10
    assert equivariance_error(model, "D4", IMAGES) > 1e-3


def test_the_orbit_is_the_mean_of_the_views():
    """By definition: rotated and flipped copies, one by one."""
    model = embedding("tokens")
    flips = [IMAGES, IMAGES.flip(3)]
    views = [model(x.rot90(k, (2, 3))) for x in flips for k in range(4)]
    torch.testing.assert_close(orbit(model, "D4")(IMAGES), torch.stack(views).mean(0))


def test_the_predictor_returns_what_the_orbit_combines(kind):
    wrapped = orbit(embedding(kind), "C4", combine="max")
    found = Predictor(wrapped, ("embedding",)).run(IMAGES)["embedding"]
    torch.testing.assert_close(found, wrapped(wrapped.preprocess(IMAGES)).detach())


def test_different_images_have_different_embeddings(kind):
    vectors = orbit(embedding(kind), "D4")(IMAGES)
    assert (vectors[0] - vectors[1]).abs().max() > 1e-3


def test_tokens_can_be_averaged():
    model = embedding("tokens", pool="mean")
    expected = model.model(IMAGES).last_hidden_state[:, 1:].mean(1)
    torch.testing.assert_close(model(IMAGES), expected)


def test_an_orbit_understands_the_backbone_itself():
    """Without `Embedding` around it: the class token."""
    backbone = Tokens().double().eval()
    assert equivariance_error(orbit(backbone, "D4"), "D4", IMAGES) < 1e-10


def test_what_is_no_vector_is_refused():
    with pytest.raises(InputError, match="an embedding is one vector for each image"):
        Embedding(nn.Flatten(0))(IMAGES)
