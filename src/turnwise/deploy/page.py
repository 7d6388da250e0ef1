"""The page of the service: drop an image, rotate it, see predictions.  It uses the same API."""

from turnwise.deploy.requests import MAX_BYTES
from turnwise.reports.pages import Section, page, read_assets


def serve_page(name: str) -> str:
    """Return the page for the model called `name`."""
    buttons = "".join(
        f'<button type="button" data-degrees="{d}">{d}°</button>' for d in (0, 90, 180, 270)
    )
    html = f"""<div class="explorer">
<div>
<div class="drop" id="serve-drop" data-max-bytes="{MAX_BYTES}">
<p><label for="serve-file">Drop a picture here, or choose one:</label></p>
<input type="file" id="serve-file"
accept="image/png,image/jpeg,image/tiff,image/bmp,image/webp"></div>
<p><label for="serve-angle">angle</label><br>
<input type="range" id="serve-angle" min="0" max="359" step="1" value="0" disabled></p>
<div class="choice" role="group" aria-label="rotations by 90°">{buttons}</div>
<p id="serve-status" role="status">No picture yet.</p>
<img class="rotated" id="serve-image" alt="the rotated picture in the model's size">
</div>
<div class="models"><div class="model" id="serve-model"></div></div>
</div>
<noscript><p>This page needs JavaScript.</p></noscript>"""
    summary = (
        "The picture is cropped to its central square and resampled to the model's size. "
        "It stays on this machine."
    )
    return page(
        f"Turnwise: {name}",
        [Section("Rotate your picture", html)],
        summary=summary,
        script=read_assets("predictions.js", "drop.js", "serve.js"),
        calls_server=True,
    )
