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
from purge.data.classes import as_numbers, names_of, numbered
from purge.data.dataframes import frame_values, is_frame, label_column
from purge.data.foreign import are_arrays, check_pair, known_labels, length, unwrap
from purge.data.ids import as_text, owners_in_columns
from purge.data.items import Form, owner_in
from purge.data.prefetch import say_once
from purge.data.ragged import pads_of, stretched, widest
from purge.data.samples import Data, Origin, Samples

Adapter: TypeAlias = Callable[[Any, Form, str], Samples]


# -- the door -----------------------------------------------------------------------------------


class Accepted:
    """What was converted, so that an audit converts nothing that the run before it did."""

    def __init__(self) -> None:
        self.known: list[tuple[Any, Form, Samples]] = []


def accepted(
    raw_sets: Mapping[str, Data], form: Form | None = None, order: Sequence[str] = (),
    before: Accepted | None = None,
) -> dict[str, Samples]:  # fmt: skip
    """Each set as samples, with labels as numbers in one common order.

    ``order``: the names of the model's classes, where it knows them. ``before``: what was converted already,
    to which this is added.

    >>> sets = {"forget": (np.zeros((1, 2)), np.array(["dog"])), "retain": (np.zeros((1, 2)), ["cat"])}
    >>> {name: samples.labels.tolist() for name, samples in accepted(sets).items()}
    {'forget': [1], 'retain': [0]}
    """
    form, before, sets = form or Form(), before or Accepted(), {}
    for what, data in raw_sets.items():
        samples = next((s for one, how, s in before.known if one is data and how.same(form)), None)
        if samples is None:
            samples = converted(data, form, what)
            before.known.append((data, form, samples))
        sets[what] = samples
    raw = {what for what, one in sets.items() if one is not raw_sets[what]}
    return _of_one_length(_of_one_table(_of_one_order(sets, raw, form, order)))


def as_samples(data: Data, device: torch.device, what: str, dtype: torch.dtype = torch.float32) -> Samples:
    """Any form of data as samples on the device; ``what`` names it in messages."""
    return accepted({what: data})[what].to(device, dtype)


def converted(data: Data, form: Form, what: str) -> Samples:
    """One set as samples; labels that were names are numbered in an order of its own."""
    adapt = next(adapt for is_it, adapt in ADAPTERS if is_it(data))
    samples = adapt(data, form, what)
    if form.id_of is None or samples.owners:
        return samples
    if not isinstance(form.id_of, (str, int, np.integer)):
        owners = as_text(list(form.id_of), "id_of=")
        if len(owners) != len(samples):
            expected = f"one id per sample in id_of, {len(samples)}"
            raise DataError(expected, str(len(owners)), "pass them in the same order")
        return samples.replaced(owners=owners)
    base, rows = samples.origin.data, samples.ids.tolist()
    if base is None or are_arrays(base):
        fix = "pass one id per sample, or use adapt= to return (inputs, label, id)"
        raise DataError("the ids of a pair of arrays as id_of", brief(form.id_of), fix)
    columns = owners_in_columns(base, form.id_of)
    if columns is not None:
        return samples.replaced(owners=tuple(columns[i] for i in rows))
    return samples.replaced(owners=as_text([owner_in(base[i], form) for i in rows], "the ids"))


# -- what sets that belong together must share --------------------------------------------------


def _of_one_order(
    sets: dict[str, Samples], raw: set[str], form: Form, order: Sequence[str]
) -> dict[str, Samples]:
    """Sets whose labels were names, with their numbers in one order: the model's, or that of a set."""
    worded = {what: one for what, one in sets.items() if one.worded}
    if not worded:
        return sets
    known = {what: known_names(one, form.label) for what, one in sets.items()}
    unnamed = [what for what in sets if what not in worded and not known[what]]
    if unnamed and not order and worded.keys() & raw:
        got = f"names in {next(iter(worded))} and numbers in {unnamed[0]}"
        raise DataError("labels of one kind in all sets", got, "use names, or numbers, in all of them")
    there = {
        name for what, one in worded.items()
        for name in ([one.names[i] for i in one.labels.unique().tolist()] if what in raw else one.names)
    }  # fmt: skip
    names = next((tuple(one) for one in (order, *known.values()) if there <= {*one}), tuple(sorted(there)))
    return sets | {what: _renumbered(one, names) for what, one in worded.items()}


