"""What a run is asked to do: how a batch is carried out, which requests it takes, what came of it."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from purge import Metric
from purge.core.errors import DataError, LedgerError, brief
from purge.core.plugins import current_folder_importable
from purge.core.settings import checked_seed
from purge.ledger.chain import Kind
from purge.ledger.policy import Policy, as_policy
from purge.ledger.records import Request
from purge.methods import resolve_method
from purge.metrics import read_conditions, resolve_metrics
from purge.verdict import Condition

if TYPE_CHECKING:
    from purge.ledger.ledger import Ledger


def settings_of(ledger: Ledger) -> tuple[Path, bool]:
    """Where versions are, and whether forgotten samples may be kept for audits."""
    settings = ledger.entries(Kind.SETTINGS)
    if not settings or ledger.current() is None:
        fix = "purge request init RUN names the model that requests begin with"
        raise LedgerError(f"a model in {ledger.name}", "none", fix)
    payload = settings[-1].payload
    return Path(payload["versions"]), bool(payload["keep_for_audit"])


@dataclass(frozen=True)
class BatchPlan:
    """How a batch is carried out. It stands in the record of the batch: who goes on with it does the same."""

    method: str
    settings: dict[str, Any]
    metrics: tuple[Metric, ...]
    gates: tuple[Condition, ...]
    fail_if: tuple[str, ...]
    policy: Policy
    retrain: bool
    seed: int
    device: str | None
    trust: bool
    progress: bool

    @classmethod
    def make(
        cls, method: str, settings: Mapping[str, Any] | None, metrics: Any, fail_if: Sequence[str],
        policy: Any, retrain: bool, seed: int, device: str | None, trust: bool, progress: bool,
    ) -> BatchPlan:  # fmt: skip
        """The plan; everything that can be refused without data is refused."""
        names = [metrics] if isinstance(metrics, str) else list(metrics)
        named = any(isinstance(name, str) and ":" in name for name in (method, *names))
        with current_folder_importable(named):
            resolve_method(method, settings or {})
            wanted = tuple(resolve_metrics(list(metrics) if isinstance(metrics, tuple) else metrics))
        if isinstance(fail_if, str):
            raise DataError("a list of conditions as fail_if", brief(fail_if), f"pass [{brief(fail_if)}]")
        gates = tuple(read_conditions(fail_if, wanted))
        return cls(
            method, dict(settings or {}), wanted, gates, tuple(fail_if), as_policy(policy), retrain,
            checked_seed(seed), device, trust, progress,
        )  # fmt: skip

    def leaves(self, reasons: Sequence[str]) -> bool:
        """Is a batch left to somebody else, for these reasons of the policy?"""
        return bool(reasons) and self.policy.action == "say" and not self.retrain

    def record(self, ledger: Ledger) -> dict[str, Any]:
        """What the ledger keeps of it, with the version and the data that it begins with."""
        current = ledger.current()
        return {
            "method": self.method, "settings": {k: str(v) for k, v in self.settings.items()},
            "metrics": [m.name for m in self.metrics], "fail_if": list(self.fail_if), "seed": self.seed,
            "policy": asdict(self.policy), "retrain": self.retrain,
            "parent": None if current is None else current.digest,
            "deliveries": len(ledger.entries(Kind.DELIVERY)),
        }  # fmt: skip


def check_days(value: Any, name: str, low: int) -> None:
    """Refuse what is no whole number from ``low`` up; None is left out."""
    if value is not None and (type(value) is not int or not low <= value < 10**6):
        raise DataError(f"a whole number from {low} up as {name}", brief(value), f"pass {name}={max(low, 7)}")


def chosen(
    ledger: Ledger, *, due: int | None, everything: bool, every: int | None, today: date
) -> list[Request]:
    """The open requests that a run is about, those with the nearest deadline first."""
    if every is not None:
        ended = [b.ended for b in ledger.batches() if b.state == "done" and b.ended]
        # The last as the chain has it; a clock that was ahead then must not make everybody wait for that day.
        if ended and 0 <= (today - date.fromisoformat(ended[-1][:10])).days < every:
            return []
    by = None if everything or every is not None or due is None else today + timedelta(days=due)
    return sorted(ledger.requests("open", by), key=lambda r: (r.due, r.number))


@dataclass(frozen=True)
class Outcome:
    """What a run did.

    ``state``: ``nothing`` was due; ``done``; ``missed``, a gate or the policy, or ``stopped`` by somebody, so
    that the version before stays and the requests are open; ``due``, a retraining, which the policy leaves to
    somebody else; ``not-found``, of all requests that were due, some ids are not in the data. ``not_found``:
    the requests that stay open for that reason, whatever was done about the others.
    """

    state: Literal["nothing", "done", "missed", "stopped", "due", "not-found"]
    requests: tuple[int, ...] = ()
    batch: int | None = None
    version: int | None = None
    folder: str | None = None
    kind: str | None = None  # unlearned or retrained; None: the model did not have to change
    reasons: tuple[str, ...] = ()
    found: Mapping[str, Any] = field(default_factory=dict)
    not_found: tuple[int, ...] = ()

    @property
    def code(self) -> int:
        """For schedulers: 0 done or nothing to do, 1 if something that was due is left open."""
        return int(self.state in ("missed", "stopped", "due") or bool(self.not_found))

    def facts(self) -> dict[str, Any]:
        """Numbers and paths, for hooks and programs."""
        keys = ("state", "batch", "version", "folder", "kind")
        return {
            **{key: getattr(self, key) for key in keys}, "requests": list(self.requests),
            "reasons": list(self.reasons), "not_found": list(self.not_found),
        }  # fmt: skip


# -- hooks: a command of the user's, or a function, before and after a run ---------------------

Hook = str | Callable[[Mapping[str, Any]], Any]


class HookFailed(RuntimeError):
    """A hook that did not end well; not a bad request, something broke."""


def checked_hook(hook: Any, when: str) -> Hook | None:
    """A command or a function, or None."""
    try:
        if hook is None or callable(hook) or shlex.split(hook):
            return cast("Hook | None", hook)
    except (ValueError, AttributeError, TypeError):
        pass
    raise DataError(f"a command or a function {when} a run", brief(hook), "pass 'notify.sh', say")


def call_hook(hook: Hook | None, when: str, facts: Mapping[str, Any]) -> None:
    """Run a hook. A command gets the facts as ``PURGE_…`` in its environment: numbers and paths, no id."""
    if hook is None:
        return
    if callable(hook):
        hook(dict(facts))
        return
    variables = {}
    for key, value in facts.items():
        shown = ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
        variables[f"PURGE_{key.upper()}"] = "" if value is None else shown
    environment = {**os.environ, **variables}
    try:  # not through a shell: nothing in the command is expanded
        code = subprocess.run(shlex.split(hook), env=environment, stdout=2, check=False).returncode
    except OSError as error:
        raise HookFailed(f"the command {when} the run: {error.strerror}") from None
    if code:
        done = "; the batch itself had ended, see purge request list" if when == "after" else ""
        raise HookFailed(f"the command {when} the run ended with exit code {code}{done}")
