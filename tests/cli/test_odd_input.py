"""Odd input on the command line: streams that are closed or full, escape sequences, endless numbers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from purge.engine.resume import STATE
from tests.cli.commands import command, ran, refused
from tests.refusals import tree

pytestmark = pytest.mark.slow

ESC = "\x1b]0;t\x07\x1b[31mred"


def arrays(path: Path, names: list[str]) -> Path:
    """Images of two classes that can be told apart, in a file."""
    rng, labels = np.random.default_rng(0), np.arange(60) % len(names)
    pixels = rng.integers(0, 60, (60, 8, 8)) + 60 * labels[:, None, None]
    np.savez(path, images=pixels.astype(np.uint8), labels=labels, classes=np.array(names))
    return path


def trained(tmp_path: Path, names: list[str], *more: Any) -> Path:
    data, out = arrays(tmp_path / "a.npz", names), tmp_path / "base"
    few = ("--set", "epochs=2", "--set", "batch_size=8", "--quiet")
    ran("train", "--data", data, "--model", "small-resnet", "--out", out, *few, *more)
    return out


def test_escape_sequences_reach_no_terminal(tmp_path: Path) -> None:
    data = arrays(tmp_path / "a.npz", [f"cat{ESC}", "dog", "owl"])
    few = ("--data", data, "--model", "small-resnet", "--set", "epochs=1", "--without-class", f"cat{ESC}")
    done = ran("train", *few, "--out", tmp_path / f"run{ESC}", "--quiet")
    assert r"cat\x1b]0;t\x07\x1b[31mred" in done.out
    bad = [
        command("train", *few, "--out", tmp_path / f"run{ESC}"),
        command("train", "--data", f"no{ESC}", "--model", "small-resnet", "--out", tmp_path / "b"),
        command("unlearn", tmp_path / f"none{ESC}", "--forget-class", ESC, "--out", tmp_path / "c"),
        command("list", "methods", f"purge{ESC}"),
        command(f"lisst{ESC}"),
        command("unlearn", "--method", f"m{ESC}", tmp_path, "--out", tmp_path / "d"),
    ]
    for ended in bad:
        assert ended.code == 2
        assert len(ended.err.splitlines()) == 1
    for text in (done.out, done.err, *(ended.err for ended in bad)):
        assert "\x1b" not in text
        assert "\x07" not in text


def test_a_name_of_two_classes_is_refused(tmp_path: Path) -> None:
    base = trained(tmp_path, ["cat", "dog", "cat"])
    message = refused("unlearn", base, "--forget-class", "cat", "--out", tmp_path / "out")
    assert "the name of 2 classes (0, 2)" in message
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("words", [
    ("--forget-class", "9" * 5000), ("--forget-ids", "FILE"),
    ("--forget-class", 0, "--set", f"steps={'9' * 5000}"),
], ids=["class", "ids", "set"])  # fmt: skip
def test_5000_digits_are_refused(tmp_path: Path, shown: Any, words: tuple[Any, ...]) -> None:
    (tmp_path / "ids.txt").write_text("9" * 5000)
    argv = [tmp_path / "ids.txt" if word == "FILE" else word for word in words]
    before = tree(tmp_path)
    message = refused("unlearn", shown.folder / "base", *argv, "--out", tmp_path / "out")
    assert len(message) < 1000
    assert tree(tmp_path) == before


def test_options_of_5000_digits_are_refused(tmp_path: Path) -> None:
    for option in ("--seed", "--size", "--shards"):
        argv = ("--data", "digits", "--model", "small-resnet", "--out", tmp_path / "out", option, "9" * 5000)
        done = command("train", *argv)
        assert (done.code, done.out, len(done.err.splitlines())) == (2, "", 1)
        assert tree(tmp_path) == {}


def test_a_history_of_words_is_refused(run: Path) -> None:
    for column in (["a", "b"], [[1], [2]], [{"a": 1}, {"a": 2}]):
        table = pa.table({"step": [0, 1], "check_forget_accuracy": pa.array(column)})
        pq.write_table(table, run / "history.parquet")
        assert "a history of numbers" in refused("report", run)
    twice = pa.Table.from_arrays([pa.array([0, 1])] * 2, ["step", "step"])
    pq.write_table(twice, run / "history.parquet")
    assert command("report", run).code in (0, 2)


# -- the state of a training ----------------------------------------------------------------------


class Killed(Exception):
    """Stands for a kill of the process."""


def stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A training that was interrupted after its last epoch, and the command that resumes it."""
    data = arrays(tmp_path / "a.npz", ["cat", "dog"])
    argv = ["train", "--data", data, "--model", "small-resnet", "--out", tmp_path / "base", "--set",
            "epochs=3", "--set", "batch_size=8", "--set", "ema=0.9", "--quiet"]  # fmt: skip
    with monkeypatch.context() as patch:
        patch.setattr("purge.engine.trainer._Network.finish", _killed)
        with pytest.raises(Killed):
            _in_python(argv)
    assert (tmp_path / "base" / STATE).is_file()
    return argv


