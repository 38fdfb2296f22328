"""The ledger from the shell: purge request."""

from __future__ import annotations

import io
import re
import sqlite3
import sys
from contextlib import closing
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

from purge.ledger.ledger import Ledger
from tests.cli.commands import Done, command, good, names, refusal

TODAY = date.today()
ADD = ("add", "--class", "cat", "--received", "2026-01-31")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("PURGE_LEDGER", "PURGE_LEDGER_KEY"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "ids.txt").write_bytes("\ufeffada@example.org\r\n\n  bob \nada@example.org\n".encode())
    return tmp_path


def request(*argv: Any) -> Done:
    return command("request", *argv)


def test_a_request_from_the_shell(here: Path) -> None:
    done = good(request("add", "--ids", "ids.txt", "--received", "2026-01-31", "--note", "by letter"))
    assert done.out == "Request 1 is due on 2026-02-28. Listed more than once: 1 id.\n"
    assert names(here) == ["ids.txt", "requests.db", "requests.db.key"]
    with Ledger("requests.db") as ledger:
        assert ledger.request(1).subjects == 2
        assert ledger.suppressed(["ada@example.org", "bob", "eve"]) == [True, True, False]
    more = ("--class", "cat", "--class", "dog", "--due", TODAY + timedelta(days=3), "--basis", "contract")
    found = good(request("add", "--received", TODAY, *more, "--json")).json
    assert (found["number"], found["classes"], found["basis"]) == (2, ["cat", "dog"], "contract")
    assert good(request("hold", 2, "--reason", "court order")).out.startswith("Request 2 is held")
    listed = good(request("list")).out
    late = (TODAY - date(2026, 2, 28)).days
    assert re.search(rf"1 +2026-01-31 +2026-02-28 +overdue by {late} +open +2 ids +by letter", listed)
    assert re.search(rf"2 +{TODAY} +\S+ +3 +held +class cat, dog +court order", listed)
    assert "1 overdue." in listed
    as_json = good(request("list", "--json")).json
    assert [(r["number"], r["days_left"], r["overdue"]) for r in as_json] == [(1, -late, True), (2, 3, False)]
    assert good(request("list", "--state", "done")).out == "No such requests.\n"
    assert [r["number"] for r in good(request("list", "--due-by", "2026-03-01", "--json")).json] == [1]
    assert good(request("release", 2)).out.startswith("Request 2 is open")
    shown = good(request("show", 2)).out
    assert all(word in shown for word in ("cat, dog", "contract", "hold", "court order", "release"))
    history = good(request("show", 2, "--json")).json["history"]
    assert [one["kind"] for one in history] == ["request", "hold", "release"]
    assert good(request("withdraw", 2, "--reason", "a mistake")).out == "Request 2 is withdrawn.\n"


PEOPLE = """customer;name;came;ground
c-1;"Lovelace; Ada";2026-03-01;consent withdrawn
c-2;Bob;2026-01-31;Art. 17(1)(b)

c-1;Ada;2026-02-01;objected
"""


def test_a_table_of_people(here: Path) -> None:
    (here / "people.csv").write_text(f"\ufeff{PEOPLE}")
    table = ("add", "--ids", "people.csv", "--id-column", "customer")
    done = good(request(*table, "--received-column", "came", "--basis-column", "ground"))
    assert (
        done.out
        == "Requests 1 to 2 are added, the first is due on 2026-02-28. Listed more than once: 1 id.\n"
    )
    with Ledger("requests.db") as ledger:
        kept = [(r.subjects, str(r.received), r.basis) for r in ledger.requests()]
        assert kept == [(1, "2026-01-31", "Art. 17(1)(b)"), (1, "2026-02-01", "objected")]
        assert [ledger.match(n, ["c-1", "c-2"]) for n in (1, 2)] == [[False, True], [True, False]]
    together = good(request(*table, "--received", "2026-03-01", "--json")).json
    assert (together["number"], together["subjects"], together["doubles"]) == (3, 2, 1)
    several = good(request(*table, "--received-column", "came", "--json")).json
    assert [(one["number"], one["basis"]) for one in several["requests"]] == [
        (4, "erasure request"), (5, "erasure request")
    ]  # fmt: skip
    (here / "one.csv").write_text("customer\nc-9\n")
    one = ("add", "--ids", "one.csv", "--id-column", "customer", "--received", "2026-03-01")
    assert good(request(*one)).out == "Request 6 is due on 2026-04-01.\n"


