"""What a model has forgotten before, so that nobody teaches it again by mistake.

Nothing of the samples themselves is kept: a SHA-256 of each, row numbers in data that is still there, and
the user's own ids. Results have it as ``result.forgotten``, and their run folders in run.json.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from purge.core.errors import DataError, FileError, brief
from purge.core.files import read_json
from purge.data.samples import Origin, Samples

KEY = "forgotten"  # of run.json


@dataclass
class Piece:
    """The samples of one request."""

    origin: Origin | None  # what the rows count
    rows: Tensor | None
    known: frozenset[bytes] | None = None  # digests, once they are known
    samples: Samples | None = None  # until then

    @property
    def digests(self) -> frozenset[bytes]:
        """A SHA-256 of each sample; they are let go as soon as it is known."""
        if self.known is None:
            seen = None if self.samples is None else self.samples.look()
            self.known, self.samples = frozenset(() if seen is None else seen.each()), None
        return self.known


@dataclass(frozen=True)
class Forgotten:
    """All that a model has forgotten, in one request after another."""

    pieces: tuple[Piece, ...] = ()
    ids: frozenset[str] = field(default=frozenset(), repr=False)

    def __bool__(self) -> bool:
        return bool(self.pieces or self.ids)

    def __or__(self, other: Forgotten) -> Forgotten:
        new = [piece for piece in other.pieces if not any(piece is one for one in self.pieces)]
        return Forgotten((*self.pieces, *new), self.ids | other.ids)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles have digests and ids alone."""
        return Forgotten.from_dict, (self.to_dict(),)

    def to_dict(self) -> dict[str, list[str]]:
        """Digests and ids, for run.json."""
        digests = {digest.hex() for piece in self.pieces for digest in piece.digests}
        return {"digests": sorted(digests), "ids": sorted(self.ids)}

    @classmethod
    def from_dict(cls, content: Any, where: str = "run.json") -> Forgotten:
        """What :meth:`to_dict` wrote."""
        try:
            digests = frozenset(map(bytes.fromhex, content["digests"]))
            ids = frozenset(content["ids"])
            good = all(isinstance(one, str) for one in ids) and all(len(one) == 32 for one in digests)
        except (TypeError, ValueError, KeyError):
            good = False
        if not good:
            fix = "use the file that purge wrote"
            raise FileError(f"digests and ids as {KEY} in {where}", brief(content), fix)
        return cls((Piece(None, None, digests),) if digests else (), ids)

    def among(self, samples: Samples) -> Tensor:
        """Which samples were forgotten before, (N,) bool.

        Where the data is that of the request, row numbers say so; elsewhere the content does, with the
        label. A sample of an id that was forgotten counts in any case.
        """
        again = torch.zeros(len(samples), dtype=torch.bool)
        if self.ids and samples.owners:
            again |= torch.tensor([owner in self.ids for owner in samples.owners])
        for piece in self.pieces:
            if piece.origin is not None and piece.rows is not None and piece.origin.same(samples.origin):
                again |= torch.isin(samples.ids, piece.rows)
            elif piece.digests and (seen := samples.look()) is not None:
                again |= torch.tensor([one in piece.digests for one in seen.each()])
        return again


def just_forgotten(forget: Samples, retain: Samples) -> Forgotten:
    """What a request makes a model forget."""
    piece = Piece(forget.origin, forget.ids, samples=forget)
    if not forget.streamed:
        _ = piece.digests
    return Forgotten((piece,), frozenset(wholly_forgotten(forget, retain)))


def wholly_forgotten(forget: Samples, retain: Samples) -> list[str]:
    """The owners who have samples in forget and none in retain, sorted; empty if none are known."""
    return sorted(set(forget.owners) - set(retain.owners) - {""})


def forgotten_by(*sources: Any) -> Forgotten:
    """What results, run folders and lists of them have forgotten, all together."""
    everything = Forgotten()
    for source in sources:
        known = getattr(source, "forgotten", source)
        if isinstance(source, (str, os.PathLike)):
            path = Path(source) / "run.json"
            if not path.is_file():
                fix = "pass the folder that result.save wrote"
                raise FileError(f"the folder of a run at {path.parent}", "none", fix)
            content = read_json(path)
            if isinstance(content, Mapping) and content.get("ledger") is not None:
                got, fix = "one of a ledger, which tells nobody", "take ledger.without(data)"
                raise DataError(f"a run that says what it has forgotten in {path.parent}", got, fix)
            if isinstance(content, Mapping) and KEY in content:
                everything |= Forgotten.from_dict(content[KEY], str(path))
        elif isinstance(known, Forgotten):
            everything |= known
        elif isinstance(source, Sequence):
            everything |= forgotten_by(*source)
        elif source is not None:
            fix = "pass the result of purge.unlearn, or the folder of its run"
            raise DataError("an earlier result as after", type(source).__name__, fix)
    return everything


def check_not_again(forgotten: Forgotten, parts: Mapping[str, Samples]) -> None:
    """Refuse sets with samples that the model has forgotten before: it would learn them again."""
    for what, samples in parts.items() if forgotten else ():
        again = forgotten.among(samples).nonzero()[:, 0]
        if len(again):
            raise DataError(
                f"{what} without samples that the model has forgotten before",
                f"{len(again)} of them (first: {int(again[0])})",
                "cut the data with purge.split(…, after=result), or take result.without(data)",
            )


def class_order(model: Any) -> tuple[str, ...]:
    """The names of a model's classes in their order, which a result has, and a model of Hugging Face."""
    names = getattr(model, "names", ())
    if names and isinstance(names, tuple):  # a network may have something else of this name
        return names
    numbers = getattr(getattr(getattr(model, "model", model), "config", None), "label2id", None)
    if not isinstance(numbers, Mapping) or sorted(numbers.values()) != list(range(len(numbers))):
        return ()
    return tuple(sorted(map(str, numbers), key=lambda name: numbers[name]))
