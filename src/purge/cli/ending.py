"""How a command ends: its exit code, one line on stderr, and what an interruption keeps."""

from __future__ import annotations

import errno
import os
import platform
import re
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import typer

import purge
from purge.cli import several
from purge.cli.printing import complain
from purge.core.errors import BrokenModelError, Exit, PurgeError, expected

PIPE = 141  # the exit code of a program whose reader has gone away
INTERRUPTED = 130  # what the parser makes of a KeyboardInterrupt
ParserError: Any = typer.BadParameter.__mro__[2]  # the base of every error of the parser


@dataclass(frozen=True)
class Ended:
    """How a command ended, for the program that started it."""

    code: int
    error: str = ""  # the class of what was raised
    message: str = ""  # of a bad request, which names no id; where something broke it may quote anything
    log: str = ""  # the file with the traceback


@dataclass
class Running:
    """The command that runs, as far as its end depends on it; commands find it in their context."""

    debug: bool = False  # print the traceback too
    signal: int = 0  # what interrupted it
    kept: Callable[[], str] = lambda: "Run the command again."  # what an interruption keeps, and how to go on
    tell: Callable[[Ended], None] = lambda ended: None  # is called once the command has ended
    speaks: bool = True  # of several ranks, one does


def running_in(context: typer.Context) -> Running:
    """What is known about the command that runs."""
    return context.ensure_object(Running)


def run(command: Callable[[], Any], names: Container[str], running: Running) -> int:
    """Run a command, print its one line if it fails, and return the exit code; ``names``: of all commands."""
    code: int = 0
    error: BaseException | None = None
    with _interruptible(running):
        try:
            code = command() or 0
            sys.stdout.flush()
        except BaseException as caught:  # whatever it is, it ends in one line
            error = caught.__cause__ if isinstance(caught, typer.Abort) and caught.__cause__ else caught
    stopped = bool(running.signal) or code == INTERRUPTED or isinstance(error, KeyboardInterrupt)
    if stopped or error is not None:
        running.speaks = several.speaks()
    if stopped:
        number, words = signal.Signals(running.signal or signal.SIGINT), ""
        with suppress(Exception, KeyboardInterrupt):  # files that cannot be read do not matter now
            words = running.kept()
        _say(f"Interrupted by {number.name}. {words}", running)
        ended = Ended(128 + number, KeyboardInterrupt.__name__)
    else:
        ended = Ended(code) if error is None else _failed(error, names, running)
    with suppress(OSError, PurgeError):  # the exit code says it all the same
        running.tell(ended)
    return ended.code


@contextmanager
def _interruptible(running: Running) -> Iterator[None]:
    """Within the block, SIGTERM interrupts like Ctrl-C."""

    def interrupt(number: int, _frame: object) -> None:
        running.signal = number
        raise KeyboardInterrupt

    usual, before = (signal.SIG_DFL, signal.default_int_handler), {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) in usual:  # one that is ignored stays so
                before[number] = signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _failed(error: BaseException, names: Container[str], running: Running) -> Ended:
    """Say in one line what was raised; what broke also gets a file with the traceback."""
    kind = type(error).__name__
    raised = error.__context__ if isinstance(error, SystemExit) else error  # the parser turns one into it
    if running.debug and running.speaks:
        traceback.print_exception(error)
    if isinstance(error, PurgeError) and error.exit_code is Exit.REFUSED:
        said = re.sub(r"\b(by|with) (force|resume)\b", r"\1 --\2", str(error))  # arguments as options
    elif isinstance(error, ParserError):
        said = error.format_message().rstrip(".")
        command = next((f"purge {word}" for word in sys.argv[1:] if word in names), "purge")
        said = f"{said}{'' if said.endswith('?') else '.'} Fix: see {command} --help."
    elif isinstance(raised, OSError) and raised.errno == errno.EPIPE:  # the reader of stdout is gone
        _drop_output()
        return Ended(PIPE, kind)
    elif isinstance(error, OSError):
        fix = "make room, check permissions, or choose another place"
        said = expected("reading and writing to work", str(error), fix)
    else:
        cause = error.__cause__ if isinstance(error, BrokenModelError) and error.__cause__ else error
        log, where = _logged(error) if running.speaks else ("", "")
        broke = f"something broke{' in the model' * (cause is not error)}"
        _say(f"Error: {broke}: {_short(cause)}. {where}", running)
        return Ended(Exit.BROKE, type(cause).__name__, log=log)
    _say(f"Error: {said}", running)
    return Ended(Exit.REFUSED, kind, said)


def _short(error: BaseException) -> str:
    words = " ".join(str(error).split())[:300].rstrip(".")
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def _logged(error: BaseException) -> tuple[str, str]:
    """Write the traceback to a file of its own: which one, and that in words."""
    about = f"purge {purge.__version__}, Python {platform.python_version()}, {platform.platform()}"
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix=time.strftime("purge-crash-%Y%m%d-%H%M%S-"), suffix=".log", delete=False,
            encoding="utf-8", errors="backslashreplace",
        ) as file:  # fmt: skip
            file.write(f"{about}\n{sys.argv}\n\n{''.join(traceback.format_exception(error))}")
    except (OSError, MemoryError) as why:
        return "", f"No log could be written ({_short(why)}); --debug shows the traceback."
    return file.name, f"The traceback is in {file.name}; --debug shows it."


def _say(line: str, running: Running) -> None:
    _drop_output()
    if running.speaks:
        with suppress(OSError, ValueError):
            complain(" ".join(line.split()))


def _drop_output() -> None:
    """If stdout no longer works, write nothing more to it, not even what is buffered at exit."""
    with suppress(OSError):
        sys.stdout.flush()
        return
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
