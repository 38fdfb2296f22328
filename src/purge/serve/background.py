"""Carrying requests out in the background: ``purge request run`` in a process of its own.

Whatever happens to that process, the page stays. The ledger's own lock lets one worker work at a time.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from purge.core.errors import BusyError, Exit, FileError
from purge.core.files import read_json
from purge.core.schema import build
from purge.ledger.chain import now
from purge.ledger.ledger import Ledger
from purge.ledger.plan import settings_of
from purge.ledger.records import RunRecord
from purge.ledger.words import came_of

PATIENCE = 10.0  # seconds for a worker to end when the page is closed
STAYS = "The version before is still the current one, and the next run goes on."


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
        self._process: subprocess.Popen[bytes] | None = None
        self._state: dict[str, Any] = {"state": "idle"}

    def state(self) -> dict[str, Any]:
        """``state`` is idle, running, done or failed; of a run that ended, ``words`` and ``outcome``."""
        with self._lock:
            return dict(self._state)

    def start(
        self, *, due: int = 7, everything: bool = False, at_most: int | None = None, retrain: bool = False
    ) -> dict[str, Any]:
        """Begin to carry out what is due. Refused while another worker has the ledger."""
        settings_of(self._ledger)  # no model: said now
        argv = self.argv(due=due, everything=everything, at_most=at_most, retrain=retrain)
        with self._lock:
            if self._state["state"] == "running":
                got = f"one that runs since {self._state['since']}"
                raise BusyError("no other run of this page", got, "wait for it to end")
            with self._ledger.working():  # is it another process?
                pass
            record = Path(tempfile.mkdtemp(prefix="purge-run-")) / "ended.json"
            self._process = subprocess.Popen(
                [*argv, f"--record={record}"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL, env={**os.environ, **self._environment},
            )  # fmt: skip
            self._state = {"state": "running", "since": now()}
            watch = (self._process, record)
            threading.Thread(target=self._watch, args=watch, name="purge run", daemon=True).start()
            return dict(self._state)

    def argv(self, *, due: int, everything: bool, at_most: int | None, retrain: bool) -> list[str]:
        """The command that a run is."""
        # -P: with -m alone, Python would import importlib.py and the like from the folder we were started in.
        argv = [sys.executable, "-P", "-m", "purge", "request", "run", "--quiet", f"--due={due}"]
        argv += ["--all"] * everything + ["--retrain"] * retrain + [f"--at-most={at_most}"] * bool(at_most)
        return [*argv, *self._options]

    def _watch(self, process: subprocess.Popen[bytes], record: Path) -> None:
        ending = read_end(process.wait(), record)
        shutil.rmtree(record.parent, ignore_errors=True)
        with self._lock:
            self._state = {"since": self._state["since"], "ended": now(), **ending}

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


def read_end(code: int, record: Path) -> dict[str, Any]:
    """What came of a run, from its exit code and the record that it wrote, if it came to that."""
    try:
        ended = build(RunRecord, read_json(record), str(record))
    except FileError:  # it was killed
        ended = RunRecord(code)
    if ended.outcome is not None and code in (Exit.DONE, Exit.MISSED):
        state = "done" if code == Exit.DONE else "failed"
        return {"state": state, "words": came_of(ended.outcome), "outcome": ended.outcome}
    if code == Exit.REFUSED and ended.message:
        words = ended.message
    elif code == Exit.BROKE:
        log = f" Its traceback is in {ended.log}." if ended.log else ""
        words = f"Something broke{f': {ended.error}' if ended.error else ''}.{log} {STAYS}"
    else:
        by = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        words = f"The run ended by {by}. {STAYS}"
    return {"state": "failed", "words": words, "outcome": None}
