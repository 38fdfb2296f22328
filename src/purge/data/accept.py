"""The door of data: what people have (DataFrames, DataLoaders, datasets, arrays) becomes Samples, once.

A form of data is an entry of ``ADAPTERS``: a test, and a function that converts what passes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset
from torch.utils.data._utils.collate import default_collate, default_convert

from purge.core.errors import DataError, brief
from purge.data import inputs
from purge.data.backends import Items, Tensors
from purge.data.classes import as_numbers, common_order, names_of, numbers_of_words, words_of
from purge.data.foreign import are_arrays, check_pair, is_table, known_labels, length, unwrap
from purge.data.ids import (
    as_text,
    no_owners,
    owners_in_columns,
    owners_in_table,
    owners_listed,
)
from purge.data.items import Form, owner_in
from purge.data.prefetch import say_once
from purge.data.ragged import pads_of, stretched, widest
from purge.data.samples import Data, Origin, Samples
from purge.data.tables import categories, frame_values, is_frame, label_column, label_values

Adapter: TypeAlias = Callable[[Any, Form, str], Samples]


# -- the door -----------------------------------------------------------------------------------


class Accepted:
    """What was converted, so that an audit converts nothing that the run before it did."""

    def __init__(self) -> None:
        self._known: list[tuple[Any, Form, Samples]] = []

    def find(self, data: Any, form: Form) -> Samples | None:
        """The samples that these data became, if they were given before."""
        return next((s for given, how, s in self._known if given is data and how.same(form)), None)

    def add(self, data: Any, form: Form, samples: Samples) -> None:
        """Keep what data became, for as long as whoever holds this lives."""
        self._known.append((data, form, samples))


def accepted(
    given: Mapping[str, Data], form: Form | None = None, order: Sequence[str] = (),
    before: Accepted | None = None,
) -> dict[str, Samples]:  # fmt: skip
    """Each set as samples, with labels as numbers in one common order.

    ``order``: the names of the model's classes, where it knows them. ``before``: what was converted already,
    to which this is added.

    >>> sets = {"forget": (np.zeros((1, 2)), np.array(["dog"])), "retain": (np.zeros((1, 2)), ["cat"])}
    >>> {name: samples.labels.tolist() for name, samples in accepted(sets).items()}
    {'forget': [1], 'retain': [0]}
    """
    form, before = form or Form(), before or Accepted()
    found = {}
    for what, data in given.items():
        samples = before.find(data, form)
        if samples is None:
            samples = converted(data, form, what)
            before.add(data, form, samples)
        found[what] = samples
    raw = {what: one for what, one in found.items() if one is not given[what]}
    return _of_one_length(_of_one_table(_of_one_order(found, raw, form, order)))


def as_samples(data: Data, device: torch.device, what: str, dtype: torch.dtype = torch.float32) -> Samples:
    """Any form of data as samples on the device; ``what`` names it in messages."""
    return accepted({what: data})[what].to(device, dtype)


def converted(data: Data, form: Form, what: str) -> Samples:
    """One set as samples; labels that were names are numbered in an order of its own."""
    adapt = next(adapt for is_it, adapt in ADAPTERS if is_it(data))
    samples = adapt(data, form, what)
    if form.id_of is None or samples.owners:
        return samples
    return samples.replaced(owners=tuple(_owners(samples, form)))


def _owners(samples: Samples, form: Form) -> Sequence[str]:
    """Whose each sample is, where the caller said how to know it and the items did not tell."""
    if not isinstance(form.id_of, (str, int, np.integer)):
        return owners_listed(form.id_of, len(samples))
    base = samples.origin.data
    if base is None or are_arrays(base):
        raise no_owners(form.id_of, "the ids of a pair of arrays, one per sample,")
    found = owners_in_columns(base, form.id_of)
    if found is None and isinstance(base, TensorDataset):
        found = owners_in_table(base, form.id_of)
    if found is not None:
        return [found[i] for i in samples.ids.tolist()]
    return as_text([owner_in(base[i], form) for i in samples.ids.tolist()], "the ids")


# -- what sets that belong together must share --------------------------------------------------


def _of_one_order(
    found: dict[str, Samples], raw: Mapping[str, Samples], form: Form, order: Sequence[str]
) -> dict[str, Samples]:
    """Sets whose labels were names, with their numbers in one order: the model's, or that of a set."""
    worded = {what: one for what, one in found.items() if one.worded}
    if not worded:
        return found
    told = {what: known_names(one, form.label) for what, one in found.items()}
    unnamed = [what for what in found if what not in worded and not told[what]]
    if unnamed and not order and worded.keys() & raw.keys():
        got = f"names in {next(iter(worded))} and numbers in {unnamed[0]}"
        raise DataError("labels of one kind in all sets", got, "use names, or numbers, in all of them")
    words = {
        what: [one.names[i] for i in one.labels.unique().tolist()] if what in raw else [*one.names]
        for what, one in worded.items()
    }
    names = common_order(words, [order, *filter(None, told.values())])
    for what, one in worded.items():
        if one.names != names:
            place = {number: names.index(one.names[number]) for number in one.labels.unique().tolist()}
            y = torch.tensor([place[number] for number in one.labels.tolist()], dtype=torch.long)
            found[what] = one.replaced(labels=y, names=names)
    return found


