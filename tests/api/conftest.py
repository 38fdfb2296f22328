"""A good request in pieces, which tests spoil."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch


@pytest.fixture
def given(toy: tuple[Any, ...], tmp_path: Path) -> SimpleNamespace:
    """A good request in pieces, a folder with a file in it, and a file."""
    model, forget, retain, test = toy
    full, file = tmp_path / "full", tmp_path / "file"
    full.mkdir()
    (full / "notes.txt").write_text("mine")
    file.write_text("mine")
    x, y = (torch.cat(both) for both in zip(forget, retain, strict=True))
    return SimpleNamespace(
        model=model, forget=forget, retain=retain, test=test, x=x, y=y, tmp=tmp_path, full=full, file=file
    )
