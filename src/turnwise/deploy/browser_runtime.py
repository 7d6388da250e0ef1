"""onnxruntime for browsers, from the npm registry.

The package is downloaded once, by a command that the user gives, and is checked by SHA-256.  Two
files of it are read from the archive; nothing is unpacked on disk, and nothing of it runs here.
"""

import tarfile
from dataclasses import dataclass
from pathlib import Path

from turnwise.data.catalogue import Download
from turnwise.data.storage import cache_folder, checksum, fetch
from turnwise.errors import InputError, require

VERSION = "1.30.0"
PACKAGE = Download(
    url=f"https://registry.npmjs.org/onnxruntime-web/-/onnxruntime-web-{VERSION}.tgz",
    file=f"onnxruntime-web/onnxruntime-web-{VERSION}.tgz",
    md5="7677e2cac4b2d0a14154aef901cdab13",
    sha256="d2228df7e4616bc3348bf504ee888f3bec43789a273f0a63f3e68d203ce3bf71",
)
SCRIPT = "package/dist/ort.wasm.bundle.min.mjs"
PROGRAM = "package/dist/ort-wasm-simd-threaded.wasm"


@dataclass(frozen=True)
class BrowserRuntime:
    """A module of JavaScript, and the WebAssembly program that it runs; MIT licence."""

    script: bytes
    program: bytes


def download_runtime() -> None:
    """Download the package into the cache, unless it is there."""
    fetch(PACKAGE, cache_folder())


def find_runtime() -> BrowserRuntime | None:
    """Return the runtime from the cache, None if it was not downloaded."""
    path = cache_folder() / PACKAGE.file
    return _read(path) if path.is_file() else None


def _read(path: Path) -> BrowserRuntime:
    require(
        checksum(path, "sha256") == PACKAGE.sha256,
        f"{path} is damaged; delete it and download it again.",
    )
    try:
        with tarfile.open(path, "r:gz") as archive:
            members = [archive.extractfile(name) for name in (SCRIPT, PROGRAM)]
            script, program = (member.read() if member else b"" for member in members)
    except (OSError, EOFError, KeyError, tarfile.TarError) as error:
        raise InputError(f"{path} cannot be read ({error}); delete it.") from error
    return BrowserRuntime(script, program)
