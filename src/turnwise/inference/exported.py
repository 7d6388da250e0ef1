"""Models in files of other programs: torch.export (.pt2) and ONNX.

Such a file holds a graph of operations, and running the graph is its purpose.  Nothing else in it
runs.  onnxruntime refuses operators that a file brings along.  torch's reader of .pt2 files
unpickles custom objects, loads compiled libraries and evaluates expressions as Python, so the
archive is inspected first (`require_plain_graph`): it may hold weights, operations of torch, and
expressions of sizes in a small vocabulary.

A file has one precision, and takes images in [0, 1], or uint8 if its description says so.
"""

import ast
import hashlib
import json
import logging
import os
import re
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from turnwise.errors import InputError, import_extra, require
from turnwise.groups import PlanarGroup
from turnwise.inference.description import EXTRA, KEY, Description, read_description

PARTS = re.compile(
    r"[^/]+/(models/\w+\.json|data/weights/(weight_\d+|\w+_weights_config\.json)"
    r"|data/constants/(tensor_\d+|\w+_constants_config\.json)|data/sample_inputs/\w+\.pt"
    r"|extra/turnwise\.json"
    r"|archive_format|archive_version|byteorder|version|\.data/(version|serialization_id))"
)
OPERATIONS = re.compile(
    r"torch\.ops\.(aten|prims|higher_order)\.\w+(\.\w+)?|_operator\.(getitem|\w{2,8}div|mul|add|sub"
    r"|eq|ne|le|lt|ge|gt|neg|pow|mod|and_|or_|not_)|math\.\w+|torch\.sym_\w+"
)
SIZES = {
    "Symbol", "Integer", "Rational", "Add", "Mul", "Pow", "Max", "Min", "Mod", "FloorDiv",
    "CleanDiv", "CeilDiv", "PythonMod", "ModularIndexing", "Equality", "Unequality", "LessThan",
    "GreaterThan", "StrictLessThan", "StrictGreaterThan", "And", "Or", "Not", "Eq", "Ne", "Le",
    "Lt", "Ge", "Gt", "positive", "nonnegative", "integer", "True", "False", "true", "false", "oo",
    "int_oo", "L", "size", "args", "and", "or", "not",
}  # fmt: skip
SYMBOL = re.compile(r"[a-z]{1,2}\d+")  # s31, u0
STRINGS = re.compile(r"'\w+'")
SIGNS = re.compile(r"[\w\s()\[\],=<>!+\-*/%.]*")


