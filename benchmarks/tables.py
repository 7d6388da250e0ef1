"""Write the tables of README.md and docs from the records, so that no number is typed by hand.

python benchmarks/tables.py            rewrite what stands between the markers
python benchmarks/tables.py --check    only say what is out of date (exit status 1 if anything is)
"""

import json
import re
import sys
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import attention_tables
import gallery
import leaderboard
import low_data
import real_images
import roto_tables
import steerability
import torch
from gsa_tables import ERRORS, accuracies, curve, percent
from records import Record, read_records

from turnwise.data.catalogue import entry
from turnwise.groups import PlanarGroup
from turnwise.models import create_model, list_models
from turnwise.reports.tables import UNDEFINED, format_percent, markdown_table
from turnwise.training.recipe import Recipe, read_recipe

HERE = Path(__file__).parent
PAGES = [HERE.parent / "README.md", *sorted((HERE.parent / "docs").rglob("*.md"))]
MODEL_TABLE = HERE.parent / "src" / "turnwise" / "reports" / "model_table.json"
ANGLES, SEEDS = 24, 3  # that a row of the results must have
MARKED = re.compile(
    r"(<!-- (\w+): made by benchmarks/tables.py -->\n).*?(<!-- end of \2 -->)", re.DOTALL
)


@cache
def recipe_of(stem: str) -> Recipe:
    return read_recipe(HERE.parent / "recipes" / f"{stem}.yaml")


def link(record: Record, to_root: str = "") -> str:
    stem = record["figures"]["recipe"]
    return f"[{stem}]({to_root}recipes/{stem}.yaml){elsewhere(record)}"


def over_seeds(record: Record, key: str) -> str:
    return percent([seed[key] for seed in record["figures"]["seeds"].values()])


def weights(record: Record) -> str:
    found = next(iter(record["figures"]["seeds"].values())).get("weights")
    return f"{found:,}" if found else UNDEFINED


def over_group(record: Record) -> str:
    """How often all elements of the group that the grid has give one prediction."""
    exact = PlanarGroup.named(recipe_of(record["figures"]["recipe"]).model.group).exact_subgroup()
    same = over_seeds(record, "orbit_agreement")
    return f"{same} ({exact})" if exact.order > 1 else UNDEFINED


def seeds(record: Record) -> str:
    return str(len(record["figures"]["seeds"]))


def at_angles(record: Record, key: str) -> str:
    found = record["figures"]["seeds"].values()
    turned = all(seed.get("angles", ANGLES) == ANGLES for seed in found)
    return over_seeds(record, key) if turned else UNDEFINED


def own_data(figures: dict[str, Any]) -> str:
    return recipe_of(figures["recipe"]).data.name


def elsewhere(record: Record) -> str:
    """On which data the recipe was run, where they are not its own."""
    data = record["figures"].get("data")
    return f" on {data}" if data and data != own_data(record["figures"]) else ""


def latest() -> dict[str, Record]:
    """The last record of every recipe, and of every recipe on other data than its own."""
    records = [
        record
        for record in read_records(HERE / "recipes.jsonl")
        if all("test_accuracy" in seed for seed in record["figures"]["seeds"].values())
    ]  # those of masks have a table of their own
    return {record["figures"]["recipe"] + elsewhere(record): record for record in records}


def latest_by_recipe() -> dict[str, Record]:
    return {name: record for name, record in latest().items() if not elsewhere(record)}


def roto_runs() -> list[roto_tables.Run]:
    stems = [(record["figures"]["recipe"], record) for record in latest().values()]
    return [(stem, recipe_of(stem), record) for stem, record in stems]


def roto_speed(device: str) -> str:
    return roto_tables.speed(read_records(HERE / "roto_conv.jsonl"), device)


def by_data(records: list[Record]) -> list[Record]:
    """Those of one data set together, from the least accurate to the most."""

    def place(record: Record) -> tuple[str, str, float]:
        figures = record["figures"]
        return own_data(figures), figures["recipe"].split("_")[0], figures["mean"]

    return sorted(records, key=place)


