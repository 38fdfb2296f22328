"""Every code block of README.md and docs/ runs, page by page, in a folder with what a clone has.

The pages in FAST run with every change, the others with the slow tests. What all blocks must be, such as
Python that compiles, is checked for every page in the default run.
"""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from tests.cli.commands import command
from tests.pages import PAGES, REFUSED, ROOT, RUN, Block, blocks_of, commands_of

FAST = ("docs/guides/what-works.md", "docs/requests.md")
IDS = [page.relative_to(ROOT).as_posix() for page in PAGES]
PARSERS = {"yaml": yaml.safe_load, "json": json.loads, "toml": tomllib.loads}
CLONED = ("examples", "configs")  # folders that pages may take from a clone


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_every_block_says_what_it_is(page: Path) -> None:
    for block in blocks_of(page.read_text()):
        where = f"{page.relative_to(ROOT)}:{block.line}"
        assert block.language not in REFUSED or block.reason, (
            f"{where}: a block of language {block.language!r}. Tag it python or bash, so that it is run, or "
            "text or console."
        )
        if block.reason:
            continue
        if block.language == "python":
            compile(block.code, where, "exec")
        if block.language in PARSERS:
            PARSERS[block.language](block.code)
        for words, _ in commands_of(block.code) if block.language == "bash" else ():
            assert words[0] in ("purge", "python"), (
                f"{where}: {words[0]} is not run by a test. Tag the block console."
            )


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_no_code_is_indented_instead_of_fenced(page: Path) -> None:
    """Such blocks have no language, so nothing would run them."""
    text = re.sub(r"^( *)(`{3,}).*?^\1\2 *$|<!--.*?-->", "", page.read_text(), flags=re.M | re.S)
    above = ""  # the last line that is less indented
    for line, before in zip(text.splitlines()[1:], text.splitlines(), strict=False):
        if line.startswith("    ") and not before.strip():
            assert re.match(r"\s*([-*+]|\d+\.|!!!|\?\?\?|===|\[\^)", above), f"{page}: {line}"
        elif line.strip() and not line.startswith("  "):
            above = line


def test_the_reader_of_pages_finds_what_is_there() -> None:
    page = (
        "<!-- setup\nx = 1\n-->\n\n```python\nx += 1\n```\n\n"
        "<!-- not run: needs two GPUs -->\n```bash\ntorchrun a.py\n```\n"
        '=== "Shell"\n\n    ```bash\n    purge list \\\n      methods  # exits 2\n    ```\n```\nwhat?\n```\n'
    )
    assert blocks_of(page) == [
        Block("python", "x = 1\n", 2),
        Block("python", "x += 1\n", 6),
        Block("bash", "torchrun a.py\n", 11, "needs two GPUs"),
        Block("bash", "purge list \\\n  methods  # exits 2\n", 16),
        Block("", "what?\n", 20),
    ]
    assert commands_of("pip install x\nuv run purge list \\\n methods # exits 2\n\n# why\n") == [
        (["purge", "list", "methods"], 2)
    ]


RUNNABLE = [
    pytest.param(page, id=name, marks=() if name in FAST else pytest.mark.slow)
    for page, name in zip(PAGES, IDS, strict=True)
    if any(block.language in RUN and not block.reason for block in blocks_of(page.read_text()))
]


@pytest.fixture
def same_variables() -> Iterator[None]:
    """A page may set variables; they go with it."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.mark.usefixtures("same_variables")
@pytest.mark.parametrize("page", RUNNABLE)
def test_the_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in CLONED:
        shutil.copytree(ROOT / folder, tmp_path / folder)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PURGE_CACHE", str(tmp_path / ".cache"))
    module = ModuleType("page")  # a real one: classes look for the module that they are of
    monkeypatch.setitem(sys.modules, "page", module)
    before, names = set(sys.modules), module.__dict__
    for block in blocks_of(page.read_text()):
        if block.reason:
            continue
        if block.language == "python":
            code = "\n" * (block.line - 1) + block.code  # so that a traceback has the line of the page
            exec(compile(code, str(page), "exec"), names)
        elif block.language == "bash":
            for words, expected in commands_of(block.code):
                ran(words, expected)
    for name in set(sys.modules) - before:  # modules that the page wrote itself
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


def ran(words: list[str], expected: int) -> None:
    """Run one command of a page in this process."""
    if words[0] == "python":
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", words[1:])
            runpy.run_path(words[1], run_name="__main__")
        return
    if words == ["purge", "demo"]:
        words = [*words, "--quick"]  # the whole demo: tests/cli/test_demo.py
    done = command(*words[1:])
    assert done.code == expected, (" ".join(words), done.err)
    assert done.out.strip(), words
