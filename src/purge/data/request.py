"""What was asked for, and by whom: what a record of a deletion says about its samples."""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

import torch

from purge.core.errors import DataError, brief
from purge.data.forgotten import wholly_forgotten
from purge.data.samples import Samples

if TYPE_CHECKING:
    from purge.data.split import Split

LONGEST = 1000  # characters of a field


@dataclass(frozen=True, kw_only=True)
class DeletionRequest:
    """Who asked for a deletion, and when: for the record. Every field may be left out.

    Args:
        id: of the request, as your own system has it.
        received: date, or date and time, in the form of ISO 8601.
        done: likewise; by default the time at which the run finished.
        by: who carried it out.
        model_version: of the model that the request was about.

    Example:
        >>> DeletionRequest(id="DSR-17", received="2026-11-01", by="A. Turing").received
        '2026-11-01'
    """

    id: str | None = None
    received: str | None = None
    done: str | None = None
    by: str | None = None
    model_version: str | None = None

    def __post_init__(self) -> None:
        """Check the dates; a date or datetime becomes text."""
        for key, value in self.to_dict().items():
            what, fix = f"text as {key} of a request, of 1 to {LONGEST} characters", "leave it out if unknown"
            dated = key in ("received", "done")
            if dated:
                what, fix = f"a date in the form of ISO 8601 as {key}", "write 2026-11-01, say"
            text = value.isoformat() if dated and isinstance(value, date) else value  # or a datetime
            try:
                good = isinstance(text, str) and 0 < len(text.strip()) <= len(text) <= LONGEST
                _ = dated and good and datetime.fromisoformat(text)
            except ValueError:
                good = False
            if not good:
                raise DataError(what, brief(value), fix)
            object.__setattr__(self, key, text)
        days = [datetime.fromisoformat(when).date() for when in (self.received, self.done) if when]
        if days != sorted(days):
            got = f"done on {self.done}"
            raise DataError(f"a request of {self.received} to be done later", got, "check both dates")

    def to_dict(self) -> dict[str, str]:
        """The fields that were given."""
        return {key: value for key, value in dataclasses.asdict(self).items() if value is not None}


# -- which samples ----------------------------------------------------------------------------


def described(split: Split) -> dict[str, Any]:
    """What run.json says about the samples of a request: row numbers, ids and digests, None where unknown.

    Rows are listed for single samples; a whole class is named by its number. Ids are listed if nothing of
    theirs is retained.
    """
    forget, classes = split.forget, sorted(split.forget_classes)
    rows = forget.ids if forget.cut else None
    numbers = b"" if rows is None else rows.sort().values.numpy().astype("<i8").tobytes()
    single = ~torch.isin(forget.labels, torch.tensor(classes, dtype=torch.long))
    return {
        "request": {} if split.single else {"forget_classes": classes},
        "forget_rows": None if rows is None else rows[single].sort().values.tolist(),
        "rows_of": forget.origin.size if forget.cut else None,
        "forget_digest": None if rows is None else hashlib.sha256(numbers).hexdigest(),
        "forget_subjects": wholly_forgotten(forget, split.retain) or None,
    }


def contents(split: Split) -> dict[str, str | None]:
    """Digests of what must go, what must stay and what was never seen."""
    return {
        "forget_content": content_digest(split.forget, streamed=True),
        "retain_content": content_digest(split.retain),
        "test_content": None if split.test is None else content_digest(split.test),
    }


def content_digest(samples: Samples, *, streamed: bool = False) -> str | None:
    """SHA-256 of what the samples are, in whatever order they come: of the sorted digests of each.

    None for data that differs when it is read again, and for data that is ``streamed`` unless it is read for
    this.
    """
    if samples.streamed and not streamed:
        return None
    seen = samples.look()
    return None if seen is None else hashlib.sha256(b"".join(sorted(seen.each()))).hexdigest()
