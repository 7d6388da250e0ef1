"""turnwise certify: does the answer change when the picture turns?"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnwise.checks import InputError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from turnwise.evaluation import Certificate


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", help="a run, a model folder, or a model's name (untrained)")
    parser.add_argument(
        "settings", nargs="*", metavar="key=value", help="options of a named model, e.g. width=64"
    )
    parser.add_argument("--group", help="C4, D4, … (default: the model's own, else C4)")
    parser.add_argument("--pictures", type=int, default=32, help="how many (default: 32)")
    parser.add_argument("--angles", type=int, default=24, help="steps of a full turn (default: 24)")
    parser.add_argument("--seed", type=int, default=0, help="of an untrained model (default: 0)")
    parser.add_argument("--device", default="cpu", help="auto, cpu, cuda (default: cpu)")
    parser.add_argument("--data-dir", help="where a run's data set is (default: $TURNWISE_DATA)")
    parser.add_argument("--output", help="JSON file (default: certificate.json in a run or folder)")


def certify(args: argparse.Namespace) -> int:
    """Measure whether a model's answer is invariant under a group, in float64 and float32,
    with negative controls. Exit status 0 where the claim holds, 1 where it does not."""
    from turnwise.cli.devices import chosen_device
    from turnwise.evaluation import certify as measure
    from turnwise.files import write_json
    from turnwise.groups import PlanarGroup

    if args.pictures < 2 or args.angles < 1:
        raise InputError("--pictures must be at least 2 and --angles at least 1.")
    if args.group is not None:
        PlanarGroup.named(args.group)
    if not 0 <= args.seed < 2**32:
        raise InputError(f"--seed {args.seed} must be from 0 to 2^32 − 1.")
    device = chosen_device(args.device)
    model = _model(args)
    group = args.group or _own_group(args, model)
    images, origin = _pictures(args, model)
    certificate = measure(
        model.to(device), group, images, target=args.target, pictures=origin, angles=args.angles
    )
    print(describe(certificate))
    output = Path(args.output) if args.output else None
    if output is None and Path(args.target).is_dir():
        output = Path(args.target) / "certificate.json"
    if output is not None:
        write_json(output, certificate.plain())
        print(f"written to {output}")
    return 0 if certificate.holds else 1


def _model(args: argparse.Namespace) -> "nn.Module":
    import torch

    from turnwise.models import create_model, list_models, load

    if Path(args.target).is_dir():
        if args.settings:
            raise InputError(f"{args.target} is a folder and takes no options; leave them out.")
        return load(args.target)
    if args.target not in list_models() and ("/" in args.target or "." in args.target):
        raise InputError(f"{args.target} is neither a folder nor a model; see turnwise models.")
    torch.manual_seed(args.seed)
    return create_model(args.target, **{"group": args.group or "C4", **_options(args.settings)})


def _own_group(args: argparse.Namespace, model: "nn.Module") -> str:
    """What the model promises; a plain one is held against its recipe's group, or C4."""
    from turnwise.training.recipe import read_recipe

    if model.group.order > 1:  # type: ignore[union-attr, operator]
        return str(model.group)
    recipe = Path(args.target) / "recipe.yaml"
    return read_recipe(recipe).model.group if recipe.is_file() else "C4"


def _options(given: list[str]) -> dict[str, Any]:
    import yaml

    options = {}
    for option in given:
        key, equals, text = option.partition("=")
        if not equals:
            raise InputError(f"an option is written key=value, e.g. width=64, got {option!r}.")
        if key == "name":
            raise InputError(f"{option} is no option; the model's name stands first, alone.")
        try:
            options[key] = yaml.safe_load(text)
        except yaml.YAMLError:
            raise InputError(f"the value of {option!r} cannot be read; try width=64.") from None
    return options


def _pictures(args: argparse.Namespace, model: "nn.Module") -> tuple["Tensor", str]:
    """A run's own validation pictures, or embedded digits for a model without a data set."""
    from turnwise.data.batches import to_unit
    from turnwise.training.recipe import read_recipe
    from turnwise.training.run import load_run_data

    run = Path(args.target)
    if not (run / "recipe.yaml").is_file():
        return sample_pictures(model, args.pictures), "embedded digits, resampled, with noise"
    dataset = load_run_data(run, read_recipe(run / "recipe.yaml"), args.data_dir)
    return to_unit(dataset.val.images[: args.pictures]), f"validation pictures of {dataset.name}"


def sample_pictures(model: "nn.Module", count: int) -> "Tensor":
    """Embedded digits in the model's size and channels; noise in all, so that nothing is blank."""
    import torch

    from turnwise.data import load_dataset
    from turnwise.data.batches import to_unit
    from turnwise.models.registry import config_of

    options = config_of(model).options
    digits = load_dataset("digits", image_size=options["image_size"])
    images = to_unit(digits.val.images[:count]).repeat(1, options["in_chans"], 1, 1)
    noise = torch.rand(images.shape, generator=torch.Generator().manual_seed(0))
    return 0.8 * images + 0.2 * noise


def describe(certificate: "Certificate") -> str:
    """The certificate as tables and a verdict."""
    from turnwise.reports.tables import format_error, format_percent, text_table

    elements = [
        [str(e.element), e.meaning, format_error(e.float64), format_error(e.float32),
         "holds" if e.holds else "FAILS"]
        for e in certificate.elements
    ]  # fmt: skip
    controls = [
        [c.name, format_error(c.change), "speaks" if c.holds else "IS SILENT"]
        for c in certificate.controls
    ]
    angles = [
        [f"{a.degrees:g}°", format_error(a.change), format_percent(a.agreement)]
        for a in certificate.angles
    ]
    verdict = "INVARIANT" if certificate.holds else "NOT INVARIANT"
    return "\n\n".join(
        [
            f"{certificate.target} under {certificate.group}, on {certificate.pictures}",
            text_table(["element", "does", "float64", "float32", "≤ 1e-10, ≤ 1e-4"], elements),
            text_table(["control: must move the answer", "change", ""], controls),
            text_table(["measured: turn by", "change", "same decision"], angles),
            f"{verdict} under {certificate.claim}",
        ]
    )
