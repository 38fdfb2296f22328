"""The command line as an attacker meets it: a process of its own for each command, watched from outside.

A command starts in a fork of one process that has imported everything, so a case takes milliseconds instead
of the seconds that torch needs to start. The fork is limited in time and memory and may be killed at any
moment. What it leaves behind is seen from outside: exit code, output, files.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

SECONDS, MEMORY = 120, 4 << 30  # limits of one command; memory beyond what is mapped at its start
LOG = "PURGE_TRIAL_LOG"  # a file that gets one line per case
REFUSED = re.compile(r"Error: [^\n]+\. Fix: [^\n]+\.\n")


class Ending(NamedTuple):
    """How a command ended."""

    code: int  # of the exit; minus the signal that killed it
    out: str
    err: str
    seconds: float
    late: bool = False  # it ran into the limit

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


class Shell:
    """Runs commands in forks of one process."""

    def __init__(self) -> None:
        env = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TERM": "xterm"}
        # Modules of the folder that a command runs in must not be found: the fork changes into it later.
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
        )

    def run(
        self, *argv: Any, cwd: Path, kill_after: float | None = None, by: int = signal.SIGKILL,
        seconds: float = SECONDS,
    ) -> Ending:  # fmt: skip
        """Run ``purge ARGV`` in a folder; with ``kill_after``, send it a signal after so many seconds."""
        asked = {"argv": [str(a) for a in argv], "cwd": str(cwd), "kill_after": kill_after, "by": int(by)}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({**asked, "seconds": seconds}) + "\n")
        self._process.stdin.flush()
        return Ending(**json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        """End the process that forks."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(10)
        self._process.stdout.close()


def tree(*folders: Path) -> dict[str, bytes | None]:
    """Everything below some folders: the content of files, None for folders."""
    found = [p for folder in folders for p in folder.rglob("*")]
    return {str(p): p.read_bytes() if p.is_file() else None for p in found}


def counted(kind: str, ending: str = "") -> None:
    """Write down that a case was tried, if somebody counts."""
    if log := os.environ.get(LOG):
        with Path(log).open("a", encoding="utf-8") as file:  # one short line: whole even from two processes
            file.write(json.dumps({"kind": kind, "ending": ending}) + "\n")


# -- the process that forks -----------------------------------------------------------------------


def serve() -> None:
    """Import everything once, then run each command that is asked for in a fork."""
    import importlib

    sys.path[:] = [p for p in sys.path if p and Path(p) != Path(__file__).parent]
    for name in [
        "cli.app",
        "ledger.worker",
        "runs.evidence",
        "bench.runner",
        "bench.figures",
        "report.figures",
    ]:
        importlib.import_module(f"purge.{name}")
    import torch

    torch.optim.SGD([torch.zeros(1)], lr=1.0)  # the first optimiser imports for seconds
    for line in sys.stdin:
        print(json.dumps(_ending(json.loads(line))), flush=True)


def _ending(asked: dict[str, Any]) -> dict[str, Any]:
    import tempfile

    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        started = time.monotonic()
        child = os.fork()
        if child == 0:
            _become(asked, out.fileno(), err.fileno())
        status, late = _waited(child, asked["kill_after"], asked["by"], started + asked["seconds"])
        seconds = time.monotonic() - started
        texts = {}
        for name, file in (("out", out), ("err", err)):
            file.seek(0)
            texts[name] = file.read().decode(errors="replace")
    return {"code": os.waitstatus_to_exitcode(status), **texts, "seconds": seconds, "late": late}


def _become(asked: dict[str, Any], out: int, err: int) -> None:
    """In the fork: run the command, and never return."""
    import resource

    from purge.cli.app import main

    code = 99
    try:
        os.setsid()
        for to, source in ((0, os.open(os.devnull, os.O_RDONLY)), (1, out), (2, err)):
            os.dup2(source, to)
        mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (mapped + MEMORY,) * 2)
        os.chdir(asked["cwd"])
        sys.argv = ["purge", *asked["argv"]]
        main()
        code = 98  # main always exits
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 97
    except BaseException:
        import traceback

        traceback.print_exc()
        code = 96
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)


def _waited(child: int, kill_after: float | None, by: int, until: float) -> tuple[int, bool]:
    """Wait for a process; kill it at its time, and all that it started when it runs too long."""
    at = None if kill_after is None else time.monotonic() + kill_after
    while True:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return status, False
        if at is not None and time.monotonic() >= at:
            os.kill(child, by)
            at = None
        if time.monotonic() >= until:
            os.killpg(child, signal.SIGKILL)
            return os.waitpid(child, 0)[1], True
        time.sleep(0.002)


if __name__ == "__main__":
    serve()
