"""The command line as an attacker meets it: a process of its own for each command, watched from outside.

A command starts in a fork of a server that has imported everything, so a case takes milliseconds instead of
the seconds that torch needs to start. The fork is limited in time and memory and may be killed at any moment.
What it leaves behind is seen from outside: exit code, output, files.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import resource
import signal
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from purge.cli.app import main

SECONDS, MEMORY = 120, 4 << 30  # limits of one command; memory beyond what is mapped at its start
REFUSED = re.compile(r"Error: [^\n]+\. Fix: [^\n]+\.\n")
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload([
    "purge.cli.app", "purge.ledger.worker", "purge.runs.evidence", "purge.bench.runner",
    "purge.bench.figures", "purge.report.figures", "torch._dynamo",
])  # fmt: skip


class Ending(NamedTuple):
    """How a command ended."""

    code: int  # of the exit; minus the signal that killed it
    out: str
    err: str
    seconds: float
    late: bool  # it ran into the limit

    @property
    def fault(self) -> str:
        """What a command must never do, in words; empty if it behaved."""
        if self.late:
            return f"still running after {SECONDS} s"
        if "Traceback (most recent call last)" in self.out + self.err:
            return "a traceback"
        if self.code not in (0, 1, 2):
            return f"exit code {self.code}"
        if self.code == 2 and not REFUSED.fullmatch(self.err):
            return "a refusal that is not one line with a fix"
        return ""


def run(*argv: Any, cwd: Path, kill_after: float | None = None, by: int = signal.SIGKILL) -> Ending:
    """Run ``purge ARGV`` in a folder; with ``kill_after``, send it a signal after so many seconds."""
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        out.touch()
        err.touch()
        child = FORKS.Process(target=_become, args=([*map(str, argv)], cwd, out, err))
        started = time.monotonic()
        with pytest.MonkeyPatch.context() as patch:  # the server takes them over when it starts
            for name, value in (("HF_HUB_OFFLINE", "1"), ("OMP_NUM_THREADS", "1"), ("TERM", "xterm")):
                patch.setenv(name, value)
            child.start()
        if kill_after is not None:
            child.join(kill_after)
            if child.is_alive():
                os.kill(child.pid, by)
        child.join(SECONDS)
        if late := child.is_alive():
            os.killpg(child.pid, signal.SIGKILL)  # with all that it started
            child.join()
        texts = (file.read_text(encoding="utf-8", errors="replace") for file in (out, err))
        return Ending(child.exitcode, *texts, time.monotonic() - started, late)


def _become(argv: list[str], cwd: Path, out: Path, err: Path) -> None:
    """In the fork: run the command, and never return."""
    code = 99
    try:
        os.setsid()
        for to, name, how in ((0, os.devnull, os.O_RDONLY), (1, out, os.O_WRONLY), (2, err, os.O_WRONLY)):
            os.dup2(os.open(name, how), to)
        mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (mapped + MEMORY,) * 2)
        os.chdir(cwd)
        sys.argv = ["purge", *argv]
        main()
        code = 98  # main always exits
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 97
    except BaseException:
        traceback.print_exc()
        code = 96
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)


def tree(*folders: Path) -> dict[str, bytes | None]:
    """Everything below some folders: the content of files, None for folders."""
    found = [p for folder in folders for p in folder.rglob("*")]
    return {str(p): p.read_bytes() if p.is_file() else None for p in found}


def counted(kind: str, ending: str = "") -> None:
    """Write down that a case was tried, if somebody counts."""
    if log := os.environ.get("PURGE_TRIAL_LOG"):
        with Path(log).open("a", encoding="utf-8") as file:  # one short line: whole even from two processes
            file.write(json.dumps({"kind": kind, "ending": ending}) + "\n")
