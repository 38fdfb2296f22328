"""What a version of the model stands on: its data, and which rows of it every request names.

Rows are found anew from the ledger each time, by keyed hashes of the ids in the data and by classes. So
data that grew, or came in another order, changes nothing about who was forgotten.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from purge.core.errors import DataError, FileError
from purge.core.schema import build
from purge.data.own import is_function
from purge.data.samples import Samples
from purge.ledger.records import Request, Version
from purge.runs.folder import DataChoice, RunFile, choose_data, facts_of, gone_of, trusted
from purge.runs.folder import Request as Rows

if TYPE_CHECKING:
    from purge.ledger.ledger import Ledger

DELIVERED = "delivery"  # the kind of entry that says that the training data is another one now


def subjects_of(data: Samples) -> tuple[str, ...]:
    """Whose each row is, as text: the ids that the data carries, or its paths, or else the row numbers."""
    if data.owners:
        return data.owners
    if data.paths:
        return tuple(data.paths[i] for i in data.ids.tolist())
    return tuple(map(str, range(len(data))))


def ids_of(data: Samples) -> str:
    """What tells whose a row is: ``ids`` of the data, ``paths`` of images, or the numbers of ``rows``."""
    return "ids" if data.owners else "paths" if data.paths else "rows"


@dataclass(frozen=True)
class Grounds:
    """Training and test data, and whose each training sample is."""

    choice: DataChoice
    train: Samples
    test: Samples
    subjects: tuple[str, ...]
    ids: str  # what tells whose a row is, see ids_of
    held_out: tuple[str, ...] = ()  # whose each row of the test data is, where that is known

    @classmethod
    def load(cls, choice: DataChoice, *, progress: bool = False) -> Grounds:
        """Read the data."""
        train, test = choice.load(progress=progress)
        if test is None:
            raise _without_test(choice.data)
        whose, ids = subjects_of(train), ids_of(train)
        held_out = subjects_of(test) if ids_of(test) == ids != "rows" else ()
        for part in (train, test):
            part.owners = ()  # only the ledger knows whose a row is: no run folder may name anyone
        return cls(choice, train, test, whose, ids, held_out)

    def check_ids(self, before: str | None) -> None:
        """Refuse data whose rows are told apart in another way: who was forgotten would be lost."""
        if before not in (None, self.ids):
            words = {"ids": "ids of its own", "paths": "paths of images", "rows": "row numbers alone"}
            fix = "let the data carry the same ids as before"
            raise DataError(f"training data with {words[str(before)]}", f"some with {words[self.ids]}", fix)

    def class_numbers(self, requests: Iterable[Request]) -> list[int]:
        """The classes that requests name; one that the data does not know is refused."""
        names, found = list(self.train.names), set[int]()
        for request in requests:
            for given in request.classes:
                if names.count(given) == 1:
                    found.add(names.index(given))
                elif given.isascii() and given.isdigit() and int(given) < len(names) and len(given) < 10:
                    found.add(int(given))
                else:
                    fix = f"withdraw request {request.number}, or hold it, and add one with the right name"
                    what = f"a class of the data in request {request.number}"
                    raise DataError(what, f"{given!r}, which is none or several", fix)
        return sorted(found)

    def missing(
        self, ledger: Ledger, requests: Sequence[Request], versions: Iterable[Version]
    ) -> Iterator[int]:
        """For each request: how many of its ids, or classes, are not found in the data.

        Those of the test part are, as long as all ``versions`` since the last training stand on this very
        data: in other data they may have been in the other part.
        """
        there = set(self.train.labels.unique().tolist())
        known = self.subjects + (self.held_out if self._are_of(versions) else ())
        ids = ledger.missing([request.number for request in requests], known)
        for request, unknown in zip(requests, ids, strict=True):  # an unknown class is refused in its turn
            yield unknown + sum(c not in there for c in self.class_numbers([request]))

    def _are_of(self, versions: Iterable[Version]) -> bool:
        """Did all of these versions stand on this data?"""
        try:
            return all(facts_of(Path(one.folder)).source == self.train.source for one in versions)
        except FileError:  # of one that is no longer there, nobody knows
            return False

    def rows(self, ledger: Ledger, requests: Sequence[Request]) -> Tensor:
        """A mask (N,) of the training samples that requests name, by id or by class."""
        found = torch.zeros(len(self.train), dtype=torch.bool)
        if not requests:
            return found
        if any(request.subjects for request in requests):
            found |= torch.tensor(ledger.match([request.number for request in requests], self.subjects))
        classes = torch.tensor(self.class_numbers(requests), dtype=torch.long)
        return found | torch.isin(self.train.labels, classes)

    def recorded(self, ledger: Ledger, requests: Sequence[Request], rows: Tensor) -> Rows:
        """The same as run.json has it: classes that are in the data, and the numbers of other rows."""
        there = set(self.train.labels.unique().tolist())
        classes = [c for c in self.class_numbers(requests) if c in there]
        whole = torch.isin(self.train.labels, torch.tensor(classes, dtype=torch.long))
        single = (rows & ~whole).nonzero()[:, 0].tolist()
        found: Rows = {"forget_classes": classes} if classes else {}
        return {**found, "forget_ids": single} if single else found

    def test_without(self, classes: Iterable[int]) -> Samples:
        """The test data without some classes: no number may rest on samples of a class that is gone."""
        gone = torch.tensor(sorted(classes), dtype=torch.long)
        return self.test.select(~torch.isin(self.test.labels, gone))


def choice_of(ledger: Ledger, version: Version, *, trust: bool) -> DataChoice:
    """The data that the next version stands on: that of the last delivery, or else of the version's run."""
    facts = facts_of(Path(version.folder))
    given = [entry.payload for entry in ledger.entries(DELIVERED)]
    if not given:
        return choose_data(
            facts, data=None, data_dir=None, size=None, split_seed=None, skip_bad=False, trust=trust
        )
    found = build(DataChoice, given[-1]["choice"], "the last delivery", ignore_unknown=True)
    if is_function(found.data):
        trusted(found.data, "the ledger", trust, option="--trust")
    # Files have lists where a choice has tuples.
    scale = {key: None if (v := getattr(found, key)) is None else tuple(v) for key in ("mean", "std")}
    return dataclasses.replace(found, mean=scale["mean"], std=scale["std"])


