"""A stranger with a folder of images gets to a report by five commands; the ten lines run with their page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.commands import command, read
from tests.pages import ROOT, blocks_of, commands_of
from tests.pictures import animals

README, START = (ROOT / "README.md").read_text(), (ROOT / "docs" / "start.md").read_text()


def section(page: str, title: str) -> str:
    return re.search(rf"^## {title}.*?(?=^## |\Z)", page, re.M | re.S).group()


FIVE = commands_of(
    next(b.code for b in blocks_of(section(README, "Your own folder")) if b.language == "bash")
)
TEN = next(b.code for b in blocks_of(section(START, "Ten lines")) if b.language == "python")


def test_five_is_five_and_ten_is_ten() -> None:
    assert len(FIVE) == 5
    assert len(TEN.splitlines()) <= 10
    five_again = next(b.code for b in blocks_of(section(START, "Your own images")) if b.language == "bash")
    assert commands_of(five_again) == FIVE, "both pages have the same commands"


@pytest.fixture
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with nothing in it but photos: no clone, no cache."""
    animals(tmp_path / "photos")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PURGE_CACHE", str(tmp_path / "cache"))
    return tmp_path


@pytest.mark.slow
def test_five_commands(at_home: Path) -> None:
    for words, _ in FIVE:
        done = command(*words[1:])
        assert (done.code, words[0]) == (0, "purge"), (words, done.err)
    assert "runs/without-cat/report.html" in done.out
    page = (at_home / "runs" / "without-cat" / "report.html").read_text()
    assert "cat" in page
    assert "There was nothing to compare with" not in page
    found = read(at_home / "runs" / "without-cat" / "audit.json")
    assert found["original"]["fa_test"]["value"] >= 0.8
    assert found["values"]["fa_test"]["value"] <= 0.1
