"""purge list, --help and --version, and where they print."""

from __future__ import annotations

import errno
import io
import re
import resource
import subprocess
import sys
from collections.abc import Callable

import pytest

import purge
from purge.cli import app as cli
from purge.core.settings import flat_fields
from purge.methods.registry import METHODS
from tests.cli.commands import command

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


@pytest.mark.parametrize("name", purge.list_methods())
def test_list_names_every_setting_of_a_method(name: str) -> None:
    settings = {f.name: value for f, value in flat_fields(METHODS[name].method)}
    done, machine = command("list", "methods", name), command("list", "methods", name, "--json")
    assert {row["setting"]: row["value"] for row in machine.json} == {k: str(v) for k, v in settings.items()}
    assert all(row["meaning"] for row in machine.json)
    assert settings.keys() <= {line.split()[0] for line in done.out.splitlines() if line.split()}


def test_help_lists_the_commands() -> None:
    done, alone = command("--help"), command()
    assert (done.code, done.out) == (alone.code, alone.out) == (0, alone.out)
    assert set(re.findall(r"^  ([a-z]+)  ", done.out, re.M)) == {*cli.COMMANDS, "request"}


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
    ["--help"], ["--version"], *([name, "--help"] for name in (*cli.COMMANDS, "request")),
    *(["list", shelf] for shelf in SHELVES),
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
@pytest.mark.parametrize("argv", LIGHT, ids=" ".join)
def test_help_and_list_answer_at_once(argv: list[str]) -> None:
    """In processor time, which is what an idle machine takes; this one may be busy."""
    seconds = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        in_a_process([argv])
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(seconds) < 0.4


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
