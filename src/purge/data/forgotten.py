"""What a model has forgotten before, so that nobody teaches it again by mistake.

Nothing of the samples themselves is kept: a SHA-256 of each, row numbers in data that is still there, and
the user's own ids. A model that came out of purge is known for as long as it lives; its run folder knows too.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from purge.core.errors import DataError, FileError, brief
from purge.core.files import read_json
from purge.data.ids import subjects_in
from purge.data.images import Images
from purge.data.pair import Pair
from purge.data.request import sample_digests, size_of, wholly_gone
from purge.data.samples import Data, Samples, as_samples, length, streamed, unwrap

AT_ONCE = 1 << 25  # bytes of samples that are digested at once; more of them when somebody asks
KEY = "forgotten"  # of run.json


@dataclass
class Piece:
    """The samples of one request."""

    place: Callable[[], Any]  # the data that the rows count, if it is still there
    rows: Tensor | None
    found: frozenset[bytes] | None = None  # digests, once they are known
    samples: Samples | None = None  # until then

    @property
    def digests(self) -> frozenset[bytes]:
        """A SHA-256 of each sample; they are let go as soon as it is known."""
        if self.found is None:
            self.found = frozenset() if self.samples is None else frozenset(sample_digests(self.samples))
            self.samples = None
        return self.found


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
        return cls((Piece(lambda: None, None, digests),) if digests else (), ids)

    def among(self, data: Data, samples: Callable[[], Samples]) -> Tensor:
        """Which samples of some data were forgotten before, (N,) bool.

        Where the data is that of the request, row numbers say so; elsewhere the content does, with the
        label. A sample of an id that was forgotten counts in any case.
        """
        subjects, (place, rows) = subjects_in(data), _place(data)
        n, found = len(rows) if rows is not None else len(samples()), list[Tensor]()
        if self.ids and subjects:
            found.append(torch.tensor([subject in self.ids for subject in subjects]))
        theirs = list[bytes]()
        for piece in self.pieces:
            if rows is not None and piece.rows is not None and _same(piece.place(), place):
                found.append(torch.isin(rows, piece.rows))
            elif piece.digests:
                theirs = theirs or sample_digests(samples())
                found.append(torch.tensor([one in piece.digests for one in theirs] or [False] * n))
        return torch.stack(found).any(0) if found else torch.zeros(n, dtype=torch.bool)


def _same(a: Any, b: Any) -> bool:
    return a is not None and (a is b or (isinstance(a, str) and isinstance(b, str) and a == b))


def _place(data: Data) -> tuple[Any, Tensor | None]:
    """What row numbers of data count, and which rows it is; None where nothing is known."""
    if isinstance(data, Images):
        return data.source, data.ids
    if isinstance(data, Pair):
        return data.whole, torch.arange(len(data[1])) if data.rows is None else data.rows.cpu()
    if isinstance(data, (tuple, list)):
        return data[0], torch.arange(len(data[1]))
    base, rows = unwrap(data)
    return base, rows


def just_forgotten(forget: Data, retain: Data, samples: Samples) -> Forgotten:
    """What a request makes a model forget; ``samples`` are those of ``forget``."""
    place, rows = _place(forget)
    try:
        there: Callable[[], Any] = (lambda: place) if isinstance(place, str) else weakref.ref(place)
    except TypeError:  # a dict or tuple of tensors: the content must do
        there, rows = (lambda: None), None
    piece = Piece(there, rows, samples=samples)
    small = not streamed(samples) and size_of(samples) <= AT_ONCE
    if small:
        _ = piece.digests
    return Forgotten((piece,), frozenset(wholly_gone(forget, retain)))


# -- who has forgotten what ---------------------------------------------------------------------

_known: weakref.WeakKeyDictionary[nn.Module, tuple[Forgotten, tuple[str, ...]]] = weakref.WeakKeyDictionary()


def remember(model: nn.Module, forgotten: Forgotten, names: Sequence[str] = ()) -> None:
    """Keep what a model has forgotten, and the names of its classes, for as long as the model lives."""
    _known[model] = forgotten, tuple(names)


def class_order(model: Any) -> tuple[str, ...]:
    """The names of a model's classes in their order: as purge taught it, or as Hugging Face writes them."""
    if not isinstance(model, nn.Module):
        return ()
    if names := _known.get(model, (None, ()))[1]:
        return names
    numbers = getattr(getattr(model, "config", None), "label2id", None)
    if not isinstance(numbers, Mapping) or sorted(numbers.values()) != list(range(len(numbers))):
        return ()
    return tuple(sorted(map(str, numbers), key=lambda name: numbers[name]))


def forgotten_by(*sources: Any) -> Forgotten:
    """What models, results, run folders and lists of them have forgotten, all together."""
    found = Forgotten()
    for source in sources:
        found |= _of(source)
    return found


def _of(source: Any) -> Forgotten:
    if source is None or isinstance(source, Forgotten):
        return source or Forgotten()
    if isinstance(source, nn.Module):
        return _known.get(source, (Forgotten(), ()))[0]
    if isinstance(source, (str, os.PathLike)):
        return _in_folder(Path(source))
    if isinstance(known := getattr(source, "forgotten", None), Forgotten):
        return known | _of(getattr(source, "model", None))
    if isinstance(source, Sequence):
        return forgotten_by(*source)
    fix = "pass the result of purge.unlearn, or the folder of its run"
    raise DataError("an earlier result as after", type(source).__name__, fix)


def _in_folder(folder: Path) -> Forgotten:
    path = folder / "run.json"
    if not path.is_file():
        raise FileError(f"the folder of a run at {folder}", "none", "pass the folder that result.save wrote")
    content = read_json(path)
    return (
        Forgotten.from_dict(content[KEY], str(path))
        if isinstance(content, Mapping) and KEY in content
        else Forgotten()
    )


def forgotten_in(data: Data, known: Forgotten) -> Tensor:
    """Which samples of some data were forgotten before, (N,) bool."""
    if not known:
        return torch.zeros(length(data), dtype=torch.bool)
    return known.among(data, lambda: as_samples(data, torch.device("cpu"), "the dataset"))


def check_not_again(forgotten: Forgotten, given: Mapping[str, Data], parts: Mapping[str, Samples]) -> None:
    """Refuse sets with samples that the model has forgotten before: it would learn them again."""
    for what, data in given.items() if forgotten else ():
        again = forgotten.among(data, lambda what=what: parts[what]).nonzero()[:, 0]  # type: ignore[misc]
        if len(again):
            raise DataError(
                f"{what} without samples that the model has forgotten before",
                f"{len(again)} of them (first: {int(again[0])})",
                "cut the data with purge.split(…, after=result), or take result.without(data)",
            )
