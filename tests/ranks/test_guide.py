"""docs/guides/several-gpus.md does what it says."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

import purge
from tests.ranks.starting import start, texts

PAGE = (Path(__file__).parents[2] / "docs" / "guides" / "several-gpus.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.S)


def test_the_guide_names_the_methods_that_share_batches() -> None:
    (shared,) = re.findall(r"^These share their batches:(.*?)\n\n", PAGE, re.S | re.M)
    known = {name: entry.method.distributes for name, entry in purge.methods.registry.METHODS.items()}
    assert set(re.findall(r"`([a-z0-9-]+)`", shared)) == {name for name, yes in known.items() if yes}


def program(folder: Path) -> None:
    os.chdir(folder)
    (whole,) = BLOCKS
    exec(whole, {"__name__": "__main__"})


@pytest.mark.dist
def test_the_program_of_the_guide(tmp_path: Path) -> None:
    assert start(program, tmp_path, group=False) == [0, 0], texts(tmp_path)
    assert (tmp_path / "without3" / "run.json").is_file()
    assert (tmp_path / "without3" / "audit.json").is_file()
    printed = [(tmp_path / f"out-{rank}.txt").read_text() for rank in range(2)]
    assert "FA" in printed[0] or "fa" in printed[0]
    assert printed[1] == ""
