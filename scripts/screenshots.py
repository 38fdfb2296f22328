"""Pictures of the docs site, as a reader sees it: docs/images/site_*.png.

uv run --group docs python scripts/screenshots.py    # builds the site and opens it in Chromium
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

from PIL import Image
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "images"
PICTURES = {  # page, width, height, dark
    "site_index": ("index.html", 1280, 860, False),
    "site_guide": ("guides/images.html", 1280, 860, True),
    "site_phone": ("concepts/recalibration.html", 390, 844, False),
}


class Quiet(SimpleHTTPRequestHandler):
    """A server of files that does not tell who asked."""

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@contextmanager
def served(folder: Path) -> Iterator[ThreadingHTTPServer]:
    """The folder on this machine alone: from a disk, a browser does not search."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def main() -> None:
    """Build the site, open each page, take its picture."""
    with tempfile.TemporaryDirectory() as site:
        build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", site]
        subprocess.run(build, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, check=True)
        with served(Path(site)) as server, sync_playwright() as play:
            browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            for name, (page, width, height, dark) in PICTURES.items():
                tab = browser.new_page(
                    viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light"
                )
                tab.goto(f"http://127.0.0.1:{server.server_port}/{page}")
                tab.wait_for_load_state("networkidle")
                file = FOLDER / f"{name}.png"
                tab.screenshot(path=file)
                Image.open(file).convert("RGB").quantize(128).save(file, optimize=True)
                print(f"{file.relative_to(ROOT)}: {file.stat().st_size / 1000:.0f} kB")
            browser.close()


if __name__ == "__main__":
    main()
