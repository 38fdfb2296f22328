"""The notebooks: committed without outputs, ready for Colab, and every cell of them runs."""

from __future__ import annotations

import base64
import io
import re
from pathlib import Path

import nbformat
import pytest
from PIL import Image

from tests.benchmark import script
from tests.notebooks import SCRIPT, executed, texts

ROOT = Path(__file__).parents[2]
BOOKS = {path.stem: path for path in sorted((ROOT / "examples").glob("*.ipynb"))}
SECONDS = 300  # for a cell, and twice that for a notebook
# What a notebook says in the end, and how many figures it has at least.
SAYS = {
    "forget_a_class": (r"Shown: No test of this audit contradicts the deletion", 2),
    "own_method": (r"6 jobs run, 0 were there, 4 models trained, 0 failed", 2),
    "rows_by_id": (r"Expected retain without samples that the model has forgotten before, got \d+", 1),
    "text_classifier": (r"Shown: No test of this audit contradicts the deletion", 2),
}


def test_every_notebook_is_known_here() -> None:
    assert set(BOOKS) == set(SAYS)


@pytest.mark.parametrize("name", BOOKS)
def test_a_notebook_is_valid_and_without_outputs(name: str) -> None:
    book, tools = nbformat.read(BOOKS[name], as_version=4), script(SCRIPT)
    nbformat.validate(book)
    written = tools.as_text(tools.stripped(book))
    assert BOOKS[name].read_text(encoding="utf-8") == written, "uv run python scripts/notebooks.py strip"


@pytest.mark.parametrize("name", BOOKS)
def test_a_notebook_installs_what_is_missing_and_needs_nothing_else(name: str) -> None:
    cells = nbformat.read(BOOKS[name], as_version=4).cells
    code = [cell.source for cell in cells if cell.cell_type == "code"]
    assert 'find_spec("purge") is None' in code[0]
    assert re.search(r"^    %pip install -q \"purge-unlearning(\[\w+\])?\"$", code[0], re.M)
    assert cells[0].source.startswith("# ")
    every = "\n".join(cell.source for cell in cells)
    assert "://" not in every
    links = re.findall(r"\]\((.*?)\)", every)
    assert all((ROOT / "examples" / link).exists() for link in links)
    assert sum(map(len, code)) < 6000, "short enough to read"


def test_stripping_takes_everything_out_that_a_run_leaves() -> None:
    tools = script(SCRIPT)
    cell = nbformat.v4.new_code_cell("1 + 1", execution_count=3, metadata={"scrolled": True})
    cell.outputs = [nbformat.v4.new_output("stream", text="2")]
    book = nbformat.v4.new_notebook(cells=[cell], metadata={"colab": {"name": "x"}})
    text = tools.as_text(tools.stripped(book))
    assert not re.search(r"colab|scrolled|\"2\"|: 3,", text)
    assert nbformat.reads(text, as_version=4).cells[0].source == "1 + 1"


@pytest.mark.slow
@pytest.mark.parametrize("name", BOOKS)
def test_a_notebook_runs_where_there_is_nothing_but_itself(name: str, tmp_path: Path) -> None:
    if name == "text_classifier":
        pytest.importorskip("transformers")
    book = executed(BOOKS[name], tmp_path, seconds=SECONDS)
    outputs = [output for cell in book.cells if cell.cell_type == "code" for output in cell.outputs]
    assert not [o.text for o in outputs if o.output_type == "stream" and o.name == "stderr"]
    said = "\n".join(text for cell in book.cells if cell.cell_type == "code" for text in texts(cell))
    words, figures = SAYS[name]
    assert re.search(words, said)
    drawn = [o.data["image/png"] for o in outputs if "image/png" in o.get("data", {})]
    assert len(drawn) >= figures
    for picture in drawn:
        grey = Image.open(io.BytesIO(base64.b64decode(picture))).convert("L")
        low, high = grey.getextrema()
        assert high - low > 100, "something is drawn"
