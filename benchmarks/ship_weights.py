"""Put the weights of a trained run into turnwise_weights, with a card made from its record.

    python benchmarks/ship_weights.py runs/RECIPE --name turnwise_vit_nano.rotmnist
    python benchmarks/ship_weights.py             (make all pages and the table in docs anew)

RUN is the folder in which run_recipe.py left seed_0, seed_1, …, or one of those.  The seed is the
best on validation, whatever it did on test.  Weights are kept in half precision if every validation
picture then gets the same answer as before, else in single.
"""

import argparse
import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from records import Record, code_version, read_records
from torch import nn

from turnwise.data.catalogue import entry
from turnwise.errors import InputError, require
from turnwise.evaluation.certificate.targets import noisy_digits
from turnwise.files import write_atomic, write_json
from turnwise.groups.equivariance import TOLERANCE, depends_on_input, equivariance_error
from turnwise.inference import Predictor
from turnwise.models import load, model_options, save
from turnwise.models import weights as shelf
from turnwise.models.orbits import Orbit
from turnwise.models.registry import ModelConfig, config_of
from turnwise.models.storage import WEIGHTS, read_config
from turnwise.reports.model_card import HEADERS, card_page, pretrained_cards, summary_rows
from turnwise.reports.tables import markdown_table
from turnwise.runs import Run
from turnwise.training.recipe import Recipe

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "how-to" / "weights.md"
TABLE = re.compile(
    r"(<!-- weights: made by benchmarks/ship_weights.py -->\n).*?(<!-- weights end here -->)",
    re.DOTALL,
)
LARGEST = 8_000_000  # bytes of all shipped weights together
NAME = re.compile(r"(\w+)\.([a-z0-9_]+)")
PICTURES = 16  # on which invariance is measured
NONE = "No weights are shipped yet.\n"


