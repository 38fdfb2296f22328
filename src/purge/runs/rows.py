"""Requests: which samples must be forgotten, by class, by position or by whose they are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from purge.core.errors import DataError, FileError, brief, did_you_mean
from purge.data.samples import GivenLabels, Samples
from purge.data.split import rows_of_classes, rows_of_indices

# {"forget_classes": […]}, {"forget_ids": […]} (positions), {"forget_subjects": […]} (the user's own ids as
# text) or several of them; empty: nothing
Request = dict[Literal["forget_classes", "forget_ids", "forget_subjects"], list[Any]]

MOST_IDS_SHOWN = 3  # in a message: they are personal data
DIGITS = 100  # of a sample or class number in a file; Python itself reads no more than 4,300


def check_request(request: Request, where: str) -> None:
    """Refuse a request out of a file whose classes or positions are no numbers, or whose ids are no text."""
    for key, values in request.items():
        kind, words = (str, "text") if key == "forget_subjects" else (int, "whole numbers")
        if wrong := [v for v in values if type(v) is not kind]:
            what = f"{words} for {key} as {where}"
            raise FileError(what, brief(wrong[0]), "use the file that purge wrote")


def request_of(train: Samples, classes: Sequence[str], ids: Path | None, *, words: str) -> Request:
    """What to forget, as run.json has it; ``words``: the stem of the two options that say so.

    A model may be trained without classes and samples, as the reference for several requests.
    """
    if classes and ids is not None and words != "without":
        raise DataError(f"either --{words}-class or --{words}-ids", "both", "leave one of them out")
    found: Request = {}
    if classes:
        found["forget_classes"] = sorted({_class_number(c, train.names) for c in classes})
    if ids is not None and train.owners:
        found["forget_subjects"] = _read_subjects(ids, train)
    elif ids is not None:
        found["forget_ids"] = _read_ids(ids, train)
    return found


def both(a: Request, b: Request) -> Request:
    """Two requests as one."""
    return {key: sorted({*a.get(key, []), *b.get(key, [])}) for key in sorted({*a, *b})}


def cut(train: Samples, request: Request, before: Request | None = None) -> tuple[Samples, Samples]:
    """Split training images into forget and retain; what was gone ``before`` is not retained."""
    forget, gone = rows_of(train, request), rows_of(train, before or {})
    retain = ~forget & ~gone
    if not forget.any() or not retain.any():
        got = f"{int(forget.sum())} of {len(train)} samples to forget"
        raise DataError("something to forget and something to retain", got, "choose fewer or more of them")
    return train.select(forget), train.select(retain)


def rows_of(train: Samples, request: Request) -> Tensor:
    """A mask (N,) of the training images that a request names."""
    found = torch.zeros(len(train), dtype=torch.bool)
    if "forget_classes" in request:
        found |= rows_of_classes(train.labels, request["forget_classes"])
    if "forget_ids" in request:
        found |= rows_of_indices(len(train), request["forget_ids"])
    if "forget_subjects" in request:
        found |= _rows_of_subjects(train, request["forget_subjects"])
    return found


def _rows_of_subjects(train: Samples, wanted: Sequence[str]) -> Tensor:
    """A mask (N,) of the samples of these people; one who is no longer in the data has none."""
    if not (known := train.owners):
        got, fix = "data without ids", "name their column with --id"
        raise DataError("ids of the samples, as the run forgot some by their ids", got, fix)
    asked = set(wanted)
    return torch.tensor([subject in asked for subject in known])


def _read_subjects(path: Path, train: Samples) -> list[str]:
    """The user's own ids, one per line."""
    found, known = set(_lines_of(path, "ids")), set(train.owners)
    if absent := sorted(found - known):
        more = f" and {len(absent) - MOST_IDS_SHOWN} more" if len(absent) > MOST_IDS_SHOWN else ""
        got = ", ".join(map(brief, absent[:MOST_IDS_SHOWN])) + more
        fix = (
            "write one id per line, as the column of --id has it; those held out for testing were not learned"
        )
        raise DataError(f"ids of training data in {path.name}", got, fix)
    if not found:
        raise DataError(f"ids in {path.name}", "none", "write one id per line")
    return sorted(found)


