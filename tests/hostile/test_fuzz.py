"""Fuzzers: whatever is in a file or an argument, a command answers, and does nothing else.

``PURGE_TRIAL_CASES=400 uv run pytest tests/hostile/test_fuzz.py`` tries more of them.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from tests.hostile import odd
from tests.hostile.world import PLAN, World

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is limited by what Linux tells"),
]
trial = settings(settings.get_profile("trial"))

REPORT = ["report", "run", "--out", "page.html"]
READERS: list[list[Any]] = [
    ["audit", "run", "--metrics", "fa_test", "--quiet"],
    ["audit", "run", "--metrics", "agreement", "--retrained", "retrained", "--quiet"],
    ["unlearn", "run", "--forget-class", 2, "--set", "steps=2", "--out", "out", "--quiet"],
    ["unlearn", "base", "--forget-class", 2, "--set", "steps=2", "--out", "out", "--quiet"],
    ["train", "--like", "retrained", "--set", "epochs=1", "--out", "out", "--quiet"],
    REPORT,
]


@contextmanager
def replaced(path: Path, content: bytes) -> Iterator[None]:
    """Within the block a file has other content."""
    before = path.read_bytes()
    path.write_bytes(content)
    try:
        yield
    finally:
        path.write_bytes(before)


def fuzz(
    world: World, kind: str, path: Path, files: st.SearchStrategy[bytes], commands: list[list[Any]]
) -> None:
    """Whatever a file holds, the commands that read it behave."""

    @trial
    @given(files, st.sampled_from(commands))
    def whatever_it_holds(file: bytes, argv: list[Any]) -> None:
        with replaced(path, file):
            world.expect(kind, *argv)

    whatever_it_holds()


JSON: dict[str, list[list[Any]]] = {
    "run/run.json": [argv for argv in READERS if "run" in argv],
    "base/run.json": READERS,
    "retrained/run.json": [argv for argv in READERS if "retrained" in argv],
    "run/audit.json": [REPORT],
    "bench/bench.json": [["bench", "bench"]],
    "bench/jobs/*.json": [["bench", "bench"]],
}


@pytest.mark.parametrize("name", JSON)
def test_json(there: World, name: str) -> None:
    path = sorted(there.here.glob(name))[0]
    fuzz(there, name, path, odd.json_files(json.loads(path.read_text())), JSON[name])


@st.composite
def histories(draw: st.DrawFn, whole: bytes) -> bytes:
    """A history.parquet with columns of other kinds, other names, or damage."""
    if draw(st.booleans()):
        return draw(odd.damaged(whole))
    table = pq.read_table(io.BytesIO(whole))
    names = st.sampled_from(odd.writable)
    kinds = [pa.string(), pa.bool_(), pa.int64(), pa.list_(pa.float64()), pa.null(), pa.binary()]
    values = {pa.string(): "x", pa.bool_(): True, pa.int64(): -(2**62), pa.binary(): b"\xff"}
    for at in draw(st.lists(st.integers(0, table.num_columns - 1), min_size=1, max_size=4)):
        kind, name = draw(st.sampled_from(kinds)), table.column_names[at]
        column = pa.array([values.get(kind)] * table.num_rows, kind)
        table = table.set_column(at, name if draw(st.booleans()) else draw(names), column)
    pq.write_table(table, found := io.BytesIO())
    return odd.File(found.getvalue())


def test_history(there: World) -> None:
    path = there.here / "run" / "history.parquet"
    fuzz(there, "history.parquet", path, histories(path.read_bytes()), [REPORT])


@pytest.mark.parametrize("of", ["run", "base"])
def test_weights(there: World, of: str) -> None:
    path = there.here / of / "model.safetensors"
    commands = [argv for argv in READERS if of in argv]
    fuzz(there, "model.safetensors", path, odd.damaged(path.read_bytes()), commands)


def _yaml(content: Any) -> bytes:
    try:
        return yaml.safe_dump(content, allow_unicode=True).encode(errors="replace")
    except yaml.YAMLError:  # it has no form in YAML
        return b"- 1"


def test_yaml(there: World) -> None:
    text = yaml.safe_dump(PLAN).encode()
    deep = [b"a: " + b"[" * 3000, b"a: " + b"{b: " * 3000, b"- " * 3000, b"a: &a [x]\nb: *a\n<<: *a\n"]
    laughs = b"a0: &a0 [x, x]\n" + b"".join(
        b"a%d: &a%d [%s]\n" % (i, i, b", ".join([b"*a%d" % (i - 1)] * 9)) for i in range(1, 9)
    )
    files = st.one_of(
        odd.changed(PLAN).map(_yaml), odd.changed(PLAN).map(_yaml), odd.damaged(text),
        st.sampled_from([*deep, laughs]),
    )  # fmt: skip

    commands = [["bench", "plan.yaml", "--dry-run", "--quiet"]]
    fuzz(there, "YAML", there.here / "plan.yaml", files, commands)


@st.composite
def arrays(draw: st.DrawFn) -> bytes:
    """An .npz with labels and images of odd shapes, kinds and values."""
    n = draw(st.integers(0, 12))
    shape = draw(st.sampled_from([(n, 8, 8), (n, 8, 8, 3), (n, 3, 8, 8), (n,), (n, 0, 8), (n, 8), (n, 1, 1)]))
    kind = draw(st.sampled_from(["u1", "i8", "f4", "f8", "?", "c8", "U3", "M8[s]"]))
    images = np.zeros(shape, kind)
    label = draw(st.sampled_from([0, 1, -1, 2**40, 2**62, 0.5, float("nan"), True, "cat"]))
    labels: Any = np.array([i % 3 for i in range(n - 1)] + [label] * (n > 0))
    names = draw(st.sampled_from([("images", "labels"), ("x", "y"), ("images", "images"), ("labels",)]))
    np.savez(found := io.BytesIO(), **dict(zip(names, (images, labels), strict=False)))
    return draw(st.one_of(st.just(odd.File(found.getvalue())), odd.damaged(found.getvalue())))


def test_npz(there: World) -> None:
    model = ("--model", "small-resnet", "--set", "epochs=1", "--quiet", "--no-cache")
    commands = [["train", "--data", "three.npz", *model, "--out", "out"]]
    fuzz(there, "data files", there.here / "three.npz", arrays(), commands)


NAMES = ["who", "a", "b", "kind"]


@st.composite
def tables(draw: st.DrawFn, form: str) -> bytes:
    """A table of customers, numbers and classes with odd names, odd cells, or damage."""
    n = draw(st.sampled_from([0, 1, 2, 12, 40]))
    rows: list[list[Any]] = [[f"c{i // 2}", i, 0.5 * (i % 5), "xyz"[i % 3]] for i in range(n)]
    names = list(NAMES)
    for _ in range(draw(st.integers(0, 2))):
        if n and draw(st.booleans()):
            rows[draw(st.integers(0, n - 1))][draw(st.integers(0, 3))] = draw(odd.scalars)
        else:
            names[draw(st.integers(0, 3))] = draw(st.sampled_from([*odd.writable, "a", "kind", "A"]))
    whole = _table(form, names, rows)
    return draw(st.one_of(st.just(whole), st.just(whole), odd.damaged(whole or b"x")))


def _table(form: str, names: list[str], rows: list[list[Any]]) -> odd.File:
    if form == "csv":
        csv.writer(text := io.StringIO()).writerows([names, *rows])
        return odd.File(text.getvalue().encode(errors="replace"))
    if form == "jsonl":
        return odd.File("\n".join(json.dumps(dict(zip(names, row, strict=True))) for row in rows).encode())
    columns = [[row[i] for row in rows] for i in range(4)]
    try:
        arrays = [pa.array(column) for column in columns]
    except (pa.ArrowException, OverflowError, TypeError, UnicodeEncodeError):  # of several kinds
        arrays = [pa.array([ascii(cell) for cell in column]) for column in columns]
    pq.write_table(pa.table(arrays, names=names), found := io.BytesIO())
    return odd.File(found.getvalue())


@pytest.mark.parametrize(
    "form", ["csv", *(pytest.param(form, marks=pytest.mark.slow) for form in ("jsonl", "parquet"))]
)
def test_tables(there: World, form: str) -> None:
    path = there.here / f"table.{form}"
    path.write_bytes(_table(form, NAMES, [["c", 1, 2.0, "x"]]))

    model = ("--model", "mlp", "--set", "epochs=1", "--set", "batch_size=4", "--quiet")
    train = ["train", "--data", path.name, "--label", "kind", *model, "--out", "out"]
    ids = [["--id", "who"], ["--id", "a"], ["--id", "who", "--test", path.name]]
    fuzz(there, "tables", path, tables(form), [[*train, *more] for more in ids])


@st.composite
def checkpoints(draw: st.DrawFn, state: dict[str, Any]) -> bytes:
    """A file of torch with the weights somewhere in it, under odd keys, beside odd values."""
    prefix = draw(st.sampled_from(["", "module.", "model._orig_mod.", "x."]))
    content: Any = {prefix + name: t for name, t in state.items()}
    for _ in range(draw(st.integers(0, 3))):
        content = {draw(st.sampled_from(["state_dict", "model", "ema", "", "x"])): content}
        for _ in range(draw(st.integers(0, 2))):
            content[draw(odd.words)] = draw(st.one_of(odd.values, st.just(dict(state)), st.just(Bait())))
    torch.save(content, found := io.BytesIO())
    return draw(st.one_of(st.just(odd.File(found.getvalue())), odd.damaged(found.getvalue())))


class Bait:
    """Would run code if it were unpickled."""

    def __reduce__(self) -> Any:
        return exec, ("import pathlib; pathlib.Path('bait-taken').touch()",)


@pytest.mark.slow
def test_checkpoints(there: World) -> None:
    path = there.here / "weights.pt"
    state = load_file(there.here / "base" / "model.safetensors")
    torch.save(state, path)

    data = ("--data", "three.npz", "--model", "small-resnet", "--forget-class", 1, "--set", "steps=2")
    more = ("--split-seed", 0, "--quiet", "--export", "new.pt", "--out", "out")
    fuzz(there, "files of torch", path, checkpoints(state), [["unlearn", path.name, *data, *more]])


@st.composite
def id_files(draw: st.DrawFn) -> bytes:
    lines = draw(st.lists(st.one_of(st.integers(-2, 400).map(str), odd.words), max_size=6))
    ends = draw(st.sampled_from(["\n", "\r\n", ",", " ", "\x0b", "\u2028"]))
    return draw(st.one_of(st.just(ends.join(lines).encode(errors="replace")), st.binary(max_size=40)))


def test_lists_of_ids(there: World) -> None:
    (there.here / "ids.txt").write_text("1\n")

    short = ("--set", "steps=2", "--out", "out", "--quiet")
    commands = [["unlearn", "base", "--forget-ids", "ids.txt", *short]]
    fuzz(there, "lists of ids", there.here / "ids.txt", id_files(), commands)


# -- arguments ------------------------------------------------------------------------------------

GOOD: list[list[str]] = [
    ["audit", "run", "--metrics", "fa_test", "--fail-if", "fa_test>2", "--seed", "1", "--quiet"],
    ["unlearn", "base", "--forget-class", "1", "--set", "steps=2", "--out", "out", "--seed", "3", "--quiet"],
    ["unlearn", "base", "--forget-class", "1", "--method", "finetune", "--set", "epochs=1", "--out", "out"],
    ["train", "--data", "three.npz", "--model", "small-resnet", "--set", "epochs=1", "--out", "out"],
    ["train", "--like", "base", "--shards", "2", "--slices", "1", "--set", "epochs=1", "--out", "out"],
    ["report", "run", "--out", "page.html"],
    ["bench", "plan.yaml", "--dry-run", "--jobs", "1"],
    ["list", "methods", "purge"],
    ["cache", "list"],
]
OPTIONS = [
    "--size", "--mean", "--std", "--split-seed", "--skip-bad", "--device", "--precision", "--augment",
    "--received", "--request-id", "--shadows", "--log-updates", "--only", "--models", "--figures", "--truth",
    "--data-dir", "--original", "--retrained", "--without-ids", "--resume", "--force", "--trust", "--no-such",
    "--json", "--label", "--text", "--id", "--test", "--transform", "--export",
]  # fmt: skip
# What an option asks for must be small, or it is simply carried out: thousands of epochs are no bad request.
plain = odd.words.filter(lambda word: "\0" not in word and word not in ("--help",))
odd_words = st.one_of(plain, st.sampled_from(["2", "0", "run", "base", "plan.yaml", "three.npz", "no-such"]))


@st.composite
def arguments(draw: st.DrawFn) -> list[str]:
    """A good command with a word replaced, taken out, doubled or added."""
    argv = list(draw(st.sampled_from(GOOD)))
    for _ in range(draw(st.integers(1, 2))):
        at = draw(st.integers(1, len(argv) - 1))
        what = draw(st.sampled_from(["replace", "replace", "remove", "double", "option"]))
        if what == "replace":
            argv[at] = draw(odd_words)
        elif what == "remove" and len(argv) > 2:
            del argv[at]
        elif what == "double":
            argv.insert(at, argv[at])
        else:
            argv += [draw(st.sampled_from(OPTIONS)), draw(odd_words)]
    return argv


def test_arguments(there: World) -> None:
    @trial
    @given(arguments())
    def whatever_they_are(argv: list[str]) -> None:
        there.expect("arguments", *argv)

    whatever_they_are()
