"""The part of a report that runs its models in the browser, on images that the user drops there.

Everything is inside the page: the models as ONNX files, each certified against its source, and
onnxruntime.  The page sends nothing, and its content security policy forbids every connection.
"""

import base64
import gzip
import tempfile
from collections.abc import Sequence
from pathlib import Path

from turnwise.data import Examples
from turnwise.deploy.browser_runtime import BrowserRuntime
from turnwise.deploy.export import export
from turnwise.errors import InputError
from turnwise.reports.loaded_models import LoadedModel
from turnwise.reports.pages import LivePart, data_html, image_html, read_assets
from turnwise.reports.pages.explorer import encode_pixels

SQUARES = 7  # along each side, of the occlusion map


def live_part(
    models: Sequence[LoadedModel], examples: Examples, runtime: BrowserRuntime
) -> LivePart:
    """Export the models, and return the section and the script that run them.

    Args:
        models: take images of one shape and have the same classes.
        examples: images to choose from; others are dropped onto the page.
        runtime: onnxruntime for browsers.
    """
    if examples.targets.ndim > 1:
        raise InputError("a live page shows the probabilities of classes; write it without them.")
    first = models[0]
    channels, size = examples.images.shape[1:3]
    data = {
        "channels": channels,
        "size": size,
        "fill": first.fill,
        "classes": list(first.classes),
        "squares": SQUARES,
        "models": [{"name": m.name, "file": _packed(_onnx_file(m))} for m in models],
        "runtime": {"script": _packed(runtime.script), "program": _packed(runtime.program)},
        "examples": [
            {"pixels": encode_pixels(image), "label": int(label)}
            for image, label in zip(examples.images, examples.labels, strict=True)
        ],
    }
    html = f"{_controls(examples, first.classes)}\n{data_html('live-data', data)}"
    return LivePart(html, read_assets("resampling.js", "drop.js", "live.js"))


def _onnx_file(model: LoadedModel) -> bytes:
    """Return the model as an ONNX file; `export` raises unless the file is the model."""
    with tempfile.TemporaryDirectory(prefix="turnwise-") as folder:
        path = Path(folder) / "model.onnx"
        channels, size = model.examples.images.shape[1:3]
        export(
            model.model, path, channels=channels, size=size, classes=model.classes,
            source=model.name,
        )  # fmt: skip
        return path.read_bytes()


def _packed(content: bytes) -> str:
    """Compress by gzip, which browsers can read, and encode as text."""
    return base64.b64encode(gzip.compress(content, mtime=0)).decode()


def _controls(examples: Examples, classes: Sequence[str]) -> str:
    angles = "".join(
        f'<button type="button" data-degrees="{d}" disabled>{d}°</button>'
        for d in (0, 90, 180, 270)
    )
    pictures = "".join(
        f'<button type="button" aria-pressed="false" disabled>'
        f"{image_html(image, f'a picture of {classes[label]}', 1)}</button>"
        for image, label in zip(examples.images, examples.labels.tolist(), strict=True)
    )
    return f"""<div class="explorer" id="live">
<div>
<div class="drop" id="live-drop">
<p><label for="live-file">Drop a picture here, or choose one:</label></p>
<input type="file" id="live-file" accept="image/*" disabled></div>
<div class="choice" id="live-choice" role="group" aria-label="example pictures">{pictures}</div>
<canvas id="live-image" role="img" aria-label="the rotated picture in the models' size"></canvas>
<p><label for="live-angle">angle</label><br>
<input type="range" id="live-angle" min="0" max="359" step="1" value="0" disabled></p>
<div class="choice" role="group" aria-label="rotations">{angles}
<button type="button" id="live-play" aria-pressed="false" disabled>rotate</button></div>
<p id="live-status" role="status">Starting the models…</p>
<p><label><input type="checkbox" id="live-occlusion" disabled> show which parts count</label></p>
</div>
<div>
<div class="models" id="live-models"></div>
<p id="live-note"></p>
<figure class="trace" id="live-trace" hidden></figure>
</div>
</div>
<noscript><p>This section needs JavaScript.</p></noscript>"""
