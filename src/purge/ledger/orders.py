"""What a batch orders, and which folders of models the chain has ordered: no work of another chain counts.

After a backup was put back, or in a copy of the ledger, the same number is given to another batch, for other
people. So work names the end of the chain that ordered it, which stands for all that was written before.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from purge.core.errors import FileError, LedgerError, PurgeError
from purge.core.files import read_json
from purge.ledger import words
from purge.ledger.chain import Kind
from purge.ledger.journal import record
from purge.ledger.plan import settings_of
from purge.ledger.records import ChainHead, DeletionBatch, Recovery, Version
from purge.runs import check_weights

if TYPE_CHECKING:
    from purge.ledger.ledger import Ledger

ORDER = "order"  # in run.json of what a batch makes
STAGE, VERSION = re.compile(r"\.batch-([0-9a-f]{16})"), re.compile(r"version-(\d{4,})")
NEWEST = "put the newest ledger in its place; if it is lost: purge request recover"


@dataclass(frozen=True)
class Order:
    """What must be made of which model, without naming anybody."""

    ledger: str  # the random name in its first entry
    head: str  # the end of the chain: the entry that began the batch
    batch: int
    requests: dict[str, str]  # number → the beginning of the hash of the entry that wrote it down
    parent: str  # the digest of the version before
    rows: str  # a keyed hash of the rows that go, and of those that went before

    def check(self, folder: Path, versions: Iterable[Version]) -> None:
        """Refuse a run folder that is not what was ordered, or whose model an earlier version was."""
        order, digest = _named(folder)
        if order != asdict(self) or digest is None:
            what = f"a model without the rows of batch {self.batch} in {folder}"
            raise FileError(what, "one that was ordered for other rows, or by another ledger", NEWEST)
        if digest in {version.digest for version in versions}:
            got = "the same weights, though rows were to be forgotten"
            fix = "let the method do more, or train anew: purge request run --retrain"
            raise LedgerError("other weights than those of the versions before", got, fix)
        check_weights(folder, digest, whole=False)


def order_of(ledger: Ledger, batch: DeletionBatch, parent: Version, masks: Sequence[Any]) -> Order:
    """What a batch orders; ``masks``: the rows that go, and those that went, as lists of numbers and ids."""
    entries = {e.payload["request"]: e.hash[:16] for e in ledger.entries(Kind.REQUEST)}
    digest = hashlib.sha256(repr(masks).encode("utf-8", "surrogatepass")).hexdigest()
    return Order(
        str(ledger.entries(end=1)[0].payload["ledger"]), str(head_of(ledger, batch)), batch.number,
        {str(number): entries[number] for number in batch.requests},
        parent.digest, ledger.hashes([f"rows:{digest}"])[0],
    )  # fmt: skip


def head_of(ledger: Ledger, batch: DeletionBatch) -> ChainHead:
    """The end of the chain when a batch had been written down."""
    entry = next(one for one in ledger.entries(Kind.BATCH) if one.payload["batch"] == batch.number)
    return ChainHead(entry.seq, entry.hash)


def stage_of(ledger: Ledger, folder: Path, batch: DeletionBatch) -> Path:
    """The hidden folder in which a batch is carried out."""
    return folder / f".batch-{head_of(ledger, batch).hash[:16]}"


def _named(folder: Path) -> tuple[dict[str, Any], Any]:
    """The order and the digest that a folder names; nothing if it says nothing that can be read."""
    try:
        content = read_json(folder / "run.json")
    except PurgeError:
        return {}, None
    order = content.get(ORDER)
    return order if isinstance(order, dict) else {}, content.get("digest")


# -- folders and versions that do not fit ------------------------------------------------------


@dataclass(frozen=True)
class Unknown:
    """A folder of a model that this chain has not ordered."""

    folder: Path
    mark: str  # what it was when it was looked at: a hash of its run.json, if it has one
    order: dict[str, Any]  # what it says of who ordered it


def unknown_folders(ledger: Ledger, folder: Path) -> list[Unknown]:
    """The folders where versions are that the chain does not know, and that were not set aside."""
    known = {Path(version.folder): version for version in ledger.versions()}
    aside = set_aside(ledger)
    stages = {one.hash[:16] for one in ledger.entries(Kind.BATCH)}
    batch = ledger.unfinished_batch()
    at_work = batch and str(head_of(ledger, batch))
    found = []
    for place in sorted(folder.iterdir()) if folder.is_dir() else ():
        file, version = place / "run.json", known.get(place)
        order, digest = _named(place)
        if stage := STAGE.fullmatch(place.name):
            own = stage[1] in stages
        elif not VERSION.fullmatch(place.name):
            continue
        elif version is not None:
            own = digest == version.digest
        else:
            own = at_work is not None and order.get("head") == at_work
        mark = hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else ""
        if not own and (place.name, mark) not in aside:
            found.append(Unknown(place, mark, order))
    return found


def set_aside(ledger: Ledger) -> set[tuple[str, str]]:
    """The name and mark of each folder that was told to be of others."""
    entries = ledger.entries(Kind.RECOVER)
    return {(one["name"], one["mark"]) for entry in entries for one in entry.payload["folders"]}


def lost_versions(ledger: Ledger) -> list[Version]:
    """The newest versions, as far back as none is in its folder as it was written down."""
    heads = {one.payload["batch"]: f"{one.seq}:{one.hash}" for one in ledger.entries(Kind.BATCH)}
    lost = []
    for version in reversed(ledger.lineage()):
        place = Path(version.folder)
        order, _ = _named(place)
        due = {"head": heads.get(version.batch or 0), "parent": version.parent}
        with suppress(PurgeError):
            check_weights(place, version.digest, whole=False)
            # Versions of earlier releases, and those that ledgers begin with, name no order.
            if not order or due.items() <= order.items():
                break
        lost.append(version)
    return lost


def check_folders(ledger: Ledger, folder: Path) -> None:
    """Refuse to work beside versions that the chain does not know, or without its newest one."""
    if found := unknown_folders(ledger, folder):
        got = "; ".join(words.unknown(str(one.folder), one.order, ledger) for one in found[:3])
        more = f"; and {len(found) - 3} more" if len(found) > 3 else ""
        fix = f"was a backup put back, or the ledger copied? {NEWEST}"
        raise FileError(f"no version in {folder} but those that this ledger has ordered", got + more, fix)
    if lost := lost_versions(ledger):
        got = "none, or other weights than it recorded"
        raise FileError(f"version {lost[0].number} in {lost[0].folder}", got, f"restore it; or {NEWEST}")


# -- recovering --------------------------------------------------------------------------------


def recover(ledger: Ledger) -> Recovery:
    """Set aside what is not of this chain, and open each request whose certificate rests on what is lost."""
    folder, _ = settings_of(ledger)
    found, lost = unknown_folders(ledger, folder), lost_versions(ledger)
    if not found and not lost:
        return Recovery()
    sound = ledger.lineage()[: -len(lost) or None]
    if not sound:
        got, fix = "other weights, or none", "restore the folder of the model that the ledger began with"
        raise FileError(f"the weights of version 1 in {lost[-1].folder}", got, fix)
    requests = {one.number: one for one in ledger.requests()}
    opened = {
        number
        for number, one in requests.items()
        if lost and one.state == "done" and (one.batch or 0) > (sound[-1].batch or 0)
    }
    entries = {str(e.payload["request"]): e.hash[:16] for e in ledger.entries(Kind.REQUEST)}
    lacking = set[int]()
    for one in found:  # a certificate may have been handed out that names such a version
        for number, entry in one.order.get("requests", {}).items():
            if entries.get(number) != entry:
                lacking.add(int(number))
            elif requests[int(number)].state == "open":
                opened.add(int(number))
    recovery = Recovery(
        tuple(sorted(opened)), tuple(sorted(lacking)), tuple(sorted(version.number for version in lost)),
        tuple(one.folder.name for one in found),
    )  # fmt: skip
    about = {
        **recovery.to_dict(), "reason": words.AFFECTED,
        "folders": [{"name": one.folder.name, "mark": one.mark} for one in found],
    }  # fmt: skip
    record(ledger, Kind.RECOVER, about)
    return recovery
