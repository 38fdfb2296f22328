"""Requests: which samples must be forgotten, by class, by position or by whose they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class LeftOut:
    """Rows that no model is taught any more; a ledger knows whose they are, and nobody else does."""

    ledger: str  # its name, which stands in run.json
    rows: Callable[[Samples], Tensor]  # a mask (N,) of them among samples


def unseen(test: Samples | None, left_out: LeftOut | None) -> Samples | None:
    """The test data without the rows of people who asked to be forgotten."""
    if test is None or left_out is None:
        return test
    part = test.select(~left_out.rows(test))
    return part if len(part) else None


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
    request: Request = {}
    if classes:
        request["forget_classes"] = sorted({_class_number(c, train.names) for c in classes})
    if ids is not None and train.owners:
        request["forget_subjects"] = _read_subjects(ids, train)
    elif ids is not None:
        request["forget_ids"] = _read_ids(ids, train)
    return request


def both(a: Request, b: Request) -> Request:
    """Two requests as one."""
    return {key: sorted({*a.get(key, []), *b.get(key, [])}) for key in sorted({*a, *b})}


def cut(
    train: Samples, request: Request, before: Request | None = None, left_out: LeftOut | None = None
) -> tuple[Samples, Samples]:
    """Split training images into forget and retain; what was forgotten ``before`` is not retained."""
    forget = rows_of(train, request)
    retain = ~forget & ~rows_of(train, before or {})
    if left_out is not None:
        retain &= ~left_out.rows(train)
    if not forget.any() or not retain.any():
        got = f"{int(forget.sum())} of {len(train)} samples to forget"
        raise DataError("something to forget and something to retain", got, "choose fewer or more of them")
    return train.select(forget), train.select(retain)


def rows_of(train: Samples, request: Request) -> Tensor:
    """A mask (N,) of the training images that a request names; who is no longer in the data has none."""
    rows = torch.zeros(len(train), dtype=torch.bool)
    if "forget_classes" in request:
        rows |= rows_of_classes(train.labels, request["forget_classes"])
    if "forget_ids" in request:
        rows |= rows_of_indices(len(train), request["forget_ids"])
    if "forget_subjects" in request:
        if not train.owners:
            got, fix = "data without ids", "name their column with --id"
            raise DataError("ids of the samples, as the run forgot some by their ids", got, fix)
        people = set(request["forget_subjects"])
        rows |= torch.tensor([owner in people for owner in train.owners])
    return rows


def _read_subjects(path: Path, train: Samples) -> list[str]:
    """The user's own ids, one per line."""
    people = set(_lines_of(path, "ids"))
    if absent := sorted(people - set(train.owners)):
        more = f" and {len(absent) - MOST_IDS_SHOWN} more" if len(absent) > MOST_IDS_SHOWN else ""
        got = ", ".join(map(brief, absent[:MOST_IDS_SHOWN])) + more
        fix = (
            "write one id per line, as the column of --id has it; those held out for testing were not learned"
        )
        raise DataError(f"ids of training data in {path.name}", got, fix)
    if not people:
        raise DataError(f"ids in {path.name}", "none", "write one id per line")
    return sorted(people)


def _lines_of(path: Path, what: str) -> list[str]:
    """The lines of a file that are not empty."""
    if not path.is_file():
        raise FileError(f"a file of {what} at {path}", "nothing there", "check the path")
    text = path.read_text(encoding="utf-8-sig", errors="replace")
    return [line for line in map(str.strip, text.splitlines()) if line]


def _class_number(name: str, names: Sequence[str]) -> int:
    """A class by its name or its number; the name wins if a class is named like another's number."""
    if (count := list(names).count(name)) > 1:
        same = ", ".join(str(i) for i, other in enumerate(names) if other == name)
        got = f"{brief(name)}, the name of {count} classes ({same})"
        raise DataError("the name of one class", got, "name the class by its number")
    if count:
        return names.index(name)
    if name.lstrip("-").isascii() and name.lstrip("-").isdigit() and len(name) <= DIGITS:
        return int(name)
    raise DataError("the number or the name of a class", brief(name), did_you_mean(name, list(names)))


def _read_ids(path: Path, train: Samples) -> list[int]:
    """Positions in the training data: numbers, or paths as the data has them, one per line."""
    position, rows = _positions(train), set[int]()
    for line in _lines_of(path, "sample numbers"):
        words = line.replace(",", " ").split()
        wrong = [w for w in words if not (w.isascii() and w.isdigit() and len(w) <= DIGITS)]
        if line in position:
            rows.add(position[line])
        elif wrong and not train.paths:
            fix = "write one sample number per line"
            raise DataError(f"whole numbers in {path.name}", brief(wrong[0]), fix)
        elif wrong:
            why = "which is held out for testing" if line in train.paths else "which is not there"
            fix = f"write paths as the data has them, such as {train.paths[int(train.ids[0])]}"
            expected = f"numbers or paths of training images in {path.name}"
            raise DataError(expected, f"{brief(line)}, {why}", fix)
        else:
            rows.update(map(int, words))
    if not rows:
        raise DataError(f"sample numbers in {path.name}", "none", "write one number per line")
    return sorted(rows)


def _positions(train: Samples) -> dict[str, int]:
    """Paths of training images, as the data has them → positions; empty if they have none."""
    return {train.paths[id]: i for i, id in enumerate(train.ids.tolist())} if train.paths else {}


# -- right labels of mislabelled samples --------------------------------------------------------


def read_truth(path: Path, train: Samples, forget: Tensor) -> GivenLabels:
    """The right labels of the forget samples, which a mask (N,) of the training data names, in its order.

    A line of the file is a label, by number or name, for the next of these samples; or ``SAMPLE,LABEL``, in
    any order, with samples by number or path as in a file of ids. A .npy file is an array of labels.
    """
    if path.suffix == ".npy" and path.is_file():
        try:
            labels: GivenLabels = np.load(path, allow_pickle=False)
        except Exception:  # numpy raises many kinds of errors on a damaged file
            got, fix = "a damaged file, or pickled objects", "save it again with numpy.save"
            raise FileError(f"a plain array in {path}", got, fix) from None
        return labels
    lines, rows = _lines_of(path, "right labels"), forget.nonzero()[:, 0].tolist()
    names, pairs, got = train.names, [line.rpartition(",") for line in lines], f"{len(lines)} lines"
    if len(lines) == len(rows):
        if any(line in names or not comma for line, (_, comma, _) in zip(lines, pairs, strict=True)):
            return [_class_number(line, names) for line in lines]
        known = _positions(train) | {str(row): row for row in rows}
        right = {known.get(sample.strip()): _class_number(label.strip(), names) for sample, _, label in pairs}
        missing = [row for row in rows if row not in right]
        if not missing:
            return [right[row] for row in rows]
        got = f"none for sample {missing[0]}"
    fix = "write a label per line in the order of the training data, or SAMPLE,LABEL"
    raise DataError(f"a label for each of {len(rows)} forget samples in {path.name}", got, fix)
