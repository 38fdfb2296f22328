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

from purge.core.errors import DataError, brief, first_line
from purge.data import inputs
from purge.data.backends import ITEMS, Items, Tensors
from purge.data.classes import as_labels, names_of, numbered
from purge.data.dataframes import frame_values, is_frame, label_column
from purge.data.inputs import Inputs, pads_of, stretched, widest
from purge.data.items import LABEL_KEYS, Form, as_text, input_and_label, native, owner_in, owners_in_columns
from purge.data.prefetch import say_once
from purge.data.samples import Data, Origin, Samples

ARRAYS = (Tensor, np.ndarray, list, tuple)  # what labels may be in
MOST_SAMPLES = 1 << 31  # an index of them takes 16 GB

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
    for what, one in worded.items():
        if one.names != names:
            place = torch.zeros(len(one.names), dtype=torch.long)
            for number in one.labels.unique().tolist():
                place[number] = names.index(one.names[number])
            sets[what] = one.replaced(labels=place[one.labels], names=names)
    return sets


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
    known = zip(*(one.backend.pads for one in ragged.values()), strict=True)  # of each tensor, of any set
    pads = tuple(next((pad for pad in each if pad is not None), None) for each in known)
    shapes = widest([one.backend.shapes for one in ragged.values()])
    for what, one in ragged.items():
        if one.backend.shapes != shapes or one.backend.pads != pads:
            sets[what] = one.replaced(backend=one.backend.padded_to(shapes, pads, what))
    return sets


# -- forms of data ------------------------------------------------------------------------------


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
    ids = [form.id_of] if isinstance(form.id_of, str) else []
    owners = owners_in_columns(frame, form.id_of) if ids else None
    left = frame.drop(columns=[label, *ids])
    y, names, worded = numbered(frame[label], len(frame), what)
    x = Tensors(torch.as_tensor(frame_values(left, what)), cast=True)
    return Samples(
        x, y, origin=origin, owners=owners or (), names=names, worded=worded, columns=tuple(left.columns),
        paired=True,
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
    part["owners"] = _carried(data, n)
    plain = isinstance(base, TensorDataset) and type(base).__getitem__ is TensorDataset.__getitem__
    if plain and len(base.tensors) >= 2 and form.adapt is None:
        x = check_pair(base.tensors[:2], what)
        at = 2 if form.owned and form.id_of is None else form.id_of
        if isinstance(at, int) and -len(base.tensors) <= at < len(base.tensors):
            part["owners"] = as_text(base.tensors[at][rows].tolist(), "the ids")
        y = as_labels(base.tensors[1][rows], n, what)
        return Samples(Tensors(x), y, rows=rows if part["cut"] else None, **part)
    listed = None if form.reads else known_labels(base)
    if listed is None:
        return _read(data, form, what)
    items = Items(data, n, form, None, what)  # which reads none of them before they are needed
    mine = listed[rows] if isinstance(listed, Tensor) else [listed[i] for i in rows.tolist()]
    y, names, worded = numbered(mine, n, what, names_of(base))
    return Samples(items, y, names=names if worded else (), worded=worded, **part)


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
    (lambda data: isinstance(data, DataLoader), _from_loader),
    (is_frame, _from_frame),
    (lambda data: isinstance(data, list) and len(data) > 2, _from_items),  # a pair may be a list, too
    (lambda data: isinstance(data, (tuple, list)), _from_pair),
    (lambda data: True, _from_items),
]


# -- what is in them ------------------------------------------------------------------------------


def length(data: Any, what: str = "the dataset") -> int:
    """How many items a dataset has, or a DataError if it cannot say."""
    rows, looped = hasattr(data, "__getitem__"), hasattr(data, "__iter__")
    stream = isinstance(data, IterableDataset) or (looped and not rows)
    no_items = not rows or not hasattr(data, "__len__")
    if stream or no_items or isinstance(data, (Mapping, str, Tensor, np.ndarray)):
        got, fix = type(data).__name__, "pass (inputs, labels), or a dataset with __len__ and __getitem__"
        if stream:
            got = f"a stream ({got})"
            fix = "use a map-style dataset (with __len__ and __getitem__), or list(stream) if it fits"
        raise DataError(
            f"{what} as a pair of tensors, a DataFrame or a dataset whose items can be looked up by number",
            got, fix,
        )  # fmt: skip
    try:
        n = len(data)
        if n > MOST_SAMPLES:
            raise OverflowError(f"{n} items")
    except (Exception, SystemExit) as error:  # whatever the dataset's own code may raise
        fix = f"make __len__ return the number of items, at most {MOST_SAMPLES}"
        raise DataError(f"a length of {what}", first_line(error), fix) from error
    return n