def task(record: Record) -> tuple[str, str, float]:
    """The data, their size as the recipe's name states it, and the share of training images."""
    figures = record["figures"]
    recipe = recipe_of(figures["recipe"])
    data = figures.get("data") or own_data(figures)
    return data, figures["recipe"].split("_")[0], recipe.data.fraction


def is_exact(record: Record) -> bool:
    """Whether the model claims a symmetry, and it held for every image and seed."""
    found = record["figures"]["seeds"].values()
    return over_group(record) != UNDEFINED and all(s["orbit_agreement"] == 1.0 for s in found)


def best(records: list[Record]) -> list[Record]:
    """The best on validation, if there is any."""

    def validated(record: Record) -> float:
        found = record["figures"]["seeds"].values()
        return sum(seed["val_accuracy"] for seed in found) / len(found)

    return [max(records, key=validated)] if records else []


def which_model() -> str:
    """For each kind of images, the best exact model by validation, and the best plain one."""
    found = [*recipe_results(), *real_images.results()]
    headers = ["images", "training images", "side", "model", "parameters", "test accuracy",
               "minutes on a GPU", "the best plain model"]  # fmt: skip
    rows = []
    for kind in sorted({(r.data, r.side) for r in found}):
        of = [r for r in found if (r.data, r.side) == kind]
        exact, plain = ([r for r in of if r.exact is wanted] for wanted in (True, False))
        if not exact:
            continue
        ours = max(exact, key=lambda r: r.validation)
        theirs = max(plain, key=lambda r: r.validation).accuracy if plain else UNDEFINED
        numbers = [f"{ours.images:,}", str(ours.side)]
        cost = [f"{ours.parameters:,}", ours.accuracy, f"{ours.minutes:.0f}", theirs]
        rows.append([ours.title, *numbers, ours.model, *cost])
    return markdown_table(headers, rows)


def recipe_results() -> list[real_images.Result]:
    """Recipes with records of three seeds or more, on all training images."""
    found = []
    for record in latest().values():
        figures = record["figures"]
        recipe, seeds = recipe_of(figures["recipe"]), list(figures["seeds"].values())
        if len(seeds) < SEEDS or recipe.data.fraction < 1 or "weights" not in seeds[0]:
            continue
        name = figures.get("data") or recipe.data.name
        about, side = entry(name), recipe.data.image_size or entry(name).image_size
        page = f"[{recipe.model.name}](recipes/{figures['recipe']}.yaml), {recipe.model.group}"
        found.append(real_images.Result(
            data=name, title=about.title.partition(":")[0], side=side,
            images=int(about.splits.split(" / ")[0].replace(",", "")), model=page,
            parameters=seeds[0]["weights"], exact=is_exact(record),
            validation=sum(s["val_accuracy"] for s in seeds) / len(seeds),
            accuracy=over_seeds(record, "test_accuracy"),
            minutes=sum(s["training_seconds"] for s in seeds) / len(seeds) / 60,
        ))  # fmt: skip
    return found


def all_results() -> str:
    """Everything that was tested, however many seeds there were."""
    headers = ["recipe", "parameters", "validation", "test accuracy",
               "same prediction over the group", f"at the worst of {ANGLES} angles",
               f"same prediction at {ANGLES} angles", "minutes", "seeds"]  # fmt: skip
    cells: list[Callable[[Record], str]] = [
        weights,
        partial(over_seeds, key="val_accuracy"),
        partial(over_seeds, key="test_accuracy"),
        over_group,
        partial(at_angles, key="worst_angle"),
        partial(at_angles, key="turn_agreement"),
        minutes,
        seeds,
    ]
    return markdown_table(
        headers,
        [
            [link(record, "../../"), *(cell(record) for cell in cells)]
            for record in by_data(list(latest().values()))
        ],
    )


