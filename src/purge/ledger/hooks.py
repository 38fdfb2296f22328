"""Before and after a run: a command of the user's, or a function."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Callable, Mapping
from typing import Any

from purge.core.errors import DataError, brief

Hook = str | Callable[[Mapping[str, Any]], Any]


class HookFailed(RuntimeError):
    """A hook that did not end well; not a bad request, something broke."""


def checked_hook(hook: Any, when: str) -> Hook | None:
    """A command or a function, or None."""
    if hook is None:
        return None
    if callable(hook):
        found: Hook = hook
        return found
    try:
        words = shlex.split(hook)
    except (ValueError, AttributeError, TypeError):
        words = []
    if not words:
        raise DataError(f"a command or a function {when} a run", brief(hook), "pass 'notify.sh', say")
    return str(hook)


def call_hook(hook: Hook | None, when: str, facts: Mapping[str, Any]) -> None:
    """Run a hook. A command gets the facts as ``PURGE_…`` in its environment: numbers and paths, no id."""
    if hook is None:
        return
    if callable(hook):
        hook(dict(facts))
        return
    told = {f"PURGE_{key.upper()}": _text(value) for key, value in facts.items()}
    try:  # not through a shell: nothing in the command is expanded
        code = subprocess.run(shlex.split(hook), env={**os.environ, **told}, stdout=2, check=False).returncode
    except OSError as error:
        raise HookFailed(f"the command {when} the run: {error.strerror}") from None
    if code:
        done = "; the batch itself had ended, see purge request list" if when == "after" else ""
        raise HookFailed(f"the command {when} the run ended with exit code {code}{done}")


def _text(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value))
    return "" if value is None else str(value)
