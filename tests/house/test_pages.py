"""The pages of the docs say what the code says: methods, public names, commands, messages."""

from __future__ import annotations

import re
from pathlib import Path

import purge
from purge.methods.purge import RESTARTS, Restart
from tests.benchmark import script

ROOT = Path(__file__).parents[2]
DOCS, SRC = ROOT / "docs", ROOT / "src" / "purge"
ABOUT_A_METHOD = [
    "Paper", "Needs", "Cost", "BatchNorm", "Published settings", "Authors' code", "Where we differ",
    "When to use",
]  # fmt: skip


def sections_of_methods() -> list[tuple[list[str], str]]:
    """The names in each heading of the pages on methods that names any, and the text below it."""
    found = []
    for page in sorted((DOCS / "methods").glob("*.md")):
        for heading, text in re.findall(r"^## (.*)\n((?:(?!## ).*\n?)*)", page.read_text(), re.M):
            if names := re.findall(r"`([a-z0-9-]+)`", heading):
                found.append((names, text))
    return found


def test_every_method_has_one_section():
    named = [name for names, _ in sections_of_methods() for name in names]
    assert sorted(named) == sorted(purge.list_methods())


def test_the_section_of_a_method_tells_all():
    for names, text in sections_of_methods():
        rows = dict(re.findall(r"^\| ([A-Z][^|]*) \| (.+) \|$", text, re.M))
        assert list(rows) == ABOUT_A_METHOD, names


def test_the_first_page_of_the_methods_lists_all_of_them():
    page = (DOCS / "methods" / "index.md").read_text().partition("## All methods")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| \[.*?\]\((.*?)\) \| (.*) \|$", page, re.M)
    assert sorted(re.findall(r"`([a-z0-9-]+)`", " ".join(names for _, names in rows))) == sorted(
        purge.list_methods()
    )
    for file, names in rows:
        headings = " ".join(re.findall(r"^## (.*)$", (DOCS / "methods" / file).read_text(), re.M))
        assert re.findall(r"`([a-z0-9-]+)`", headings) == re.findall(r"`([a-z0-9-]+)`", names), file


def test_equations_are_those_of_the_code():
    source = " ".join(" ".join(p.read_text() for p in (SRC / "methods").rglob("*.py")).split())
    for page in sorted((DOCS / "methods").glob("*.md")):
        for block in re.findall(r"```text\n(.*?)```", page.read_text(), re.S):
            for line in block.splitlines():
                assert " ".join(line.split()) in source, f"{page.name}: {line}"


def test_the_numbers_of_each_budget_are_those_of_the_code():
    page = (DOCS / "methods" / "purge.md").read_text()
    rows = re.findall(r"^\| (fast|close) \| (classes|samples) \| (.*) \|$", page, re.M)
    told = {(budget, kind): Restart(*map(float, numbers.split(" | "))) for budget, kind, numbers in rows}
    assert told == RESTARTS


def test_every_public_name_is_in_the_reference_once():
    pages = "\n".join(page.read_text() for page in (DOCS / "reference").glob("*.md"))
    told = re.findall(r"^::: purge\.(?:[a-z_.]+\.)?(\w+)$", pages, re.M)
    assert sorted(told) == sorted({*purge.__all__, "callbacks"})


def test_the_page_on_commands_is_what_the_commands_say():
    writer = script(ROOT / "scripts" / "cli_page.py")
    page = writer.PAGE.read_text()
    assert page.count("\n## purge ") >= 8
    assert writer.filled(page) == page, "run: uv run python scripts/cli_page.py"