def minutes(record: Record) -> str:
    """Of training, for each seed."""
    took = [seed["training_seconds"] / 60 for seed in record["figures"]["seeds"].values()]
    return f"{sum(took) / len(took):.1f}"


def flagship() -> str:
    """Every recipe of Turnwise ViT that was tested, with as many seeds as there were."""
    headers = [
        "recipe",
        "group",
        "parameters",
        "test accuracy",
        "same prediction over the group",
        "seeds",
    ]
    tested = [r for r in latest().values() if "_turnwise_vit_" in r["figures"]["recipe"]]
    cells = (group, weights, partial(over_seeds, key="test_accuracy"), over_group, seeds)
    rows = [
        [link(record, "../../"), *(cell(record) for cell in cells)] for record in by_data(tested)
    ]
    return markdown_table(headers, rows) if rows else "None yet."


def group(record: Record) -> str:
    stem = record["figures"]["recipe"]
    return recipe_of(stem).model.group


def flagship_trials() -> str:
    """What was tried on rotated digits, judged on validation."""
    headers = [
        "network",
        "parameters",
        "augmentation beside rotations",
        "best validation accuracy",
        "seeds",
    ]
    rows = []
    for record in read_records(HERE / "flagship_trials.jsonl"):
        figures, model = record["figures"], record["figures"]["model"]
        size = model["name"].removeprefix("turnwise_vit_")
        moved = {what: by for what, by in figures["augment"].items() if what != "rotation"}
        best = [seed["best_validation_accuracy"] for seed in figures["seeds"].values()]
        rows.append([
            f"{size}, {model['group']}, width {model['width']}, overview {model['overview']}",
            f"{figures['weights']:,}",
            ", ".join(f"{what} {by:g}" for what, by in moved.items()) or "none",
            percent(best),
            str(len(best)),
        ])  # fmt: skip
    return markdown_table(headers, rows)


def flagship_search() -> str:
    """What was tried on real images, judged on validation; one seed each."""
    headers = ["data", "model", "what differs", "epochs", "best validation accuracy"]
    usual = {"width": 384, "depths": [1], "norm": "token", "final_norm": "tokens"}
    common = {"name", "group", "stem", "patch", "qk_norm", "head_dropout", "drop_path", "dropout",
              "layer_scale", "oriented"}  # fmt: skip
    rows = []
    for record in read_records(HERE / "flagship_search.jsonl"):
        figures, recipe = record["figures"], record["figures"]["recipe"]
        options = recipe["model"].items()
        own = [f"{key} {value}" for key, value in options
               if key not in common and usual.get(key) != value]  # fmt: skip
        own += ["cutmix"] if recipe["optimisation"]["cutmix"] else []
        own += [] if "policy" in recipe["data"]["augment"] else ["rotation, shift, scale only"]
        rows.append([
            recipe["data"]["name"], recipe["model"]["name"], ", ".join(own) or "–",
            str(recipe["trainer"]["max_epochs"]), percent([figures["best_validation_accuracy"]]),
        ])  # fmt: skip
    return markdown_table(headers, rows)


def all_angles() -> str:
    """What the last comparison over a whole turn found."""
    figures = read_records(HERE / "turn_agreement.jsonl")[-1]["figures"]
    columns = list(next(iter(figures["runs"].values())))
    rows = [
        [f"[{name}](../../recipes/{name}.yaml)", *(format_percent(found[c], 2) for c in columns)]
        for name, found in ((run.split("/")[0], found) for run, found in figures["runs"].items())
    ]
    steps = f"{figures['angles']} angles, {figures['pictures']:,} pictures"
    return markdown_table([steps, *columns], rows)


