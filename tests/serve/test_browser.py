"""The page as people see it: in Chromium, with a real server, a real model and a real run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Locator, Page, expect, sync_playwright

from purge.ledger.ledger import Ledger
from purge.ledger.worker import init
from tests.ledger.people import person
from tests.report.test_page import CHROMIUM, FLAGS
from tests.serve.pages import Server, served
from tests.serve.test_pages import touch

pytestmark = pytest.mark.slow
TODAY = date.today()
EVIL = "<img src=x onerror=\"document.title='hacked'\">"
RUN = ("--trust", "--set", "steps=40")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine to open the page in")
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield opened
        opened.close()


class Window:
    """A window of the browser, and all that went wrong in it."""

    def __init__(self, context: BrowserContext, base: str) -> None:
        self.trouble: list[str] = []
        self.page: Page = context.new_page()
        self.page.set_default_timeout(60_000)
        self.page.on(
            "console", lambda m: self.trouble.append(m.text) if m.type in ("error", "warning") else None
        )
        self.page.on("pageerror", lambda error: self.trouble.append(str(error)))
        self.page.on("request", lambda r: None if r.url.startswith(base) else self.trouble.append(r.url))


def window(browser: Browser, server: Server, *, width: int = 1280, **options: Any) -> Window:
    """A window that has logged in with the token, as somebody would who got it."""
    context = browser.new_context(viewport={"width": width, "height": 800}, **options)
    made = Window(context, server.base)
    made.page.goto(f"{server.base}/requests")
    made.page.get_by_label("Token").fill(server.token)
    made.page.get_by_role("button", name="Log in").click()
    expect(made.page.get_by_role("heading", name="Deletion requests")).to_be_visible(timeout=60_000)
    return made


def is_red(shown: Locator) -> bool:
    red, green, blue = map(int, re.findall(r"\d+", shown.evaluate("e => getComputedStyle(e).color"))[:3])
    return red > max(150, 2 * green, 2 * blue)


@pytest.fixture
def model(base: Path, tmp_path: Path) -> Path:
    """A folder with a ledger, its first version, and three requests: overdue, due, of a class."""
    with Ledger(tmp_path / "requests.db") as ledger:
        init(ledger, base)
        ledger.add(ids=[person(1)], received=TODAY - timedelta(days=45), note="by letter")
        ledger.add(ids=[person(2), person(3)], received=TODAY, due=TODAY + timedelta(days=5), note=EVIL)
        ledger.add(classes=["7"], received=TODAY)
    return tmp_path


def test_add_hold_run_and_open_the_report(browser: Browser, model: Path) -> None:
    with served(model, *RUN) as server:
        first = browser.new_context()
        page = first.new_page()
        page.goto(server.url)  # as the command prints it
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("heading", name="Deletion requests")).to_be_visible(timeout=60_000)
        first.close()

        seen = window(browser, server)
        page = seen.page
        expect(page.locator("#verdict")).to_contain_text("The chain is whole", timeout=60_000)
        late = page.locator("strong.late")
        expect(late).to_contain_text("overdue by")
        assert is_red(late)

        page.get_by_role("link", name="Add a request").click()
        page.get_by_label("Received").fill("2999-01-01")
        page.get_by_label("Ids, one a line").fill(person(4))
        page.get_by_role("button", name="Add").click()
        expect(page.locator("#said")).to_contain_text("received by now")
        assert page.get_by_label("Ids, one a line").input_value() == person(4)  # nothing is lost
        page.get_by_label("Received").fill(str(TODAY))
        page.get_by_label("Note").fill("by phone")
        page.get_by_role("button", name="Add").click()
        expect(page).to_have_url(f"{server.base}/requests/4")
        expect(page.locator("main")).to_contain_text("by phone")

        page.get_by_label("Let it wait, because").fill("legal claim")
        page.get_by_role("button", name="Hold").click()
        expect(page.locator("h1 .state")).to_have_text("held")
        expect(page.locator("main")).to_contain_text("legal claim")
        page.get_by_role("button", name="Release").click()
        expect(page.locator("h1 .state")).to_have_text("open")

        page.get_by_role("link", name="Requests", exact=True).click()
        page.get_by_label("Show").select_option("overdue")
        expect(page.locator("#list")).to_contain_text("1 request")
        expect(page).to_have_url(re.compile("show=overdue"))
        page.go_back()
        expect(page.locator("#list")).to_contain_text("4 requests")

        page.get_by_role("link", name="Overview").click()
        page.get_by_role("button", name="Run").click()
        expect(page.locator("#run .busy")).to_contain_text("A run is under way", timeout=60_000)
        expect(page.locator("#run .verdict.good")).to_contain_text("version 2 (unlearned)", timeout=400_000)
        expect(page.locator("main")).not_to_contain_text("overdue by")

        page.goto(f"{server.base}/requests/1")
        expect(page.locator("h1 .state")).to_have_text("done")
        page.get_by_role("link", name="report").click()
        expect(page.get_by_role("heading", level=1)).to_be_visible(timeout=120_000)
        assert "Unlearning report: version 2" in page.title()
        assert page.locator("figure svg").count() > 1
        page.get_by_role("button", name="Dark").click()  # its own script works, in a sandbox
        assert page.evaluate("self.origin") == "null"
        page.go_back()
        page.get_by_role("link", name="Certificate").click()
        expect(page.locator("h1")).to_contain_text("Certificate of deletion from a model: request 1")
        page.goto(f"{server.base}/versions")
        expect(page.locator("tbody tr")).to_have_count(2)
        page.get_by_role("button", name="Log out").click()
        expect(page.get_by_role("heading", name="Log in")).to_be_visible()
        refused = [line for line in seen.trouble if "400 (Bad Request)" in line]  # the day in 2999
        assert seen.trouble == refused
        assert "hacked" not in page.title()
    with Ledger(model / "requests.db") as ledger:
        assert [one.state for one in ledger.requests()] == ["done", "done", "open", "open"]
        assert ledger.verify().ok
    assert person(4) not in server.log.read_text()
    assert server.token not in server.log.read_text()


def test_a_broken_chain_is_red(browser: Browser, model: Path) -> None:
    with served(model) as server:
        seen = window(browser, server)
        with Ledger(model / "requests.db") as ledger:
            change = "payload = replace(payload, 'letter', 'phone')"
            touch(ledger, f"UPDATE purge_entries SET {change} WHERE seq = 4")
        seen.page.wait_for_timeout(2500)  # the last walk along the chain is told for two seconds
        for path in ("/", "/chain"):
            seen.page.goto(f"{server.base}{path}")
            broken = seen.page.locator(".verdict.alarm")
            expect(broken).to_contain_text("first at entry 4", timeout=60_000)
            assert is_red(broken)
        expect(seen.page.locator("tr.touched").last).to_contain_text("4 touched")
        assert seen.trouble == []


def test_the_printed_address_cannot_be_used_up_from_elsewhere(browser: Browser, model: Path) -> None:
    """Pictures and forms of another site, in a browser that could reach the page; then its owner comes."""
    with served(model) as server:
        elsewhere = browser.new_context().new_page()
        key = server.url.partition("once=")[2]
        form = f'''<form method="post" action="{server.base}/login"><input name="once" value="{key}">
            <button>Go</button></form>'''
        picture = f'<img src="{server.url}"><link rel="prefetch" href="{server.url}">'
        elsewhere.route("https://evil.example/", lambda route: route.fulfill(
            body=picture + form, content_type="text/html"
        ))  # fmt: skip
        elsewhere.goto("https://evil.example/")
        elsewhere.wait_for_timeout(500)
        with elsewhere.expect_response("**/login") as answer:
            elsewhere.get_by_role("button", name="Go").click()
        assert answer.value.status == 403
        page = browser.new_context(java_script_enabled=False).new_page()
        page.goto(server.url)
        page.reload()
        expect(page.get_by_role("button", name="Log in")).to_be_focused()  # so Enter is enough
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="Deletion requests")).to_be_visible(timeout=60_000)
        late = browser.new_context().new_page()
        late.goto(server.url)
        expect(late.locator("#said")).to_contain_text("got one that was")
        expect(late.get_by_label("Token")).to_be_visible()


def test_without_javascript(browser: Browser, model: Path) -> None:
    with served(model) as server:
        seen = window(browser, server, java_script_enabled=False)
        page = seen.page
        page.get_by_role("link", name="Verify the chain").click()
        expect(page.locator(".verdict.good")).to_contain_text("The chain is whole")
        page.goto(f"{server.base}/requests/new")
        page.get_by_label("Ids, one a line").fill("zoe")
        page.get_by_label("or whole classes").fill("cat")
        page.get_by_role("button", name="Add").click()
        expect(page.locator("#said")).to_contain_text("got both")
        assert page.get_by_label("Ids, one a line").input_value() == ""  # no id comes back
        file = model / "ids.txt"
        file.write_text("zoe\nzac\n")
        page.get_by_label("or a file of them").set_input_files(file)
        page.get_by_role("button", name="Add").click()
        expect(page.locator("h1")).to_contain_text("Request 4")
        expect(page.locator("main")).to_contain_text("2 ids")
        page.get_by_label("Let it wait, because").fill("claim")
        page.get_by_role("button", name="Hold").click()
        expect(page.locator("h1 .state")).to_have_text("held")
        page.goto(f"{server.base}/requests")
        page.get_by_label("Show").select_option("held")
        page.get_by_role("button", name="Show").click()
        expect(page.locator("#list")).to_contain_text("1 request")


@pytest.mark.parametrize(("width", "scheme"), [(375, "light"), (375, "dark"), (1280, "dark")])
def test_nothing_is_wider_than_the_window(browser: Browser, model: Path, width: int, scheme: Any) -> None:
    with Ledger(model / "requests.db") as ledger:
        ledger.add(classes=["x" * 300], received=TODAY, note="y" * 900, basis="z" * 300)
    with served(model) as server:
        seen = window(browser, server, width=width, color_scheme=scheme)
        places = "/ /requests /requests/4 /requests/1 /requests/new /versions /chain /api /nothing"
        for path in places.split():
            seen.page.goto(f"{server.base}{path}")
            seen.page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
            assert seen.page.evaluate("document.documentElement.scrollWidth") <= width, path
        assert [line for line in seen.trouble if "404" not in line] == []
