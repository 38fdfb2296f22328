"""With the training table and everything on disk, but not the key, nobody can tell whose request was done."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.commands import Done, command
from tests.doors.asking import Company, trained

GONE, OTHERS = "c-17", ("c-40", "c-3")


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Company:
    """A ledger that has unlearned one customer, and trained anew without another."""
    folder = tmp_path_factory.mktemp("secret")
    company = Company(trained(folder), folder / "kept" / "requests.db")
    company.ask(GONE)
    assert company.run().code == 0
    company.ask("c-50")
    assert company.run("--retrain").code == 0
    company.certificate(1)
    return company


def guess(company: Company, customer: str, folder: Path) -> Path:
    """What somebody finds out who forgets a customer in the same way, and looks at it."""
    (folder / "ids.txt").write_text(f"{customer}\n")
    out = folder / customer
    forgotten: Done = command(
        "unlearn",
        company.base,
        "--forget-ids",
        folder / "ids.txt",
        "--set",
        "steps=6",
        "--out",
        out,
        "--quiet",
    )
    assert forgotten.code == 0, forgotten.err
    looked = command("audit", out, "--metrics", "quick", "--quiet", "--json")
    assert looked.code == 0, looked.err
    return out


def told(folder: Path) -> set[str]:
    """All digests, lists of rows and ids in the files of a folder."""
    text = "".join(p.read_text() for p in folder.rglob("*") if p.suffix in (".json", ".html"))
    flat = re.sub(r"\s", "", text)
    return {
        *re.findall(r"[0-9a-f]{64}", flat),
        *re.findall(r"\[[0-9,]+\]", flat),
        *re.findall(r"c-\d+", flat),
    }


def test_no_digest_and_no_row_number_tells_whose_rows_went(done: Company, tmp_path: Path) -> None:
    right, *wrong = (told(guess(done, one, tmp_path)) for one in (GONE, *OTHERS))
    telling = right - set().union(*wrong)
    assert len(telling) > 5, "the attack sees something where nothing is kept secret"
    everything = told(done.book.parent)
    with closing(sqlite3.connect(done.book)) as connection:
        everything |= set(re.findall(r"[0-9a-f]{64}", "\n".join(connection.iterdump())))
    assert telling & everything == set()


def test_nobody_finds_the_weights_by_forgetting_each_customer_in_turn(done: Company, tmp_path: Path) -> None:
    """The recipe is known, and the weights depend on nothing else but a seed that the key alone tells."""
    weights = (guess(done, GONE, tmp_path) / "model.safetensors").read_bytes()
    version = done.versions / "version-0002"
    assert (version / "model.safetensors").read_bytes() != weights
    assert '"seed": null' in (version / "run.json").read_text()


def test_the_files_hold_no_id(done: Company) -> None:
    for path in done.book.parent.rglob("*"):
        if path.is_file() and path.name != "ids.txt":
            assert not re.search(rb"c-(17|50)\b", path.read_bytes()), path