def _renumbered(samples: Samples, names: tuple[str, ...]) -> Samples:
    """The same labels as numbers in an order of names that has all that occur."""
    if samples.names == names:
        return samples
    place = torch.zeros(len(samples.names), dtype=torch.long)
    for number in samples.labels.unique().tolist():
        place[number] = names.index(samples.names[number])
    return samples.replaced(labels=place[samples.labels], names=names)


def known_names(samples: Samples, label: str | None = None) -> tuple[str, ...]:
    """The names of the classes in their order, where the samples or what they were made of tell them."""
    return samples.names or names_of(samples.origin.data, label)


def _of_one_table(sets: dict[str, Samples]) -> dict[str, Samples]:
    """Tables with named columns, all with those of the first, in its order."""
    tables = {what: one for what, one in sets.items() if one.columns}
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
            sets[what] = one.replaced(backend=backend, rows=None, columns=wanted)
    return sets


def _of_one_length(sets: dict[str, Samples]) -> dict[str, Samples]:
    """Sets with rows that were padded, all padded to the longest of them."""
    ragged = {what: one for what, one in sets.items() if one.backend.pads}
    if not ragged:
        return sets
    known = zip(*(one.backend.pads for one in ragged.values()), strict=True)  # of each tensor, of any set
    pads = tuple(next((pad for pad in each if pad is not None), None) for each in known)
    shapes = widest([one.backend.shapes for one in ragged.values()])
    for what, one in ragged.items():
        if one.backend.shapes != shapes or one.backend.pads != pads:
            sets[what] = one.replaced(backend=one.backend.padded_to(shapes, pads, what))
    return sets


# -- forms of data ------------------------------------------------------------------------------


def _refuse_stream(data: Any, _form: Form, what: str) -> Samples:
    """The samples to forget are looked up by number, again and again."""
    stream = getattr(data, "dataset", data)
    raise DataError(
        f"{what} as a dataset whose items can be looked up by number",
        f"a stream ({type(stream).__name__})",
        "use a map-style dataset (with __len__ and __getitem__), or list(stream) if it fits into memory",
    )


def _from_loader(loader: Any, form: Form, what: str) -> Samples:
    """The dataset of a DataLoader, in its own order; of its items those that a sampler chooses from."""
    under: Any = loader.dataset
    samplers = (loader.sampler, getattr(loader.batch_sampler, "sampler", None))
    chosen = next((at for s in samplers if (at := getattr(s, "indices", None)) is not None), None)
    if chosen is not None:
        under = Subset(under, sorted({int(i) for i in chosen}))
    if form.adapt is None and loader.collate_fn not in (default_collate, default_convert):
        return _read(under, form, what, loader.collate_fn)
    return (
        _from_items(under, form, what) if isinstance(under, (list, tuple)) else converted(under, form, what)
    )


def _from_frame(frame: Any, form: Form, what: str) -> Samples:
    """A DataFrame: a column of labels, perhaps one of ids, and numbers in all others."""
    origin = Origin.of(frame, len(frame))
    if form.adapt is not None:
        return _read(frame.to_dict("records"), form, what, origin=origin)
    label = label_column(frame, form.label, what)
    named = isinstance(form.id_of, str)
    owners = owners_in_columns(frame, form.id_of) if named else None
    left = frame.drop(columns=[label, *([form.id_of] if named else [])])
    y, names, worded = numbered(frame[label], len(frame), what)
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
    columns = tuple(x.columns) if is_frame(x) else ()
    cast = is_frame(x) or all(isinstance(t, np.ndarray) for t in inputs.leaves(x))
    x = frame_values(x, what) if is_frame(x) else x
    plain = y.to_numpy() if hasattr(y, "iloc") else y
    if form.adapt is not None:
        items = [(inputs.take(x, i), plain[i]) for i in range(len(plain))]
        return _read(items, form, what, origin=Origin.of(data[0], len(items)))
    x = check_pair((x, plain), what)
    labels, names, worded = numbered(y, len(plain), what)
    return Samples(
        Tensors(x, cast=cast), labels, origin=Origin.of(data[0], len(labels)), names=names, worded=worded,
        columns=columns, paired=True,
    )  # fmt: skip


