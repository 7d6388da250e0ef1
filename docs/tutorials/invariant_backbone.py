# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # Make a backbone of transformers or timm invariant
#
# A backbone from elsewhere is not invariant. An *orbit* runs it on every view of the image and combines the outputs as a set, which is
# exactly invariant for whatever is inside. We take a small vision transformer with random weights, so that nothing is downloaded;
# `ViTModel.from_pretrained(NAME)` or `timm.create_model(NAME, pretrained=True, num_classes=0)` take its place in your code.

# %%
import torch
from torch import nn

import turnwise

torch.manual_seed(0)
try:
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(
        image_size=32, patch_size=8, hidden_size=48, num_hidden_layers=3, num_attention_heads=4,
        intermediate_size=96,
    )  # fmt: skip
    backbone: nn.Module = ViTModel(config, add_pooling_layer=False).eval()
except ImportError:  # pip install 'turnwise[hf]'; a plain network serves as well
    backbone = nn.Sequential(
        nn.Conv2d(3, 16, 4, 4), nn.GELU(), nn.Conv2d(16, 48, 4, 4), nn.Flatten(), nn.Linear(192, 48)
    ).eval()
print(type(backbone).__name__, f"{sum(p.numel() for p in backbone.parameters()):,} parameters")

# %% [markdown]
# ## The backbone alone
# We compare the vector of an image with that of the rotated image. `Embedding` takes the class token, or whatever vector the backbone
# returns.

# %%
from turnwise.models.embedding import Embedding

embedding = Embedding(backbone).double()
images = turnwise.load_dataset("tiles").val.images[:16].double() / 255
print(f"relative change under D4: {turnwise.equivariance_error(embedding, 'D4', images):.2g}")

# %% [markdown]
# ## In an orbit
# `turnwise.orbit` takes classifiers and backbones. The error is now rounding error.

# %%
invariant = turnwise.orbit(embedding, group="D4").eval()
error = turnwise.equivariance_error(invariant, "D4", images)
print(f"relative change under D4: {error:.2g}")
assert error < 1e-10

# %% [markdown]
# ## Retrieval
# With an invariant vector, the nearest neighbour of a rotated image is the image itself. With the backbone alone it need not be.


# %%
def recall(model, degrees_times_90):
    """Return the share of rotated images whose nearest upright image is the image itself."""
    with torch.no_grad():
        upright = nn.functional.normalize(model(images), dim=-1)
        rotated = nn.functional.normalize(model(images.rot90(degrees_times_90, (2, 3))), dim=-1)
    return ((rotated @ upright.T).argmax(1) == torch.arange(len(images))).double().mean().item()


for name, model in (("backbone alone", embedding), ("orbit", invariant)):
    print(f"{name}: {[recall(model, k) for k in (0, 1, 2, 3)]}")
assert all(recall(invariant, k) == 1.0 for k in range(4))

# %% [markdown]
# ## A classifier on frozen vectors
# An orbit is an ordinary module: train a head on its vectors, or train the whole. The classifier inherits the invariance.

# %%
tiles = turnwise.load_dataset("tiles")
with torch.no_grad():
    vectors = invariant(tiles.train.images[:400].double() / 255)
    held_out = invariant(tiles.val.images.double() / 255)
head = nn.Linear(vectors.shape[1], len(tiles.classes)).double()
optimiser = torch.optim.Adam(head.parameters(), lr=0.01)
for _ in range(200):
    optimiser.zero_grad()
    nn.functional.cross_entropy(head(vectors), tiles.train.labels[:400]).backward()
    optimiser.step()
accuracy = (head(held_out).argmax(1) == tiles.val.labels).double().mean().item()
print(f"validation accuracy of a linear head on random features: {accuracy:.2f} (chance: 0.10)")

# %%
classifier = nn.Sequential(invariant, head).eval()
certificate = turnwise.certify(
    classifier, "D4", images[:4].float(), target="orbit + head", angles=4
)
certificate

# %%
assert certificate.holds

# %% [markdown]
# On the command line: `turnwise embed IMAGES --backbone hf:NAME --group D4` writes such vectors for an archive of images, and
# `turnwise certify hf:NAME --embedding --group D4` compares the routes and their costs ([embeddings](../how-to/embeddings.md)).