def _lines_of(path: Path, what: str) -> list[str]:
    """The lines of a file that are not empty."""
    if not path.is_file():
        raise FileError(f"a file of {what} at {path}", "nothing there", "check the path")
    text = path.read_text(encoding="utf-8-sig", errors="replace")
    return [line for line in map(str.strip, text.splitlines()) if line]


def _class_number(given: str, names: Sequence[str]) -> int:
    """A class by its name or its number; the name wins if a class is named like another's number."""
    if (count := list(names).count(given)) > 1:
        same = ", ".join(str(i) for i, name in enumerate(names) if name == given)
        got = f"{brief(given)}, the name of {count} classes ({same})"
        raise DataError("the name of one class", got, "name the class by its number")
    if count:
        return names.index(given)
    if given.lstrip("-").isascii() and given.lstrip("-").isdigit() and len(given) <= DIGITS:
        return int(given)
    raise DataError("the number or the name of a class", brief(given), did_you_mean(given, list(names)))


def _read_ids(path: Path, train: Samples) -> list[int]:
    """Positions in the training data: numbers, or paths as the data has them, one per line."""
    position = _positions(train)
    found = set[int]()
    for line in _lines_of(path, "sample numbers"):
        words = line.replace(",", " ").split()
        wrong = [w for w in words if not (w.isascii() and w.isdigit() and len(w) <= DIGITS)]
        if line in position:
            found.add(position[line])
        elif wrong:
            raise _not_an_id(path, line if position else wrong[0], train)
        else:
            found.update(map(int, words))
    if not found:
        raise DataError(f"sample numbers in {path.name}", "none", "write one number per line")
    return sorted(found)


def _positions(train: Samples) -> dict[str, int]:
    """Paths of training images, as the data has them → positions; empty if they have none."""
    return {train.paths[id]: i for i, id in enumerate(train.ids.tolist())} if train.paths else {}


def _not_an_id(path: Path, line: str, train: Samples) -> DataError:
    if not train.paths:
        return DataError(f"whole numbers in {path.name}", brief(line), "write one sample number per line")
    why = "which is held out for testing" if line in train.paths else "which is not there"
    fix = f"write paths as the data has them, such as {train.paths[int(train.ids[0])]}"
    return DataError(f"numbers or paths of training images in {path.name}", f"{brief(line)}, {why}", fix)


# -- right labels of mislabelled samples --------------------------------------------------------


def read_truth(path: Path, train: Samples, forget: Tensor) -> GivenLabels:
    """The right labels of the forget samples, which a mask (N,) of the training data names, in its order.

    A line of the file is a label, by number or name, for the next of these samples; or ``SAMPLE,LABEL``, in
    any order, with samples by number or path as in a file of ids. A .npy file is an array of labels.
    """
    if not path.is_file():
        raise FileError(f"a file of right labels at {path}", "nothing there", "check the path")
    if path.suffix == ".npy":
        return _array(path)
    text = path.read_text(encoding="utf-8", errors="replace")
    lines = [line for line in map(str.strip, text.splitlines()) if line]
    names, rows = train.names, forget.nonzero()[:, 0].tolist()
    if len(lines) != len(rows):
        raise _not_truth(path, len(rows), f"{len(lines)} lines")
    pairs = [line.rpartition(",") for line in lines]
    if any(line in names or not comma for line, (_, comma, _) in zip(lines, pairs, strict=True)):
        return [_class_number(line, names) for line in lines]
    known = _positions(train) | {str(row): row for row in rows}
    found = {known.get(sample.strip()): _class_number(label.strip(), names) for sample, _, label in pairs}
    if missing := [row for row in rows if row not in found]:
        raise _not_truth(path, len(rows), f"none for sample {missing[0]}")
    return [found[row] for row in rows]


def _not_truth(path: Path, n: int, got: str) -> DataError:
    fix = "write a label per line in the order of the training data, or SAMPLE,LABEL"
    return DataError(f"a label for each of {n} forget samples in {path.name}", got, fix)


def _array(path: Path) -> GivenLabels:
    try:
        found: GivenLabels = np.load(path, allow_pickle=False)
    except Exception:  # numpy raises many kinds of errors on a damaged file
        got, fix = "a damaged file, or pickled objects", "save it again with numpy.save"
        raise FileError(f"a plain array in {path}", got, fix) from None
    return found
