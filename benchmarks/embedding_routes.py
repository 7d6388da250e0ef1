"""How invariant the vectors of a public architecture are, by every route, and what each costs.

    python benchmarks/embedding_routes.py    # about ten minutes on two cores

The backbone is `transformers.ViTModel`, small enough for 32 pixels.  No pretrained weights are
needed: it is measured with random weights, and trained here as a classifier on the embedded
satellite tiles, once on the images as they are and once with a random element of the group for
every batch.  Vectors are those of the class token, of the validation tiles.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from records import append_record
from torch import Tensor, nn
from transformers import ViTConfig, ViTModel

from turnwise.data import load_dataset
from turnwise.data.batches import to_unit
from turnwise.evaluation.embeddings import measure_routes
from turnwise.groups import PlanarGroup, act_on_image
from turnwise.models.embedding import Embedding

HERE = Path(__file__).parent
GROUP = "D4"
SHAPE: dict[str, Any] = {
    "hidden_size": 128, "num_hidden_layers": 6, "num_attention_heads": 4, "intermediate_size": 512,
    "patch_size": 4,
}  # fmt: skip
WEIGHTS = ("random", "trained on upright tiles", "trained on rotated tiles")
BATCH = 40


def make_backbone(side: int) -> ViTModel:
    torch.manual_seed(0)
    return ViTModel(ViTConfig(image_size=side, **SHAPE), add_pooling_layer=False)


def normalise(images: Tensor) -> Tensor:
    return (images - 0.5) / 0.5


def fit(backbone: ViTModel, images: Tensor, labels: Tensor, epochs: int, rotated: bool) -> None:
    """Train the backbone as a classifier of its class token."""
    group, draws = PlanarGroup.named(GROUP), np.random.default_rng(0)
    head = nn.Linear(SHAPE["hidden_size"], int(labels.max()) + 1)
    weights = [*backbone.parameters(), *head.parameters()]
    optimiser = torch.optim.AdamW(weights, lr=1e-3, weight_decay=0.05)
    steps = epochs * (len(images) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 1e-3, total_steps=steps)
    backbone.train()
    for epoch in range(epochs):
        order = torch.from_numpy(draws.permutation(len(images)))
        for chosen in order[: len(order) // BATCH * BATCH].split(BATCH):
            batch = images[chosen]
            if rotated:
                batch = act_on_image(group, int(draws.integers(group.order)), batch)
            vectors = backbone(normalise(batch)).last_hidden_state[:, 0]
            loss = F.cross_entropy(head(vectors), labels[chosen], label_smoothing=0.1)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
        print(f"epoch {epoch + 1}/{epochs}: loss {loss:.3f}", file=sys.stderr, flush=True)
    backbone.eval()


def measure(args: argparse.Namespace) -> None:
    data = load_dataset("tiles")
    images, labels = to_unit(data.train.images), data.train.targets
    queries = to_unit(data.val.images)[: args.images]
    for weights in WEIGHTS:
        backbone = make_backbone(images.shape[-1]).eval()
        if weights != WEIGHTS[0]:
            fit(backbone, images, labels, args.epochs, rotated=weights == WEIGHTS[2])
        with torch.no_grad():
            checks = measure_routes(Embedding(backbone, "cls", normalise), GROUP, queries)
        for check in checks:
            figures = {
                "backbone": "transformers.ViTModel", "weights": weights, "epochs": args.epochs,
                "images": len(queries), "route": check.route, "passes": check.passes,
                "error": check.error, "overlap": check.overlap, "recall": check.recall,
                "precision": check.precision,
            }  # fmt: skip
            append_record(args.records, "python benchmarks/embedding_routes.py", figures)
            print(figures, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--images", type=int, default=150)
    parser.add_argument("--records", type=Path, default=HERE / "embedding_routes.jsonl")
    measure(parser.parse_args())


if __name__ == "__main__":
    main()
