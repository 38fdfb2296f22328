"""Ids of users' own: in columns, keys, third elements and lists; as text or numbers."""

from __future__ import annotations

import uuid
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Subset, TensorDataset

from purge.core.errors import DataError
from purge.data.accept import accepted
from purge.data.items import Form, rows_of_ids
from tests.refusals import assert_sentence

IDS = ("c-17", "c-4", "c-17", "7")


class Items(torch.utils.data.Dataset):
    def __init__(self, *items: Any) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, i: int) -> Any:
        return self.items[i]


X, Y = torch.zeros(4, 2), torch.tensor([0, 1, 1, 0])
TUPLES = Items(*((x, int(y), c) for x, y, c in zip(X, Y, IDS, strict=True)))
DICTS = Items(*({"x": x, "y": int(y), "customer": c} for x, y, c in zip(X, Y, IDS, strict=True)))
FRAME = pd.DataFrame({"a": [0.0] * 4, "label": Y, "customer": IDS})
FORMS: dict[str, tuple[Any, Any]] = {
    "third element": (TUPLES, None),
    "position": (TUPLES, 2),
    "position from the end": (TUPLES, -1),
    "key": (DICTS, "customer"),
    "column": (FRAME, "customer"),
    "a list": ((X, Y), list(IDS)),
    "an array": ((X, Y), np.array(IDS)),
    "a series": ((X, Y), FRAME["customer"]),
    "a data loader": (DataLoader(DICTS, shuffle=True, batch_size=3), "customer"),
    "a list for a dataset": (TensorDataset(X, Y), IDS),
}


def owners_of(data: Any, id_of: Any = None) -> tuple[str, ...]:
    return accepted({"x": data}, Form(id_of=id_of, owned=True))["x"].owners


@pytest.mark.parametrize("form", FORMS)
def test_ids_are_found(form: str) -> None:
    assert owners_of(*FORMS[form]) == IDS


def test_parts_know_theirs() -> None:
    assert owners_of(Subset(Subset(TUPLES, [3, 1, 0]), [1, 2])) == ("c-4", "c-17")
    assert owners_of(TensorDataset(X, Y, torch.tensor([5, 5, 6, 7]))) == ("5", "5", "6", "7")
    one = uuid.UUID(int=3)
    assert owners_of((X, Y), [one, one, 3, np.int64(4)]) == (str(one), str(one), "3", "4")
    missing = pd.Series([1, None, 3, 4]), pd.Series([1, None, 3, 4], dtype="Int64"), [1, None, 3, np.nan]
    assert [owners_of((X, Y), ids)[:3] for ids in missing] == [("1", "", "3")] * 3


@pytest.mark.parametrize(
    "data", [TensorDataset(X, Y), (X, Y), FRAME.drop(columns="customer"), Items((X[0], 0))]
)
def test_data_without_ids_has_none(data: Any) -> None:
    assert owners_of(data) == ()


REFUSED: dict[str, tuple[str, Any]] = {
    "no such column": ("did you mean 'customer'", lambda: owners_of(FRAME, "custmer")),
    "no such key": ("did you mean 'customer'", lambda: owners_of(DICTS, "custmer")),
    "no such position": ("a position in items of 3", lambda: owners_of(TUPLES, 5)),
    "no such tensor": ("a position in items of 2", lambda: owners_of(TensorDataset(X, Y), 2)),
    "a key of a pair": ("ids of a pair", lambda: owners_of((X, Y), "customer")),
    "a list too short": ("one id per sample in id_of, 4, got 3", lambda: owners_of((X, Y), IDS[:3])),
    "ids are lists": ("text or whole numbers", lambda: owners_of((X, Y), [[1], [2], [3], [4]])),
    "ids are broken numbers": ("got 0.5", lambda: owners_of((X, Y), [0.5, 1, 2, 3])),
    "unknown": ("got 'x'", lambda: rows_of_ids(IDS, ["c-17", "x"])),
    "many unknown": ("'a', 'b', 'c' and 2 more", lambda: rows_of_ids(IDS, list("abcde"))),
    "none wanted": ("got none", lambda: rows_of_ids(IDS, [])),
    "an empty one": ("got an empty one", lambda: rows_of_ids(("", "a"), [""])),
    "no ids": ("id_of=", lambda: rows_of_ids((), ["a"])),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    words, call = REFUSED[case]
    with pytest.raises(DataError) as error:
        call()
    assert_sentence(str(error.value), words)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(st.text(min_size=1), st.integers()), min_size=1, max_size=30), st.data())
def test_rows_are_those_of_the_wanted(ids: list[Any], data: st.DataObject) -> None:
    wanted = data.draw(st.lists(st.sampled_from(ids), min_size=1))
    owners = owners_of((torch.zeros(len(ids), 1), torch.zeros(len(ids)).long()), ids)
    text = {str(w) for w in wanted}
    assert rows_of_ids(owners, wanted).tolist() == [str(i) in text for i in ids]
