"""Sets that must be apart: what they have in common is refused, or counted."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import Subset, TensorDataset

import purge
from purge.core.errors import DataError
from purge.data import backends
from purge.data import overlap as module
from purge.data.accept import accepted, as_samples
from purge.data.overlap import TOLERATED, near_copies, overlap

CPU = torch.device("cpu")


def apart(**sets):
    return overlap({what: samples.to(CPU) for what, samples in accepted(sets).items()})


def rows(numbers, width: int = 3):
    """A table whose rows are numbered, with labels 0 and 1 in turn."""
    at = torch.as_tensor(list(numbers))
    return at[:, None].expand(-1, width).float(), at % 2


def pictures(n: int, seed: int = 0, *, size: int = 16, channels: int = 3) -> torch.Tensor:
    """Smooth images that are all different."""
    g = torch.Generator().manual_seed(seed)
    small = torch.rand(n, channels, 4, 4, generator=g)
    return torch.nn.functional.interpolate(small, size, mode="bilinear") * 200 + 20


def as_images(pixels: torch.Tensor, labels: torch.Tensor | None = None, **more) -> purge.Images:
    y = torch.zeros(len(pixels), dtype=torch.long) if labels is None else labels
    return purge.Images(pixels.round().clamp(0, 255).to(torch.uint8), y, **more)


def repeated(numbers: list[int]) -> float:
    return sum(numbers.count(i) > 1 for i in numbers) / len(numbers)


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_every_overlap_is_counted_and_refused_from_one_percent_on(data):
    """By content, against Python's sets: duplicates within a set count as often as they occur."""
    numbers = st.lists(st.integers(0, 400), min_size=1, max_size=150)
    forget, retain, test = (data.draw(numbers, label=name) for name in ("forget", "retain", "test"))
    common = len([i for i in forget if i in set(retain)])
    counts = {
        other: sum(i in set(part) for i in test) for other, part in (("forget", forget), ("retain", retain))
    }
    shares = {  # one set given for both is no table of few values
        other: 0.0 if sorted(test) == sorted(part) else min(map(repeated, (test, part)))
        for other, part in (("forget", forget), ("retain", retain))
    }
    limits = {
        other: math.ceil(TOLERATED * min(len(test), len(part)) + shares[other] * len(test))
        for other, part in (("forget", forget), ("retain", retain))
    }
    wrong = [other for other in counts if counts[other] > limits[other]]
    sets = {name: rows(part) for name, part in (("forget", forget), ("retain", retain), ("test", test))}
    if common:
        with pytest.raises(DataError, match=rf"not in both, got {common} in both"):
            apart(**sets)
    elif wrong:
        with pytest.raises(
            DataError, match=rf"without samples of {wrong[0]}, got {counts[wrong[0]]} in both"
        ):
            apart(**sets)
    else:
        found = apart(**sets)
        assert (found["exact"], found["test_forget"], found["test_retain"]) == (0, *counts.values())


def test_a_table_of_few_different_values_cannot_be_told_by_its_content():
    """Half of the samples have an equal one in their own set, so half of the test data may have one."""
    numbers = [*range(50), *range(1000, 1025), *range(1000, 1025)]
    found = apart(forget=rows([-1]), retain=rows(numbers), test=rows([*range(2000, 2050), *numbers[50:]]))
    assert found["test_retain"] == 50
    with pytest.raises(DataError, match=r"got 100 in both \(first: 0; 51 would be tolerated"):
        apart(forget=rows([-1]), retain=rows([*numbers, *range(3000, 3001)]), test=rows(numbers))


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(0, 19), min_size=1, unique=True),
    st.lists(st.integers(0, 19), min_size=1, unique=True),
)
def test_parts_of_one_source_are_told_apart_by_their_rows_whatever_they_contain(a, b):
    """All 20 samples are equal, so only row numbers can tell."""
    x, y = torch.zeros(20, 3), torch.zeros(20, dtype=torch.long)
    whole = TensorDataset(x, y)
    pixels = purge.Images(torch.zeros(20, 1, 4, 4, dtype=torch.uint8), y)
    for part in (lambda i: Subset(whole, i), lambda i: pixels.select(torch.tensor(i))):
        if set(a) & set(b):
            with pytest.raises(DataError, match=f"got {len(set(a) & set(b))} in both"):
                apart(forget=part(a), retain=part(b))
        else:
            assert apart(forget=part(a), retain=part(b))["exact"] == len(a)


