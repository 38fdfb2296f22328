"""A worker that is killed at a chosen moment."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Callable
from typing import Any

import pytest


def killed_at(target: str, work: Callable[[], Any]) -> None:
    """Do some work in a fork that kills itself when it comes to a function."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer Pythons warn of threads; there is none that matters
        child = os.fork()
    if child == 0:
        try:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(target, lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))
                work()
        finally:
            os._exit(99)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
