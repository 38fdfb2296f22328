"""Data as people have it (DataFrames, DataLoaders, names as labels) in the forms that purge works on.

Images, pairs of tensors and datasets of ``(tensor, number)`` pass as they are. Everything else is read once
and becomes a :class:`Pair`, or stays a dataset, :class:`Adapted`, if it is too large to keep.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset
from torch.utils.data._utils.collate import default_collate, default_convert

from purge.core.errors import DataError, PurgeError, brief, first_line
from purge.data import inputs
from purge.data.adapted import Adapted, Form, Raw
from purge.data.classes import as_numbers, common_order, names_of, numbers_of_words, words_of
from purge.data.ids import as_text, subjects_in, subjects_of
from purge.data.images import Images
from purge.data.items import ADAPT, input_and_label
from purge.data.pair import Pair
from purge.data.ragged import pads_of, stretched, widest
from purge.data.samples import (
    RESIDENT_BYTES,
    are_arrays,
    differ_when_read_again,
    is_table,
    length,
    no_stream,
    pair_of,
    unwrap,
)
from purge.data.tables import categories, frame_values, is_frame, label_column, label_values

CHUNK = 256  # items that are read at a time

# -- the door -----------------------------------------------------------------------------------


def accepted(given: Mapping[str, Any], form: Form | None = None, order: Sequence[str] = ()) -> dict[str, Any]:
    """Each set in a form that purge works on, with labels as numbers in one common order.

    ``order``: the names of the model's classes, where it knows them.

    >>> sets = {"forget": (np.zeros((1, 2)), np.array(["dog"])), "retain": (np.zeros((1, 2)), ["cat"])}
    >>> {name: data[1].tolist() for name, data in accepted(sets).items()}
    {'forget': [1], 'retain': [0]}
    """
    form = form or Form()
    found = {what: _opened(data, form, what) for what, data in given.items()}
    raw = {what: data for what, data in found.items() if isinstance(data, Raw)}
    words = {what: text for what, one in raw.items() if (text := words_of(one.labels, what)) is not None}
    names = _order(words, found, given, form, order)
    for what, one in raw.items():
        found[what] = _closed(one, words.get(what), names, what)
    return _of_one_length(_of_one_table(_of_one_order(found, names)))


def _of_one_table(found: dict[str, Any]) -> dict[str, Any]:
    """Tables with named columns, all with those of the first, in its order."""
    tables = {what: one for what, one in found.items() if isinstance(one, Pair) and one.columns}
    first = next(iter(tables), "")
    for what, one in tables.items():
        wanted = tables[first].columns
        if set(one.columns) != set(wanted) or len(one.columns) != len(wanted):
            odd = [*(c for c in wanted if c not in one.columns), *(c for c in one.columns if c not in wanted)]
            got = f"{brief(odd[0])} in one of them alone" if odd else "one of them twice"
            raise DataError(
                f"the same columns in {first} and {what}", got, "prepare all sets in the same way"
            )
        if one.columns != wanted:
            order = [one.columns.index(column) for column in wanted]
            found[what] = one.replaced(one[0][:, order], one[1], columns=wanted)
    return found


def _order(
    words: Mapping[str, list[str]], found: Mapping[str, Any], given: Mapping[str, Any], form: Form,
    order: Sequence[str],
) -> tuple[str, ...]:  # fmt: skip
    """The common order of all classes, if any set has names as labels: the model's, or that of a set."""
    written = {what: base.names for what, data in found.items() if _worded(base := _base(data))}
    if not words and not written:
        return ()
    told = {what: _told_names(found[what], given[what], form) for what in given}
    unnamed = [what for what in given if what not in words and not told[what]]
    if words and unnamed and not order:
        got = f"names in {next(iter(words))} and numbers in {unnamed[0]}"
        raise DataError("labels of one kind in all sets", got, "use names, or numbers, in all of them")
    return common_order({**written, **words}, [order, *filter(None, told.values())])


def _worded(data: Any) -> bool:
    """Were its labels names?"""
    return isinstance(data, (Pair, Adapted)) and data.worded