def test_a_whole_dataset_and_a_part_of_it_are_of_one_source(monkeypatch):
    monkeypatch.setattr(backends, "RESIDENT_BYTES", 10)

    class Plain(TensorDataset):
        """Read item by item, as datasets of files are."""

        def __getitem__(self, i):
            return self.tensors[0][i], int(self.tensors[1][i])

    x, y = rows(range(40))
    whole, other = Plain(x, y, y), Plain(x[:10] + 100, y[:10], y[:10])
    assert as_samples(whole, CPU, "test").streamed
    with pytest.raises(DataError, match="got 10 in both"):
        apart(forget=Subset(whole, range(10)), retain=Subset(whole, range(10, 40)), test=whole)
    found = apart(forget=Subset(whole, range(10)), retain=Subset(whole, range(10, 40)), test=other)
    assert set(found.values()) == {None}, "what is too large to keep is not read for this"


def test_the_digest_sees_every_byte_and_the_label():
    x = torch.zeros(1, 13, dtype=torch.uint8)
    every = torch.cat([x, torch.eye(13, dtype=torch.uint8), 128 * torch.eye(13, dtype=torch.uint8)])
    for dtype in (torch.uint8, torch.float32, torch.float64, torch.bfloat16):
        tables = [as_samples((every.to(dtype), torch.full((27,), y)), CPU, "x") for y in (0, 1)]
        assert len({one for table in tables for one in table.look().each()}) == 54
    nested = as_samples(({"a": every.float(), "b": every.flip(0).float()}, torch.zeros(27).long()), CPU, "x")
    assert len(set(nested.look().each())) == 27


CHANGES = {
    "the same": lambda x: x,
    "brighter": lambda x: 0.9 * x + 25,
    "less contrast": lambda x: 0.6 * x + 30,
    "noisy": lambda x: x + 2 * torch.randn(x.shape, generator=torch.Generator().manual_seed(3)),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("form", ["images", "tensors", "grey"])
def test_nearly_identical_images_are_counted(change, form):
    channels = 1 if form == "grey" else 3
    forget, retain = pictures(40, channels=channels), pictures(200, 1, channels=channels)
    retain[[5, 100, 150]] = CHANGES[change](forget[[7, 8, 9]])
    retain[160] = CHANGES[change](forget[7])  # a second copy does not count again
    labels = torch.zeros(200, dtype=torch.long)
    labels[100] = 1
    if form == "tensors":
        sets = (forget / 255, torch.zeros(40).long()), (retain / 255, labels)
    else:
        sets = as_images(forget), as_images(retain, labels)
    found = near_copies(*(as_samples(one, CPU, "x") for one in sets))
    assert found == {"near": 3, "near_same_label": 2, "compared": 40}


def test_other_images_are_not_nearly_identical():
    forget = pictures(40)
    others = torch.cat([forget.roll(2, 3), forget.flip(3), 255 - forget, forget.flip(1), pictures(200, 1)])
    assert near_copies(as_images(forget), as_images(others))["near"] == 0
    flat = torch.full((30, 3, 16, 16), 7.0)
    assert near_copies(as_images(flat), as_images(flat + torch.arange(30)[:, None, None, None]))["near"] == 0


def test_near_copies_are_found_among_real_digits(digits):
    found = overlap(vars(digits))
    assert found == {
        "exact": 0, "near": 0, "near_same_label": 0, "compared": len(digits.forget), "test_forget": 0,
        "test_retain": 0,
    }  # fmt: skip


def test_of_very_many_pairs_some_are_compared_and_the_number_is_told(monkeypatch):
    monkeypatch.setattr(module, "PAIRS", 1000)
    whole = pictures(100)
    found = near_copies(as_images(whole), as_images(whole))
    assert found == {"near": 10, "near_same_label": 10, "compared": 10}


def test_tables_have_no_near_copies():
    found = apart(forget=rows(range(10)), retain=rows(range(10, 30)))
    assert found == {"exact": 0, "near": None, "near_same_label": None, "compared": None}


def test_images_that_are_stored_in_another_size_are_compared_as_the_model_sees_them():
    small = as_images(pictures(6, size=16), size=16)
    large = as_images(torch.nn.functional.interpolate(pictures(6, size=16), 32, mode="nearest"), size=16)
    assert near_copies(small, large)["near"] == 6
    assert near_copies(small, as_images(pictures(6, 5, size=32), size=16))["near"] == 0


def test_the_forget_set_as_test_data_is_refused_also_if_every_sample_is_there_twice():
    forget, retain = rows([*range(40)] * 2), rows([*range(100, 300)] * 2)
    with pytest.raises(DataError, match="test data that was never trained on"):
        apart(forget=forget, retain=retain, test=(forget[0].clone(), forget[1]))  # no set that is known
