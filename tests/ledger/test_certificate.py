"""Certificates: what they say in every state, and whom they name."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from purge.core.errors import DataError
from purge.ledger.certificate import certificate_of, certificate_page, write_certificate
from purge.ledger.ledger import Ledger
from tests.ledger.people import person
from tests.ledger.test_worker import TODAY, ask, run


def text_of(page: str) -> str:
    return " ".join(re.sub(r"<style>.*?</style>|<[^>]+>", " ", page, flags=re.S).split())


def test_a_request_in_every_state(ledger: Ledger):
    for _ in range(3):
        ask(ledger, 1)
    ledger.hold(2, "claim")
    ledger.withdraw(3, "a mistake")
    words = {1: "open: not carried out yet", 2: "on hold: not carried out", 3: "withdrawn"}
    for number, state in words.items():
        content = certificate_of(ledger, number)
        assert content["done"] == "The model has not been changed for this request."
        assert (content["audits"], content["versions"]["after"]) == ([], None)
        shown = text_of(certificate_page(content))
        assert f"Deletion request {number}: {state}" in shown
        assert "No audit of this request is recorded." in shown


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
    page = text_of((tmp_path / "out" / "certificate-1.html").read_text())
    assert "What this does not promise" in page
    assert "n = 9" in page
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
