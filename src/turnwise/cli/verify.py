"""turnwise verify: does a certificate still hold?"""

import argparse
import sys


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("certificate", help="a certificate.json that turnwise certify wrote")
    parser.add_argument(
        "--target", help="where the model is now (default: around the certificate, or where it was)"
    )
    parser.add_argument("--against", help="where the model is that the file was exported from")
    parser.add_argument("--device", default="cpu", help="auto, cpu, cuda (default: cpu)")
    parser.add_argument("--data-dir", help="where the data set is (default: $TURNWISE_DATA)")


def verify(args: argparse.Namespace) -> int:
    """Measure again what a certificate claims, on the same weights and pictures. Exit status 0
    where it still holds, 1 where it does not. A certificate of module:callable is verified only
    with --target module:callable, which imports and runs that code."""
    from turnwise.cli.devices import chosen_device
    from turnwise.evaluation.certificate.verification import verify as again

    found = again(
        args.certificate, target=args.target, against=args.against, data_dir=args.data_dir,
        device=chosen_device(args.device), progress=sys.stderr.isatty(),
    )  # fmt: skip
    before = found.before
    print(
        f"{before.target} under {before.claim}, certified {before.date} with turnwise "
        f"{before.versions.get('turnwise', '?')}, torch {before.versions.get('torch', '?')}"
    )
    for objection in found.objections:
        print(f"- {objection}")
    print("STILL HOLDS" if found.holds else "DOES NOT HOLD")
    return 0 if found.holds else 1
