"""The command line as tests call it: in this process, with what it printed."""

from __future__ import annotations

import io
import json
import re
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from purge.cli import app as cli

ANY_TARGET = ("--set", "forget_target=1")  # so that the run is a success, however little it forgets
FEW_STEPS = ("--set", "steps=2", "--set", "batch_size=16", *ANY_TARGET)


class Done(NamedTuple):
    """How a command ended."""

    code: Any
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Terminal(io.StringIO):
    """A stream that says it is a terminal, so that progress is shown on it."""

    def isatty(self) -> bool:
        return True


def command(*argv: Any, terminal: bool = False) -> Done:
    """Run the command line in this process."""
    out, err = io.StringIO(), Terminal() if terminal else io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["purge", *map(str, argv)])
        patch.setenv("TERM", "xterm")
        with pytest.raises(SystemExit) as ended:
            cli.main()
    return Done(ended.value.code or 0, out.getvalue(), err.getvalue())


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def good(done: Done) -> Done:
    assert done.code == 0, done.err
    return done


def ran(*argv: Any) -> Done:
    return good(command(*argv))


def refused(*argv: Any) -> str:
    return refusal(command(*argv))


def refusal(done: Done) -> str:
    """The one line that a bad request ends with."""
    assert (done.code, done.out) == (2, "")
    assert re.fullmatch(r"Error: Expected [^\n]+, got [^\n]+\. Fix: [^\n]+\.\n", done.err), done.err
    return done.err


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())