def expected_of(ledger: Ledger, version: Version) -> tuple[str | None, str | None]:
    """How rows were told apart until now, and the fingerprint of the data, where these are known."""
    if given := ledger.entries(DELIVERED):
        return given[-1].payload.get("ids"), given[-1].payload.get("source")
    return version.about.get("ids"), facts_of(Path(version.folder)).source


def delivered_choice(facts: RunFile, data: str, data_dir: Path | None, split_seed: int | None) -> DataChoice:
    """How to read delivered data for a model: scaled and sized as the data that it was trained on."""
    found = choose_data(
        facts, data=data, data_dir=data_dir, size=None, split_seed=split_seed, skip_bad=False,
        mean=None if is_function(data) else facts.mean, std=None if is_function(data) else facts.std,
    )  # fmt: skip
    return dataclasses.replace(found, size=None) if is_function(data) else found


def checked_version(folder: Path) -> RunFile:
    """What a run folder says about itself, if it can be the first version of a ledger."""
    if not folder.is_dir():
        raise FileError(f"a run folder at {folder}", "no folder", "name one that purge train has written")
    facts = facts_of(folder)
    if facts.digest is None or facts.data is None or facts.model is None:
        fix = "make one with purge train --data NAME --model NAME --out DIR"
        raise FileError(f"a run folder that names its data and model in {folder}", "one that does not", fix)
    if not facts.held_out:
        raise _without_test(str(folder))
    if facts.preset is not None or gone_of(facts):  # the ledger would not know what it must not be taught
        fix = "begin with the trained model, and add what it had to forget as requests"
        raise FileError(f"a model trained on all of its data in {folder}", "one that has forgotten some", fix)
    return facts


def _without_test(name: str) -> DataError:
    got = f"{name}, of which all was trained on"
    return DataError(
        "data that the model was not trained on, for the audits of a ledger",
        got,
        "train one without --all-trained",
    )
