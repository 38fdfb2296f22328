"""What must go, what must stay, and what was never seen: the request, and how to cut data for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from purge.core.errors import DataError, MethodError, brief, did_you_mean
from purge.core.settings import checked_seed
from purge.data.accept import accepted, known_names
from purge.data.forgotten import Forgotten, forgotten_by
from purge.data.ids import IdOf, as_list, rows_of_ids
from purge.data.items import Adapt, Form
from purge.data.samples import Data, Samples
from purge.data.tables import counts_rows, row_names, rows_named


@dataclass(frozen=True)
class Split:
    """What must go, what must stay, and what was never seen."""

    forget: Samples
    retain: Samples
    test: Samples | None
    classes: int
    forget_classes: frozenset[int]  # classes that only the forget set has; empty: single samples
    names: tuple[str, ...] = ()  # of all classes, where the data tells them
    truth: Tensor | None = None  # for an audit: the right labels (|D_f|,) of forget samples with wrong ones,
    triggered: Samples | None = None  # and samples with a backdoor trigger and the attacker's label
    copies: Mapping[str, int | None] = field(default_factory=dict)  # between the sets: see data/overlap.py

    def __repr__(self) -> str:
        """One line: how many samples of each part, and which classes go."""
        test = "none" if self.test is None else len(self.test)
        gone = f", classes {sorted(self.forget_classes)} of {self.classes} go" if self.forget_classes else ""
        return f"Split(forget {len(self.forget)}, retain {len(self.retain)}, test {test}{gone})"

    @property
    def single(self) -> bool:
        """Are there samples to forget whose class stays?"""
        return not bool(self.whole.all())

    @property
    def whole(self) -> Tensor:
        """Which forget samples are of a class that must go, (|D_f|,)."""
        return torch.isin(self.forget.labels, torch.tensor(sorted(self.forget_classes), dtype=torch.long))

    def refuse_single(self, method: str) -> None:
        """Refuse single samples to a method that can only forget classes."""
        if self.single:
            raise MethodError(
                f"whole classes to forget for {method}",
                f"{int((~self.whole).sum())} single samples of classes that stay",
                "choose a method for single samples, such as purge, or forget all samples of the class",
            )

    def forgotten(self, device: torch.device) -> Tensor:
        """Which classes must go, (K,)."""
        classes = torch.tensor(sorted(self.forget_classes), dtype=torch.long)
        return torch.isin(torch.arange(self.classes), classes).to(device)

    def sizes(self) -> dict[str, Any]:
        """How many classes and samples there are, for a record."""
        return {
            "classes": self.classes,
            "forget_classes": sorted(self.forget_classes),
            "names": list(self.names),
            "forget_samples": len(self.forget),
            "retain_samples": len(self.retain),
            "test_samples": None if self.test is None else len(self.test),
            "copies": dict(self.copies),
        }

    def kinds(self) -> dict[str, Split]:
        """The two requests in one that mixes them: ``classes`` and single ``samples``; empty if it does not.

        Both have the whole retain set. The test data of the single samples is without the classes that go.
        """
        gone = torch.tensor(sorted(self.forget_classes), dtype=torch.long)
        whole = self.whole
        if bool(whole.all()) or not bool(whole.any()):
            return {}
        forget = [self.forget.select(at.nonzero()[:, 0]) for at in (whole, ~whole)]
        test = self.test
        if test is not None:
            left = (~torch.isin(test.labels, gone)).nonzero()[:, 0]
            test = test.select(left) if len(left) else None
        right = [None if self.truth is None else self.truth[at] for at in (whole, ~whole)]
        none = frozenset[int]()
        return {
            "classes": replace(self, forget=forget[0], truth=right[0], copies={}),
            "samples": replace(
                self, forget=forget[1], truth=right[1], test=test, forget_classes=none, copies={}
            ),
        }


def matched_to(labels: Tensor, like: Tensor) -> Tensor:
    """Weights (N,) that give the classes of ``labels`` the shares that they have in ``like``.

    Equal weights where the two have no class in common.

    >>> matched_to(torch.tensor([0, 1, 1, 2]), torch.tensor([0, 0, 1, 1])).tolist()
    [2.0, 1.0, 1.0, 0.0]
    """
    k = 1 + int(torch.cat([labels, like]).max())
    ours, wanted = (torch.bincount(part, minlength=k).double() for part in (labels, like))
    weights = (wanted * (ours > 0) / ours.clamp_min(1))[labels]
    return weights * len(labels) / weights.sum() if bool(weights.any()) else torch.ones_like(weights)


def split(
    dataset: Data,
    *,
    classes: Iterable[int | str] | int | str | None = None,
    indices: Iterable[int] | Tensor | None = None,
    index: Any = None,
    mask: Any = None,
    ids: Any = None,
    fraction: float | None = None,
    seed: int = 0,
    label: str | None = None,
    id_of: IdOf = None,
    adapt: Adapt | None = None,
    after: Any = None,
) -> tuple[Samples, Samples]:
    """Divide training data into ``(forget, retain)`` by class, by row, by id or by a random fraction.

    Both are views of the data: parts of Images are Images, those of a pair, a table or a DataLoader with a
    collate function unpack into tensors, ``x, y = forget``, and those of a dataset give out its items,
    ``forget[0]``. Each has ``labels``, ``owners``, ``names`` and a length.

    Say in exactly one way what must be forgotten: ``classes``, ``indices``, ``index``, ``mask``, ``ids`` or
    ``fraction``.

    Args:
        dataset: the training data, in any form that :func:`purge.unlearn` takes.
        classes: numbers, or names where the labels are names.
        indices: which samples, counted from 0; or a truth value for each, as ``mask``. Of a DataFrame whose
            index is not 0 to n - 1 in this order, rows are not counted: name them by ``index``.
        index: names of rows in the index of a DataFrame, one or several, as ``frame.index[frame.age > 90]``.
            Rows that share a name all go.
        mask: a truth value for each sample, as ``frame.age > 90``. The index of a Series must be that of the
            data.
        ids: the user's own ids, text or whole numbers, in what ``id_of`` names. Several samples may have one
            id, and all of them go. Both parts know whose they are, as ``owners``.
        fraction: a share of the samples, drawn at random.
        seed: of that draw.
        label: the column or key of the label.
        id_of: where the ids are: a column of a DataFrame, a key of items that are dicts, a position in items
            that are tuples (the third if left out), or a list with one id per sample.
        adapt: a function from one item to ``(inputs, label)`` or ``(inputs, label, id)``, for data of any
            other form.
        after: what an earlier request returned, or the folder of its run: what was forgotten then is in
            neither part.

    Returns:
        The samples to forget, and those to retain.

    Raises:
        DataError: an unknown class, row or id, or nothing left to retain.

    Example:
        >>> x, y = torch.zeros(6, 2), torch.tensor([0, 0, 1, 1, 2, 2])
        >>> forget, retain = split((x, y), classes=[0])
        >>> forget[1].tolist(), retain[1].tolist()
        ([0, 0], [1, 1, 2, 2])
        >>> forget, retain = split((x, y), ids=["b"], id_of=["a", "b", "a", "b", "c", "c"])
        >>> forget.labels.tolist(), retain.owners
        ([0, 1], ('a', 'a', 'c', 'c'))
    """
    options = {
        "classes": classes, "indices": indices, "index": index, "mask": mask, "ids": ids,
        "fraction": fraction,
    }  # fmt: skip
    given = [name for name, value in options.items() if value is not None]
    if len(given) != 1:
        raise DataError(
            "exactly one of classes, indices, index, mask, ids and fraction",
            " and ".join(given) or "none",
            "say in one way what must be forgotten",
        )
    known = forgotten_by(after)
    data = _training_data(dataset, Form(label, id_of, adapt, owned=ids is not None), known)
    n, before = len(data), known.among(data)
    if classes is not None:
        named = _named(classes)
        numbers = numbers_of_names(data, classes, label) if named else _whole_numbers(classes, "classes")
        gone = rows_of_classes(data.labels, numbers)
    elif mask is not None or (indices is not None and _are_truths(indices)):
        gone = _of_mask(n, mask if indices is None else indices, row_names(dataset))
    elif indices is not None:
        _check_counted(indices, row_names(dataset), n)
        gone = rows_of_indices(n, _whole_numbers(indices, "indices"))
    elif index is not None:
        if (names := row_names(dataset)) is None:
            fix = "pass the DataFrame itself, or a truth value for each row as mask="
            raise DataError("a DataFrame, whose rows index= names", type(dataset).__name__, fix)
        gone = torch.from_numpy(rows_named(names, index))
    elif ids is not None:
        gone = rows_of_ids(data.owners, ids)
    else:
        gone = _of_fraction(n, fraction, seed)
    if bool((gone & before).any()) and classes is None and fraction is None:
        got = f"{int((gone & before).sum())} that were forgotten before"
        raise DataError("samples to forget that the model still knows", got, "ask for others alone")
    gone, stays = gone & ~before, ~gone & ~before
    if not gone.any() or not stays.any():
        raise DataError(
            "something to forget and something to retain",
            f"{int(gone.sum())} of {int((~before).sum())} samples to forget",
            "choose fewer or more of them",
        )
    return data.select(gone), data.select(stays)


def left_after(after: Any, dataset: Data, form: Form) -> Samples:
    """The dataset without what was forgotten before."""
    known = forgotten_by(after)
    data = _training_data(dataset, form, known)
    left = ~known.among(data)
    if not left.any():
        raise DataError("something that was not forgotten", "nothing", "pass the whole training data")
    return data.select(left)


def _training_data(dataset: Data, form: Form, known: Forgotten) -> Samples:
    """The dataset as samples, with the ids that items may have in third place if ids were forgotten."""
    what = "the dataset"
    if known.ids and not form.owned:
        try:
            return accepted({what: dataset}, replace(form, owned=True))[what]
        except DataError:  # what is in third place is no id
            pass
    return accepted({what: dataset}, form)[what]


def _named(classes: Any) -> bool:
    """Are classes given by name?"""
    return any(isinstance(c, str) for c in as_list(classes))


def numbers_of_names(data: Samples, classes: Any, label: str | None = None) -> list[int]:
    """The numbers of classes that were named."""
    names, wanted = known_names(data, label), as_list(classes)
    if not names:
        raise DataError("whole numbers as classes", brief(wanted[0]), "pass classes=[0, 1], say")
    if absent := [c for c in wanted if c not in names]:
        fix = did_you_mean(str(absent[0]), names[:50])
        raise DataError("names of classes that are in the data", brief(absent[0]), fix)
    return [names.index(c) for c in wanted]


def rows_of_classes(labels: Tensor, classes: list[int]) -> Tensor:
    """Which samples are of these classes, (N,) bool; every class must be there."""
    there = set(labels.unique().tolist())
    absent = [c for c in classes if c not in there]
    if absent:
        raise DataError(
            f"classes that are in the data ({_ranges(there)})",
            ", ".join(map(brief, absent[:20])),
            "check the class numbers",
        )
    return torch.isin(labels, torch.tensor(sorted(classes)))


def rows_of_indices(n: int, indices: list[int]) -> Tensor:
    """Which of ``n`` samples are at these positions, (N,) bool."""
    if wrong := [i for i in indices if not 0 <= i < n]:
        raise DataError(f"indices from 0 to {n - 1}", brief(wrong[0]), "use positions in the training data")
    gone = torch.zeros(n, dtype=torch.bool)
    gone[torch.tensor(indices)] = True
    return gone


def _whole_numbers(given: Any, what: str) -> list[int]:
    """A whole number, or a list, array, range or tensor of them, as a list of ints."""
    values = as_list(given)
    wrong = [v for v in values if isinstance(v, bool) or not isinstance(v, int)]
    if wrong or not values:
        got = brief(wrong[0]) if wrong else "none"
        raise DataError(f"whole numbers as {what}", got, f"pass {what}=[0, 1], say")
    return values


def _check_counted(indices: Any, names: Any, n: int) -> None:
    """Refuse positions where they may be meant as names: the two tell different rows of a shuffled table."""
    if names is None and hasattr(indices, "get_indexer_for"):  # an Index of pandas
        fix = "pass the DataFrame itself with index=, or a truth value for each row as mask="
        raise DataError("positions as indices", "an Index of pandas, which has names of rows", fix)
    if names is not None and not counts_rows(names):
        what = f"a DataFrame with the index 0 to {n - 1}, in this order, for indices="
        fix = "name rows with index=, or pass frame.reset_index(drop=True)"
        raise DataError(what, "another index", fix)


def _are_truths(given: Any) -> bool:
    """Is it an array, a series, a tensor or a list of truth values?"""
    if isinstance(given, Tensor):
        return given.dtype == torch.bool and given.ndim > 0
    if (dtype := getattr(given, "dtype", None)) is not None:
        return str(dtype).lower().startswith("bool") and np.ndim(given) > 0
    kinds = (bool, np.bool_)
    return isinstance(given, (list, tuple)) and bool(given) and all(isinstance(v, kinds) for v in given)


def _of_mask(n: int, mask: Any, names: Any) -> Tensor:
    """A truth value for each of ``n`` samples, (N,) bool; that of a Series belongs to the row it names."""
    own = mask.index if hasattr(mask, "iloc") and len(mask) == n else None
    if own is not None and not (counts_rows(own) if names is None else own.equals(names)):
        fix = "make it from the same data, or pass mask.to_numpy() if its rows are in the same order"
        raise DataError("a mask with the index of the data", "another index", fix)
    values = mask.tolist() if hasattr(mask, "tolist") else mask
    found = list(values) if isinstance(values, Iterable) else [values]
    wrong = [value for value in found if not isinstance(value, (bool, np.bool_))]
    if wrong or len(found) != n:
        got = brief(wrong[0]) if wrong else f"{len(found)} of them"
        raise DataError(f"a truth value for each of {n} samples as mask", got, "pass one for each sample")
    return torch.tensor(found, dtype=torch.bool)


def _of_fraction(n: int, fraction: Any, seed: int) -> Tensor:
    if isinstance(fraction, bool) or not isinstance(fraction, (int, float)) or not 0 < fraction < 1:
        raise DataError("a fraction between 0 and 1", repr(fraction), "pass fraction=0.1, say")
    gone = torch.zeros(n, dtype=torch.bool)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(checked_seed(seed)))
    gone[order[: max(1, round(fraction * n))]] = True
    return gone


def _ranges(classes: set[int]) -> str:
    if not classes:
        return "none"
    ordered = sorted(classes)
    whole = ordered == list(range(ordered[0], ordered[-1] + 1)) and len(ordered) > 2
    return f"{ordered[0]} to {ordered[-1]}" if whole else ", ".join(map(str, ordered[:20]))
