"""Who asked a ledger to be forgotten is taught to no model again, in whatever file their rows come back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import purge
from tests.cli.commands import Done, command
from tests.doors.asking import WINES, Company, trained

TABLE = pd.read_csv(WINES)
FORM: dict[str, Any] = {"label": "cultivar", "id_of": "customer"}
OPTIONS = ("--label", "cultivar", "--id", "customer")
MODEL = ("--model", "mlp", "--set", "epochs=2", "--quiet", "--json")


@pytest.fixture(scope="module")
def company(tmp_path_factory: pytest.TempPathFactory) -> Company:
    """One customer is forgotten, one has asked, and one has withdrawn."""
    folder = tmp_path_factory.mktemp("gone")
    company = Company(trained(folder), folder / "kept" / "requests.db")
    company.ask("c-17")
    assert company.run().code == 0
    company.ask("c-40")
    company.request("withdraw", company.ask("c-41"), "--reason", "changed their mind")
    return company


def rows_of(*customers: str) -> int:
    return int(TABLE["customer"].isin(customers).sum())


@pytest.fixture
def returned(tmp_path: Path) -> Path:
    """All rows again, under another name and in another order."""
    TABLE.sample(frac=1, random_state=3).to_csv(tmp_path / "restored.csv", index=False)
    return tmp_path / "restored.csv"


def train(company: Company, *argv: object, ledger: bool = True) -> Done:
    return command("train", *argv, *MODEL, *(("--ledger", company.book) if ledger else ()))


def test_a_table_is_looked_through_for_forgotten_people(
    company: Company, returned: Path, tmp_path: Path
) -> None:
    found = company.request("check", returned, *OPTIONS, "--json")
    assert found.code == 1
    assert found.json == {"rows": len(TABLE), "forgotten": rows_of("c-17"), "asked": rows_of("c-40")}
    assert "c-17" not in found.out + found.err
    TABLE[TABLE["customer"] != "c-17"].to_csv(tmp_path / "clean.csv", index=False)
    clean = company.request("check", tmp_path / "clean.csv", *OPTIONS)
    assert clean.code == 0, clean.err
    assert clean.out.startswith("0 of ")


def test_a_table_without_ids_is_not_called_clean(company: Company, returned: Path) -> None:
    found = company.request("check", returned, "--label", "cultivar")
    assert (found.code, found.out) == (2, "")
    assert "--id" in found.err


def test_they_are_in_no_training(company: Company, returned: Path, tmp_path: Path) -> None:
    """Of the whole table, and in Python; with the reference model to compare: trained on the rest alone."""
    done = train(company, "--data", returned, *OPTIONS, "--all-trained", "--out", tmp_path / "new")
    assert done.code == 0, done.err
    gone = rows_of("c-17", "c-40")
    assert (done.json["samples"], done.json["left_out_rows"]) == (len(TABLE) - gone, gone)
    with purge.Ledger(company.book) as ledger:
        left = ledger.without(TABLE, **FORM)
    assert set(left.owners) == set(TABLE["customer"]) - {"c-17", "c-40"}


def test_a_model_goes_on_with_its_ledger_alone(company: Company, returned: Path, tmp_path: Path) -> None:
    """A model of the ledger, and each that comes of it, is taught nothing without it."""
    new = tmp_path / "new"
    assert train(company, "--data", returned, *OPTIONS, "--all-trained", "--out", new).code == 0
    (tmp_path / "ids.txt").write_text("c-3\n")
    version = company.versions / "version-0002"
    trained_on = json.loads((company.base / "run.json").read_text())["samples"]
    for run, rows in ((new, len(TABLE)), (version, trained_on)):
        ask = ("unlearn", run, "--forget-ids", tmp_path / "ids.txt", "--set", "steps=4", "--quiet", "--json")
        refused = command(*ask, "--out", tmp_path / "refused")
        assert refused.code == 2
        assert "--ledger" in refused.err
        assert not (tmp_path / "refused").exists()
        out = tmp_path / f"next-{run.name}"
        done = command(*ask, "--out", out, "--ledger", company.book)
        assert done.code in (0, 1), done.err  # so few steps may miss the target
        assert done.json["left_out_rows"] > 0
        facts = json.loads((out / "run.json").read_text())
        assert facts["retain_samples"] + facts["forget_samples"] + done.json["left_out_rows"] == rows
        again = train(company, "--like", new, "--out", tmp_path / f"like-{run.name}", ledger=False)
        assert (again.code, "--ledger" in again.err) == (2, True)
        audited = command("audit", out, "--quiet", "--metrics", "quick")
        assert (audited.code, "--ledger" in audited.err) == (2, True)
        assert command("audit", out, "--quiet", "--metrics", "quick", "--ledger", company.book).code == 0


def test_another_ledger_does_not_do(company: Company, returned: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    assert train(company, "--data", returned, *OPTIONS, "--out", new).code == 0
    with purge.Ledger(tmp_path / "other.db") as other:
        other.add(ids=["c-1"], received="2026-01-05")
    refused = command(
        "train", "--like", new, "--out", tmp_path / "x", "--ledger", tmp_path / "other.db", *MODEL[2:]
    )
    assert (refused.code, "another one" in refused.err) == (2, True)


def test_in_python_a_version_does_not_pass_for_one_that_tells(company: Company) -> None:
    with pytest.raises(purge.PurgeError, match=r"ledger\.without"):
        purge.split(TABLE, ids=["c-3"], after=company.versions / "version-0002", **FORM)
