"""The progress line in a real notebook, and where there is none."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from purge.core.progress import in_notebook, progress_line
from tests.notebooks import executed, texts, written

CELLS = {
    "shown": """
        from purge.core.progress import in_notebook, progress_line
        import time
        with progress_line("learn <b>", 3, True) as advance:
            for i in range(3):
                time.sleep(0.25)
                advance(1, f"note {i}")""",
    "hidden": """
        with progress_line("learn", 3, False) as advance:
            advance(3, "done")""",
    "broken": """
        try:
            with progress_line("learn", 3, True) as advance:
                advance(1, "")
                raise KeyError
        except KeyError:
            pass""",
    "no widgets": "import sys; in_notebook(), 'ipywidgets' in sys.modules",
    "table": """
        from purge.report.tables import as_text, plain_table
        text = as_text(plain_table(["name", "value"], [["ra", "98.0 %"]]))""",
    "text": "print(text)",
}


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder: Path = tmp_path_factory.mktemp("notebook")
    code = [re.sub(r"^ {8}", "", cell, flags=re.M) for cell in CELLS.values()]
    book = executed(written(code, folder / "cells.ipynb"), folder, seconds=60)
    return dict(zip(CELLS, book.cells, strict=True))


def test_a_notebook_shows_one_line_that_ends_as_a_sentence(cells: dict[str, Any]) -> None:
    (output,) = cells["shown"].outputs
    assert output.output_type == "display_data"
    assert re.fullmatch(r"learn <b>: 3 of 3, \d\.\d s, note 2", output.data["text/plain"])
    assert "learn &lt;b&gt;: 3 of 3" in output.data["text/html"]
    assert "<progress" not in output.data["text/html"], "the bar goes when the work is done"


def test_work_that_breaks_off_leaves_a_line_that_says_how_far_it_came(cells: dict[str, Any]) -> None:
    (text,) = texts(cells["broken"])
    assert text.startswith("learn: 1 of 3, ")


def test_no_widgets_are_needed_and_what_is_hidden_or_returned_is_not_shown(cells: dict[str, Any]) -> None:
    assert texts(cells["no widgets"]) == ["(True, False)"]
    assert cells["hidden"].outputs == cells["table"].outputs == []
    assert "98.0 %" in texts(cells["text"])[0]


def test_outside_of_a_notebook_nothing_is_displayed(capsys: pytest.CaptureFixture[str]) -> None:
    assert not in_notebook()
    with progress_line("learn", 2, True) as advance:
        advance(2, "done")
    assert capsys.readouterr() == ("", "")  # stderr is no terminal here