def _from_items(data: Any, form: Form, what: str) -> Samples:
    """A map-style dataset: tables as they are; items are read now if nothing lists their labels."""
    n = length(data, what)
    base, rows = unwrap(data)
    part: dict[str, Any] = {"ids": rows, "origin": Origin.of(base, len(base)), "cut": base is not data}
    if n == 0:
        return Samples(Tensors(torch.empty(0)), torch.empty(0, dtype=torch.long), **part)
    plain = isinstance(base, TensorDataset) and type(base).__getitem__ is TensorDataset.__getitem__
    if plain and len(base.tensors) >= 2 and form.adapt is None:
        return _from_table(base.tensors, _carried(data, n), form, what, part)
    listed = None if form.reads else known_labels(base)
    if listed is None:
        return _read(data, form, what)
    items = Items(data, n, form, None, what)  # which reads none of them before they are needed
    mine = listed[rows] if isinstance(listed, Tensor) else [listed[i] for i in rows.tolist()]
    y, names, worded = numbered(mine, n, what, names_of(base))
    return Samples(items, y, names=names if worded else (), worded=worded, owners=_carried(data, n), **part)


def _from_table(
    tensors: Sequence[Tensor], owners: tuple[str, ...], form: Form, what: str, part: dict[str, Any]
) -> Samples:
    """Rows of a TensorDataset: inputs, labels and perhaps ids."""
    if odd := inputs.unusable(tensors[:2]):
        raise DataError(f"plain tensors in {what}", odd, "convert it to a dense tensor with values")
    rows, at = part["ids"], 2 if form.owned and form.id_of is None else form.id_of
    if isinstance(at, int) and -len(tensors) <= at < len(tensors):
        owners = as_text(tensors[at][rows].tolist(), "the ids")
    y = as_numbers(tensors[1][rows], len(rows), what)
    return Samples(Tensors(tensors[0]), y, rows=rows if part["cut"] else None, owners=owners, **part)


def _read(
    data: Any, form: Form, what: str, collate: Callable[[Any], Any] | None = None,
    origin: Origin | None = None,
) -> Samples:  # fmt: skip
    """Read a dataset once, in order: its inputs if they can be kept, its labels, and whose they are."""
    n = length(data, what)
    base, rows = unwrap(data)
    if n == 0:
        return Samples(Tensors(torch.empty(0)), torch.empty(0, dtype=torch.long))
    items = Items(data, n, form, collate, what)
    keep = items.keeps(n)
    if not keep and collate is None and not form.reads:
        say_once(f"Nothing lists the labels of {what} (no .targets or .labels): all items are read for them.")
    xs, labels, owners, shapes = [], list[Any](), list[Any](), []
    for batch in items.chunks():
        labels += batch.labels
        owners += batch.owners
        shapes.append([tuple(t.shape[1:]) for t in inputs.leaves(batch.x)])
        if keep:
            xs.append(batch.x)
    if collate is not None:
        widths = widest(shapes)
        items.pads = items.guarded(lambda: pads_of(items, data, widths))
        items.shapes = widths
        xs = [stretched(x, widths, items.pads, what) for x in xs]
    y, names, worded = numbered(labels, n, what, () if form.adapt else names_of(base, form.label))
    who = as_text(owners, "the ids")
    backend = Tensors(items.guarded(lambda: inputs.join(xs)), pads=items.pads) if keep else items
    return Samples(
        backend, y, ids=rows, origin=origin or Origin.of(base, len(base)),
        owners=who if any(who) else _carried(data, n), names=names, worded=worded, cut=base is not data,
        paired=keep and (worded or form.explicit or collate is not None),
    )  # fmt: skip


def _carried(data: Any, n: int) -> tuple[str, ...]:
    """The owners that a dataset of the caller carries, one for each item."""
    owners = tuple(map(str, getattr(data, "owners", ())))
    return owners if len(owners) == n else ()


ADAPTERS: list[tuple[Callable[[Any], bool], Adapter]] = [  # the first that fits; add a form above the last
    (lambda data: isinstance(data, Samples), lambda data, form, what: data),
    (lambda data: isinstance(getattr(data, "dataset", data), IterableDataset), _refuse_stream),
    (lambda data: isinstance(data, DataLoader), _from_loader),
    (is_frame, _from_frame),
    (lambda data: isinstance(data, list) and len(data) > 2, _from_items),  # a pair may be a list, too
    (lambda data: isinstance(data, (tuple, list)), _from_pair),
    (lambda data: True, _from_items),
]
