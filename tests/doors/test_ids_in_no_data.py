"""A request is done only if each of its ids was found in the data; otherwise it stays open and says so."""

from __future__ import annotations

import csv
import json
import sys
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

import purge
from tests.doors.asking import WINES, Company, trained
from tests.doors.test_serve_folder_and_login import ended, served

NOBODY, MISTYPED = "c-9999", "C-17"


def stays_open(company: Company, number: int, words: str) -> None:
    """The list, the request and its certificate say that it was not found, and nothing more."""
    found = company.one(number)
    assert (found["state"], found["done"]) == ("open", None)
    assert words in found["why"]
    assert "not found" in found["why"]
    listed = {one["number"]: one for one in company.request("list", "--json").json}
    assert listed[number]["why"] == found["why"]
    assert listed[number]["days_left"] is not None, "its deadline goes on"
    content, page = company.certificate(number)
    assert (content["request"]["state"], content["request"]["done"]) == ("open", None)
    assert content["versions"]["after"] is None
    assert content["audits"] == []
    for text in (content["done"], page):
        assert words in text
        assert "has not been changed for this request" in text
        assert "was unlearned" not in text


def test_an_id_in_no_data_is_not_done_with_another(company: Company) -> None:
    wrong, right = company.ask(NOBODY), company.ask("c-17")
    done = company.run()
    assert done.code == 1, "somebody must look at what stays open"
    assert done.json["state"] == "done"
    assert (done.json["requests"], done.json["not_found"]) == ([right], [wrong])
    assert f"Request {wrong} " in done.err
    assert NOBODY not in done.out + done.err
    assert company.state(right) == "done"
    assert "was unlearned" in company.certificate(right)[0]["done"]
    stays_open(company, wrong, "1 of 1 id")
    company.head()


@pytest.mark.parametrize("written", [MISTYPED, "c-17 x", "ｃ-17"])
def test_an_id_is_compared_as_it_is_written(company: Company, written: str) -> None:
    number = company.ask(written)
    done = company.run()
    assert done.code == 1
    assert (done.json["requests"], done.json["not_found"], done.json["batch"]) == ([], [number], None)
    assert not company.versions.exists()
    stays_open(company, number, "1 of 1 id")


def test_nothing_of_a_request_is_done_if_one_of_its_ids_is_missing(company: Company) -> None:
    """What a certificate says is about all that was asked."""
    number = company.ask("c-17", "c-40", NOBODY)
    assert company.run().code == 1
    stays_open(company, number, "1 of 3 ids")
    company.request("withdraw", number, "--reason", "mistyped, see the next")
    right = company.ask("c-17", "c-40")
    assert company.run().code == 0
    assert company.state(right) == "done"


def test_each_id_of_a_request_ends_as_found_or_not(company: Company) -> None:
    """How many rows went for whom, and who was in no data, is there as fields, also after it was accepted."""
    number, other = company.ask("c-17", "C-40 ", NOBODY), company.ask("c-41")
    done = company.run()
    assert (done.code, done.json["not_found"]) == (1, [number])
    assert "2 of 3 ids" in done.err
    assert "1 of them would be found but for upper case" in done.err
    assert "40" not in done.err
    assert "purge request accept" in done.err
    assert company.one(number)["found"]["alike"] == 1
    accept = ("accept", number, "--by", "A. Smith", "--why", "moved away in 2019")
    assert company.request(*accept).code == 2
    told = company.request(*accept, "--unknown")
    assert told.code == 0, told.err
    assert company.one(number)["why"] == "accepted by A. Smith: moved away in 2019"
    assert company.run().code == 0
    with purge.Ledger(company.book) as ledger:
        here, *others = ledger.hashes(["c-17", "C-40", NOBODY, "c-41"])
        found = ledger.found(number)
        assert found is not None
        run = json.loads((company.versions / "version-0003" / "run.json").read_text())
        assert found.rows == {here: run["forget_samples"]}
        assert (set(found.unknown), found.by) == ({*others[:2]}, "A. Smith")
        assert "accept-unknown" in {one.kind for one in ledger.history(number)}
    shown = company.request("show", number)
    assert "in no data" in shown.out
    assert others[2] not in json.dumps(company.one(number)), "nobody else is in the history of a request"
    assert [company.state(n) for n in (number, other)] == ["done", "done"]
    company.head()


