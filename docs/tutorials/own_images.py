# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # Your own images: from a folder to a certificate
#
# We write a small folder of images, look at it, train a model that is invariant under rotations and flips, test it, and
# certify it. Replace the folder by yours. Everything here also exists as a command (`turnwise inspect`, `train`, `test`,
# `certify`).

# %%
import tempfile
from pathlib import Path

from PIL import Image

import turnwise
from turnwise.runs.train import train
from turnwise.training.recipe import make_recipe

folder = Path(tempfile.mkdtemp())

# %% [markdown]
# ## The folder
# One sub-folder per class. Here: 60 satellite tiles of each of four classes, which ship with Turnwise.

# %%
tiles = turnwise.load_dataset("tiles")
names = ["Forest", "Industrial", "River", "SeaLake"]
for name in names:
    (folder / "photos" / name).mkdir(parents=True)
    chosen = (tiles.train.labels == tiles.classes.index(name)).nonzero()[:60, 0]
    for number, image in enumerate(tiles.train.images[chosen]):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(
            folder / "photos" / name / f"{number}.png"
        )
dataset = turnwise.load_dataset(f"folder:{folder / 'photos'}")
dataset

# %% [markdown]
# No split was given, so 70 % of the images are for training, 15 % for validation and 15 % for the test, with equal shares of
# every class. Patients, slides or fields are kept together with `group_by` ([how](../how-to/patients.md)).
#
# ## Train
# A recipe is plain data; every key that is left out has a default. Satellite tiles have no up, and left and right are alike, so
# the group is D4 ([how to choose](../how-to/choose.md)).

# %%
recipe = make_recipe({
    "model": {"name": "turnwise_vit_nano", "group": "D4"},
    "data": {"name": f"folder:{folder / 'photos'}", "augment": {"policy": "standard"}},
    "optimisation": {"learning_rate": 0.003, "warmup_epochs": 1},
    "trainer": {"max_epochs": 12, "accelerator": "cpu"},
})  # fmt: skip
run = train(recipe, folder / "run")
print(f"best validation accuracy: {max(row['val_accuracy'] for row in run.metrics):.3f}")

# %% [markdown]
# ## Test
# The test images are used once, and never for selection. `orbit_agreement` is the share of images for which all eight views get
# the same class.

# %%
from turnwise.evaluation import evaluate_run

result = evaluate_run(run)
print(f"accuracy: {result['scores']['accuracy']['value']:.3f}")
print(f"same prediction for all eight views: {result['orbit_agreement']:.3f}")

# %% [markdown]
# ## Certify
# The certificate measures the change of the logits under every element of D4, in float64 and float32, and runs negative controls.

# %%
from turnwise.data.batches import to_unit

model = run.model()
images = to_unit(dataset.val.images[:8])
certificate = turnwise.certify(model, "D4", images, target="my model", angles=4)
certificate

# %%
assert certificate.holds
assert result["orbit_agreement"] == 1.0

# %% [markdown]
# ## Use it
# `turnwise.Predictor` makes predictions from arrays; `turnwise export`, `serve` and `predict` take the run folder.

# %%
predictor = turnwise.Predictor(model, outputs=("probabilities",))
found = predictor({"image": dataset.test.images[:3].numpy()})
dict(zip(dataset.classes, found["probabilities"][0].round(3).tolist(), strict=True))