def _of_one_order(found: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """Sets whose labels were names, with their numbers in one order; parts of one set stay that."""
    copies: dict[int, Any] = {}
    for what, data in found.items():
        base = _base(data)
        if not _worded(base) or base.names == names:
            continue
        place = numbers_of_words(base.names, names)
        if isinstance(base, Pair):
            found[what] = base.replaced(base[0], place[base[1]], names=names)
            continue
        if id(base) not in copies:
            other = copies[id(base)] = copy.copy(base)
            other.names, other.targets = names, place[torch.tensor(base.targets)].tolist()
        found[what] = _over(data, copies[id(base)])
    return found


def _over(data: Any, base: Any) -> Any:
    """The same part of another dataset."""
    if not isinstance(data, Subset):
        return base
    part = copy.copy(data)
    part.dataset = _over(data.dataset, base)
    return part


def _told_names(data: Any, given: Any, form: Form) -> tuple[str, ...]:
    return getattr(data, "names", ()) or names_of(_base(given), form.label)


def _closed(raw: Raw, words: list[str] | None, names: tuple[str, ...], what: str) -> Any:
    """The samples that were read, with their labels as numbers."""
    n = len(raw.labels)
    own = names if words is not None else raw.names
    y = as_numbers(raw.labels, n, what) if words is None else numbers_of_words(words, names)
    if raw.large is not None:
        raw.large.targets, raw.large.names, raw.large.subjects = y.tolist(), own, raw.subjects
        raw.large.worded = words is not None
        return raw.large
    return Pair(
        (raw.x, y), rows=raw.rows, whole=raw.whole, names=own, subjects=raw.subjects, pads=raw.pads,
        columns=raw.columns, cast=raw.cast, worded=words is not None,
    )  # fmt: skip


def _of_one_length(found: dict[str, Any]) -> dict[str, Any]:
    """Sets with rows that were padded, all padded to the longest of them."""
    ragged = {what: one for what, one in found.items() if isinstance(one, (Pair, Adapted)) and one.pads}
    if not ragged:
        return found
    known = zip(*(one.pads for one in ragged.values()), strict=True)  # of each tensor, what any set tells
    pads = tuple(next((pad for pad in each if pad is not None), None) for each in known)
    shapes = widest([_shapes(one) for one in ragged.values()])
    for what, one in ragged.items():
        if isinstance(one, Adapted):
            one.shapes, one.pads = shapes, pads
        else:
            found[what] = one.replaced(stretched(one[0], shapes, pads, what), one[1], pads=pads)
    return found


def _shapes(data: Pair | Adapted) -> list[tuple[int, ...]]:
    return data.shapes if isinstance(data, Adapted) else [tuple(t.shape[1:]) for t in inputs.leaves(data[0])]


def _base(data: Any) -> Any:
    while isinstance(data, (Subset, DataLoader)):
        data = data.dataset
    return data


def needs_opening(data: Any) -> bool:
    """Is it of a kind that must be read before anything can be said about its labels?"""
    return isinstance(data, DataLoader) or is_frame(data) or _odd_pair(data)


def _odd_pair(data: Any) -> bool:
    """Is it a pair whose labels are not simply an array of numbers, or with a DataFrame?"""
    if isinstance(data, Pair) or not isinstance(data, (tuple, list)) or len(data) != 2:
        return False
    x, y = data
    if is_frame(x) or is_frame(y) or hasattr(y, "iloc"):
        return True
    if isinstance(y, (list, tuple)):
        return are_arrays(x) and bool(y) and all(isinstance(v, (str, int, np.integer)) for v in y)
    return isinstance(y, np.ndarray) and y.dtype.kind in "OUST" and are_arrays(x)


def _opened(data: Any, form: Form, what: str) -> Any:
    """Data as it is if purge works on it, otherwise what was read from it."""
    if isinstance(data, list) and len(data) > 2:  # a pair may be a list, too
        data = _Rows(len(data), data.__getitem__)
    if isinstance(data, IterableDataset):
        raise no_stream(data, what)
    if isinstance(data, DataLoader):
        if isinstance(data.dataset, IterableDataset):
            raise no_stream(data.dataset, what)
        under = _sampled(data)
        own = data.collate_fn not in (default_collate, default_convert)
        if not own or form.adapt is not None:
            return _opened(under, form, what)
        return _read(under, form, data.collate_fn, what)
    if is_frame(data):
        return _from_frame(data, form, what)
    if isinstance(data, Images):
        return _owned(data, form)
    if isinstance(data, (tuple, list)):
        if form.adapt is not None and not isinstance(data, Pair):
            x, y = _plain_pair(data, what)
            items = _Rows(len(y), lambda i: (inputs.take(x, i), y[i]))
            return _read(items, form, None, what, whole=data[0])
        return _owned(_raw_pair(data, what) if _odd_pair(data) else data, form)
    if isinstance(data, Adapted):
        return data
    n = length(data, what)
    base, _ = unwrap(data)
    if isinstance(base, Adapted) or (is_table(base) and form.adapt is None) or n == 0:
        return _owned(data, form)
    keyed = isinstance(form.id_of, (str, int))
    if form.adapt is not None or form.label is not None or (keyed and not subjects_in(data)):
        return _read(data, form, None, what)
    return _read(data, form, None, what) if _has_words(data, base, what) else _owned(data, form)


def _sampled(loader: DataLoader[Any]) -> Any:
    """The dataset of a DataLoader; those of its items that its sampler is a choice of, in their order."""
    under: Any = loader.dataset
    if isinstance(under, (list, tuple)):  # of items, which a DataLoader takes
        under = _Rows(len(under), under.__getitem__)
    samplers = (loader.sampler, getattr(loader.batch_sampler, "sampler", None))
    chosen = next((found for s in samplers if (found := getattr(s, "indices", None)) is not None), None)
    return under if chosen is None else Subset(under, sorted({int(i) for i in chosen}))


def _owned(data: Any, form: Form) -> Any:
    """Data that purge works on, with the ids that were named."""
    if form.id_of is None or subjects_in(data):
        return data
    return with_subjects(data, subjects_of(data, form.id_of))


def with_subjects(data: Any, subjects: Sequence[str]) -> Any:
    """The same data, which knows whose each sample is."""
    if isinstance(data, Raw):
        data.subjects = tuple(subjects)
        return data
    if isinstance(data, Images):
        return data.with_subjects(subjects)
    if isinstance(data, Pair):
        return data.replaced(data[0], data[1], subjects=subjects)
    if isinstance(data, (tuple, list)):
        x, y = pair_of(data, "the data")
        cast = all(isinstance(t, np.ndarray) for t in inputs.leaves(data[0]))
        return Pair((x, torch.as_tensor(y)), whole=data[0], subjects=subjects, cast=cast)
    return Owned(data, range(length(data)), subjects)


class Owned(Subset[Any]):
    """Items of a dataset, with the user's own id of each."""

    def __init__(self, dataset: Dataset[Any], indices: Sequence[int], subjects: Sequence[str]) -> None:
        super().__init__(dataset, indices)
        self.subjects = tuple(subjects)

    def __repr__(self) -> str:
        ids = len(set(self.subjects))
        return f"Owned({len(self)} samples of {ids} id{'s' * (ids > 1)})"


def _has_words(data: Any, base: Any, what: str) -> bool:
    """Are the labels of a dataset names? Its list of them says so, or its first item."""
    listed = getattr(base, "targets", None)
    if isinstance(listed, (list, tuple)) and listed:
        return isinstance(listed[0], str)
    if listed is not None:
        return False
    try:
        return isinstance(input_and_label(data[0])[1], str)
    except (Exception, SystemExit):  # whatever is wrong with it is told by those who read it
        return False


class _Rows:
    """Items made by a function of their number."""

    def __init__(self, n: int, item: Callable[[int], Any]) -> None:
        self.n, self.item = n, item

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> Any:
        return self.item(i)


# -- reading ------------------------------------------------------------------------------------


def _read(
    data: Any, form: Form, collate: Callable[[Any], Any] | None, what: str, *, whole: Any = None
) -> Raw | Any:
    """Read a dataset once, in order: its inputs if they can be kept, its labels, and whose they are."""
    n = length(data, what)
    base, rows = (data, None) if whole is not None else unwrap(data)
    if n == 0:
        return Raw(torch.empty(0), torch.empty(0, dtype=torch.long), whole)
    adapted = Adapted(data, form, collate, what)
    first = _told(lambda: adapted.opened([data[0]])[0], what, form)
    size, moving = n * inputs.size(first), _told(lambda: differ_when_read_again(adapted, what), what, form)
    xs, labels, ids, shapes = [], list[Any](), list[Any](), list[list[tuple[int, ...]]]()
    keep = size <= RESIDENT_BYTES and not moving
    loader = DataLoader(data, batch_size=CHUNK, collate_fn=list, generator=torch.Generator())
    for items in _told_each(loader, what, form):
        x, y, who = _told(lambda items=items: adapted.opened(items), what, form)  # type: ignore[misc]
        labels += y
        ids += who
        shapes.append([tuple(t.shape[1:]) for t in inputs.leaves(x)])
        xs += [x] if keep else []
    if collate is not None:
        adapted.shapes = widest(shapes)
        adapted.pads = _told(lambda: pads_of(adapted, data, adapted.shapes), what, form)
        xs = [stretched(x, adapted.shapes, adapted.pads, what) for x in xs]
    given = any(who is not None for who in ids)
    subjects = as_text(ids, "the ids of adapt") if given else ()
    if not given and (form.id_of is not None or subjects_in(data)):
        subjects = subjects_of(data, form.id_of)
    return Raw(
        inputs.join(xs) if keep else None, labels, whole if whole is not None else base, rows, subjects,
        () if form.adapt else names_of(base, form.label), adapted.pads, large=None if keep else adapted,
    )  # fmt: skip


def _told(call: Callable[[], Any], what: str, form: Form) -> Any:
    """What a call returns; what the caller's own code raises in it is told in a line."""
    try:
        return call()
    except PurgeError:
        raise
    except (Exception, SystemExit) as error:  # whatever the caller's own code may raise
        by = "adapt or the dataset" if form.adapt is not None else "the dataset or its collate_fn"
        got, fix = first_line(error), f"correct {by}, or pass {ADAPT}"
        raise DataError(f"inputs and a label from each item of {what}", got, fix) from error


def _told_each(loader: Iterable[Any], what: str, form: Form) -> Iterable[Any]:
    found = iter(loader)
    while (items := _told(lambda: next(found, None), what, form)) is not None:
        yield items


# -- tables -------------------------------------------------------------------------------------


def _plain_pair(data: Sequence[Any], what: str) -> tuple[Any, Any]:
    """A pair as arrays or tensors, whatever its labels are."""
    if len(data) != 2:
        return pair_of(data, what)
    x = frame_values(data[0], what) if is_frame(data[0]) else data[0]
    return x, label_values(data[1], what)


def _raw_pair(data: Sequence[Any], what: str) -> Raw:
    """A pair of a DataFrame or arrays and a series, a list or an array of labels."""
    x, y = data
    values, names = label_values(y, what), categories(y)
    columns = tuple(x.columns) if is_frame(x) else ()
    cast = is_frame(x) or all(isinstance(t, np.ndarray) for t in inputs.leaves(x))
    x = frame_values(x, what) if is_frame(x) else x
    checked, _ = pair_of((x, np.zeros(len(values))), what)
    return Raw(checked, values, data[0], names=names, columns=columns, cast=cast)


def _from_frame(frame: Any, form: Form, what: str) -> Raw:
    """A DataFrame: a column of labels, perhaps one of ids, and numbers in all others."""
    if form.adapt is not None:
        records = frame.to_dict("records")
        raw: Raw = _read(_Rows(len(records), records.__getitem__), form, None, what, whole=frame)
        if not raw.subjects and form.id_of is not None:
            raw.subjects = subjects_of(frame, form.id_of)
        return raw
    label = label_column(frame, form.label, what)
    subjects = () if form.id_of is None else subjects_of(frame, form.id_of)
    left = frame.drop(columns=[label, *([form.id_of] if isinstance(form.id_of, str) else [])])
    y = frame[label]
    return Raw(
        torch.as_tensor(frame_values(left, what)), label_values(y, what), frame, subjects=subjects,
        names=categories(y), columns=tuple(left.columns), cast=True,
    )  # fmt: skip
