"""purge.split forgets the rows that are meant: by name, by position or by a mask, and never a neighbour."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import purge

N = 400
PEOPLE = pd.DataFrame({
    "age": np.arange(N, dtype=float), "bought": np.arange(N) % 2, "who": [f"c-{i}" for i in range(N)],
})  # fmt: skip
SHUFFLED = PEOPLE.sample(frac=1, random_state=1)  # its row 355 from the top is another one
FORM: dict[str, Any] = {"label": "bought", "id_of": "who"}


def gone(frame: Any, form: dict[str, Any] = FORM, **how: Any) -> list[int]:
    """Whose rows are to be forgotten, by age; all others stay."""
    forget, retain = purge.split(frame, **form, **how)
    found = forget[0][:, 0].int().tolist()
    ages = np.asarray(frame["age"]) if isinstance(frame, pd.DataFrame) else np.asarray(frame[0])[:, 0]
    assert sorted(found + retain[0][:, 0].int().tolist()) == sorted(ages.astype(int).tolist())
    return sorted(found)


def refused(frame: Any, *words: str, form: dict[str, Any] = FORM, **how: Any) -> None:
    """In one line that says what to do."""
    with pytest.raises(purge.PurgeError) as error:
        purge.split(frame, **form, **how)
    said = str(error.value)
    assert re.fullmatch(r"Expected .+, got .+\. Fix: .+\.", said), said
    assert all(word in said for word in words), said


ODD = {
    "shuffled": SHUFFLED,
    "a part": PEOPLE[PEOPLE.age > 10],
    "from 1": PEOPLE.set_index(pd.RangeIndex(1, N + 1)),
    "names": PEOPLE.set_index("who", drop=False),
    "twice": pd.concat([PEOPLE[:200], PEOPLE[:200]]),
    "levels": PEOPLE.set_index([PEOPLE.bought, PEOPLE.who]),
    "dates": PEOPLE.set_index(pd.date_range("2026-01-01", periods=N)),
}


@pytest.mark.parametrize("kind", ODD)
def test_positions_in_a_table_with_names_of_its_own_are_refused(kind: str) -> None:
    for positions in ([355], np.array([0, 3]), torch.tensor([3]), ODD[kind].index[:2]):
        refused(ODD[kind], "index=", "reset_index(drop=True)", indices=positions)
    x, y = ODD[kind][["age"]], ODD[kind]["bought"]
    refused((x, y), "index=", form={}, indices=[355])


def test_positions_count_in_a_table_without_names() -> None:
    plain = SHUFFLED.reset_index(drop=True)
    assert gone(plain, indices=[355]) == gone(plain, index=[355]) == [int(plain.age[355])]
    assert gone(PEOPLE, indices=PEOPLE.index[PEOPLE.age > 397]) == [398, 399]
    assert gone((PEOPLE[["age"]], PEOPLE["bought"]), {}, indices=[7]) == [7]
    refused(PEOPLE, indices=[-1])
    refused(PEOPLE, indices=[])


def test_a_row_is_found_by_its_name() -> None:
    assert gone(SHUFFLED, index=355) == [355]
    for many in ([355, 3], np.array([3, 355]), torch.tensor([3, 355]), pd.Index([355, 3]), {3, 355}):
        assert gone(SHUFFLED, index=many) == [3, 355]
    assert gone(SHUFFLED, index=SHUFFLED.index[SHUFFLED.age > 397]) == [398, 399]
    assert gone(SHUFFLED.rename({7: -1}), index=[-1]) == [7]
    assert gone(ODD["names"], index="c-12") == [12]
    assert gone(ODD["levels"], index=(0, "c-12")) == [12]
    assert gone(ODD["levels"], index=[(0, "c-12"), (1, "c-13")]) == [12, 13]
    assert gone(ODD["levels"], index=ODD["levels"].index[:2]) == [0, 1]
    assert gone(ODD["dates"], index=ODD["dates"].index[3:5]) == [3, 4]
    assert gone((SHUFFLED[["age"]], SHUFFLED["bought"]), {}, index=[355]) == [355]


def test_all_rows_of_one_name_go() -> None:
    assert gone(ODD["twice"], index=[5]) == [5, 5]


def test_a_name_that_is_not_there_is_refused() -> None:
    refused(SHUFFLED, "2 of 3", index=[355, 400, -1])
    refused(ODD["names"], "1 of 1", index=[12])
    refused(ODD["names"], "1 of 2", index=["c-1", "c-400"])
    refused(SHUFFLED, "1 of 1", index="355")
    refused(ODD["levels"], index="c-12")
    refused(SHUFFLED, index=[])
    refused(SHUFFLED, index=[[1], [2]])


def test_truth_values_are_no_names() -> None:
    refused(SHUFFLED, "mask=", index=SHUFFLED.age > 397)  # True would be row 1
    refused(SHUFFLED, "mask=", index=[True, False])


def test_names_need_a_table_that_has_them() -> None:
    x, y = torch.arange(20.0)[:, None], torch.arange(20) % 2
    refused((x, y), "DataFrame", form={}, index=[3])
    refused((x, y), "index=", form={}, indices=SHUFFLED.index[:2])  # of whichever table


@pytest.mark.parametrize("door", ["mask", "indices"])
def test_a_mask_takes_the_rows_where_it_is_true(door: str) -> None:
    of_table = SHUFFLED.age > 397
    for mask in (of_table, of_table.astype("boolean"), of_table.to_numpy(), of_table.tolist(),
                 torch.tensor(of_table.tolist())):  # fmt: skip
        assert gone(SHUFFLED, **{door: mask}) == [398, 399]
    assert gone(ODD["twice"], **{door: ODD["twice"].age == 5}) == [5, 5]
    x, y = torch.arange(20.0)[:, None], torch.arange(20) % 2
    assert gone((x, y), {}, **{door: x[:, 0] > 17}) == [18, 19]
    assert gone((x, y), {}, **{door: [True, True] + [False] * 18}) == [0, 1]


@pytest.mark.parametrize("door", ["mask", "indices"])
def test_a_mask_of_other_rows_is_refused(door: str) -> None:
    refused(SHUFFLED, "index of the data", **{door: PEOPLE.age > 397})
    refused(SHUFFLED, "400", **{door: [True, False]})
    refused(SHUFFLED, "400", **{door: (SHUFFLED.age > 397)[1:]})
    refused(SHUFFLED, **{door: SHUFFLED.age > 1000})  # nothing
    x, y = torch.arange(400.0)[:, None], torch.arange(400) % 2
    refused((x, y), "to_numpy()", form={}, **{door: SHUFFLED.age > 397})
    assert gone((x, y), {}, **{door: PEOPLE.age > 397}) == [398, 399]


def test_what_is_no_mask_is_refused() -> None:
    holes = (SHUFFLED.age > 397).astype("boolean").where(SHUFFLED.age > 3)
    for odd in (holes, [0] * N, "yes", True, np.array(True), torch.tensor(True), [], PEOPLE[["age"]] > 397):
        refused(SHUFFLED, "mask", mask=odd)


def test_other_requests_do_not_ask_how_rows_are_named() -> None:
    refused(SHUFFLED, "index=", indices=[355])
    assert gone(SHUFFLED, ids=["c-355"]) == [355]
    assert gone(SHUFFLED, classes=[1]) == list(range(1, N, 2))
    assert len(gone(SHUFFLED, fraction=0.1)) == 40


def test_one_way_at_a_time() -> None:
    refused(SHUFFLED, "index", index=[3], mask=SHUFFLED.age > 3)
    refused(PEOPLE, "mask", indices=[3], mask=PEOPLE.age > 3)
