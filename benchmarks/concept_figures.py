"""Draw the two figures of docs/concepts/equivariance.md that `turnwise show` does not.

    python benchmarks/concept_figures.py FOLDER    # of benchmarks/gallery.py --work FOLDER

Both are of the image that the film shows: what the eight elements of D4 do to it, and what the two
trained models of the gallery predict for each of the eight views.
"""

import argparse
import os

import torch
from gallery import FIGURES, RECORDS, RUNS
from matplotlib.figure import Figure
from records import read_records

from turnwise.evaluation.transformations import describe_element
from turnwise.groups import PlanarGroup, act_on_image
from turnwise.reports.figures.plots import draw_image, figure_file
from turnwise.reports.loaded_models import load_models

DPI = 80


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", help="where the runs of the gallery are")
    os.chdir(parser.parse_args().folder)
    group, number = PlanarGroup.named("D4"), read_records(RECORDS)[-1]["figures"]["image"]
    models = load_models(RUNS.split())
    image = models[0].examples.images[number : number + 1]
    label = int(models[0].examples.labels[number])
    views = torch.cat([act_on_image(group, g, image) for g in range(group.order)])

    orbit = Figure(figsize=(8.4, 1.5), dpi=DPI, layout="constrained")
    for g, axes in enumerate(orbit.subplots(1, group.order)):
        draw_image(axes, views[g].float() / 255, describe_element(group, g).replace(", ", ",\n"))
        axes.title.set_fontsize(7)
    figure_file(orbit, FIGURES / "views.png")

    bars = Figure(figsize=(8.4, 2.4), dpi=DPI, layout="constrained")
    for model, axes in zip(models, bars.subplots(1, len(models), sharey=True), strict=True):
        probabilities = model.predictor.probabilities(views)
        axes.bar(range(group.order), probabilities[:, label].tolist(), color="#0072b2")
        axes.set_title(f"{model.name} network", fontsize=9)
        axes.set_xticks(range(group.order), [str(g) for g in range(group.order)])
        axes.set_xlabel("element of D4")
        axes.set_ylim(0, 1)
    bars.axes[0].set_ylabel("probability of\nthe true class")
    figure_file(bars, FIGURES / "predictions.png")


if __name__ == "__main__":
    main()