@pytest.mark.parametrize(
    ("content", "options", "words"),
    [
        (PEOPLE, "--received 2026-01-31", "--id-column NAME"),
        ("c-1,c-2\n", "--received 2026-01-31", "1 with a comma"),
        *((f"{head}\nc-1\n", "--received 2026-01-31", "heads a column")
          for head in ("id", "customer_id", "E-Mail", "userId")),
        (PEOPLE, "--id-column client --received 2026-01-31", "one column 'client'"),
        ("c-1;x\nc-2;y\n", "--id-column customer --received 2026-01-31", "got 0"),
        (PEOPLE, "--id-column customer --received-column name", "in column 'name' of row 2"),
        (PEOPLE, "--id-column customer", "the day on which it was received"),
        (PEOPLE, "--id-column customer --received-column came --received 2026-01-31", "none or two of them"),
        (PEOPLE, "--received-column came", "no --id-column"),
        (f"{PEOPLE};Eve;2026-01-01;x\n", "--id-column customer --received-column came", "of row 6"),
        (PEOPLE, "--id-column customer --received-column came --class cat", "got both"),
        (f'{PEOPLE}"c-3', "--id-column customer --received 2026-01-31", "quotation marks"),
        ("customer\n", "--id-column customer --received 2026-01-31", "people in"),
    ],
)  # fmt: skip
def test_a_list_of_people_that_is_none(here: Path, content: str, options: str, words: str) -> None:
    (here / "ids.txt").write_text(content)
    told = refusal(request("add", "--ids", "ids.txt", *options.split()))
    assert words in told
    assert not any(secret in told for secret in ("c-1", "c-2", "Ada", "Bob", "Eve"))
    assert names(here) == ["ids.txt"]


def test_a_list_that_looks_odd_is_taken() -> None:
    """One line may be anything, and an id may end like a word that heads columns."""
    for content in ("customer\n", "DAVID\nbob\n", "c-1\nid\n", "id-7\nid-8\n"):
        Path("ids.txt").write_text(content)
        good(request("add", "--ids", "ids.txt", "--received", "2026-01-31"))


def test_no_id_is_printed_or_kept(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add = ("add", "--received", "2026-01-31", "--ids")
    said = [request(*add, "ids.txt"), request(*add, "ids.txt", "--json")]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"ada@example.org\nbob\n")))
    said.append(good(request(*add, "-", "--json")))
    assert said[-1].json["subjects"] == 2
    said.append(request("add", "--ids", "ids.txt", "--received", "tomorrow"))
    said += [
        request(*words.split()) for words in ("list", "show 1", "show 1 --json", "export x.jsonl", "verify")
    ]
    (here / "ids.txt").write_bytes(b"ada@example.org\n\xff\n")
    said.append(request(*add, "ids.txt"))
    (here / "ids.txt").unlink()
    assert {done.code for done in said} == {0, 2}
    assert not any("ada@" in done.out + done.err for done in said)
    assert not any(b"ada@" in path.read_bytes() for path in here.iterdir())


