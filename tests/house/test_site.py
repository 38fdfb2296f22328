"""The docs site builds without a warning, asks no other host for anything, and fits a phone."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.pages import ROOT

pytest.importorskip("mkdocs", reason="the group docs is not installed")
pytestmark = pytest.mark.slow
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder


class Resources(HTMLParser):
    """What a page loads when it is opened."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "link" and given.get("rel") in ("canonical", "next", "prev"):
            return
        self.found.append(given.get(LOADED.get(tag, "")) or "")


def test_every_page_of_the_docs_is_there(site: Path) -> None:
    pages = {p.relative_to(ROOT / "docs").with_suffix(".html") for p in (ROOT / "docs").rglob("*.md")}
    assert pages <= {p.relative_to(site) for p in site.rglob("*.html")}
    assert (site / "repository" / "examples" / "own_method.py.txt").is_file(), "linked from the guides"


def test_no_page_asks_another_host(site: Path) -> None:
    for page in site.rglob("*.html"):
        found = Resources(page).found
        assert any(found)
        assert [r for r in found if re.match(r"(https?:)?//", r)] == [], page
    for style in (site / "assets").glob("*.css"):
        assert "url(http" not in style.read_text()


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")
def test_every_page_fits_a_phone(site: Path) -> None:
    """Wide tables and code scroll inside the page, not with it."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 390, "height": 844})
        wide = []
        for page in sorted(site.rglob("*.html")):
            tab.goto(page.as_uri())
            if tab.evaluate("document.documentElement.scrollWidth") > 390:
                wide.append(page.relative_to(site).as_posix())
        browser.close()
    assert wide == []


def test_pictures_of_the_site_are_small() -> None:
    found = list((ROOT / "docs" / "images").glob("site_*.png"))
    assert len(found) >= 2
    assert all(picture.stat().st_size <= 300_000 for picture in found)