def known_names(samples: Samples, label: str | None = None) -> tuple[str, ...]:
    """The names of the classes in their order, where the samples or what they were made of tell them."""
    return samples.names or names_of(samples.origin.data, label)


def _of_one_table(found: dict[str, Samples]) -> dict[str, Samples]:
    """Tables with named columns, all with those of the first, in its order."""
    tables = {what: one for what, one in found.items() if one.columns}
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
            backend = Tensors(one.backend.raw(one.places)[:, order], cast=True)
            found[what] = one.replaced(backend=backend, rows=None, columns=wanted)
    return found


def _of_one_length(found: dict[str, Samples]) -> dict[str, Samples]:
    """Sets with rows that were padded, all padded to the longest of them."""
    ragged = {what: one for what, one in found.items() if one.backend.pads}
    if not ragged:
        return found
    known = zip(*(one.backend.pads for one in ragged.values()), strict=True)  # of each tensor, of any set
    pads = tuple(next((pad for pad in each if pad is not None), None) for each in known)
    shapes = widest([one.backend.shapes for one in ragged.values()])
    for what, one in ragged.items():
        if one.backend.shapes != shapes or one.backend.pads != pads:
            backend = one.backend.padded_to(shapes, pads, what)
            found[what] = one.replaced(backend=backend)
    return found


# -- forms of data ------------------------------------------------------------------------------


def _is_loader(data: Any) -> bool:
    return isinstance(data, DataLoader)


def _is_stream(data: Any) -> bool:
    return isinstance(data.dataset if isinstance(data, DataLoader) else data, IterableDataset)


def _is_items_in_list(data: Any) -> bool:
    return isinstance(data, list) and len(data) > 2  # a pair may be a list, too


def _is_pair(data: Any) -> bool:
    return isinstance(data, (tuple, list))


def _is_samples(data: Any) -> bool:
    return isinstance(data, Samples)


def _as_it_is(data: Any, _form: Form, _what: str) -> Samples:
    return data  # type: ignore[no-any-return]


def _refuse_stream(data: Any, _form: Form, what: str) -> Samples:
    """The samples to forget are looked up by number, again and again."""
    stream = data.dataset if isinstance(data, DataLoader) else data
    raise DataError(
        f"{what} as a dataset whose items can be looked up by number",
        f"a stream ({type(stream).__name__})",
        "use a map-style dataset (with __len__ and __getitem__), or list(stream) if it fits into memory",
    )


