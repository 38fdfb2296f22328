"""What a small ledger writes: its chain, its certificates and their pages, with times and places masked.

uv run python -m tests.golden.ledger       # writes ledger.json beside this file
"""

from __future__ import annotations

import json
import re
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import torch

from tests.doors.asking import Company, trained

HERE = Path(__file__).parent
# What no two runs write alike; hashes of ids are the same, since the key is.
MASKS = (
    (r"\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME"),
    (r"\d{1,2} [A-Z][a-z]+ \d{4}", "DAY"),
    (r"\d+ days after", "DAYS after"),
    (r"\d\d:\d\d UTC", "TIME"),
    (r"(?<=\d:)[0-9a-f]{64}", "HEAD"),
    (r"/[^\s\"<]*/(?=base|versions|version-)", "FOLDER/"),
)
RANDOM = {"hash", "previous", "ledger", "digest", "parent", "version", "age", "head"}


def masked(value: Any, key: str = "") -> Any:
    """A value without what differs from run to run."""
    if isinstance(value, dict):
        return {name: masked(one, name) for name, one in value.items()}
    if isinstance(value, list):
        return [masked(one, key) for one in value]
    if key == "age" or (key in RANDOM and isinstance(value, str)):
        return key.upper()
    if isinstance(value, str):
        for pattern, word in MASKS:
            value = re.sub(pattern, word, value)
    return value


def on_paper(page: str) -> list[str]:
    """The lines of a page as they are read; numbers of audits are compared in the certificate."""
    text = re.sub(r"<style>.*?</style>|<[^>]+>", "", page, flags=re.S)
    text = re.sub(r"weights [0-9a-f]{64}", "weights HASH", text)
    text = re.sub(r"\d+\.\d+ ?%?", "NUMBER", masked(text))
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


def story(folder: Path) -> dict[str, Any]:
    """Two requests are done, after a gate was missed; one is held, and one is of nobody in the data."""
    torch.set_num_threads(1)
    (folder / "book").mkdir()
    (folder / "book" / "requests.db.key").write_text("ab" * 32)
    company = Company(trained(folder), folder / "book" / "requests.db")
    first, second = company.ask("c-17"), company.ask("c-40", "c-41")
    held, nobody = company.ask("c-50"), company.ask("c-9999")
    company.request("hold", held, "--reason", "a claim is open")
    missed = company.run("--fail-if", "ta_retain<101")
    done = company.run()
    assert (missed.code, done.code) == (1, 1), missed.err + done.err
    company.ask("1", name="--class")
    assert company.run().code == 1
    company.head()
    with closing(sqlite3.connect(company.book)) as connection:
        rows = connection.execute("SELECT kind, payload FROM purge_entries ORDER BY seq").fetchall()
    papers = {str(n): company.certificate(n) for n in (first, second, held, nobody)}
    return {
        "entries": [{"kind": kind, "payload": masked(json.loads(payload))} for kind, payload in rows],
        "outcomes": [masked(one.json) for one in (missed, done)],
        "certificates": {n: masked(content) for n, (content, _) in papers.items()},
        "pages": {n: on_paper(page) for n, (_, page) in papers.items()},
    }


def main() -> None:
    """Write the file."""
    with tempfile.TemporaryDirectory() as folder:
        text = json.dumps(story(Path(folder)), indent=1, ensure_ascii=False)
    (HERE / "ledger.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
