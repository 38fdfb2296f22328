"""A folder of request files."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from purge.core.errors import FileError
from purge.ledger.intake import take_in
from purge.ledger.ledger import Ledger
from tests.cli.commands import command, good
from tests.ledger.killing import killed_at

GOOD = "ids: [ada]\nreceived: 2026-01-05\n"


def drop(folder: Path, name: str, text: str = GOOD, *, age: float = 60) -> Path:
    path = folder / name
    path.write_text(text)
    os.utime(path, (time.time() - age,) * 2)
    return path


@pytest.fixture
def box(tmp_path: Path) -> Path:
    made = tmp_path / "box"
    made.mkdir()
    return made


@pytest.fixture
def book(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "requests.db")


def test_each_file_is_taken_in_once(book: Ledger, box: Path):
    drop(box, "1.yaml", "ids: [ada@planted.example, bob@planted.example]\nreceived: 2026-01-05\nnote: t 7\n")
    drop(box, "2.json", json.dumps({"classes": ["cat"], "received": "2026-01-06", "due": "2026-01-20"}))
    drop(box, "notes.txt", "not for us")
    drop(box, ".3.yaml")
    young = drop(box, "4.yaml", age=0)
    taken = take_in(book, box)
    assert (taken.requests, taken.known, taken.refused) == ([1, 2], 0, {})
    assert [(r.subjects, r.classes, str(r.received)) for r in book.requests()] == [
        (2, (), "2026-01-05"), (0, ("cat",), "2026-01-06")
    ]  # fmt: skip
    assert book.suppressed(["ada@planted.example", "eve@planted.example"]) == [True, False]
    assert sorted(p.name for p in box.iterdir()) == [".3.yaml", "4.yaml", "notes.txt"]
    os.utime(young, (time.time() - 60,) * 2)
    assert take_in(book, box, keep=True).requests == [3]
    again = take_in(book, box, keep=True)
    assert (again.requests, again.known) == ([], 1)


def test_a_kill_between_ledger_and_folder_adds_nothing_twice(book: Ledger, box: Path):
    file = drop(box, "1.yaml")
    killed_at("pathlib.Path.unlink", lambda: take_in(Ledger(book.name), box))
    assert len(book.requests()) == 1
    assert file.exists()
    taken = take_in(book, box)
    assert (taken.requests, taken.known) == ([], 1)
    assert not file.exists()


@pytest.mark.parametrize(
    "text",
    [
        "ids: [secret]\n",  # no date
        "ids: [secret]\nreceived: soon\n",
        "ids: [secret]\nclasses: [cat]\nreceived: 2026-01-05\n",
        "secret: 1\nreceived: 2026-01-05\n",
        "secret: 1\nsecret: 2\n",
        "ids: [[secret]]\nreceived: 2026-01-05\n",
        "secret",
        "ids: [secret",
        "",
        "!!python/object/apply:os.system ['echo secret']\n",
        "1: secret\nreceived: 2026-01-05\n",
    ],
)
def test_a_bad_file_is_left_and_not_quoted(book: Ledger, box: Path, text: str):
    drop(box, "1.yaml", text)
    drop(box, "2.yaml")
    taken = take_in(book, box)
    assert taken.requests == [1]
    (why,) = taken.refused.values()
    assert why.startswith("Expected ")
    assert "secret" not in why
    assert (box / "1.yaml").exists()


def test_watching_from_the_shell(box: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PURGE_LEDGER", str(tmp_path / "requests.db"))
    drop(box, "1.yaml")
    assert good(command("request", "watch", box)).out == "Added request 1.\n"
    assert good(command("request", "watch", box)).out == "No new request.\n"
    drop(box, "2.yaml", "ids: [ada]\n")
    refused = command("request", "watch", box)
    assert refused.code == 2
    assert refused.err.startswith("2.yaml is left where it is. Expected ")
    with pytest.raises(FileError, match="a folder"):
        take_in(Ledger(tmp_path / "requests.db"), tmp_path / "nowhere")
