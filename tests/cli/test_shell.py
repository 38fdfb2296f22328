"""The shell: list, help and version, completion, tables at any width, colours, pipes."""

from __future__ import annotations

import io
import os
import pty
import re
import resource
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

import purge
from purge.cli import app as cli
from purge.core.settings import flat_fields
from purge.methods.registry import METHODS
from purge.report.tables import as_text, fitted, listing, plain_table
from tests.cli.commands import command, ran, refused

WIDTHS = (40, 60, 80, 200)
ENTRY = [sys.executable, "-m", "purge"]


def subcommands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    for name, inner in getattr(group, "commands", {}).items():
        yield from subcommands(inner, (*path, name))


def test_every_command_has_a_short_help(capsys: pytest.CaptureFixture[str]) -> None:
    group = typer.main.get_command(cli.app)
    paths = list(subcommands(group))
    assert {(), ("unlearn",), ("request", "add")} <= {*paths}
    for path in paths:
        group.main([*path, "-h"], prog_name="purge", standalone_mode=False)
        shown = capsys.readouterr().out
        assert shown.startswith(f"Usage: {' '.join(['purge', *path])} ")
        assert "-h, --help" in shown


# -- completion -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes(tmp_path: Path) -> None:
    script = tmp_path / "purge.bash"
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    shown = "purge --show-completion > " + str(script)
    subprocess.run(["bash", "-c", shown], env=env, check=True, timeout=60)
    ask = (
        f"source {script}; COMP_WORDS=(purge request rel); COMP_CWORD=2; "
        'COMP_LINE="${COMP_WORDS[*]}"; _purge_completion purge; echo "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "-c", ask], env=env, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["release"]


# -- tables ---------------------------------------------------------------------------------------


def is_whole(text: str, cells: list[str]) -> None:
    """Every word of every cell is in the text, uncut, as often as it is in the cells."""
    wanted = Counter(word for cell in cells for word in cell.split())
    missing = wanted - Counter(text.split())
    assert not missing, missing
    assert text.count("…") == sum(cell.count("…") for cell in cells)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("argv", [
    ("methods",), ("metrics",), ("datasets",), ("models",), ("metrics", "mia"),
])  # fmt: skip
def test_lists_are_whole_at_any_width(
    argv: tuple[str, ...], width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    rows = ran("list", *argv, "--json").json
    text = ran("list", *argv).out
    is_whole(text, [cell for row in rows for cell in row.values()])
    longest = max(len(word) for row in rows for cell in row.values() for word in cell.split())
    assert max(map(len, text.splitlines())) <= max(width, longest + 16)


@pytest.mark.parametrize("width", WIDTHS)
def test_requests_are_whole_at_any_width(width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PURGE_LEDGER", str(tmp_path / "requests.db"))
    monkeypatch.setenv("COLUMNS", str(width))
    note = "by letter, archived as A-2026/11/0815-4711 in the third cabinet from the left"
    ran("request", "add", "--class", "seven", "--received", "2026-11-01", "--note", note)
    (row,) = ran("request", "list", "--json").json
    text = ran("request", "list").out
    is_whole(text, [str(row["number"]), row["received"], row["due"], "class seven", row["state"], note])
    shown = ran("request", "show", "1").out
    is_whole(shown, [row["received"], row["due"], note])


@pytest.mark.parametrize("width", WIDTHS)
def test_a_plan_of_a_bench_is_whole_at_any_width(
    width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    plan = Path(__file__).parents[2] / "configs" / "smoke.yaml"
    asked = ("bench", plan, "--out", tmp_path / "out", "--dry-run")
    rows = ran(*asked, "--json").json
    text = ran(*asked).out
    is_whole(text, [cell for row in rows for cell in (row["what"], str(row["jobs"]))])


def test_narrow_tables_become_blocks_and_heads_wrap_first() -> None:
    table = plain_table(["method", "FA after recal.", "TA"], [["purge", "0.0 %", "88.7 %"]], "Title")
    assert as_text(table, 60).count("FA after recal.") == 1
    narrow = as_text(table, 28)
    assert "FA after recal." not in narrow
    assert "0.0 %" in narrow
    assert "88.7 %" in narrow
    assert as_text(table, 20) == ("Title\n\npurge\n  FA after recal.  0.0 %\n  TA               88.7 %")
    assert isinstance(fitted(table, 20), str)
    assert as_text(listing(["name", "about"], [["a", "[red]x[/red] \x1b[31m y"]]), 9) == (
        "a\n  [red]x[/red]\n  \\x1b[31m\n  y"
    )


# -- colours and pipes ----------------------------------------------------------------------------


def on_a_terminal(*argv: str, **env: str) -> str:
    """What a command writes to a terminal of 100 columns."""
    keys = ("NO_COLOR", "FORCE_COLOR", "COLUMNS")
    clean = {key: value for key, value in os.environ.items() if key not in keys}
    theirs, ours = pty.openpty()
    process = subprocess.Popen(
        [*ENTRY, *argv], stdin=ours, stdout=ours, stderr=ours, env={**clean, "TERM": "xterm", **env}
    )
    os.close(ours)
    found = b""
    while True:
        try:
            block = os.read(theirs, 65536)
        except OSError:  # the other end is closed
            block = b""
        if not block:
            break
        found += block
    os.close(theirs)
    assert process.wait(60) == 0
    return found.decode()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "styled"),
    [
        ({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False), ({"NO_COLOR": ""}, True),
    ],
)  # fmt: skip
def test_styles_on_a_terminal(env: dict[str, str], styled: bool) -> None:
    text = on_a_terminal("list", "models", **env)
    assert "small-resnet" in text
    assert ("\x1b[" in text) == styled


@pytest.mark.parametrize(
    ("env", "styled"),
    [({}, False), ({"FORCE_COLOR": "1"}, True), ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False)],
)
def test_styles_in_a_pipe(env: dict[str, str], styled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(key, raising=False)
    for key, value in env.items():
        monkeypatch.setenv(key, value)
    assert ("\x1b[" in ran("list", "models").out) == styled
    assert "\x1b[" not in ran("list", "models", "--json").out


def test_a_reader_that_leaves_is_no_error() -> None:
    """It is gone before the first line is written."""
    line = f"{' '.join(ENTRY)} list methods | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (141, "", "")


# -- lists and help -------------------------------------------------------------------------------

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
@pytest.mark.parametrize("argv", [argv for argv in LIGHT if "--help" in argv], ids=" ".join)
def test_help_answers_at_once(argv: list[str]) -> None:
    """In .4 s on an idle core; processor time, since this one may be busy, which makes it a little more."""
    seconds = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        in_a_process([argv])
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(seconds) < 0.5


def test_as_a_module() -> None:
    argv = [sys.executable, "-m", "purge", "--version"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"purge {purge.__version__}\n", "")


def test_a_metric_says_what_it_tells() -> None:
    done = ran("list", "metrics", "relearn_few")
    assert all(word in done.out for word in ("relearn_few.steps", "share", "robustness", "fine-tuning"))
    assert "did you mean 'relearn_few'" in refused("list", "metrics", "relern_few")
