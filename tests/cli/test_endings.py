"""How commands end: exit codes, one line for everything, and what an interruption keeps."""

from __future__ import annotations

import re
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from purge.engine.resume import STATE
from tests.cli.commands import command, names, ran, read, refused

# A model that does something bad in training, at its 25th call: in the third epoch of eleven steps.
OWN = """
import os, signal, sys
from dataclasses import dataclass
from torch import nn
from purge import Method, Metric, Stopping

class Net(nn.Sequential):
    calls = 0

    def forward(self, x):
        Net.calls += self.training
        if Net.calls == 25:
            bad()
        return super().forward(x)

def net(classes):
    return Net(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, classes))

@dataclass(frozen=True)
class Forgetting(Method):
    stop: Stopping = Stopping(early=False)

    def run(self, model, split, run):
        bad()
        raise AssertionError

metric = Metric("own", "own", "mine", lambda subject: bad())

def bad():
    BAD
"""
BAD = {
    "RuntimeError: first second": 'raise RuntimeError("first\\nsecond.")',
    "MemoryError": "raise MemoryError",
    "RecursionError: maximum recursion depth exceeded": "return bad()",
    "KeyError: 'x'": "return {}['x']",
    "AssertionError": "raise AssertionError",
}
TRAIN = ("train", "--data", "digits", "--model", "own_bad:net", "--set", "epochs=5", "--quiet")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, which may hold ``own_bad.py``; logs of crashes go to ``logs``."""
    (tmp_path / "here").mkdir()
    (tmp_path / "logs").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "logs"))
    yield tmp_path / "here"
    sys.modules.pop("own_bad", None)


def bad(folder: Path, does: str) -> None:
    (folder / "own_bad.py").write_text(OWN.replace("BAD", does))
    sys.modules.pop("own_bad", None)


def trained(folder: Path) -> Path:
    bad(folder, "pass")
    ran(*TRAIN, "--out", "base")
    return folder / "base"


@pytest.mark.parametrize("said", BAD)
def test_a_crash_is_exit_3_one_line_and_a_log(folder: Path, said: str) -> None:
    bad(folder, BAD[said])
    done = command(*TRAIN, "--out", "run")
    assert (done.code, done.out) == (3, "")
    (log,) = folder.parent.joinpath("logs").glob("purge-crash-*.log")
    line = f"Error: something broke: {said}. The traceback is in {log}; --debug shows it.\n"
    assert done.err == line if "Rec" not in said else re.sub("exceeded[^.]*", "exceeded", done.err) == line
    text = log.read_text()
    assert "Traceback (most recent call last)" in text
    assert "in bad" in text
    assert "own_bad:net" in text
    assert log.stat().st_mode & 0o077 == 0  # nobody else's business


def test_debug_shows_the_traceback_before_and_after_the_command(folder: Path) -> None:
    bad(folder, "raise RuntimeError('boom')")
    for i, argv in enumerate(([*TRAIN, "--debug"], ["--debug", *TRAIN])):
        done = command(*argv, "--out", f"run{i}")
        assert done.code == 3
        assert done.err.startswith("Traceback (most recent call last)")
        assert "in bad" in done.err
        assert done.err.splitlines()[-1].startswith("Error: something broke: RuntimeError: boom.")
        sys.modules.pop("own_bad")
    assert "Traceback" in command("cache", "lisst", "--debug").err
    assert "Traceback" not in command("cache", "lisst").err


def test_a_log_that_cannot_be_written_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad(folder, "raise RuntimeError('boom')")
    monkeypatch.setattr(tempfile, "tempdir", str(folder / "nowhere"))
    done = command(*TRAIN, "--out", "run")
    assert done.code == 3
    assert "RuntimeError: boom. No log could be written (FileNotFoundError: " in done.err
    assert len(done.err.splitlines()) == 1


@pytest.mark.parametrize("value", ["", "0", "'bye'", "1"])
def test_a_model_that_exits_is_an_error_of_the_model(folder: Path, value: str) -> None:
    bad(folder, f"sys.exit({value})")
    assert "got a call of sys.exit(" in refused(*TRAIN, "--out", "run")


@pytest.mark.parametrize(
    "error", ["FileNotFoundError(2, 'No such file', 'x.bin')", "BrokenPipeError(32, 'x')"]
)
def test_what_a_model_misses_while_it_runs_is_no_bad_request(folder: Path, error: str) -> None:
    bad(folder, f"raise {error}")
    done = command(*TRAIN, "--out", "run")
    assert done.code == 3, done
    assert done.err.startswith("Error: something broke in the model: ")
    assert "The traceback is in " in done.err


def test_a_method_or_metric_that_exits_is_never_a_silent_success(folder: Path) -> None:
    base = trained(folder)
    bad(folder, "sys.exit(0)")
    for argv in (
        ("unlearn", base, "--forget-class", 3, "--method", "own_bad:Forgetting", "--model", "own_bad:net"),
        ("audit", base, "--forget-class", 3, "--metrics", "own_bad:metric", "--model", "own_bad:net"),
    ):
        more = ("--out", "new") if argv[0] == "unlearn" else ()
        done = command(*argv, *more, "--quiet")
        assert (done.code, done.out) == (3, "")
        assert "Error: something broke: SystemExit: 0. The traceback is in " in done.err
        assert not (folder / "new").exists()


# -- interruptions ------------------------------------------------------------------------------

INTERRUPTS = [
    ("os.kill(os.getpid(), signal.SIGINT)", signal.SIGINT),
    ("os.kill(os.getpid(), signal.SIGTERM)", signal.SIGTERM),
    ("raise KeyboardInterrupt", signal.SIGINT),
]


@pytest.mark.parametrize(("does", "number"), INTERRUPTS)
def test_an_interrupted_training_says_how_to_resume(folder: Path, does: str, number: signal.Signals) -> None:
    before = signal.getsignal(number)
    bad(folder, does)
    done = command(*TRAIN, "--out", "run")
    assert (done.code, done.out) == (128 + number, "")
    kept = "Kept in run: 2 epochs of the training. Resume with --resume."
    assert done.err == f"Interrupted by {number.name}. {kept}\n"
    assert names(folder / "run") == [STATE]
    assert signal.getsignal(number) is before
    bad(folder, "pass")
    ran(*TRAIN, "--out", "run", "--resume")
    ran(*TRAIN, "--out", "whole")
    assert read(folder / "run" / "run.json")["digest"] == read(folder / "whole" / "run.json")["digest"]


def test_a_training_that_cannot_be_resumed_says_so(folder: Path) -> None:
    bad(folder, f"os.kill(os.getpid(), {int(signal.SIGTERM)})")
    done = command(*TRAIN, "--out", "run", "--log-updates", "log")
    assert done.code == 143
    assert (
        "This training cannot be resumed; start again in another folder, or in run with --force." in done.err
    )


def test_interrupted_unlearning_and_audits_write_nothing(folder: Path) -> None:
    base = trained(folder)
    ran("unlearn", base, "--forget-class", 3, "--method", "finetune", "--model", "own_bad:net",
                 "--set", "epochs=1", "--set", "forget_target=1", "--out", "old", "--quiet")  # fmt: skip
    before = {p: p.read_bytes() for p in (folder / "old").iterdir()}
    bad(folder, f"os.kill(os.getpid(), {int(signal.SIGTERM)})")
    common = ("--forget-class", 3, "--model", "own_bad:net", "--quiet")
    for argv in (
        ("unlearn", base, "--method", "own_bad:Forgetting", "--out", "old", "--force"),
        ("unlearn", base, "--method", "own_bad:Forgetting", "--out", "new/er"),
        ("audit", "old", "--metrics", "own_bad:metric"),
    ):
        assert command(*argv, *common)[::2] == (143, "Interrupted by SIGTERM. Nothing was written.\n")
        assert {p: p.read_bytes() for p in (folder / "old").iterdir()} == before
        assert not (folder / "new").exists()


def test_an_interrupted_bench_says_how_much_is_done(folder: Path) -> None:
    bad(folder, f"os.kill(os.getpid(), {int(signal.SIGTERM)})")
    config = {
        "data": "digits", "model": "small-resnet", "recipe": {"epochs": 1}, "forget": [0],
        "retrains": 0, "metrics": ["ra"],
        "methods": [
            {"method": "finetune", "set": {"epochs": 1}}, {"method": "own_bad:Forgetting", "label": "own"},
        ],
    }  # fmt: skip
    (folder / "two.yaml").write_text(yaml.safe_dump(config))
    done = command("bench", "two.yaml", "--trust", "--out", "out", "--quiet")
    assert done.code == 143, done.err
    said = "Interrupted by SIGTERM. 1 of 2 jobs are done in out; --resume runs the rest.\n"
    assert done.err == said
    assert len(names(folder / "out" / "jobs")) == 1
    bad(folder, "sys.exit(0)")
    again = command("bench", "two.yaml", "--trust", "--out", "out", "--quiet", "--resume")
    assert again.code == 3  # something broke, and the other job is done
    assert "1 jobs run, 1 were there" in again.out
    assert len(names(folder / "out" / "jobs")) == 2


def test_an_ignored_signal_stays_ignored(folder: Path) -> None:
    """As under nohup, or in the background of a script."""
    bad(folder, f"os.kill(os.getpid(), {int(signal.SIGINT)})")
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        ran(*TRAIN, "--out", "run")
    finally:
        signal.signal(signal.SIGINT, before)


# -- refusals come before anything is written ---------------------------------------------------


def test_what_is_refused_leaves_no_folder(folder: Path) -> None:
    (folder / "file").write_text("mine")
    config = {"data": "digits", "model": "small-resnet", "forget": [0], "methods": ["finetune"]}
    (folder / "b.yaml").write_text(yaml.safe_dump({**config, "metrics": ["ra"]}))
    bad(folder, "pass")
    for argv in (
        ("bench", "b.yaml", "--models", "file"),
        ("bench", "b.yaml", "--models", "file/in"),
        ("bench", "b.yaml", "--out", "file"),
        (*TRAIN, "--out", "new", "--log-updates", "file"),
        (*TRAIN, "--out", "new", "--seed", 4294967296),
        (*TRAIN, "--out", "new/er", "--device", "cuda:77"),
    ):
        refused(*argv)
        assert names(folder) == ["b.yaml", "file", "own_bad.py"], argv
        assert (folder / "file").read_text() == "mine"


def test_an_empty_path_is_refused_wherever_something_is_written(folder: Path) -> None:
    bad(folder, "pass")
    (folder / "b.yaml").write_text("data: digits")
    for argv in (
        (*TRAIN, "--out", ""),
        (*TRAIN, "--out="),
        (*TRAIN, "--out", "new", "--log-updates", ""),
        ("unlearn", "base", "--forget-class", 3, "--out", ""),
        ("demo", "--out", ""),
        ("bench", "b.yaml", "--out", ""),
        ("bench", "b.yaml", "--models", ""),
        ("report", "base", "--out", ""),
        ("report", "base", "--out", "x.html", "--figures", ""),
    ):
        done = command(*argv)
        assert (done.code, done.out) == (2, "")
        assert re.fullmatch(
            rf"Error: Invalid value for '--[a-z-]+': expected a path, got an empty text\. "
            rf"Fix: see purge {argv[0]} --help\.\n",
            done.err,
        )
        assert names(folder) == ["b.yaml", "own_bad.py"]
