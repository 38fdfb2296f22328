"""What a batch ordered, and whether a folder is the work that it ordered.

After a backup was put back, or in a copy of the ledger, the same number is given to another batch, for other
people. So work names the hash of the entry that ordered it, which stands for the whole chain before.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from purge.core.errors import FileError, LedgerError
from purge.ledger.records import Batch
from purge.runs.folder import facts_of
from purge.runs.weights import check_weights

if TYPE_CHECKING:
    from purge.ledger.grounds import Grounds
    from purge.ledger.ledger import Ledger

KEY = "order"  # in run.json of what a batch makes
FIX = "was a backup put back, or the ledger copied? put the newest one in its place; if it is lost, move the "
FIX += "folder away, and add the requests that are missing from this one again"


@dataclass(frozen=True)
class Order:
    """What must be made of which model, without naming anybody."""

    batch: int
    entry: str  # the hash of the entry that began the batch
    parent: str  # the digest of the version before
    rows: str  # a keyed hash of the rows that go, and of those that were gone before

    def record(self) -> dict[str, Any]:
        """What run.json says of it."""
        return {KEY: asdict(self)}

    def check(self, folder: Path) -> None:
        """Refuse a run folder that is not what was ordered, or whose model still knows all that it knew."""
        if not ordered_by(folder, self.entry):
            raise unknown(folder)
        facts = facts_of(folder)
        if facts.content[KEY] != asdict(self) or facts.digest is None:
            got, fix = "one for other rows or of another model", "restore the data, or move the folder away"
            raise FileError(f"a model without the rows of batch {self.batch} in {folder}", got, fix)
        check_weights(folder, facts.digest, whole=False)
        if facts.digest == self.parent:
            got = "the same weights, though rows were to be forgotten"
            fix = "let the method do more, or train anew: purge request run --retrain"
            raise LedgerError("other weights than those of the version before", got, fix)


def order_of(
    ledger: Ledger, batch: Batch, *, parent: str, grounds: Grounds, rows: Tensor, gone: Tensor
) -> Order:
    """What a batch orders, from the chain and the data as they are now."""
    parts = [f"{len(rows)} rows"]
    for mask in (rows, gone):
        at = mask.nonzero()[:, 0].tolist()
        parts.append(repr([(i, grounds.subjects[i]) for i in at]))
    digest = hashlib.sha256("\n".join(parts).encode("utf-8", "surrogatepass")).hexdigest()
    return Order(batch.number, entry_of(ledger, batch), parent, ledger.hashes([f"rows:{digest}"])[0])


def entry_of(ledger: Ledger, batch: Batch) -> str:
    """The hash of the entry that began a batch."""
    return next(one.hash for one in ledger.entries("batch") if one.payload["batch"] == batch.number)


def ordered_by(folder: Path, entry: str) -> bool:
    """Does a folder say that it is the work of this entry?"""
    if not (folder / "run.json").is_file():
        return False
    named = facts_of(folder).content.get(KEY)
    return isinstance(named, dict) and named.get("entry") == entry


def unknown(folder: Path) -> FileError:
    """The refusal of a folder that this chain has not ordered."""
    return FileError(
        f"no folder at {folder} but one that this ledger has ordered", "one that it does not know", FIX
    )