def unwrap(dataset: Any) -> tuple[Any, Tensor]:
    """The dataset under any nesting of Subset, and the indices into it."""
    index = torch.arange(length(dataset))
    while isinstance(dataset, Subset):
        n = length(dataset.dataset)
        try:
            own = np.asarray(list(dataset.indices) or np.empty(0, np.int64))
        except ValueError:  # lists of unequal length
            own = np.empty((0, 0))
        if own.ndim != 1 or own.dtype.kind not in "iu" or not bool(((own >= -n) & (own < n)).all()):
            what = f"whole numbers as indices of a Subset below {n}"
            got = brief(list(dataset.indices)[:5])
            raise DataError(what, got, "pass positions in the dataset, Subset(dataset, [0, 1])")
        index = torch.from_numpy(own.astype(np.int64))[index]
        index = torch.where(index < 0, index + n, index)
        dataset = dataset.dataset
    return dataset, index


def known_labels(dataset: Any) -> Sequence[Any] | Tensor | None:
    """Labels that a dataset lists, as those of torchvision do, so that not every item must be read.

    What is called ``labels`` is believed if it agrees with some items.
    """
    if getattr(dataset, "target_transform", None) is not None:
        return None
    listed = getattr(dataset, "targets", None)
    if listed is None and _are_labels(named := getattr(dataset, "labels", None), dataset):
        listed = named
    columns = getattr(dataset, "column_names", None) if hasattr(dataset, "features") else None
    if listed is None and isinstance(columns, list):  # Hugging Face
        listed = next((list(dataset[key]) for key in LABEL_KEYS if key in columns), None)
    if isinstance(listed, (list, tuple)) and listed and all(isinstance(one, str) for one in listed):
        return listed if len(listed) == len(dataset) else None
    try:
        labels = torch.as_tensor(listed)
    except (TypeError, ValueError, RuntimeError):
        return None
    return labels if labels.ndim and len(labels) == len(dataset) else None


def _are_labels(listed: Any, dataset: Any) -> bool:
    """Is it a list of whole numbers, one per item and those that a few items have?"""
    try:
        labels, n = torch.as_tensor(listed), len(dataset)
        rows = [i * n // ITEMS for i in range(ITEMS)]
        return labels.shape == (n,) and all(int(input_and_label(dataset[i])[1]) == labels[i] for i in rows)
    except Exception:  # whatever it is, and whatever the dataset's own code may raise
        return False


def are_arrays(x: Any) -> bool:
    """Is it a tensor or an array, or a dict or tuple of them?"""
    nested = isinstance(x, (dict, tuple)) and bool(x)
    return all(isinstance(part, (Tensor, np.ndarray)) for part in (inputs.leaves(x) if nested else [x]))


def check_pair(data: Sequence[Any], what: str) -> Inputs:
    """The inputs of a pair of inputs and labels, whose arrays become tensors."""
    if len(data) != 2 or not isinstance(data[1], ARRAYS) or not are_arrays(data[0]):
        kinds = ", ".join(type(part).__name__ for part in data[:4])
        raise DataError(f"{what} as a pair of tensors (x, y)", f"({kinds})", "pass (inputs, labels)")
    try:
        x = inputs.apply(lambda t: torch.as_tensor(native(t)), data[0])
        odd = inputs.unusable((x, data[1]))
    except TypeError:
        x, odd = None, f"an array of {', '.join({str(part.dtype) for part in inputs.leaves(data[0])})}"
    if odd:
        raise DataError(f"plain tensors of numbers in {what}", odd, "convert it to dense floats with values")
    lengths = [tuple(t.shape[:1]) for t in inputs.leaves(x)]
    lengths.append(tuple(np.shape(data[1])[:1]) if isinstance(data[1], np.ndarray) else (len(data[1]),))
    if not all(lengths) or len(set(lengths)) > 1:
        fix = "pass tensors with the same first dimension"
        raise DataError(f"as many inputs as labels in {what}", " and ".join(map(str, lengths)), fix)
    return x
