"""Draws the pictures of the page in docs/images: uv run python -m tests.serve.screenshots"""

from __future__ import annotations

import tempfile
import time
from datetime import date, timedelta
from pathlib import Path

from playwright.sync_api import expect, sync_playwright

from purge.data.sources import DataSource
from purge.ledger.ledger import Ledger
from purge.ledger.policy import Policy
from purge.ledger.worker import init, run
from purge.runs.folder import read_data
from purge.runs.make import train_run
from tests.ledger.conftest import DATA, MODEL
from tests.ledger.people import person
from tests.report.test_page import CHROMIUM, FLAGS
from tests.serve.pages import ROOT, served
from tests.serve.test_browser import window
from tests.serve.test_pages import touch

OUT = ROOT / "docs" / "images"
LARGEST = 300_000  # bytes of a picture
TODAY = date.today()
SHOTS = (
    (1280, "serve_overview", "/"),
    (1280, "serve_request", "/requests/2"),
    (375, "serve_overview_phone", "/"),
)


def made(folder: Path) -> Ledger:
    """The ledger of a small company: a model, a batch that is done, and requests that wait."""
    choice = DataSource(DATA)
    train, test = read_data(choice, progress=False)
    recipe = {"epochs": 12, "batch_size": 64, "lr": 0.1, "augment": "none"}
    train_run(folder / "base", MODEL, choice, train, {}, seed=0, recipe=recipe, test=test, progress=False)
    ledger = Ledger(folder / "requests.db")
    init(ledger, folder / "base")
    for i in range(4):
        ledger.add(ids=[person(i)], received=TODAY - timedelta(days=25 + i), note="by e-mail")
    ledger.hold(2, "identity to be checked")
    ledger.release(2)
    lax = Policy(max_share=None, max_drift=None, max_distance=None, max_return=1.0)
    outcome = run(ledger, everything=True, policy=lax, trust=True)
    assert outcome.state == "done", outcome
    days = (-45, -33, -28, -26, -5, -3, -1, 0)
    notes = ("letter, ticket 2041", None, "web form", None, "web form", "by phone", None, None)
    for i, (ago, note) in enumerate(zip(days, notes, strict=True), 10):
        ledger.add(
            ids=[person(3 * i + k) for k in range(1 + i % 3)], received=TODAY + timedelta(days=ago), note=note
        )
    ledger.hold(6, "legal claim, Art. 17(3)(e)")
    ledger.add(classes=["7"], received=TODAY, basis="end of contract")
    return ledger


def main() -> None:
    """Draw all of them."""
    OUT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place, sync_playwright() as playwright:
        folder = Path(place)
        ledger = made(folder)
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        with served(folder, "--quiet") as server:
            for width, name, path in SHOTS:
                page = window(browser, server, width=width).page
                page.goto(f"{server.base}{path}")
                if path == "/":
                    expect(page.locator(".verdict").first).to_be_visible(timeout=60_000)
                shoot(page, name)
            touch(
                ledger,
                "UPDATE purge_entries SET payload = replace(payload, 'e-mail', 'letter') WHERE seq = 5",
            )
            time.sleep(2.5)  # the last verdict is told for two seconds
            page = window(browser, server).page
            page.goto(f"{server.base}/chain")
            shoot(page, "serve_broken_chain", whole=False)
        browser.close()


def shoot(page: object, name: str, *, whole: bool = True) -> None:
    """One picture."""
    file = OUT / f"{name}.png"
    page.screenshot(path=file, full_page=whole)  # type: ignore[attr-defined]
    assert file.stat().st_size < LARGEST, file


if __name__ == "__main__":
    main()
