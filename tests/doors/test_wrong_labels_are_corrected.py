"""A request may say that a label was wrong: the model forgets it, and is taught the right one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

import purge
from tests.cli.commands import command
from tests.doors.asking import WINES, Company, trained

FORM: dict[str, Any] = {"label": "cultivar", "id_of": "customer"}
TABLE = pd.read_csv(WINES)
OF_ONE = TABLE.groupby("customer")["cultivar"].agg(
    ["nunique", "size"]
)  # customers whose rows are all of one kind
WRONG = [str(one) for one in OF_ONE[(OF_ONE["nunique"] == 1) & (OF_ONE["size"] > 1)].index[:5]]
LABELS = sorted(map(str, TABLE["cultivar"].unique()))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A model that was taught a wrong label of three customers, and the right ones."""
    folder = tmp_path_factory.mktemp("wrong")
    mine = TABLE["customer"].isin(WRONG)
    right = TABLE[mine].groupby("customer")["cultivar"].first().astype(str)
    moved = dict(zip(LABELS, [*LABELS[1:], LABELS[0]], strict=True))
    frame = TABLE.copy()
    frame.loc[mine, "cultivar"] = (
        frame.loc[mine, "customer"].map(right.map(moved)).astype(frame["cultivar"].dtype)
    )
    frame.to_csv(folder / "wines.csv", index=False)
    return trained(folder), dict(right)


@pytest.fixture
def company(base: tuple[Path, dict[str, str]], tmp_path: Path) -> Company:
    return Company(base[0], tmp_path / "kept" / "requests.db")


def correct(company: Company, customer: str, label: str) -> int:
    (file := company.book.with_name("ids.txt")).write_text(f"{customer}\n")
    done = company.request("add", "--received", "2026-01-05", "--ids", file, "--label", label, "--json")
    assert done.code == 0, done.err
    return int(done.json["number"])


def answers(company: Company, version: str, customer: str) -> list[str]:
    """What the model says of a customer's rows, beside purge's own measure."""
    facts = json.loads((company.versions / version / "run.json").read_text())
    network = purge.build("mlp", classes=len(LABELS), channels=len(facts["mean"]))
    purge.load_weights(network.eval(), company.versions / version / "model.safetensors")
    rows = TABLE[TABLE["customer"] == customer].drop(columns=["cultivar", "customer"])
    x = (torch.tensor(rows.to_numpy()).float() - torch.tensor(facts["mean"])) / torch.tensor(facts["std"])
    with torch.no_grad():
        return [LABELS[i] for i in network(x).argmax(1).tolist()]


@pytest.mark.parametrize("how", [(), ("--retrain",)], ids=["unlearned", "retrained"])
def test_the_wrong_label_goes_and_the_right_one_comes(
    company: Company, base: tuple[Path, dict[str, str]], how: tuple[str, ...]
) -> None:
    right = base[1]
    numbers = {one: correct(company, one, right[one]) for one in WRONG if one in right}
    done = company.run("--set", "steps=60", *how)
    assert done.code in (0, 1), done.err  # a customer of the test part was not taught anything
    corrected = [one for one, number in numbers.items() if company.state(number) == "done"]
    assert corrected
    content, _ = company.certificate(numbers[corrected[0]])
    (group,) = content["audits"][-1]["groups"]
    assert group["kind"] == "labels"
    assert group["values"]["wrong_label"]["value"] < 0.5 < group["values"]["right_label"]["value"]
    assert "right label" in content["done"] if how else "right one" in content["done"]
    if not how:
        for one in corrected:
            content, page = company.certificate(numbers[one])
            assert f"taught it the right one, {right[one]}" in content["done"]
            assert "The wrong label" in page
            assert f"to correct the label of the data held under 1 id to “{right[one]}”" in page
    said = [label == right[one] for one in corrected for label in answers(company, "version-0002", one)]
    assert sum(said) > len(said) / 2
    company.head()


def test_the_wrong_label_is_not_taught_again(company: Company, base: tuple[Path, dict[str, str]]) -> None:
    """Neither by a later version nor by a training that names the ledger."""
    right = base[1]
    (customer,) = [one for one in WRONG if one in right][:1]
    number = correct(company, customer, right[customer])
    assert company.run("--set", "steps=60").code == 0, company.one(number)
    company.ask("c-3")
    later = company.run("--set", "steps=60")
    assert later.code == 0, later.err
    again = company.certificate(number)[0]["audits"]
    assert [group["returned"] for audit in again for group in audit["groups"]] == [[], []]
    table = company.base.parent / "wines.csv"
    rows = int((pd.read_csv(table)["customer"] == customer).sum())
    options = ("--label", "cultivar", "--id", "customer")
    counted = company.request("check", table, *options, "--json").json
    asked = company.request("check", WINES, *options, "--json").json
    assert counted["forgotten"] - asked["forgotten"] == rows  # in the right table the label is right
    with purge.Ledger(company.book) as ledger:
        assert customer not in ledger.without(pd.read_csv(table), **FORM).owners
        assert customer in ledger.without(TABLE, **FORM).owners
        assert ledger.suppressed([customer]) == [False]


def test_what_cannot_be_corrected_is_said(
    company: Company, base: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    right = base[1]
    (customer,) = [one for one in WRONG if one in right][:1]
    refused = company.request("add", "--received", "2026-01-05", "--class", "1", "--label", "1")
    assert (refused.code, "ids of the rows" in refused.err) == (2, True)
    already = correct(company, "c-3", str(TABLE[TABLE["customer"] == "c-3"]["cultivar"].iloc[0]))
    done = company.run()
    assert done.code == 1
    assert "with a wrong label" in str(company.one(already)["why"])
    assert company.request("withdraw", already, "--reason", "its label is right").code == 0
    unknown = correct(company, customer, "no such class")
    done = company.run()
    assert done.code == 2
    assert f"in request {unknown}" in done.err
    shutil.rmtree(tmp_path / "kept", ignore_errors=True)
    assert command("request", "list", "--ledger", tmp_path / "none.db").code == 2
