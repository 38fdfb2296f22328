"""What must go, what must stay, and what was never seen: the request, and how to cut data for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from purge.core.errors import DataError, MethodError, brief, did_you_mean
from purge.core.settings import checked_seed
from purge.data.accept import accepted, known_names
from purge.data.dataframes import counts_rows, row_names, rows_named
from purge.data.forgotten import forgotten_by
from purge.data.items import Adapt, Form, IdOf, as_list, rows_of_ids
from purge.data.samples import Data, Samples


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
        classes = (
            f", classes {sorted(self.forget_classes)} of {self.classes} go" if self.forget_classes else ""
        )
        return f"Split(forget {len(self.forget)}, retain {len(self.retain)}, test {test}{classes})"

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
        whole, parts, test = self.whole, {}, self.test
        if bool(whole.all()) or not bool(whole.any()):
            return {}
        for name, at in (("classes", whole), ("samples", ~whole)):
            truth = None if self.truth is None else self.truth[at]
            parts[name] = replace(self, forget=self.forget.select(at), truth=truth, copies={})
        if test is not None:
            left = ~torch.isin(test.labels, torch.tensor(sorted(self.forget_classes)))
            test = test.select(left) if bool(left.any()) else None
        parts["samples"] = replace(parts["samples"], test=test, forget_classes=frozenset())
        return parts


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
    ways = {
        "classes": classes, "indices": indices, "index": index, "mask": mask, "ids": ids,
        "fraction": fraction,
    }  # fmt: skip
    said = [way for way, value in ways.items() if value is not None]
    if len(said) != 1:
        what = "exactly one of classes, indices, index, mask, ids and fraction"
        raise DataError(what, " and ".join(said) or "none", "say in one way what must be forgotten")
    data, before = _training_data(dataset, Form(label, id_of, adapt, owned=ids is not None), after)
    (way,) = said
    chosen = _chosen(way, ways[way], data, row_names(dataset), label, seed)
    again = int((chosen & before).sum())
    if again and way not in ("classes", "fraction"):
        got = f"{again} that were forgotten before"
        raise DataError("samples to forget that the model still knows", got, "ask for others alone")
    forget, retain = chosen & ~before, ~chosen & ~before
    if not forget.any() or not retain.any():
        got = f"{int(forget.sum())} of {int((~before).sum())} samples to forget"
        what = "something to forget and something to retain"
        raise DataError(what, got, "choose fewer or more of them")
    return data.select(forget), data.select(retain)


def left_after(after: Any, dataset: Data, form: Form) -> Samples:
    """The dataset without what was forgotten before."""
    data, before = _training_data(dataset, form, after)
    if before.all():
        raise DataError("something that was not forgotten", "nothing", "pass the whole training data")
    return data.select(~before)


def _training_data(dataset: Data, form: Form, after: Any) -> tuple[Samples, Tensor]:
    """The dataset as samples, and which of them were forgotten before, (N,) bool.

    If ids were forgotten, those that items may have in third place are read.
    """
    what, known = "the dataset", forgotten_by(after)
    data = None
    if known.ids and not form.owned:
        with suppress(DataError):  # what is in third place is no id
            data = accepted({what: dataset}, replace(form, owned=True))[what]
    data = data or accepted({what: dataset}, form)[what]
    return data, known.among(data)


def _chosen(way: str, value: Any, data: Samples, names: Any, label: str | None, seed: int) -> Tensor:
    """Which samples are meant, (N,) bool; ``names``: of the rows, where they have any."""
    n = len(data)
    if way == "index":
        if names is None:
            fix = "pass the DataFrame itself, or a truth value for each row as mask="
            raise DataError("a DataFrame, whose rows index= names", "other data", fix)
        return torch.from_numpy(rows_named(names, value))
    if way == "fraction":
        if not isinstance(value, (int, float)) or not 0 < value < 1:
            raise DataError("a fraction between 0 and 1", repr(value), "pass fraction=0.1, say")
        order = torch.randperm(n, generator=torch.Generator().manual_seed(checked_seed(seed)))
        return rows_of_indices(n, order[: max(1, round(value * n))].tolist())
    values = as_list(value)
    if way == "ids":
        return rows_of_ids(data.owners, values)
    if way == "mask" or (way == "indices" and values and all(map(_is_truth, values))):
        return _of_mask(n, value, values, names)
    if way == "classes":
        values = _class_numbers(values, known_names(data, label))
    # Positions and names of rows tell different rows of a shuffled table, so nobody may mean names.
    if way == "indices" and (hasattr(value, "get_indexer_for") if names is None else not counts_rows(names)):
        what = f"a DataFrame with the index 0 to {n - 1}, in this order, for indices="
        fix = "name rows with index=, or pass frame.reset_index(drop=True)"
        raise DataError(what, "another index", fix)
    wrong = [v for v in values if isinstance(v, bool) or not isinstance(v, int)]
    if wrong or not values:
        got = brief(wrong[0]) if wrong else "none"
        raise DataError(f"whole numbers as {way}", got, f"pass {way}=[0, 1], say")
    return rows_of_classes(data.labels, values) if way == "classes" else rows_of_indices(n, values)


def _class_numbers(classes: list[Any], names: tuple[str, ...]) -> list[Any]:
    """Classes by number, if some of them are given by name."""
    if not names or not any(isinstance(c, str) for c in classes):
        return classes
    if absent := [c for c in classes if c not in names]:
        fix = did_you_mean(str(absent[0]), names[:50])
        raise DataError("names of classes that are in the data", brief(absent[0]), fix)
    return [names.index(c) for c in classes]


def rows_of_classes(labels: Tensor, classes: list[int]) -> Tensor:
    """Which samples are of these classes, (N,) bool; every class must be there."""
    there = sorted(labels.unique().tolist())
    if absent := [c for c in classes if c not in there]:
        whole = len(there) > 2 and there == list(range(there[0], there[-1] + 1))
        listed = f"{there[0]} to {there[-1]}" if whole else ", ".join(map(str, there[:20])) or "none"
        got = ", ".join(map(brief, absent[:20]))
        raise DataError(f"classes that are in the data ({listed})", got, "check the class numbers")
    return torch.isin(labels, torch.tensor(sorted(classes)))


def rows_of_indices(n: int, indices: list[int]) -> Tensor:
    """Which of ``n`` samples are at these positions, (N,) bool."""
    if wrong := [i for i in indices if not 0 <= i < n]:
        raise DataError(f"indices from 0 to {n - 1}", brief(wrong[0]), "use positions in the training data")
    rows = torch.zeros(n, dtype=torch.bool)
    rows[torch.tensor(indices)] = True
    return rows


def _is_truth(value: Any) -> bool:
    return isinstance(value, (bool, np.bool_))


def _of_mask(n: int, mask: Any, values: list[Any], names: Any) -> Tensor:
    """A truth value for each of ``n`` samples, (N,) bool; that of a Series belongs to the row it names."""
    own = mask.index if hasattr(mask, "iloc") and len(values) == n else None
    if own is not None and not (counts_rows(own) if names is None else own.equals(names)):
        fix = "make it from the same data, or pass mask.to_numpy() if its rows are in the same order"
        raise DataError("a mask with the index of the data", "another index", fix)
    wrong = [value for value in values if not _is_truth(value)]
    if wrong or len(values) != n:
        got = brief(wrong[0]) if wrong else f"{len(values)} of them"
        raise DataError(f"a truth value for each of {n} samples as mask", got, "pass one for each sample")
    return torch.tensor(values, dtype=torch.bool)
