"""Every route to an invariant embedding is measured: cost, error, neighbours, retrieval."""

import pytest
import torch
from torch import nn

from turnwise.errors import InputError
from turnwise.evaluation.embeddings import (
    count_images,
    measure_routes,
    nearest,
    neighbour_overlap,
    self_recall,
)
from turnwise.inference.backbones import open_backbone
from turnwise.models.embedding import Embedding
from turnwise.models.orbits import orbit

IMAGES = torch.rand(14, 1, 8, 8)


def backbone():
    return Embedding(nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.Tanh())).eval()


@pytest.fixture(scope="module")
def checks():
    torch.manual_seed(0)
    found = measure_routes(backbone(), "D4", torch.rand(14, 1, 8, 8), batch_size=5)
    return {check.route: check for check in found}


def test_orbits_hold_and_the_backbone_does_not(checks):
    assert list(checks) == ["backbone", "canonical", "orbit C4, mean", "orbit D4, mean"]
    assert checks["orbit D4, mean"].holds and checks["orbit D4, mean"].error < 1e-12
    assert not checks["backbone"].holds and checks["backbone"].error > 1e-2
    assert not checks["orbit C4, mean"].holds, "flips are not in C4"


def test_an_invariant_route_keeps_its_neighbours(checks):
    for route in ("canonical", "orbit D4, mean"):
        assert checks[route].overlap == 1 and checks[route].recall == 1
    assert checks["backbone"].overlap < 0.95 and checks["backbone"].recall < 0.9


def test_the_cost_is_counted(checks):
    assert [checks[r].passes for r in ("backbone", "orbit C4, mean", "orbit D4, mean")] == [1, 4, 8]
    assert 1 <= checks["canonical"].passes < 8


def test_a_constant_embedding_does_not_hold():
    class Constant(nn.Module):
        def forward(self, images):
            return images.new_ones(len(images), 3)

    found = measure_routes(Embedding(Constant()), "C4", IMAGES)
    assert all(check.error == 0 and not check.holds for check in found)


def test_neighbours_by_definition():
    vectors = torch.randn(12, 3).double()
    other = torch.randn(12, 3).double()

    def neighbours(vs, i, k):
        score = {
            j: float(torch.cosine_similarity(vs[i], vs[j], dim=0)) for j in range(12) if j != i
        }
        return set(sorted(score, key=score.get, reverse=True)[:k])

    shares = [len(neighbours(vectors, i, 4) & neighbours(other, i, 4)) / 4 for i in range(12)]
    assert neighbour_overlap(vectors, other, 4) == pytest.approx(sum(shares) / 12)
    assert neighbour_overlap(vectors, 3 * vectors, 4) == 1


def test_recall_counts_images_that_find_themselves():
    vectors = torch.eye(4).double()
    assert self_recall(vectors, vectors) == 1
    assert self_recall(vectors, vectors[[1, 0, 2, 3]]) == 0.5
    assert nearest(vectors, vectors, 1, skip_self=False)[:, 0].tolist() == [0, 1, 2, 3]


def test_passes_are_counted_inside_wrappers():
    model = orbit(backbone(), "C4")
    with count_images(model) as counted:
        model(IMAGES)
    assert counted["images"] == 4 * len(IMAGES)


@pytest.mark.parametrize(
    ("group", "count", "message"), [("C4", 2, "2 images have no neighbours"), ("C1", 5, "try C4")]
)
def test_impossible_measurements_are_refused(group, count, message):
    with pytest.raises(InputError, match=message):
        measure_routes(backbone(), group, IMAGES[:count])


def holds(model, images):
    found = {check.route: check.holds for check in measure_routes(model, "D4", images)}
    return found["orbit D4, mean"], found["backbone"]


def test_a_vit_of_transformers_holds_with_the_orbit_only():
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
        image_size=16, patch_size=4,
    )  # fmt: skip
    vit = Embedding(transformers.ViTModel(config)).eval()
    assert holds(vit, torch.rand(12, 3, 16, 16)) == (True, False)


def test_a_file_of_torch_export_holds_with_the_orbit_only(tmp_path):
    """In float32, its only precision."""
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.Tanh()).eval()
    torch.export.save(torch.export.export(network, (IMAGES[:2],)), tmp_path / "net.pt2")
    model = open_backbone(str(tmp_path / "net.pt2")).model
    assert holds(Embedding(model), IMAGES) == (True, False)