def _from_loader(loader: Any, form: Form, what: str) -> Samples:
    """The dataset of a DataLoader, in its own order; of its items those that a sampler chooses from."""
    under: Any = loader.dataset
    if isinstance(under, (list, tuple)):  # of items, which a DataLoader takes
        under = _Rows(len(under), under.__getitem__)
    samplers = (loader.sampler, getattr(loader.batch_sampler, "sampler", None))
    chosen = next((found for s in samplers if (found := getattr(s, "indices", None)) is not None), None)
    if chosen is not None:
        under = Subset(under, sorted({int(i) for i in chosen}))
    if form.adapt is not None or loader.collate_fn in (default_collate, default_convert):
        return converted(under, form, what)
    return _read(under, form, what, loader.collate_fn)


def _from_list(data: Any, form: Form, what: str) -> Samples:
    return _from_items(_Rows(len(data), data.__getitem__), form, what)


def _from_frame(frame: Any, form: Form, what: str) -> Samples:
    """A DataFrame: a column of labels, perhaps one of ids, and numbers in all others."""
    origin = Origin.of(frame, len(frame))
    if form.adapt is not None:
        records = frame.to_dict("records")
        return _read(_Rows(len(records), records.__getitem__), form, what, origin=origin)
    label = label_column(frame, form.label, what)
    named = isinstance(form.id_of, str)
    owners = owners_in_columns(frame, form.id_of) if named else None
    left = frame.drop(columns=[label, *([form.id_of] if named else [])])
    y, names, worded = _numbered(frame[label], len(frame), what)
    x = torch.as_tensor(frame_values(left, what))
    return Samples(
        Tensors(x, cast=True), y, origin=origin, owners=owners or (), names=names, worded=worded,
        columns=tuple(left.columns), paired=True,
    )  # fmt: skip


def _from_pair(data: Any, form: Form, what: str) -> Samples:
    """Inputs (arrays, tensors, a dict or tuple of them, a DataFrame) and labels."""
    if len(data) != 2:
        check_pair(data, what)
    x, y = data
    if form.adapt is not None:
        x, y = (frame_values(x, what) if is_frame(x) else x), label_values(y, what)
        items = _Rows(len(y), lambda i: (inputs.take(x, i), y[i]))
        return _read(items, form, what, origin=Origin.of(data[0], len(y)))
    if _has_other_labels(x, y):
        values = label_values(y, what)
        columns = tuple(x.columns) if is_frame(x) else ()
        x, _ = check_pair((frame_values(x, what) if is_frame(x) else x, np.zeros(len(values))), what)
        labels, names, worded = _numbered(y, len(values), what)
    else:
        columns, names, worded = (), (), False
        x, values = check_pair(data, what)
        labels = as_numbers(values, len(values), what)
    cast = is_frame(data[0]) or all(isinstance(t, np.ndarray) for t in inputs.leaves(data[0]))
    return Samples(
        Tensors(x, cast=cast), labels, origin=Origin.of(data[0], len(labels)), names=names, worded=worded,
        columns=columns, paired=True,
    )  # fmt: skip


def _has_other_labels(x: Any, y: Any) -> bool:
    """Are the labels of a pair not simply an array of numbers, or the inputs a DataFrame?"""
    if is_frame(x) or is_frame(y) or hasattr(y, "iloc"):
        return True
    if isinstance(y, (list, tuple)):
        return are_arrays(x) and bool(y) and all(isinstance(v, (str, int, np.integer)) for v in y)
    return isinstance(y, np.ndarray) and y.dtype.kind in "OUST" and are_arrays(x)