def _killed(*_: Any) -> None:
    raise Killed


def _in_python(argv: list[Any]) -> None:
    from purge.cli.app import app

    app([str(word) for word in argv], standalone_mode=False)


def changed(path: Path, how: str) -> None:
    """Write a state with other tensors, and without a digest, as an older version did."""
    with safe_open(path, "pt") as file:
        facts = json.loads(file.metadata()["facts"])
    facts.pop("digest", None)
    state = load_file(path)
    first = next(k for k in state if k.startswith("model.") and state[k].ndim > 1)
    state |= {
        "another shape": {first: torch.zeros(2, 3)}, "another type": {first: state[first].double()},
        "random numbers cut": {"random.cpu": state["random.cpu"][:10].clone()},
        "too many losses": {"losses": torch.zeros(9)}, "losses in a table": {"losses": torch.zeros(1, 1)},
        "a mean of one number": {first.replace("model.", "mean."): torch.zeros(1)},
    }.get(how, {})  # fmt: skip
    gone = {"no weights": "model.", "no random numbers": "random."}.get(how, "nothing")
    kept = {k: v for k, v in state.items() if not k.startswith(gone)}
    save_file(kept, path, metadata={"facts": json.dumps(facts)})


HOW = ["no weights", "another shape", "another type", "no random numbers", "random numbers cut",
       "too many losses", "losses in a table", "a mean of one number"]  # fmt: skip


def test_a_damaged_state_of_a_training_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    argv = stopped(tmp_path, monkeypatch)
    state = tmp_path / "base" / STATE
    shutil.copy(state, tmp_path / "kept")
    for how in HOW:
        shutil.copy(tmp_path / "kept", state)
        changed(state, how)
        assert "a damaged file" in refused(*argv, "--resume"), how
    shutil.copy(tmp_path / "kept", state)
    ran(*argv, "--resume")


# -- streams --------------------------------------------------------------------------------------


def shell(line: str, **more: Any) -> subprocess.CompletedProcess[bytes]:
    purge = f"{sys.executable} -m purge"
    return subprocess.run(
        ["bash", "-c", line.replace("purge", purge, 1)], capture_output=True, timeout=120, **more
    )


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="only Linux has /dev/full")
def test_closed_and_full_streams() -> None:
    for line, code in {
        "purge list methods >&-": 0, "purge list methods 2>&-": 0, "purge list methods <&- >&- 2>&-": 0,
        "purge list methods --json >&-": 0, "purge list method 2>&-": 2, "purge list method >&- 2>&-": 2,
    }.items():  # fmt: skip
        done = shell(line)
        assert done.returncode == code, (line, done.stderr)
        assert b"Traceback" not in done.stderr
    full = shell("purge list methods > /dev/full")
    assert full.returncode == 2
    assert b"No space left" in full.stderr
    assert len(full.stderr.splitlines()) == 1