def require_plain_graph(path: Path) -> None:
    """Refuse an archive that holds more than weights and a graph of torch's operations."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            strange = [name for name in names if not PARTS.fullmatch(name)]
            graphs = [json.loads(archive.read(n)) for n in names if "/models/" in n]
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise InputError(
            f"{path} is not a file of torch.export; write one with torch.export.save."
        ) from error
    require(
        not strange,
        f"{path} holds {strange[0] if strange else ''}, which is neither weights nor a graph, and "
        "might run on its own; export the model alone, with torch.export.save.",
    )
    require(bool(graphs), f"{path} holds no graph; write one with torch.export.save.")
    for graph in graphs:
        for kind, text in _texts(graph):
            _require_harmless(path, kind, text)


def _texts(value: Any) -> Iterator[tuple[str, str]]:
    """Yield everything in the graph that torch would evaluate, or look up as a function."""
    if isinstance(value, dict):
        for key, entry in value.items():
            if key in ("expr_str", "target") and isinstance(entry, str):
                yield key, entry
            elif key == "guards_code" and isinstance(entry, list):
                yield from (("expr_str", str(guard)) for guard in entry)
            else:
                yield from _texts(entry)
    elif isinstance(value, list):
        for entry in value:
            yield from _texts(entry)


def _require_harmless(path: Path, kind: str, text: str) -> None:
    if kind == "target":
        harmless = OPERATIONS.fullmatch(text) is not None
    else:
        bare = STRINGS.sub("", text)
        words = re.findall(r"[A-Za-z_]\w*", bare)
        harmless = SIGNS.fullmatch(bare) is not None and all(
            word in SIZES or SYMBOL.fullmatch(word) for word in words
        )
    require(
        harmless,
        f"{path} holds {text[:60]!r}, neither an operation of torch nor a size; it was not "
        "evaluated. Export the model again.",
    )


@contextmanager
def weights_only() -> Iterator[None]:
    """Let torch.load open only tensors and plain values, whoever calls it."""
    switch = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    before = os.environ.get(switch)
    os.environ[switch] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[switch]
        else:
            os.environ[switch] = before


NAMES = {torch.float64: "float64", torch.float32: "float32", torch.float16: "float16",
         torch.bfloat16: "bfloat16"}  # fmt: skip
ONNX_TYPES = {"tensor(double)": "float64", "tensor(float)": "float32", "tensor(float16)": "float16",
              "tensor(uint8)": "float32"}  # fmt: skip
SCOPES = "pkg.torch.onnx.name_scopes"  # where torch's exporter stores the path of a node's module
Observer = Callable[[str, str, Tensor | None, Tensor], None]  # name, type, input, output


class FileModel(nn.Module):
    """The model in a file.

    Args:
        path: the file.
        run: from images to outputs by name, "logits" among them.
        precision: the only precision in which it computes.
        shape: (batch, channel, row, col) of its images, None where any number is allowed.
        description: what the file states about itself, if `turnwise.export` wrote it.
        inside: a module whose children are the file's layers, if there is one.
        trace: calls an observer with the input and output of every node, if it can.

    `preprocess` is set by a caller who knows what the images need (certificate/targets.py); a file
    with a description contains its preprocessing.
    """

    def __init__(
        self,
        path: Path,
        run: Callable[[Tensor], dict[str, Any]],
        precision: str,
        shape: tuple[int | None, ...],
        *,
        description: Description | None = None,
        inside: nn.Module | None = None,
        trace: Callable[[Tensor, Observer], None] | None = None,
    ) -> None:
        super().__init__()
        self.sha256 = hash_file(path)
        self.run, self.precision, self.shape, self.batch = run, precision, shape, shape[0]
        self.inside, self.trace = inside or nn.Identity(), trace
        self.preprocess: Callable[[Tensor], Tensor] | None = None
        self.description = description
        if description is not None:
            self.classes, self.target = description.classes, description.target
            self.group = PlanarGroup.named(description.group)
            self.shape = (shape[0], description.channels, description.size, description.size)

    @property
    def takes_bytes(self) -> bool:
        """Whether the graph takes uint8; images in [0, 1] are converted."""
        return self.description is not None and self.description.pixels == "uint8"

    @property
    def has_embedding(self) -> bool:
        return self.description is not None and "embedding" in self.description.outputs

    def outputs(self, images: Tensor) -> dict[str, Any]:
        """Return all outputs by name; a file without a description has logits only."""
        return self.run(to_bytes(images) if self.takes_bytes else images)

    def forward(self, images: Tensor) -> Any:
        return self.outputs(images)["logits"]


def to_bytes(images: Tensor) -> Tensor:
    """Return images in [0, 1] as uint8, rounded."""
    return (images * 255).round().clamp(0, 255).to(torch.uint8)


def hash_file(path: Path) -> str:
    """Hash the file, and net.onnx.data if torch has stored weights beside it."""
    digest = hashlib.sha256(path.read_bytes())
    beside = path.with_name(f"{path.name}.data")
    if beside.is_file():
        digest.update(beside.read_bytes())
    return digest.hexdigest()


def open_file(path: str | Path) -> FileModel:
    """Open a .pt2 file of torch.export, or an .onnx file."""
    path = Path(path)
    require(path.is_file(), f"{path} does not exist; give a .pt2 or .onnx file.")
    return open_onnx(path) if path.suffix.lower() == ".onnx" else open_exported(path)


def open_exported(path: Path) -> FileModel:
    """Open a program of torch.export, with its original module structure."""
    require_plain_graph(path)
    logger = logging.getLogger("torch.export.unflatten")
    level = logger.level
    extra: dict[str, Any] = {EXTRA: ""}
    try:
        logger.setLevel(logging.ERROR)  # it warns of every shared module
        with weights_only(), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            program = torch.export.load(path, extra_files=extra)
            inside = torch.export.unflatten(program)
    except Exception as error:  # a damaged archive can fail in any way
        raise InputError(
            f"{path} cannot be read by torch {torch.__version__} "
            f"({_first_line(error)}); export it again, with torch.export.save."
        ) from error
    finally:
        logger.setLevel(level)
    inputs = program.graph_signature.user_inputs
    require(
        len(inputs) == 1,
        f"{path} takes {len(inputs)} inputs; it must take images and nothing else.",
    )
    value = next(n for n in program.graph.nodes if n.name == inputs[0]).meta["val"]
    require(isinstance(value, Tensor) and value.ndim == 4, _wrong_input(path))
    shape = tuple(side if isinstance(side, int) else None for side in value.shape)
    description = read_description(extra[EXTRA] or None, path)
    kinds = NAMES | ({torch.uint8: "float32"} if description is not None else {})
    require(value.dtype in kinds, f"{path} takes images of {value.dtype}; export it in float32.")

    names = ("logits",) if description is None else description.outputs

    def run(images: Tensor) -> dict[str, Any]:
        found = inside(images)
        return dict(zip(names, [found] if description is None else found, strict=True))

    return FileModel(
        path, run, kinds[value.dtype], shape, description=description, inside=inside
    )  # fmt: skip


def open_onnx(path: Path) -> FileModel:
    """Open an ONNX file, which onnxruntime runs on the CPU; tracing needs the package onnx."""
    runtime = import_extra("onnxruntime", "onnx", "an ONNX file")
    try:
        session = _session(runtime, str(path), optimised=True)
    except Exception as error:  # onnxruntime has a class for each of many failures
        raise InputError(
            f"{path} cannot be run by onnxruntime ({_first_line(error)}); export it again."
        ) from error
    inputs = session.get_inputs()
    require(
        len(inputs) == 1,
        f"{path} takes {len(inputs)} inputs; it must take images and nothing else.",
    )
    require(len(inputs[0].shape) == 4, _wrong_input(path))
    description = read_description(session.get_modelmeta().custom_metadata_map.get(KEY), path)
    require(
        inputs[0].type in ONNX_TYPES
        and (description is not None or inputs[0].type != "tensor(uint8)"),
        f"{path} takes images of {inputs[0].type}; export it in float32.",
    )
    names = ("logits",) if description is None else description.outputs
    requested = [output.name for output in session.get_outputs()][: len(names)]
    shape = tuple(side if isinstance(side, int) else None for side in inputs[0].shape)

    def run(images: Tensor) -> dict[str, Any]:
        feed = {inputs[0].name: images.detach().cpu().contiguous().numpy()}
        found = session.run(requested, feed)
        return {name: torch.from_numpy(x) for name, x in zip(names, found, strict=True)}

    def trace(images: Tensor, observe: Observer) -> None:
        fitting = to_bytes(images) if inputs[0].type == "tensor(uint8)" else images
        trace_nodes(path, runtime, fitting, observe)

    return FileModel(
        path, run, ONNX_TYPES[inputs[0].type], shape, description=description, trace=trace
    )


def trace_nodes(path: Path, runtime: Any, images: Tensor, observe: Observer) -> None:
    """Run the graph with every node's output among its outputs, and call `observe` on each."""
    onnx = import_extra("onnx", "onnx", "an ONNX file")
    model = onnx.load(str(path))
    wanted = [output.name for output in model.graph.output]
    results = [name for node in model.graph.node for name in node.output if name]
    model.graph.output.extend(
        onnx.ValueInfoProto(name=name) for name in dict.fromkeys(results) if name not in wanted
    )
    # fused nodes would round differently when their outputs are requested one by one
    session = _session(runtime, model.SerializeToString(), optimised=False)
    start = session.get_inputs()[0].name
    names = [output.name for output in session.get_outputs()]
    arrays = session.run(names, {start: images.detach().cpu().contiguous().numpy()})
    found = {start: images} | {
        name: torch.from_numpy(array)
        for name, array in zip(names, arrays, strict=True)
        if getattr(array, "ndim", 0) and array.dtype.kind == "f"
    }
    for node in model.graph.node:
        given = next((found[name] for name in node.input if name in found), None)
        if node.output[0] in found:
            last = node.output[0] in wanted
            observe("" if last else _layer_of(node), node.op_type, given, found[node.output[0]])


def _layer_of(node: Any) -> str:
    """Return the path of the module that a node comes from, or the node's name if unknown."""
    name = str(node.name or node.output[0])
    for entry in node.metadata_props:
        if entry.key == SCOPES:
            path = [str(part) for part in ast.literal_eval(entry.value)]  # modules, then the node
            module = path[-2] if len(path) > 1 else ""
            return f"{module}.{name}" if module else name
    return name


def _session(runtime: Any, model: str | bytes, *, optimised: bool) -> Any:
    levels, options = runtime.GraphOptimizationLevel, runtime.SessionOptions()
    options.log_severity_level = 3  # errors only
    level = levels.ORT_ENABLE_ALL if optimised else levels.ORT_DISABLE_ALL
    options.graph_optimization_level = level
    return runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def _wrong_input(path: Path) -> str:
    return f"{path} does not take images of shape (batch, channel, row, col)."


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:200]