def arguments(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("run", type=Path, nargs="?", help="seeds of a recipe, or one of them")
    parser.add_argument("--name", help="MODEL.DATA, e.g. turnwise_vit_nano.rotmnist")
    parser.add_argument("--records", type=Path, default=HERE / "recipes.jsonl")
    parser.add_argument("--recipe", help="as the record calls it (default: as the folder does)")
    parser.add_argument("--float32", action="store_true", help="do not try half precision")
    parser.add_argument("--replace", action="store_true", help="weights of that name")
    parser.add_argument("--data-dir", help="where the data set is (default: $TURNWISE_DATA)")
    return parser.parse_args(words)


def chosen_seed(record: Record) -> int:
    """The seed with the best validation accuracy, the first of equals; test is not looked at."""
    seeds = record["figures"]["seeds"]
    return int(max(sorted(seeds, key=int), key=lambda seed: seeds[seed]["val_accuracy"]))


def find_record(path: Path, recipe: str) -> Record:
    """The latest record of a recipe."""
    found = [r for r in read_records(path) if r["figures"].get("recipe") == recipe]
    require(bool(found), f"{path} has no record of {recipe!r}; run run_recipe.py, or say --recipe.")
    return found[-1]


def find_run(given: Path, record: Record) -> tuple[Run, int]:
    """Return the run of the chosen seed, whose figures must be those of the record."""
    seed = chosen_seed(record)
    run = Run(given) if Run(given).exists else Run(given / f"seed_{seed}")
    require(run.exists, f"validation chooses seed {seed}; {run.path} is no run.")
    own, tested = run.recipe.seed, run.evaluation()
    require(own == seed, f"validation chooses seed {seed}, but {run.path} is of seed {own}.")
    if tested is None:
        raise InputError(
            f"{run.path} has no {run.evaluation_file().name} of its weights; test it first."
        )
    figures = record["figures"]["seeds"][str(seed)]
    found = {
        "val_accuracy": max(row["val_accuracy"] for row in run.metrics),
        "test_accuracy": tested["scores"]["accuracy"]["value"],
    }
    for key, value in found.items():
        require(
            figures[key] == value,
            f"{run.path} has {key} = {value}, the record has {figures[key]}; it is of other runs.",
        )
    return run, seed


def require_name(name: str, model: nn.Module, recipe: Recipe) -> None:
    """Raise unless MODEL.DATA names this model and the data that it was trained on."""
    parts = NAME.fullmatch(name)
    own, data = config_of(model).name, recipe.data.name
    require(
        parts is not None and parts[1] == own and parts[2].startswith(data),
        f"--name {name!r} must be the model and its data: {own}.{data}, or {own}.{data}_more.",
    )


def in_full(model: nn.Module) -> nn.Module:
    """The model with every option in its configuration: defaults may change, weights do not."""
    inner = model.model if isinstance(model, Orbit) else model
    config = config_of(inner)
    inner.config = ModelConfig(config.name, {**model_options(config.name), **config.options})
    return model


def stored_in_half(model: nn.Module, run: Run, data_dir: str | None) -> dict[str, Any]:
    """Store the parameters as float16 if no validation prediction changes; return the comparison.

    Buffers (mean and standard deviation of the images, running means) are few and stay as they are.
    """
    val = run.dataset(data_dir).val
    predictor = Predictor(model)
    print(f"trying float16 on {len(val):,} validation pictures", file=sys.stderr)
    kept = [parameter.data for parameter in model.parameters()]
    before = predictor.probabilities(val.images).argmax(-1)
    for parameter in model.parameters():
        parameter.data = parameter.data.half().float()
    after = predictor.probabilities(val.images).argmax(-1)
    changed = int((before != after).sum())
    for parameter, values in zip(model.parameters(), kept, strict=True):
        parameter.data = values if changed else values.half()
    if changed:
        print(f"float32 is kept: float16 changes {changed} of {len(val)} validation answers")
        return {"precision": "float32"}
    shares = {"before": before, "after": after}
    accuracy = {key: float((a == val.labels).double().mean()) for key, a in shares.items()}
    return {"precision": "float16", "pictures": len(val), **accuracy}


def measured_invariance(model: nn.Module) -> dict[str, Any]:
    """The error over the grid's part of the group, in both precisions; refused unless exact."""
    options, group = config_of(model).options, model.group.exact_subgroup()
    require(group.order > 1, "a model that promises no symmetry of the grid is not shipped.")
    images = noisy_digits(PICTURES, options["in_chans"], options["image_size"])
    found: dict[str, Any] = {"group": group.name}
    for precision in (torch.float64, torch.float32):
        word = str(precision).removeprefix("torch.")
        logits = Predictor(model, precision=word).logits
        found[word] = equivariance_error(logits, group, images.to(precision))
        require(
            found[word] <= TOLERANCE[precision] and depends_on_input(logits, images.to(precision)),
            f"not invariant under {group.name}, or constant: error {found[word]:.1e} in {word}.",
        )
    return found | {"pictures": f"{PICTURES} embedded digits in the model's size, with noise"}


def licence_of(data_licence: str) -> str:
    """MIT, unless the data forbid commercial use: then as the data."""
    return data_licence if shelf.forbids_commerce(data_licence) else "MIT"


def make_card(
    name: str, folder: Path, run: Run, record: Record, stored: Mapping[str, Any]
) -> dict[str, Any]:
    """All that is known of the weights in `folder`, from the run, the record and measurements."""
    config, model = read_config(folder), load(folder)
    recipe, started = run.recipe, run.environment["data"]
    known = entry(recipe.data.name)
    return {
        "format": shelf.FORMAT,
        "name": name,
        "model": {key: config[key] for key in shelf.DESCRIBED},
        "weights": sum(parameter.numel() for parameter in model.parameters()),
        "bytes": (folder / WEIGHTS).stat().st_size,
        "stored": dict(stored),
        "data": {
            "name": known.name,
            "title": known.title,
            "provenance": started["provenance"],
            "licence": known.licence,
            "citation": known.citation,
            "sha256": started["sha256"],
        },
        "licence": licence_of(known.licence),
        "recipe": recipe.plain(),
        "seed": recipe.seed,
        "equivariance": measured_invariance(model),
        "record": record,
        "shipped": code_version(HERE),
    }


def require_room(name: str, size: int) -> None:
    """Raise if all shipped weights together would become too large."""
    others = [shelf.weights_folder(n) / WEIGHTS for n in shelf.list_pretrained() if n != name]
    total = size + sum(path.stat().st_size for path in others)
    require(
        total <= LARGEST,
        f"all shipped weights would have {total:,} bytes, and {LARGEST:,} is the limit; "
        "ship a smaller model, or fewer.",
    )


def ship(args: argparse.Namespace) -> Path:
    """Write the folder whole, beside the others, and only then give it its name."""
    path = args.run.resolve()
    recipe_name = args.recipe or (path.parent if Run(path).exists else path).name
    record = find_record(args.records, recipe_name)
    run, seed = find_run(args.run, record)
    model = in_full(run.model())
    require_name(args.name, model, run.recipe)
    place = shelf.weights_folder(args.name)
    require(args.replace or not place.exists(), f"{place} exists; say --replace.")
    stored: dict[str, Any] = {"precision": "float32"}
    if not args.float32:
        stored = stored_in_half(model, run, args.data_dir)
    if not place.exists():  # new weights go into the second wheel
        place = next(iter(shelf.MORE), shelf.ROOT) / args.name
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=".") as beside:
        folder = save(model, Path(beside) / "whole")
        require_room(args.name, (folder / WEIGHTS).stat().st_size)
        card = make_card(args.name, folder, run, record, stored)
        write_json(folder / shelf.CARD, card)
        write_atomic(folder / shelf.PAGE, card_page(shelf.read_card(folder)).encode())
        if place.exists():
            place.rename(Path(beside) / "before")
        folder.rename(place)
    print(f"seed {seed} of {run.path.parent} shipped as {args.name}: {card['bytes']:,} bytes")
    return place


def refreshed() -> dict[Path, str]:
    """What every page made from cards is to hold."""
    cards = pretrained_cards()
    pages = {shelf.weights_folder(card["name"]) / shelf.PAGE: card_page(card) for card in cards}
    table = f"{markdown_table(HEADERS, summary_rows(cards))}\n" if cards else NONE
    text = PAGE.read_text(encoding="utf-8")
    return pages | {PAGE: TABLE.sub(lambda found: f"{found[1]}{table}{found[2]}", text)}


def main(words: list[str] | None = None) -> int:
    args = arguments(words)
    try:
        if args.run is not None:
            require(bool(args.name), "say --name MODEL.DATA, e.g. turnwise_vit_nano.rotmnist.")
            ship(args)
    except InputError as error:
        print(f"ship_weights: {error}", file=sys.stderr)
        return 2
    for page, text in refreshed().items():
        write_atomic(page, text.encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