def flagship_speed() -> str:
    """The last record of every size."""
    found = {
        (result["width"], result["tokens"]): (record["figures"]["batch"], result["figures"])
        for record in read_records(HERE / "flagship_speed.jsonl")
        for result in record["figures"]["results"]
    }
    headers = ["width, tokens, batch", "plain step", "× regular", "× irreps", "plain inference",
               "× regular", "× irreps"]  # fmt: skip
    rows = [
        [f"{width}, {tokens:,}, {batch}"]
        + [
            cell
            for kind in ("step", "inference")
            for cell in (
                f"{1000 * figures['plain'][kind]:.1f} ms",
                *(f"{figures[basis][kind] / figures['plain'][kind]:.2f}"
                  for basis in ("regular", "irreps")),
            )
        ]
        for (width, tokens), (batch, figures) in sorted(found.items())
    ]  # fmt: skip
    return markdown_table(headers, rows)


def board(name: str) -> str:
    """Published figures of one data set beside ours."""
    cells = (partial(over_seeds, key="test_accuracy"), weights, over_group, minutes, seeds)
    return leaderboard.board(name, latest_by_recipe(), partial(link, to_root="../../"), cells)


def steered(trained: bool) -> str:
    """The last record of random or of trained networks."""
    path = HERE / "steerability.jsonl"
    records = read_records(path) if path.is_file() else []
    found = [r["figures"] for r in records if r["figures"]["trained"] is trained]
    return steerability.table(found[-1]) if found else "Not measured yet."


PEERS = {"rotmnist": "rotated MNIST", "cifar10": "CIFAR-10", "fashionmnist": "FashionMNIST"}


def peers() -> str:
    """The best published figure of each data set, however it was selected, beside our best."""
    headers = ["data", "best in the leaderboard", "selected on", "ours", "parameters", "seeds"]
    records, rows = latest_by_recipe(), []
    for name, title in PEERS.items():
        board = leaderboard.BOARDS[name]
        theirs = [row for row in board if row.figure != UNDEFINED]
        for selected in (True, False):
            of = [row for row in theirs if row.selected.startswith(leaderboard.TEST) is selected]
            if not of:
                continue
            peer = max(of, key=lambda row: float(row.figure.split()[0]))
            recipes = {row.recipe for row in board} & set(records)
            (ours,) = best([records[recipe] for recipe in recipes])
            selection = peer.selected.split(" (")[0].split(":")[0]
            rows.append([
                title, f"{peer.figure} % ({peer.model})", selection,
                f"{over_seeds(ours, 'test_accuracy')} ({link(ours)})", weights(ours), seeds(ours),
            ])  # fmt: skip
    return markdown_table(headers, rows)


def speed_summary() -> str:
    """A few ratios of time, each from its own record."""
    vit = read_records(HERE / "flagship_speed.jsonl")
    sizes = {r["width"]: r["figures"] for record in vit for r in record["figures"]["results"]}
    found = sizes[768]
    ratio = {k: found["irreps"][k] / found["plain"][k] for k in ("step", "inference")}
    rows = [[
        "`turnwise_vit_base` under D4", "a plain ViT of the same total width, H200",
        f"{ratio['step']:.2f}", f"{ratio['inference']:.2f}", "flagship_speed",
    ]]  # fmt: skip
    (hybrid,) = [r["figures"] for r in read_records(HERE / "hybrid_speed.jsonl")
                 if r["figures"]["device"] == "cuda"][-1:]  # fmt: skip
    steps = {name: row["step_seconds"] for name, row in hybrid["rows"].items()}
    rows.append([
        "`hybrid_ge_vit`, p4", "`ge_vit` with all queries, as published, H200",
        f"{steps['hybrid'] / steps['ge_vit, all queries']:.2f}", UNDEFINED, "hybrid_speed",
    ])  # fmt: skip
    linear = [r for record in read_records(HERE / "linear_attention.jsonl")
              for r in record["figures"]["results"]]  # fmt: skip
    took = {r["case"]["name"]: r["figures"]["seconds"] for r in linear if "name" in r["case"]}
    for name in ("performer", "relative_performer"):
        rows.append([
            f"`{name}`", "`variant=tep-2021`, the published layers, 2 CPU cores",
            f"{took[f'{name} exact'] / took[f'{name} tep-2021']:.2f}", UNDEFINED,
            "linear_attention",
        ])  # fmt: skip
    headers = ["model", "beside", "training step", "inference", "record"]
    return markdown_table(headers, [
        [*row[:4], f"[{row[4]}](benchmarks/{row[4]}.jsonl)"] for row in rows
    ])  # fmt: skip


