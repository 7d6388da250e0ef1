"""What CI cannot test for lack of a GPU: the same numbers there, and a run that resumes there.

    python benchmarks/cuda_check.py

Exit status 0 if every check holds; the record goes to benchmarks/cuda_check.jsonl.  The CPU
counterparts are in tests/training/test_run.py, tests/evaluation and tests/geometry.
"""

import shlex
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from records import append_record

from turnwise.data import load_dataset
from turnwise.data.batches import to_unit
from turnwise.evaluation import certify
from turnwise.geometry.warps import rotation_matrices, warp_images
from turnwise.models import create_model
from turnwise.reports.tables import format_error, text_table

RECIPE = """
model: {name: orbit_vit, group: C4, patch: 7, width: 64, depth: 3, drop_path: 0.1}
data: {name: digits, augment: {rotation: 180, shift: 1, scale: 0.1, noise: 0.02}}
optimisation: {batch_size: 100, ema: 0.99, warmup_epochs: 1}
trainer: {max_epochs: 3, accelerator: gpu, precision: %s, deterministic: true}
"""


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a.cpu().double() - b.cpu().double()).abs().max() / b.abs().max())


def forward_difference(images: torch.Tensor) -> float:
    """The same weights answer on both devices, in float64."""
    model = create_model("orbit_vit", group="D4").double().eval()
    with torch.no_grad():
        here = model(model.preprocess(images.double()))
        return relative(model.cuda()(model.preprocess(images.double().cuda())), here)


def warp_difference(images: torch.Tensor) -> float:
    matrices = rotation_matrices(torch.linspace(0, 6, len(images)))
    return relative(warp_images(images.cuda(), matrices.cuda()), warp_images(images, matrices))


def worst_error(group: str, images: torch.Tensor) -> float:
    """The largest certified error on the GPU, in float64."""
    certificate = certify(create_model("orbit_vit", group=group).cuda(), group, images)
    return max(check.float64 for check in certificate.elements) if certificate.holds else 1.0


def resumed_difference(folder: Path, precision: str) -> float:
    """Weights of a run that was killed after an epoch and resumed, against those of a whole one."""
    recipe = folder / f"{precision}.yaml"
    recipe.write_text(RECIPE % precision)
    train = [sys.executable, "-m", "turnwise", "train"]
    whole, killed = folder / f"whole-{precision}", folder / f"killed-{precision}"
    subprocess.run([*train, str(recipe), "--output", str(whole)], check=True)
    process = subprocess.Popen([*train, str(recipe), "--output", str(killed)])
    while not (killed / "checkpoints" / "last.ckpt").is_file() and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    subprocess.run([*train, "--resume", str(killed)], check=True)
    one, other = (
        torch.load(run / "checkpoints" / "last.ckpt", weights_only=True, map_location="cpu")[
            "state_dict"
        ]
        for run in (whole, killed)
    )
    return max(relative(one[key], other[key]) for key in one if other[key].abs().max() > 0)


def main() -> int:
    images = to_unit(load_dataset("digits").val.images[:16])
    with tempfile.TemporaryDirectory() as folder:
        figures = {
            "forward, GPU against CPU, float64": (forward_difference(images), 1e-10),
            "warps, GPU against CPU, float32": (warp_difference(images), 1e-4),
            "certified error of orbit_vit C4": (worst_error("C4", images), 1e-10),
            "certified error of orbit_vit D4": (worst_error("D4", images), 1e-10),
            **{
                f"killed and resumed, {precision}": (
                    resumed_difference(Path(folder), precision),
                    0.0,
                )
                for precision in ("32-true", "bf16-mixed")
            },
        }
    rows = [[k, format_error(v), format_error(limit)] for k, (v, limit) in figures.items()]
    print(text_table(["check", "difference", "at most"], rows))
    command = shlex.join(["python", "benchmarks/cuda_check.py"])
    record = {name: {"difference": v, "at_most": limit} for name, (v, limit) in figures.items()}
    append_record(Path(__file__).parent / "cuda_check.jsonl", command, record)
    return 0 if all(v <= limit for v, limit in figures.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