def test_what_was_accepted_is_not_accepted_for_others(tmp_path: Path) -> None:
    """An id that leaves the data later was not meant."""
    company = Company(trained(tmp_path), tmp_path / "kept" / "requests.db")
    number, table = company.ask("c-17", NOBODY), tmp_path / "wines.csv"
    assert company.run().code == 1
    accept = ("accept", number, "--unknown", "--by", "A. Smith", "--why", "no customer")
    assert company.request(*accept).code == 0
    lines = table.read_text().splitlines(keepends=True)
    table.write_text("".join(line for line in lines if not line.rstrip().endswith(",c-17")))
    assert company.request("deliver", "--data", table).code == 0
    assert company.run().json["not_found"] == [number]
    stays_open(company, number, "1 of 2 ids")


def test_a_run_again_writes_nothing_again(company: Company) -> None:
    number = company.ask(NOBODY)
    assert company.run().code == 1
    head = company.head()
    for _ in range(2):
        done = company.run()
        assert (done.code, done.json["not_found"]) == (1, [number])
    assert company.head() == head
    assert company.request("run", "--due", 7, "--json").code == 1
    assert company.head() == head


def test_what_is_not_found_takes_no_place_of_others(company: Company) -> None:
    """With --at-most, those with the nearest deadline would otherwise be looked for in vain for ever."""
    wrong = [company.ask(f"{NOBODY}{i}", received="2025-01-05") for i in range(2)]
    right = [company.ask(one) for one in ("c-17", "c-40")]
    done = company.run("--at-most", 1)
    assert (done.json["requests"], done.json["not_found"]) == (right[:1], wrong)
    assert [company.state(n) for n in right] == ["done", "open"]


def test_a_request_that_is_not_found_can_be_held_released_and_withdrawn(company: Company) -> None:
    number = company.ask(NOBODY)
    assert company.run().code == 1
    assert company.request("hold", number, "--reason", "we ask the person").code == 0
    assert company.run().json["state"] == "nothing"
    stays = company.certificate(number)[0]
    assert "not found" in stays["done"]
    assert company.request("release", number).code == 0
    stays_open(company, number, "1 of 1 id")
    assert company.request("withdraw", number, "--reason", "never was a customer").code == 0
    assert company.run().code == 0
    content, page = company.certificate(number)
    assert content["request"]["state"] == "withdrawn"
    assert "was unlearned" not in page


def test_a_person_who_asks_again_is_done(company: Company) -> None:
    """Their rows are in the data still, and no version uses them."""
    company.ask("c-17")
    assert company.run().code == 0
    again = company.ask("c-17")
    done = company.run()
    assert (done.code, done.json["version"], done.json["not_found"]) == (0, None, [])
    assert company.state(again) == "done"
    assert "was unlearned" not in company.certificate(again)[1]


def test_data_that_was_cleaned_first_certifies_nothing(tmp_path: Path) -> None:
    """The rows are out of the table, but the model was trained on them and nothing has unlearned them."""
    company = Company(trained(tmp_path), tmp_path / "kept" / "requests.db")
    number, table = company.ask("c-17"), tmp_path / "wines.csv"
    whole = table.read_text()
    lines = whole.splitlines(keepends=True)
    table.write_text("".join(line for line in lines if not line.rstrip().endswith(",c-17")))
    assert company.request("deliver", "--data", table).code == 0
    done = company.run()
    assert (done.code, done.json["not_found"]) == (1, [number])
    stays_open(company, number, "1 of 1 id")
    table.write_text(whole)
    delivered = company.request("deliver", "--data", table, "--leave-out")
    assert delivered.code == 0, delivered.err
    done = company.run()
    assert (done.code, done.json["requests"]) == (0, [number])
    found = company.one(number)
    assert (found["state"], found["why"]) == ("done", None), "the data has it again"


