"""Write an exported graph as a file, and open that file in its own runtime.

    onnx   one .onnx file, which onnxruntime runs
    pt2    a .pt2 archive of torch.export
    aoti   a .pt2 package with machine code that torch's compiler makes for this processor

Reading a file never runs code that it holds (inference/exported.py).  Machine code is nothing else,
so a package of the third kind is opened here only, right after it was written.
"""

import logging
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.onnx import OnnxExporterError

from turnwise.errors import InputError, require, require_known
from turnwise.inference.description import EXTRA, KEY, Description
from turnwise.inference.exported import FileModel, open_exported, open_onnx

MAX_ONNX = 2_000_000_000  # bytes; larger files need a second file beside them
COMPILERS = ("g++", "clang++", "c++")
Graph = torch.export.ExportedProgram


def require_format(name: str, path: Path) -> str:
    """Return the format, by default that of the suffix, if it can be written here."""
    suffixes = {"onnx": ".onnx", "pt2": ".pt2", "aoti": ".pt2"}
    of_suffix = {".onnx": "onnx", ".pt2": "pt2"}
    require(
        bool(name) or path.suffix in of_suffix,
        f"{path} must end in .onnx or .pt2, or name its format: {', '.join(suffixes)}.",
    )
    name = name or of_suffix[path.suffix]
    require_known(name, suffixes, "format")
    require(
        path.suffix == suffixes[name],
        f"{path} must end in {suffixes[name]}, as files of format {name} do.",
    )
    if name == "onnx":
        missing = [p for p in ("onnx", "onnxruntime", "onnxscript") if find_spec(p) is None]
        require(
            not missing,
            f"an ONNX file needs the package {', '.join(missing)}; install it with pip install "
            "turnwise[onnx].",
        )
    require(
        name != "aoti" or any(map(shutil.which, COMPILERS)),
        f"the format aoti needs a C++ compiler, and none of {', '.join(COMPILERS)} is installed; "
        "install one, or write pt2 or onnx.",
    )
    return name


def write_file(name: str, graph: Graph, path: Path, description: Description) -> None:
    """Write the graph and its description to `path` in the format called `name`."""
    with _quiet():
        WRITERS[name](graph, path, description)


def open_written(name: str, path: Path, description: Description) -> FileModel:
    """Open a file that `write_file` has just written, in its own runtime."""
    if name == "onnx":
        return open_onnx(path)
    return open_exported(path) if name == "pt2" else _open_compiled(path, description)


def _write_onnx(graph: Graph, path: Path, description: Description) -> None:
    size = sum(t.nbytes for t in (*graph.parameters(), *graph.buffers()))
    require(
        size < MAX_ONNX,
        f"the weights have {size:,} bytes, and one ONNX file holds {MAX_ONNX:,}; write pt2.",
    )
    try:
        program: Any = torch.onnx.export(
            graph, (), dynamo=True, verbose=False, external_data=False,
            input_names=["images"], output_names=list(description.outputs),
        )  # fmt: skip
    except OnnxExporterError as error:
        causes = [error, error.__cause__, getattr(error.__cause__, "__cause__", None)]
        reason = str([cause for cause in causes if cause][-1]).splitlines()[0]
        raise InputError(
            f"torch cannot write this model as ONNX ({reason[:200]}); write pt2 instead."
        ) from error
    program.model.metadata_props[KEY] = description.to_json()
    if description.precision != "int8":
        program.save(str(path), external_data=False)
        return
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model = program.model_proto
    del model.graph.value_info[:]  # shapes of the unquantised weights
    quantize_dynamic(model, str(path), per_channel=True, weight_type=QuantType.QInt8)


def _write_archive(graph: Graph, path: Path, description: Description) -> None:
    torch.export.save(graph, path, extra_files={EXTRA: description.to_json()})


def _write_compiled(graph: Graph, path: Path, description: Description) -> None:
    compile_: Any = torch._inductor.aoti_compile_and_package
    try:
        compile_(
            graph,
            package_path=str(path),
            inductor_configs={"aot_inductor.metadata": {KEY: description.to_json()}},
        )
    except Exception as error:  # a compiler may fail in any way
        reason = (str(error) or type(error).__name__).strip().splitlines()[0]
        raise InputError(
            f"torch's compiler failed ({reason[:200]}); write pt2 or onnx instead."
        ) from error


def _open_compiled(path: Path, description: Description) -> FileModel:
    compiled: Any = torch._inductor.aoti_load_package(str(path))

    def run(images: Tensor) -> dict[str, Tensor]:  # the code assumes the layout of the example
        return dict(zip(description.outputs, compiled(images.contiguous()), strict=True))

    shape = (None, description.channels, description.size, description.size)
    return FileModel(path, run, "float32", shape, description=description)


WRITERS: dict[str, Callable[[Graph, Path, Description], None]] = {
    "onnx": _write_onnx,
    "pt2": _write_archive,
    "aoti": _write_compiled,
}


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the warnings and the log of torch's exporters about their own future."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
