"""Carrying requests out in the background: ``purge request run`` in a process of its own.

Whatever happens to that process, the page stays. The ledger's own lock lets one worker work at a time.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from purge.core.errors import BusyError
from purge.requests.dates import now
from purge.requests.ledger import Ledger
from purge.requests.settings import settings_of
from purge.requests.words import came_of

PATIENCE = 10.0  # seconds for a worker to end when the page is closed
STAYS = "The version before is still the current one, and the next run goes on."
BROKE = 3  # the exit code of a command in which something broke


class Runner:
    """One run at a time, and what came of the last.

    Args:
        ledger: that of the page.
        environment: what the process needs beside our own environment. Where the ledger is stands here and
            not among its arguments, which everybody on the machine may read.
        options: of ``purge request run``, chosen by whoever started the page: policy, gates, method.
    """

    def __init__(self, ledger: Ledger, environment: Mapping[str, str], options: Sequence[str] = ()) -> None:
        self._ledger, self._environment, self._options = ledger, dict(environment), tuple(options)
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._told: dict[str, Any] = {"state": "idle"}

    def state(self) -> dict[str, Any]:
        """``state`` is idle, running, done or failed; of a run that ended, ``words`` and ``outcome``."""
        with self._lock:
            return dict(self._told)

    def start(
        self, *, due: int = 7, everything: bool = False, at_most: int | None = None, retrain: bool = False
    ) -> dict[str, Any]:
        """Begin to carry out what is due. Refused while another worker has the ledger."""
        settings_of(self._ledger)  # no model: said now
        argv = self.argv(due=due, everything=everything, at_most=at_most, retrain=retrain)
        with self._lock:
            if self._told["state"] == "running":
                got = f"one that runs since {self._told['since']}"
                raise BusyError("no other run of this page", got, "wait for it to end")
            with self._ledger.working():  # is it another process?
                pass
            self._process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, encoding="utf-8", errors="replace",
                env={**os.environ, **self._environment},
            )  # fmt: skip
            self._told = {"state": "running", "since": now()}
            threading.Thread(target=self._watch, args=(self._process,), name="purge run", daemon=True).start()
            return dict(self._told)

    def argv(self, *, due: int, everything: bool, at_most: int | None, retrain: bool) -> list[str]:
        """The command that a run is."""
        # -P: with -m alone, Python would import importlib.py and the like from the folder we were started in.
        argv = [sys.executable, "-P", "-m", "purge", "request", "run", "--json", "--quiet", f"--due={due}"]
        argv += ["--all"] * everything + ["--retrain"] * retrain + [f"--at-most={at_most}"] * bool(at_most)
        return [*argv, *self._options]

    def _watch(self, process: subprocess.Popen[str]) -> None:
        out, err = process.communicate()
        found = read_end(process.returncode, out, err)
        with self._lock:
            self._told = {"since": self._told["since"], "ended": now(), **found}

    def stop(self) -> None:
        """End a run that is under way, as Ctrl-C would."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.terminate()
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def read_end(code: int, out: str, err: str) -> dict[str, Any]:
    """What a run that has ended tells, from its exit code and what it wrote."""
    if code in (0, 1):
        try:
            facts = json.loads(out)
            return {"state": "done" if code == 0 else "failed", "words": came_of(facts), "outcome": facts}
        except (ValueError, KeyError, TypeError):
            pass
    return {"state": "failed", "words": _why(code, err), "outcome": None}


def _why(code: int, err: str) -> str:
    lines = [line for line in err.splitlines() if line.startswith("Error: ")]
    last = lines[-1].removeprefix("Error: ") if lines else ""
    if code == 2 and last:  # an error of our own, which names no id
        return last
    if code == BROKE and last:  # the message of others may quote anything; the log has it
        kind = re.match(r"something broke(?: in the model)?: (\w+)", last)
        log = re.search(r"The traceback is in (\S+);", last)
        told = f" Its traceback is in {log[1]}." if log else ""
        return f"Something broke{f': {kind[1]}' if kind else ''}.{told} {STAYS}"
    ended = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    return f"The run ended by {ended}. {STAYS}"