TRIPLES = {  # plain, augmented, exact: recipes that differ in that
    "DermaMNIST, 28 pixels": ("dermamnist28_resnet", "dermamnist28_resnet_turned",
                              "dermamnist28_best_d4"),
    "DermaMNIST, 128 pixels": ("dermamnist128_metaformer", "dermamnist128_metaformer_turned",
                               "dermamnist128_roto_metaformer_d4"),
    "EuroSAT": ("eurosat_metaformer", "eurosat_metaformer_turned", "eurosat_roto_metaformer_d4"),
    "FIRST radio galaxies": ("first_metaformer", "first_metaformer_turned",
                             "first_roto_metaformer_d4"),
    "BreastMNIST": ("breastmnist_resnet", "breastmnist_resnet_turned",
                    "breastmnist_roto_resnet_d4"),
}  # fmt: skip


def augmentation() -> str:
    """A plain network, the same with random rotations and flips, and an exact one."""
    headers = ["images", "plain", "same prediction", "augmented", "same prediction", "exact",
               "same prediction"]  # fmt: skip
    records = latest_by_recipe()
    rows = [
        [title, *(over_seeds(records[recipe], key)
                  for recipe in recipes for key in ("test_accuracy", "orbit_agreement"))]
        for title, recipes in TRIPLES.items()
    ]  # fmt: skip
    return markdown_table(headers, rows)


def published_error(name: str) -> str:
    record = read_records(HERE / "published_errors.jsonl")[-1]
    return ERRORS[name](record["figures"])


def segmentation() -> str:
    """Instances of nuclei, for each share of the training images."""
    rows = low_data.rows_of(low_data.read_found(HERE / "recipes.jsonl"))
    return markdown_table(low_data.HEADERS, rows) if rows else "No records yet."


def orientation() -> str:
    """The mean angular error of fields of lines, of the last record."""
    path = HERE / "orientation_field.jsonl"
    found = read_records(path)[-1:] if path.is_file() else []
    rows = [
        [group, str(len(of)), *(_degrees(of, key) for key in ("mean_error", "worst_error")),
         f"{max(seed['quarter_rotations_float64'] for seed in of.values()):.0e}"]
        for record in found for group, of in record["figures"]["figures"].items()
    ]  # fmt: skip
    headers = ["group", "seeds", "mean error", "at the worst angle", "rotations by 90°, float64"]
    return markdown_table(headers, rows) if rows else "No records yet."


def _degrees(seeds: dict[str, dict[str, float]], key: str) -> str:
    values = [seed[key] for seed in seeds.values()]
    return f"{sum(values) / len(values):.2f}° ({min(values):.2f} to {max(values):.2f})"


def embedding_routes() -> str:
    """What every route to invariant vectors costs and reaches."""
    head = ["weights", "route", "passes per image", "error", "overlap", "recall"]
    rows = [
        [f["weights"], f["route"], f"{f['passes']:.1f}", f"{f['error']:.0e}",
         f"{f['overlap']:.2f}", f"{f['recall']:.2f}"]
        for f in (record["figures"] for record in read_records(HERE / "embedding_routes.jsonl"))
    ]  # fmt: skip
    return markdown_table(head, rows)


def slide_map() -> str:
    """Memory and exactness of the last map of a large slide."""
    f = read_records(HERE / "slide_map.jsonl")[-1]["figures"]
    memory, change = f["peak MB of the largest process"], f["largest difference"]
    return (
        f"At {f['side']:,} × {f['side']:,} pixels and tiles of {f['tile']} the largest process "
        f"takes {memory:.0f} MB, and the map of the rotated slide differs from the rotated map by "
        f"{change:.0e} (probabilities in float32)."
    )


