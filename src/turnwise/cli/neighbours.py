"""turnwise neighbours: the images of a table of embeddings that are most like a query."""

import argparse
import csv
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from turnwise.cli.terminal import add_device, chosen_device
from turnwise.errors import InputError, require

if TYPE_CHECKING:
    from turnwise.inference.neighbours import Index

Found = list[tuple[str, list[tuple[str, float]]]]  # each query, with its neighbours


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("query", help="an image, a folder of images, a pattern or a table with a column path")
    add("index", metavar="INDEX", help="a Parquet table that turnwise embed wrote")
    add("--count", type=int, default=10, help="neighbours of each query (default: 10)")
    add("--backbone", default="", metavar="NAME",
        help="where the backbone of the table is now; needed if it is module:callable")  # fmt: skip
    add("--page", metavar="FILE", help="an HTML page that shows queries and neighbours")
    add_device(parser, "auto")


def neighbours(args: argparse.Namespace) -> int:
    """Find the images of a table of embeddings that are most like a query, by the cosine of their
    vectors. With an invariant backbone, rotating the query changes nothing."""
    from turnwise.files import require_writable
    from turnwise.inference.neighbours import read_index

    require(args.count > 0, f"--count {args.count} must be at least 1.")
    if args.page:
        require_writable(Path(args.page), "choose another --page")
    index = read_index(args.index, args.backbone)
    found = _search(args, index)
    if args.page:
        _write_page(Path(args.page), found, f"{args.index}, by {index.backbone.name}")
    rows = [
        (query, rank, name, f"{similarity:.6f}")
        for query, near in found
        for rank, (name, similarity) in enumerate(near, start=1)
    ]
    csv.writer(sys.stdout, lineterminator="\n").writerows(
        [("query", "rank", "neighbour", "cosine"), *rows]
    )
    return 0


def _search(args: argparse.Namespace, index: "Index") -> Found:
    import torch

    from turnwise.inference.loading import hash_weights
    from turnwise.inference.predictor import Predictor
    from turnwise.inference.sources import find_sources

    backbone = index.backbone.backbone()
    require(
        hash_weights(backbone.model) == index.weights_sha256,
        f"{args.index} was made with other weights than {index.backbone.name} has now; "
        "embed again.",
    )
    sources, _ = find_sources([args.query])
    names, images = list[str](), list[torch.Tensor]()
    for source in sources:
        for number in range(len(source)):
            pixels = source.read(number)
            assert pixels is not None, "only tiles can be background"
            names.append(source.name(number))
            images.append(backbone.preparation(pixels))
    model = backbone.model.to(chosen_device(args.device))
    vectors = Predictor(model, ("embedding",), batch_size=64).run(torch.stack(images))["embedding"]
    similarities, rows = index.nearest(vectors.float().numpy(), args.count)
    return [
        (name, [(index.names[row], float(value)) for row, value in zip(near, values, strict=True)])
        for name, near, values in zip(names, rows, similarities, strict=True)
    ]


def _write_page(path: Path, found: Found, words: str) -> None:
    from turnwise.reports.pages import Section, page, write_page

    sections = [
        Section(
            query, _image(query) + "".join(_image(name, f"{value:.4f}") for name, value in near)
        )
        for query, near in found
    ]
    write_page(path, page("Neighbours", sections, summary=words))


def _image(name: str, similarity: str = "") -> str:
    from turnwise.data import read_image
    from turnwise.reports.pages import image_html, paragraph_html

    try:
        shown = image_html(read_image(name, 96), name, scale=1)
    except InputError:  # a tile, an array, or a file that has gone
        shown = ""
    return shown + paragraph_html(f"{name} {similarity}".strip() if similarity else "query")
