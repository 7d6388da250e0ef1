"""Search among embeddings: the images whose vectors have the largest cosine with a query's.

The search is exact (faiss, inner products of normalised vectors), so its recall is 1.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32
from numpy.typing import NDArray

from turnwise.errors import InputError, import_extra, require
from turnwise.inference.backbones import BackboneName
from turnwise.inference.loading import is_code

Vectors = Float32[np.ndarray, "row width"]
NAMES = ("image", "slide", "x", "y")


@dataclass(frozen=True, eq=False)
class Index:
    """The embeddings of a table, and the backbone that made them."""

    vectors: Vectors
    names: tuple[str, ...]
    backbone: BackboneName
    weights_sha256: str

    def nearest(
        self, queries: Vectors, count: int
    ) -> tuple[Float32[np.ndarray, "query count"], NDArray[Any]]:
        """Return the largest cosines of each query, and the rows of the table that have them."""
        faiss = import_extra("faiss", "search", "a search")
        require(
            queries.shape[1] == self.vectors.shape[1],
            f"the queries have {queries.shape[1]} numbers and the index {self.vectors.shape[1]}.",
        )
        search = faiss.IndexFlatIP(self.vectors.shape[1])
        search.add(normalised(self.vectors))
        return search.search(normalised(queries), min(count, len(self.vectors)))


def normalised(vectors: Vectors) -> Vectors:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.ascontiguousarray(vectors / np.maximum(lengths, np.finfo(np.float32).tiny))


def read_index(path: str | Path, backbone: str = "") -> Index:
    """Read a Parquet table that `turnwise embed` wrote.

    Args:
        path: the table.
        backbone: instead of the name in the table; needed if that is code, which no file may name.
    """
    path = Path(path)
    parquet = import_extra("pyarrow.parquet", "parquet", "Parquet")
    require(path.is_file(), f"there is no table {path}; write one with turnwise embed.")
    try:
        table = parquet.read_table(path)
        facts = json.loads((table.schema.metadata or {})[b"turnwise"])
        column = table["embedding"].combine_chunks()
        vectors = column.values.to_numpy().reshape(len(table), -1).astype(np.float32)
        weights = str(table["weights_sha256"][0])
        columns = [table[name].to_pylist() for name in NAMES if name in table.column_names]
        name = BackboneName(
            *(facts[key] for key in ("backbone", "group", "combine", "pool", "size"))
        )
    except Exception as error:  # a damaged table can fail in any way
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise InputError(
            f"{path} holds no embeddings of turnwise embed ({reason}); write it again."
        ) from error
    if backbone:
        name = BackboneName(backbone, name.group, name.combine, name.pool, name.size)
    prefix = name.name.partition(":")[0]
    require(
        bool(backbone) or prefix in ("timm", "hf", "onnx", "pt2") or not is_code(name.name),
        f"{path} was made by the code {name.name}, which is not imported because a file names it; "
        "give the backbone yourself.",
    )
    names = tuple(" ".join(map(str, row)) for row in zip(*columns, strict=True))
    return Index(vectors, names, name, weights)