def test_verify_export_and_sign(here: Path) -> None:
    for _ in range(3):
        good(request(*ADD))
    told = good(request("verify")).out
    end = re.fullmatch(r"4 entries, none was touched. The end of the chain is (4:[0-9a-f]{64})\n", told)
    assert end
    good(request("verify", "--head", end[1]))
    assert good(request("export", "x.jsonl", "--json")).json["head"] == end[1]
    assert "none was touched" in good(request("verify", "x.jsonl", "--head", end[1])).out
    assert "with --force" in refusal(request("export", "x.jsonl"))
    good(request("export", "x.jsonl", "--force"))
    good(request("hold", 1, "--reason", "x", "--sign", "sign.pem"))
    assert names(here) == ["ids.txt", "requests.db", "requests.db.key", "sign.pem", "sign.pem.pub", "x.jsonl"]
    for step in (ADD, ("release", 1)):
        assert "which is signed" in refusal(request(*step))
    assert "every signature is right" in good(request("verify", "--public", "sign.pem.pub")).out
    assert "every signature" not in good(request("verify")).out
    content = bytearray((here / "requests.db").read_bytes())
    content[content.index(b'"request":2') - 60] ^= 1
    (here / "requests.db").write_bytes(content)
    touched = request("verify")
    assert touched.code == 1
    assert re.fullmatch(r"Touched: entry 3: [^\n]+\.\n", touched.out)
    assert request("verify", "--json").json["first_bad"] == 3
    (here / "x.jsonl").write_text((here / "x.jsonl").read_text().replace("2026-02-28", "2026-03-28", 1))
    assert request("verify", "x.jsonl").code == 1


def test_the_ledger_by_option_and_by_environment(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good(request(*ADD, "--ledger", "a.db", "--key", "k/a"))
    assert names(here) == ["a.db", "ids.txt", "k"]
    monkeypatch.setenv("PURGE_LEDGER", "sqlite:///a.db")
    assert len(good(request("list", "--json")).json) == 1
    (here / "other").write_text("ab" * 32)
    more = ("--ids", "ids.txt", "--received", "2026-01-31")
    assert "another one in other" in refusal(request("add", *more, "--key", "other"))
    monkeypatch.setenv("PURGE_LEDGER_KEY", "k/a")
    good(request("add", *more))


@pytest.mark.parametrize(
    "words",
    [
        "list", "show 1", "hold 1 --reason x", "release 1", "verify", "export x.jsonl", "verify x.jsonl",
        "withdraw 1 --reason x", "add --received 2026-01-31", "add --ids nowhere --received 2026-01-31",
        "add --ids . --received 2026-01-31", "add --class cat --ids ids.txt --received 2026-01-31",
        "add --class cat --received 2026-02-30", "add --class cat --received 2026-01-31 --due 2025-01-01",
        "list --ledger mysql://x/y", "list --ledger .", "list --ledger ids.txt",
    ],
)  # fmt: skip
def test_a_bad_request_is_one_line_and_leaves_nothing(here: Path, words: str) -> None:
    refusal(request(*words.split()))
    assert names(here) == ["ids.txt"]


def test_a_step_that_cannot_be_and_a_damaged_ledger_are_told_in_one_line() -> None:
    good(request(*ADD))
    for words in ("show 7", "show 0", "hold 1 --reason ", "release 1", "list --state opened"):
        refusal(request(*words.split(" ")))
    assert good(request("verify", "--json")).json["entries"] == 2
    with closing(sqlite3.connect("requests.db")) as connection:
        connection.execute("UPDATE purge_requests SET classes = '[', due = 'soon'")
        connection.commit()
    assert "verify" in refusal(request("list"))
    assert request("verify").code == 1


def test_text_of_others_does_not_rule_the_terminal() -> None:
    good(request(*ADD[:1], "--class", "\x1b[31mcat", *ADD[3:], "--note", "[red]x[/red]\x1b]0;y\x07"))
    for words in ("list", "show 1", "list --json"):
        out = good(request(*words.split())).out
        assert "\x1b[31m" not in out
        assert "[red]x[/red]" in out


def test_help_comes_without_a_command() -> None:
    assert "verify" in good(request()).out
    assert request("add").code == 2