def _from_items(data: Any, form: Form, what: str) -> Samples:
    """A map-style dataset: tables as they are; items are read now if nothing lists their labels."""
    n = length(data, what)
    base, rows = unwrap(data)
    part: dict[str, Any] = {"ids": rows, "origin": Origin.of(base, len(base)), "cut": base is not data}
    if n == 0:
        return Samples(Tensors(torch.empty(0)), torch.empty(0, dtype=torch.long), **part)
    if is_table(base) and form.adapt is None:
        if odd := inputs.unusable(base.tensors[:2]):
            raise DataError(f"plain tensors in {what}", odd, "convert it to a dense tensor with values")
        x, y = base.tensors[:2]
        own = owners_in_table(base, None) if form.owned and form.id_of is None else ()
        owners = [own[i] for i in rows.tolist()] if own else _carried(data, n)
        view = None if base is data else rows
        return Samples(Tensors(x), as_numbers(y[rows], n, what), rows=view, owners=owners, **part)
    listed = None if form.reads else known_labels(base)
    if listed is None:
        return _read(data, form, what)
    items = Items(data, n, form, None, what)  # which reads none of them before they are needed
    mine = listed[rows] if isinstance(listed, Tensor) else [listed[i] for i in rows.tolist()]
    y, names, worded = _numbered(mine, n, what, base, form)
    return Samples(items, y, names=names if worded else (), worded=worded, owners=_carried(data, n), **part)


def _read(
    data: Any, form: Form, what: str, collate: Callable[[Any], Any] | None = None,
    origin: Origin | None = None,
) -> Samples:  # fmt: skip
    """Read a dataset once, in order: its inputs if they can be kept, its labels, and whose they are."""
    n = length(data, what)
    base, rows = (data, torch.arange(n)) if origin is not None else unwrap(data)
    if n == 0:
        return Samples(Tensors(torch.empty(0)), torch.empty(0, dtype=torch.long))
    items = Items(data, n, form, collate, what)
    keep = items.keeps(n)
    if not keep and not form.reads and collate is None:
        say_once(f"Nothing lists the labels of {what} (no .targets or .labels): all items are read for them.")
    xs, labels, owners, shapes = [], list[Any](), list[Any](), []
    for made in items.chunks():
        labels += made.labels
        owners += made.owners
        shapes.append([tuple(t.shape[1:]) for t in inputs.leaves(made.x)])
        xs += [made.x] if keep else []
    if collate is not None:
        items.shapes = widest(shapes)
        items.pads = items.guarded(lambda: pads_of(items, data, items.shapes))
        xs = [stretched(x, items.shapes, items.pads, what) for x in xs]
    y, names, worded = _numbered(labels, n, what, base, form)
    named = "the ids of adapt" if form.adapt else "the ids"
    who = as_text(owners, named) if any(owner is not None for owner in owners) else _carried(data, n)
    backend = Tensors(items.guarded(lambda: inputs.join(xs)), pads=items.pads) if keep else items
    return Samples(
        backend, y, ids=rows, origin=origin or Origin.of(base, len(base)), owners=who, names=names,
        worded=worded, paired=keep and (worded or form.told or collate is not None),
        cut=origin is None and base is not data,
    )  # fmt: skip


def _numbered(
    y: Any, n: int, what: str, base: Any = None, form: Form | None = None
) -> tuple[Tensor, tuple[str, ...], bool]:
    """Labels as numbers, the names of the classes, and whether the labels were names."""
    form = form or Form()
    names = categories(y) or (() if form.adapt else names_of(base, form.label))
    words = words_of(label_values(y, what), what)
    if words is None:
        return as_numbers(label_values(y, what), n, what), names, False
    order = names if set(words) <= set(names) else tuple(sorted(set(words)))
    return numbers_of_words(words, order), order, True


def _carried(data: Any, n: int) -> tuple[str, ...]:
    """The owners that a dataset of the caller carries, one for each item."""
    owners = tuple(map(str, getattr(data, "owners", ())))
    return owners if len(owners) == n else ()


class _Rows:
    """Items made by a function of their number."""

    def __init__(self, n: int, item: Callable[[int], Any]) -> None:
        self.n, self.item = n, item

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> Any:
        return self.item(i)


ADAPTERS: list[tuple[Callable[[Any], bool], Adapter]] = [  # the first that fits; add a form above the last
    (_is_samples, _as_it_is),
    (_is_stream, _refuse_stream),
    (_is_loader, _from_loader),
    (is_frame, _from_frame),
    (_is_items_in_list, _from_list),
    (_is_pair, _from_pair),
    (lambda data: True, _from_items),
]
