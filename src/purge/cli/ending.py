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
from pathlib import Path
from typing import Any

import typer

import purge
from purge.cli import several
from purge.cli.printing import complain
from purge.core.errors import PurgeError, expected

MISSED, REFUSED, BROKE = 1, 2, 3  # a threshold, a bad request, something
PIPE = 141  # the exit code of a program whose reader has gone away
INTERRUPTED = 130  # what the parser makes of a KeyboardInterrupt
ParserError: Any = typer.BadParameter.__mro__[2]  # the base of every error of the parser


@dataclass
class Running:
    """The command that runs, as far as its end depends on it."""

    debug: bool = False
    signal: int = 0  # what interrupted it
    kept: Callable[[], str] = lambda: "Run the command again."
    speaks: bool = True  # of several ranks, one does


_running = Running()


def show_traceback(wanted: bool) -> None:
    """Print the traceback too if the command fails: what ``--debug`` asks for."""
    _running.debug = _running.debug or wanted


def keeps(words: Callable[[], str]) -> None:
    """From now on, an interrupted command says with these words what it has kept and how to go on."""
    _running.kept = words


def run(command: Callable[[], Any], names: Container[str]) -> int:
    """Run a command, print its one line if it fails, and return the exit code; ``names``: of all commands."""
    global _running
    _running = Running()
    code: int = 0
    error: BaseException | None = None
    with _interruptible():
        try:
            code = command() or 0
            sys.stdout.flush()
        except BaseException as caught:  # whatever it is, it ends in one line
            error = caught.__cause__ if isinstance(caught, typer.Abort) and caught.__cause__ else caught
    stopped = bool(_running.signal) or code == INTERRUPTED or isinstance(error, KeyboardInterrupt)
    if stopped or error is not None:
        _running.speaks = several.speaks()
    if stopped:
        return _interrupted()
    return code if error is None else _failed(error, names)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Within the block, SIGTERM interrupts like Ctrl-C."""

    def interrupt(number: int, _frame: object) -> None:
        _running.signal = number
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


def _interrupted() -> int:
    number = signal.Signals(_running.signal or signal.SIGINT)
    words = ""
    with suppress(Exception, KeyboardInterrupt):  # files that cannot be read do not matter now
        words = _running.kept()
    _say(f"Interrupted by {number.name}. {words}")
    return 128 + number


def _failed(error: BaseException, names: Container[str]) -> int:
    if _running.debug and _running.speaks:
        traceback.print_exception(error)
    if isinstance(error, PurgeError):
        said = re.sub(r"\b(by|with) (force|resume)\b", r"\1 --\2", str(error))  # arguments as options
    elif isinstance(error, ParserError):
        said = error.format_message().rstrip(".")
        asked = next((f"purge {word}" for word in sys.argv[1:] if word in names), "purge")
        said = f"{said}{'' if said.endswith('?') else '.'} Fix: see {asked} --help."
    elif _of_a_model(error):
        _say(f"Error: something broke in the model: {_short(error)}. {_logged(error)}")
        return BROKE
    elif _reader_is_gone(error):
        _drop_output()
        return PIPE
    elif isinstance(error, OSError):
        fix = "make room, check permissions, or choose another place"
        said = expected("reading and writing to work", str(error), fix)
    else:
        _say(f"Error: something broke: {_short(error)}. {_logged(error)}")
        return BROKE
    _say(f"Error: {said}")
    return REFUSED


def _of_a_model(error: BaseException) -> bool:
    """Was it raised while a model ran? Then a file that it misses, say, is no bad request."""
    found = error.__context__ if isinstance(error, SystemExit) else error  # see _reader_is_gone
    frames = traceback.extract_tb(found.__traceback__) if isinstance(found, OSError) else []
    return any(Path(frame.filename).parts[-2:] == ("models", "forward.py") for frame in frames)


def _reader_is_gone(error: BaseException) -> bool:
    """Did the reader of stdout go away? The parser turns that into SystemExit."""
    errors = (error, error.__context__ if isinstance(error, SystemExit) else None)
    return any(isinstance(e, OSError) and e.errno == errno.EPIPE for e in errors)


def _short(error: BaseException) -> str:
    words = " ".join(str(error).split())[:300].rstrip(".")
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def _logged(error: BaseException) -> str:
    """Write the traceback to a file of its own, and say where it is."""
    if not _running.speaks:
        return ""
    about = f"purge {purge.__version__}, Python {platform.python_version()}, {platform.platform()}"
    name = ""
    try:
        text = f"{about}\n{sys.argv}\n\n{''.join(traceback.format_exception(error))}"
        stamp = time.strftime("%Y%m%d-%H%M%S")
        opened, name = tempfile.mkstemp(prefix=f"purge-crash-{stamp}-", suffix=".log")
        with os.fdopen(opened, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
    except (OSError, MemoryError) as why:
        with suppress(OSError):
            os.unlink(name)
        return f"No log could be written ({_short(why)}); --debug shows the traceback."
    return f"The traceback is in {name}; --debug shows it."


def _say(line: str) -> None:
    _drop_output()
    if _running.speaks:
        with suppress(OSError, ValueError):
            complain(" ".join(line.split()))


def _drop_output() -> None:
    """If stdout no longer works, write nothing more to it, not even what is buffered at exit."""
    with suppress(OSError):
        sys.stdout.flush()
        return
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
