"""The wheel stays small.  `make release` builds it and uses it in a clean environment."""

import io
import re
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
MARGIN = 40_000  # bytes, of the metadata


def test_the_wheel_is_below_two_megabytes():
    """Compress what the wheel holds as a wheel does."""
    check = (ROOT / "tools" / "check_release.sh").read_text()
    limit = int(re.search(r"^limit=(\d+)", check, re.MULTILINE)[1])
    sources = [p for p in (ROOT / "src" / "turnwise").rglob("*") if "__pycache__" not in p.parts]
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as wheel:
        for path in (*sources, *(ROOT / "recipes").glob("*")):
            wheel.write(path, path.relative_to(ROOT))
    assert packed.tell() + MARGIN < limit <= 2_000_000
