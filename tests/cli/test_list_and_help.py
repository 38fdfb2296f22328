"""purge list, --help and --version, and where they print."""

from __future__ import annotations

import errno
import io
import re
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

import purge
from purge.cli import app as cli
from purge.core.settings import flat_fields
from purge.methods.registry import METHODS
from purge.metrics.registry import METRICS
from purge.models.zoo import MODELS
from tests.cli.commands import Done, command

SHELVES: dict[str, Callable[[], dict[str, str]]] = {
    "methods": purge.list_methods,
    "metrics": purge.list_metrics,
    "datasets": purge.list_datasets,
    "models": purge.list_models,
}


@pytest.mark.parametrize("shelf", SHELVES)
def test_list_names_all_that_there_is(shelf: str) -> None:
    there = SHELVES[shelf]()
    done, machine = command("list", shelf), command("list", shelf, "--json")
    assert (done.code, done.err, machine.code, machine.err) == (0, "", 0, "")
    assert {row[shelf[:-1]]: row["about"] for row in machine.json} == there
    assert there.keys() <= {line.split()[0] for line in done.out.splitlines() if line.split()}


def test_the_shelves_are_not_empty() -> None:
    assert {"purge", "purge-paper", "gradient-ascent"} <= purge.list_methods().keys()
    assert {"ta", "fa_test", "ra", "mia", "bn_recal"} <= METRICS.keys()
    assert "small-resnet" in MODELS


@pytest.mark.parametrize("name", purge.list_methods())
def test_list_names_every_setting_of_a_method(name: str) -> None:
    settings = {f.name: value for f, value in flat_fields(METHODS[name].method)}
    done, machine = command("list", "methods", name), command("list", "methods", name, "--json")
    assert {row["setting"]: row["value"] for row in machine.json} == {k: str(v) for k, v in settings.items()}
    assert all(row["meaning"] for row in machine.json)
    assert settings.keys() <= {line.split()[0] for line in done.out.splitlines() if line.split()}


OPTIONS = {
    "demo": "--out --quick --seed --force --json --quiet",
    "train": (
        "--out --data --model --like --data-dir --size --split-seed --skip-bad --mean --std "
        "--label --text --id --test --all-trained --transform --stream "
        "--without-class --without-ids --pretrained --set --seed --device --trust --shards --slices --vote "
        "--log-updates --log-only-ids --no-cache --resume --force --json --quiet"
    ),
    "unlearn": (
        "checkpoint --out --data --data-dir --size --split-seed --skip-bad --mean --std --model "
        "--label --text --id --test --all-trained --transform --stream "
        "--forget-class --forget-ids --method --set --augment --seed --device --trust --precision "
        "--graph "
        "--request-id --received --done --by --model-version --export --no-cache --force --json --quiet"
    ),
    "audit": (
        "run --data --data-dir --size --split-seed --skip-bad --mean --std --model "
        "--label --text --id --test --all-trained --transform --stream "
        "--retrained --original --metrics --shadows --fail-if --forget-class --forget-ids --truth "
        "--seed --device --trust --no-cache --json --quiet"
    ),
    "report": "run --out --figures --force --json",
    "list": "shelf name --json",
    "cache": "action kind --json",
}


@pytest.mark.parametrize("name", OPTIONS)
def test_help_mentions_every_option(name: str) -> None:
    done = command(name, "--help")
    assert (done.code, done.err) == (0, "")
    mentioned = re.findall(r"^  (?:-h, )?(--[a-z-]+|[a-z]+(?=(?:\.\.\.)? <))", done.out, re.M)
    assert sorted(mentioned) == sorted([*OPTIONS[name].split(), "--debug", "--help"])


def test_help_lists_the_commands() -> None:
    done = command("--help")
    assert done.code == 0
    assert {"demo", "train", "unlearn", "audit", "report", "list"} <= set(
        re.findall(r"^  ([a-z]+)  ", done.out, re.M)
    )


def test_purge_alone_shows_its_help() -> None:
    done = command()
    assert not done.err.startswith("Error")
    assert "\n  demo " in done.out + done.err


class Failing(io.StringIO):
    """A stdout that nothing can be written to."""

    def __init__(self, error: OSError, *, late: bool) -> None:
        super().__init__()
        self.error, self.late = error, late

    def write(self, text: str) -> int:
        if not self.late:
            raise self.error
        return len(text)

    def flush(self) -> None:
        if self.late:
            raise self.error


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), 2, "got [Errno 28] No space left on device. Fix"),
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), 141, ""),
    ],
)
def test_a_stdout_that_fails(
    error: OSError, code: int, said: str, late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    err = io.StringIO()
    monkeypatch.setattr(sys, "argv", ["purge", "list", "methods"])
    monkeypatch.setattr(sys, "stdout", Failing(error, late=late))
    monkeypatch.setattr(sys, "stderr", err)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == code
    assert len(err.getvalue().splitlines()) == bool(said)
    assert said in err.getvalue()


def test_letters_that_the_terminal_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "argv", ["purge", "list", "methods"])
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="cp1252"))
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert not ended.value.code
    assert "gradient-ascent" in raw.getvalue().decode("cp1252")


HEAVY = {"torch", "matplotlib", "sklearn", "pandas", "scipy", "pyarrow"}
LIGHT = [
    ["--help"], ["--version"], *([name, "--help"] for name in cli.COMMANDS), *(["list", s] for s in SHELVES),
]  # fmt: skip
RUN_LIGHT = """
import sys
from purge.cli.app import main

for argv in {commands}:
    sys.argv = ["purge", *argv]
    try:
        main()
    except SystemExit as ended:
        assert not ended.code, argv
    assert not (found := {heavy} & sys.modules.keys()), (argv, found)
"""


def in_a_process(commands: list[list[str]]) -> None:
    code = RUN_LIGHT.format(commands=commands, heavy=HEAVY)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr


def test_help_and_list_import_nothing_heavy() -> None:
    in_a_process(LIGHT)


@pytest.mark.slow
@pytest.mark.parametrize("argv", [["--help"], ["train", "--help"], ["list", "methods"]])
def test_help_and_list_answer_at_once(argv: list[str]) -> None:
    """In half a second on an idle machine; this one may be busy."""
    seconds = []
    for _ in range(5):
        started = time.perf_counter()
        in_a_process([argv])
        seconds.append(time.perf_counter() - started)
    assert min(seconds) < 1.5


def test_version() -> None:
    assert command("--version") == Done(0, f"purge {purge.__version__}\n", "")


def test_as_a_module() -> None:
    argv = [sys.executable, "-m", "purge", "--version"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"purge {purge.__version__}\n", "")


def test_a_metric_says_what_it_tells() -> None:
    done = command("list", "metrics", "relearn_few")
    assert done.code == 0
    assert all(word in done.out for word in ("relearn_few.steps", "share", "robustness", "fine-tuning"))
    wrong = command("list", "metrics", "relern_few")
    assert wrong.code == 2
    assert "did you mean 'relearn_few'" in wrong.err
