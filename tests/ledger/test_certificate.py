"""Certificates: what they say in every state, and whom they name."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from pathlib import Path

import pytest

from purge.core.errors import DataError
from purge.ledger.certificate import certificate_of, certificate_page, write_certificate
from purge.ledger.ledger import Ledger
from purge.report import HEADLINES, title_for
from purge.verdict import Level
from tests.ledger.people import person
from tests.ledger.test_worker import TODAY, ask, run
from tests.report.test_page import CHROMIUM, FLAGS

FOREIGN = re.compile(
    "passed|nothing of them|surely|bears on|batch-done|train anew|n = |None|[0-9]{4}-[0-9]{2}-[0-9]{2}"
)


def text_of(page: str) -> str:
    return " ".join(re.sub(r"<style>.*?</style>|<[^>]+>", " ", page, flags=re.S).split())


def test_a_request_in_every_state(ledger: Ledger):
    for _ in range(3):
        ask(ledger, 1)
    ledger.hold(2, "claim")
    ledger.withdraw(3, "a mistake")
    words = {1: "not done yet", 2: "not done, on hold", 3: "not done, withdrawn"}
    reasons = {1: "Not done yet.", 2: "Not done, on hold (claim).", 3: "Not done, withdrawn (a mistake)."}
    for number, state in words.items():
        content = certificate_of(ledger, number)
        assert content["done"] == "The model has not been changed for this request."
        assert (content["audits"], content["checks"], content["versions"]["after"]) == ([], [], None)
        shown = text_of(certificate_page(content))
        assert f"Deletion request {number}: {state}" in shown
        assert reasons[number] in shown
        assert "Nothing was checked" in shown
        assert "Certificate of deletion" not in shown


def test_a_stranger_reads_what_was_asked_done_and_found(ledger: Ledger):
    """In the words of the report of the same version, with dates as people write them."""
    ask(ledger, 1, days_ago=40)
    outcome = run(ledger)
    content = certificate_of(ledger, 1, organisation="Northwind <Ltd>")
    report = json.loads((Path(str(outcome.folder)) / "audit.json").read_text())["verdict"]
    assert content["found"]["level"] == report["level"]
    assert content["found"]["text"] == HEADLINES[report["kind"]].format(parts="the samples") + "."
    told = [(one["level"], one["text"]) for one in content["checks"]]
    judged = {f["rule"]: f for f in report["findings"]}
    attacked = judged["attacked"]
    title = title_for("attacked", attacked["level"], attacked["evidence"]["missing"])
    assert (attacked["level"], title) in told
    assert {one["level"] for one in content["checks"]} <= {*Level}
    few = next(one for one in content["checks"] if one["text"] == title)
    assert few["why"] == "Too few samples to tell (3)."
    assert content["request"]["rows"] == 3
    came, due = (TODAY - timedelta(days=days) for days in (40, 40))
    page = text_of(certificate_page(content))
    first, appendix = page.split("Appendix")
    assert f"On {came.day} {came:%B %Y}: to delete the data held under 1 id" in first, due
    assert "after the deadline" in first
    assert "3 rows, of 1 of the 1 id, are no longer used" in first
    assert "Northwind &lt;Ltd&gt;" in first
    assert "What remains unknown" in first
    assert not FOREIGN.search(first), FOREIGN.search(first)
    assert "on 3 samples" in appendix


def test_what_the_audit_contradicts_is_not_certified(ledger: Ledger):
    """The ledger may accept such a version, where its policy allows for it; the certificate tells."""
    nearly_nothing = {"method": "finetune", "settings": {"epochs": 1, "lr": 1e-6}}
    ledger.add(classes=["3"], received=TODAY)
    run(ledger, **nearly_nothing)
    content = certificate_of(ledger, 1)
    assert content["found"] == {"level": "failed", "text": f"{HEADLINES['contradicted']}."}
    assert ("failed", "The model still recognises what was to be forgotten") in {
        (one["level"], one["text"]) for one in content["checks"]
    }
    ask(ledger, 2)
    run(ledger, **nearly_nothing)
    again = certificate_of(ledger, 1)["checks"][-1]
    assert (again["level"], again["text"]) == ("unknown", "There is no forgetting that could last")
    assert "Failed. This audit contradicts the deletion." in text_of(certificate_page(content))


def test_it_names_nobody_else(ledger: Ledger, tmp_path: Path):
    for i in (1, 2, 3):
        ask(ledger, i, days_ago=i)
    run(ledger)
    mine, *others = ledger.hashes([person(i) for i in (1, 2, 3)])
    for path in write_certificate(ledger, 1, tmp_path / "out"):
        written = path.read_text()
        assert mine in written
        assert not any(h in written for h in others)
        assert "planted" not in written
    content = json.loads((tmp_path / "out" / "certificate-1.json").read_text())
    assert "requests" not in content["audits"][0]["groups"][0]  # not even their numbers
    assert content["audits"][0]["groups"][0]["n"] == 9
    assert "What remains unknown" in text_of((tmp_path / "out" / "certificate-1.html").read_text())
    with pytest.raises(DataError, match="1 that are not of this request") as error:
        certificate_of(ledger, 1, ids=[person(1), person(2)])
    assert "planted" not in str(error.value)
    assert person(1) in certificate_page(certificate_of(ledger, 1, ids=[person(1)]))


def test_a_touched_ledger_certifies_nothing_and_names_are_escaped(ledger: Ledger):
    ledger.add(classes=["<script>alert(1)</script>"], received=TODAY, basis="<b>law</b>", note="to touch")
    page = certificate_page(certificate_of(ledger, 1))
    assert ("<script" in page, "&lt;script&gt;" in page, "<b>law" in page) == (False, True, False)
    ledger.close()
    file = Path(ledger.name)
    file.write_bytes(file.read_bytes().replace(b"to touch", b"to Touch"))
    content = certificate_of(Ledger(file), 1)
    assert not content["ledger"]["verified"]
    assert "This certificate proves nothing." in text_of(certificate_page(content))


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")
def test_it_is_one_page_of_paper_with_an_appendix_and_fits_a_phone(ledger: Ledger, tmp_path: Path):
    from playwright.sync_api import sync_playwright

    ledger.add(ids=[person(i) for i in range(12)], received=TODAY - timedelta(days=90))
    run(ledger)
    ask(ledger, 20)
    run(ledger)
    _, page = write_certificate(
        ledger, 1, tmp_path, ids=[person(i) for i in range(12)], organisation="N" * 60
    )
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        for scheme in ("light", "dark"):
            phone = browser.new_page(viewport={"width": 390, "height": 800}, color_scheme=scheme)
            phone.goto(page.as_uri())
            assert phone.evaluate("document.documentElement.scrollWidth") == 390
        pdf = phone.pdf(prefer_css_page_size=True)
        browser.close()
    assert len(re.findall(rb"/Type\s*/Page\b", pdf)) == 2
