"""What was asked for, and by whom: what a record of a deletion says about its samples."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Subset

from purge.core.errors import DataError, brief
from purge.data import inputs
from purge.data.identity import steady
from purge.data.ids import subjects_in
from purge.data.images import Images
from purge.data.pair import Pair
from purge.data.ragged import without_pads
from purge.data.samples import Data, Samples, batches, few, streamed, unwrap

if TYPE_CHECKING:
    from purge.data.split import Split

LONGEST = 1000  # characters of a field
DIGESTED_BYTES = 1 << 28  # retained and test data up to this size gets a digest of its content
BLOCK = 1 << 24  # bytes that are digested at a time


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
            if key in ("received", "done"):
                value = _iso(value, key)
            elif not isinstance(value, str) or not value.strip() or len(value) > LONGEST:
                what = f"text as {key} of a request, of at most {LONGEST} characters"
                raise DataError(what, brief(value), "leave it out if unknown")
            object.__setattr__(self, key, value)
        if self.received and self.done and _day(self.done) < _day(self.received):
            got = f"done on {self.done}"
            raise DataError(f"a request of {self.received} to be done later", got, "check both dates")

    def to_dict(self) -> dict[str, str]:
        """The fields that were given."""
        return {key: value for key, value in dataclasses.asdict(self).items() if value is not None}


def _iso(value: Any, key: str) -> str:
    if isinstance(value, date):  # a datetime is one too
        return value.isoformat()
    try:
        datetime.fromisoformat(value)
    except (TypeError, ValueError):
        what = f"a date in the form of ISO 8601 as {key}"
        raise DataError(what, brief(value), "write 2026-11-01, say") from None
    return str(value)


def _day(text: str) -> date:
    return datetime.fromisoformat(text).date()


# -- which samples ----------------------------------------------------------------------------


def described(split: Split, forget: Data, retain: Data = None) -> dict[str, Any]:
    """What run.json says about the samples of a request: row numbers, ids and digests, None where unknown.

    ``forget`` is the data as the caller gave it: it may know which rows of the training data it is, and
    whose. Rows are listed for single samples; a whole class is named by its number. Ids are listed if
    nothing of theirs is in ``retain``.
    """
    rows, of = _numbers(forget)
    gone = sorted(split.forget_classes)
    single = ~torch.isin(split.forget.labels, torch.tensor(gone, dtype=torch.long))
    return {
        "request": {} if split.single else {"forget_classes": gone},
        "forget_rows": None if rows is None else rows[single].sort().values.tolist(),
        "rows_of": of,
        "forget_digest": None if rows is None else _digest_of_numbers(rows.sort().values),
        "forget_subjects": wholly_gone(forget, retain) or None,
    }


def wholly_gone(forget: Data, retain: Data) -> list[str]:
    """The ids that have samples in forget and none in retain, sorted; empty if none are known."""
    ours, theirs = (set(subjects_in(data)) for data in (forget, retain))
    return sorted(ours - theirs - {""})


def contents(split: Split) -> dict[str, str | None]:
    """Digests of what must go, what must stay and what was never seen."""
    return {
        "forget_content": content_digest(split.forget),
        "retain_content": content_digest(split.retain, most=DIGESTED_BYTES),
        "test_content": None if split.test is None else content_digest(split.test, most=DIGESTED_BYTES),
    }


def _numbers(data: Data) -> tuple[Tensor | None, int | None]:
    """The row numbers of a part of some data, and how many rows that has, where they are known."""
    if isinstance(data, Images):
        return data.ids, None
    if isinstance(data, Pair) and data.rows is not None:
        return data.rows.cpu(), _rows_of(data.whole)
    if isinstance(data, Subset):
        base, index = unwrap(data)
        return index, len(base)
    return None, None


def _rows_of(whole: Any) -> int:
    """How many rows there are in what a pair was cut out of: inputs, or a dataset."""
    return (
        len(whole)
        if hasattr(whole, "__getitem__") and not isinstance(whole, (dict, tuple))
        else inputs.count(whole)
    )


def _digest_of_numbers(rows: Tensor) -> str:
    """SHA-256 of sorted numbers, 64 bits each, lowest byte first."""
    return hashlib.sha256(rows.numpy().astype("<i8").tobytes()).hexdigest()


def content_digest(samples: Samples, *, most: int | None = None) -> str | None:
    """SHA-256 of what the samples are, in whatever order they come.

    Each sample has a SHA-256 of its own, of the bytes of its inputs (of an image its pixels, as bytes and
    before any scaling) and its label (64 bits, lowest byte first). The digest is that of these, sorted and
    joined. None for data that differs when it is read again, and for more than ``most`` bytes.
    """
    if most is not None and (streamed(samples) or size_of(samples) > most):
        return None
    if not steady(samples):
        return None
    each = sorted(hashlib.sha256(row).digest() for block in _blocks(samples) for row in block)
    return hashlib.sha256(b"".join(each)).hexdigest()


def sample_digests(samples: Samples) -> list[bytes]:
    """The SHA-256 of each sample, as :func:`content_digest` has it, but without padding; empty if they vary.

    Rows that were padded to the longest of a set are digested without: another set has another longest.
    """
    if not steady(samples):
        return []
    pads = getattr(samples, "pads", ())
    if not any(pad is not None for pad in pads):
        return [hashlib.sha256(row).digest() for block in _blocks(samples) for row in block]
    found = []
    for x, y in batches(samples, 1024):
        leaves = [t.detach().cpu().numpy() for t in inputs.leaves(x)]
        for i, label in enumerate(y.tolist()):
            rows = [without_pads(t[i], pad) for t, pad in zip(leaves, pads, strict=True)]
            whole = b"".join(np.ascontiguousarray(row).tobytes() for row in rows)
            found.append(hashlib.sha256(whole + label.to_bytes(8, "little")).digest())
    return found


def size_of(samples: Samples) -> int:
    """Bytes that are digested."""
    one = samples.select(torch.tensor([0])).pixels if isinstance(samples, Images) else few(samples, 1)
    return len(samples) * inputs.size(one)


def _blocks(samples: Samples) -> Iterator[NDArray[np.uint8]]:
    """The samples as rows of bytes, each ending with its label, a block of rows at a time."""
    rows = max(1, BLOCK * len(samples) // max(1, size_of(samples)))
    parts: Iterator[tuple[Any, Tensor]]
    if isinstance(samples, Images):
        order = torch.arange(len(samples)).split(rows)
        parts = ((samples.select(index).pixels, samples.labels[index]) for index in order)
    else:
        parts = batches(samples, rows)
    for x, y in parts:
        leaves = [*inputs.leaves(x), y]
        yield np.concatenate([_bytes(t) for t in leaves], axis=1)


def _bytes(t: Tensor) -> NDArray[np.uint8]:
    rows = t.detach().cpu().reshape(len(t), math.prod(t.shape[1:])).contiguous()
    found: NDArray[np.uint8] = rows.view(torch.uint8).numpy()
    return found