TABLES: dict[str, Callable[[], str]] = {
    "embedding_routes": embedding_routes,
    "slide_map": slide_map,
    "segmentation": segmentation,
    "orientation": orientation,
    "film": lambda: gallery.caption(read_records(gallery.RECORDS)[-1]["figures"]),
    "augmentation": augmentation,
    "peers": peers,
    "speed": speed_summary,
    "which_model": which_model,
    "real_images": lambda: real_images.table(real_images.FINAL),
    "all_results": all_results,
    "flagship": flagship,
    "flagship_trials": flagship_trials,
    "flagship_search": flagship_search,
    "all_angles": all_angles,
    "flagship_speed": flagship_speed,
    "accuracies": lambda: accuracies(latest_by_recipe()),
    "gsa_curve": lambda: curve(
        read_records(HERE / "gsa_curves.jsonl"), "rotmnist_gsa_net_p4", whole=45
    ),
    "attention_costs": lambda: attention_tables.costs(read_records(HERE / "group_attention.jsonl")),
    "kernel_errors": lambda: attention_tables.kernel_errors(
        read_records(HERE / "kernel_check.jsonl")
    ),
    "roto_scores": lambda: roto_tables.scores(roto_runs()),
    "roto_speed_cpu": partial(roto_speed, "cpu"),
    "roto_speed_cuda": partial(roto_speed, "cuda"),
    **{name: partial(published_error, name) for name in ERRORS},
    "steerability_random": partial(steered, trained=False),
    "steerability_trained": partial(steered, trained=True),
    **{f"board_{name}": partial(board, name) for name in leaderboard.BOARDS},
}


def model_table() -> str:
    """What `turnwise models` shows: parameters and sizes of the models, and their records."""
    results: dict[str, list[dict[str, Any]]] = {}
    records = [r for r in latest().values() if recipe_of(r["figures"]["recipe"]).data.fraction == 1]
    for name in sorted({recipe_of(r["figures"]["recipe"]).model.name for r in records}):
        of = [r for r in records if recipe_of(r["figures"]["recipe"]).model.name == name]
        for data in sorted({task(record)[0] for record in of}):
            for record in best([r for r in of if task(r)[0] == data]):
                results.setdefault(name, []).append({
                    "data": data, "accuracy": over_seeds(record, "test_accuracy"),
                    "seeds": len(record["figures"]["seeds"]), "recipe": record["figures"]["recipe"],
                })  # fmt: skip
    facts: dict[str, dict[str, Any]] = {}
    for name in list_models():
        built = {} if name.startswith("orbit_") else built_facts(name)
        if known := built | ({"results": results[name]} if name in results else {}):
            facts[name] = known
    return json.dumps(facts, indent=1, ensure_ascii=False) + "\n"


def built_facts(name: str) -> dict[str, Any]:
    with torch.device("meta"):
        model = create_model(name, group="C4", num_classes=10, in_chans=3, image_size=64)
    exact = [size for size in range(48, 81) if size in model.exact_size(size)]
    step = exact[1] - exact[0] if len(exact) > 1 else 0
    sizes = {0: "as built", 1: "any"}.get(step, f"multiples of {step}")
    return {"parameters": sum(p.numel() for p in model.parameters()), "sizes": sizes}


def main() -> int:
    stale = {}
    if (text := model_table()) != MODEL_TABLE.read_text(encoding="utf-8"):
        stale[MODEL_TABLE] = text
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        fresh = MARKED.sub(lambda found: f"{found[1]}{TABLES[found[2]]()}\n{found[3]}", text)
        if fresh != text:
            stale[page] = fresh
    if "--check" in sys.argv[1:]:
        for page in stale:
            print(f"{page.name} is out of date", file=sys.stderr)
        return int(bool(stale))
    for page, fresh in stale.items():
        page.write_text(fresh, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