def test_whose_rows_are_held_out_had_nothing_to_forget(tmp_path: Path) -> None:
    """The model never was trained on them. Their requests end; no certificate says that it forgot them."""
    with WINES.open() as file:
        head, *rows = csv.reader(file)
    with (tmp_path / "wines.csv").open("w", newline="") as file:
        csv.writer(file).writerows([head, *([*row[:-1], f"c-{i}"] for i, row in enumerate(rows))])
    company = Company(trained(tmp_path), tmp_path / "kept" / "requests.db")
    numbers = [company.ask(f"c-{i}") for i in range(15)]
    done = company.run()
    assert (done.code, done.json["requests"]) == (0, numbers)
    said = [company.certificate(number)[0] for number in numbers]
    forgotten = ["was unlearned" in one["done"] for one in said]
    facts = json.loads(Path(done.json["folder"], "run.json").read_text())
    assert 0 < sum(forgotten) == facts["forget_samples"] < len(numbers)
    for one, was in zip(said, forgotten, strict=True):
        assert (one["versions"]["after"] is not None) == was
        assert was or "was not changed" in one["done"]
    history = json.dumps(company.one(numbers[0])["history"])
    assert "without" not in history, "one request does not tell of others"


def test_classes_are_as_before(company: Company) -> None:
    number, other = company.ask("barolo", name="--class"), company.ask(NOBODY)
    done = company.run()
    assert (done.json["requests"], done.json["not_found"]) == ([number], [other])
    assert company.state(number) == "done"


def test_the_words_for_people(company: Company) -> None:
    company.ask(NOBODY)
    company.ask("c-17")
    policy = company.book.with_name("policy.yaml")
    done = company.request("run", "--all", "--policy", policy, "--set", "steps=6", "--quiet")
    assert done.code == 1
    assert "1 request done" in done.out
    assert "1 request left open" in done.out
    assert "not found" in company.request("list").out
    assert "not found" in company.request("show", 1).out


# -- Python ------------------------------------------------------------------------------------


def test_the_same_in_python(base: Path, tmp_path: Path) -> None:
    with purge.Ledger(tmp_path / "requests.db") as ledger:
        purge.requests.init(ledger, base)
        today = date.today()
        wrong = ledger.add(ids=["c-17", NOBODY], received=today - timedelta(days=40)).number
        told: list[Any] = []
        before: list[Any] = []
        outcome = purge.requests.run(ledger, before=before.append, after=told.append)
        assert (outcome.state, outcome.code, outcome.not_found) == ("not-found", 1, (wrong,))
        assert told[0]["not_found"] == [wrong]
        assert before == [], "no batch has begun"
        assert ledger.batches() == []
        assert ledger.unfinished_batch() is None
        assert ledger.request(wrong).state == "open"
        assert ledger.verify().ok
        assert ledger.suppressed([NOBODY]) == [True], "who comes later is known all the same"
        export = tmp_path / "chain.jsonl"
        ledger.export(export)
    assert purge.requests.verify_export(export).ok
    assert NOBODY not in export.read_text()


# -- the page ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_page_and_the_api_say_it(company: Company, tmp_path: Path) -> None:
    wrong, right = company.ask(NOBODY), company.ask("c-17")
    policy = company.book.with_name("policy.yaml")
    options = ("--policy", str(policy), "--set", "steps=6")
    start = [sys.executable, "-P", "-m", "purge"]
    with served(start, tmp_path, company.book, *options) as page:
        holder = {"authorization": f"Bearer {page.token}"}
        client = page.client
        assert client.post("/api/v1/run", json={"everything": True}, headers=holder).status_code == 202
        found = ended(page)
        assert (found["outcome"]["requests"], found["outcome"]["not_found"]) == ([right], [wrong])
        assert "left open" in found["words"]
        one = client.get(f"/api/v1/requests/{wrong}", headers=holder).json()
        assert one["state"] == "open"
        assert "not found" in one["why"]
        listed = client.get("/api/v1/requests?show=open", headers=holder).json()["requests"]
        assert [(r["number"], r["why"]) for r in listed] == [(wrong, one["why"])]
        paper = client.get(f"/api/v1/requests/{wrong}/certificate", headers=holder).json()
        assert one["why"] in paper["done"]
        assert client.post("/login", data={"token": page.token}).status_code == 303
        for path in ("/", "/requests", f"/requests/{wrong}", f"/requests/{wrong}/certificate"):
            text = client.get(path).text
            assert one["why"] in text, path
            assert NOBODY not in text
        assert one["why"] not in client.get(f"/requests/{right}").text
