"""A small company at the doors: a table with its customers, a model of it, and the shell."""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

from tests.cli.commands import Done, command

WINES = Path(__file__).parents[2] / "examples" / "wines.csv"
# Tiny models jump about: no bound of a policy shall decide here.
POLICY = "max_requests: null\nmax_share: null\nmax_drift: null\nmax_distance: null\nmax_return: 1.0\n"


def trained(folder: Path) -> Path:
    """The run folder of a model of the table, both in a folder of their own."""
    if not (folder / "wines.csv").exists():
        shutil.copy(WINES, folder / "wines.csv")
    table = ("--data", folder / "wines.csv", "--label", "cultivar", "--id", "customer")
    model = ("--model", "mlp", "--set", "epochs=10", "--out", folder / "base", "--quiet")
    done = command("train", *table, *model)
    assert done.code == 0, done.err
    return folder / "base"


class Company:
    """A ledger, and what people do with it in the shell."""

    def __init__(self, base: Path, book: Path, *, begin: bool = True) -> None:
        self.book, self.base, self.versions = book, base, book.parent / "versions"
        book.parent.mkdir(parents=True, exist_ok=True)
        (book.parent / "policy.yaml").write_text(POLICY)
        book.with_name(f"{book.name}.key").write_text("ab" * 32)  # seeds come from it: every run is the same
        if begin:
            assert self.request("init", base).code == 0

    def request(self, verb: str, *argv: object) -> Done:
        return command("request", verb, *argv, "--ledger", self.book)

    def ask(self, *ids: str, received: str = "2026-01-05", name: str = "--ids") -> int:
        """Add a request for some ids, or for classes; return its number."""
        if name == "--class":
            done = self.request("add", "--received", received, *(w for i in ids for w in (name, i)), "--json")
        else:
            file = self.book.with_name("ids.txt")
            file.write_text("".join(f"{one}\n" for one in ids))
            done = self.request("add", "--received", received, name, file, "--json")
        assert done.code == 0, done.err
        return int(done.json["number"])

    def run(self, *argv: object) -> Done:
        policy = self.book.with_name("policy.yaml")
        return self.request(
            "run", "--all", "--policy", policy, "--set", "steps=6", "--quiet", "--json", *argv
        )

    def one(self, number: int) -> dict[str, Any]:
        """A request as ``show`` tells of it."""
        return dict(self.request("show", number, "--json").json)

    def state(self, number: int) -> str:
        return str(self.one(number)["state"])

    def certificate(self, number: int) -> tuple[dict[str, Any], str]:
        """The certificate of a request, as JSON and as a page."""
        done = self.request("certificate", number, "--out", self.book.with_name("certificates"), "--json")
        assert done.code == 0, done.err
        content, page = (Path(file).read_text() for file in done.json["files"])
        return json.loads(content), page

    def head(self) -> str:
        """The end of the chain, which was not touched."""
        verdict = self.request("verify", "--json")
        assert verdict.code == 0, verdict.out
        return str(verdict.json["head"])

    def backup(self, to: Path) -> Path:
        """A copy of the database and its key, as the documentation has it."""
        to.parent.mkdir(parents=True, exist_ok=True)
        with (
            contextlib.closing(sqlite3.connect(self.book)) as a,
            contextlib.closing(sqlite3.connect(to)) as b,
        ):
            a.backup(b)
        key = self.book.with_name(f"{self.book.name}.key")
        shutil.copy(key, to.with_name(f"{to.name}.key"))
        return to

    def restore(self, backup: Path) -> None:
        shutil.copy(backup, self.book)
