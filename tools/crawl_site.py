"""Open every page of the documentation site in Chromium; fail on any problem.

    make docs && .venv/bin/python tools/crawl_site.py site [--shots FOLDER]

A problem is an error or warning on the console, a request that leaves this machine, an image
without alternative text, or a page that scrolls sideways in a window of 400 or 1200 pixels.
"""

import argparse
import shutil
import sys
import tempfile
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from chromium import NAMES, Browser

WIDTHS = (1200, 400)
SETTLED = "new Promise(done => setTimeout(done, 300))"  # transitions of the layout have ended
SIDEWAYS = "document.documentElement.scrollWidth > document.documentElement.clientWidth + 1"
UNNAMED = "[...document.images].filter(i => !i.hasAttribute('alt')).map(i => i.src)"


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


def problems(browser: Browser, root: str, page: str, shots: Path | None) -> list[str]:
    """Return what is wrong with one page."""
    browser.open(f"{root}/{page}")
    found = []
    for width in WIDTHS:
        browser.resize(width, 900)
        browser.evaluate(SETTLED)
        if browser.evaluate(SIDEWAYS):
            found.append(f"scrolls sideways at {width} pixels")
        if shots is not None:
            browser.screenshot(shots / f"{page.replace('/', '_')}.{width}.png")
    found += [f"no alternative text: {source}" for source in browser.evaluate(UNNAMED)]
    found += [f"console: {problem}" for problem in browser.problems]
    own = (root, "data:", "blob:")
    found += [f"external request: {url}" for url in browser.requests if not url.startswith(own)]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("site", type=Path, help="the folder that `make docs` wrote")
    parser.add_argument("--shots", type=Path, help="keep screenshots in this folder")
    args = parser.parse_args()
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        sys.exit(f"no browser is installed ({', '.join(NAMES)})")
    if args.shots is not None:
        args.shots.mkdir(parents=True, exist_ok=True)
    handler = partial(Quiet, directory=str(args.site))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    root = f"http://127.0.0.1:{server.server_port}"
    pages = sorted(p.relative_to(args.site).as_posix() for p in args.site.rglob("*.html"))
    status = 0
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = Browser(program, profile)
        for page in pages:
            for problem in problems(browser, root, page, args.shots):
                print(f"{page}: {problem}")
                status = 1
        browser.close()
    widths, outcome = " and ".join(map(str, WIDTHS)), "problems" if status else "no problem"
    print(f"{len(pages)} pages at {widths} pixels: {outcome}")
    return status


if __name__ == "__main__":
    sys.exit(main())
