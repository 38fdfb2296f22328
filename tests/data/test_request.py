"""What a record says about a request: dates, row numbers, digests that anyone can compute again."""

from __future__ import annotations

import dataclasses
import hashlib
from datetime import UTC, date, datetime

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, Subset, TensorDataset

import purge
from purge.core.errors import DataError
from purge.data.accept import accepted, as_samples
from purge.data.request import DeletionRequest, content_digest, contents, described
from purge.models.checks import make_split
from tests.nets import blobs, small_mlp

CPU = torch.device("cpu")


def expected_digest(x: Tensor, y: Tensor) -> str:
    """Sample by sample, with Python's own bytes."""
    each = [
        hashlib.sha256(row.numpy().tobytes() + int(label).to_bytes(8, "little")).digest()
        for row, label in zip(x, y, strict=True)
    ]
    return hashlib.sha256(b"".join(sorted(each))).hexdigest()


# -- the fields that a user may give ----------------------------------------------------------------


def test_the_fields_of_a_request_are_kept_and_those_left_out_are_not_made_up():
    given = DeletionRequest(id="DSR-17", received="2026-11-01", by="A. Turing", model_version="2.3")
    assert given.to_dict() == {
        "id": "DSR-17", "received": "2026-11-01", "by": "A. Turing", "model_version": "2.3"
    }  # fmt: skip
    assert DeletionRequest().to_dict() == {}
    with pytest.raises(dataclasses.FrozenInstanceError):
        given.id = "other"


@pytest.mark.parametrize(
    ("when", "kept"),
    [
        ("2026-11-01T09:30:00+01:00", "2026-11-01T09:30:00+01:00"),
        (date(2026, 11, 1), "2026-11-01"),
        (datetime(2026, 11, 1, 9, 30, tzinfo=UTC), "2026-11-01T09:30:00+00:00"),
    ],
)
def test_dates_may_have_a_time_or_be_dates_of_python(when, kept):
    assert DeletionRequest(received=when, done="2026-11-02").received == kept


@pytest.mark.parametrize(
    ("given", "words"),
    [
        *(({key: wrong}, rf"ISO 8601 as {key}, got .+ Fix: write 2026-11-01")
          for key in ("received", "done") for wrong in ("1.11.2026", "2026-13-01", "soon", "", 20261101)),
        *(({"id": wrong}, "text as id of a request") for wrong in ("", "  ", 17)),
        ({"received": "2026-11-02", "done": "2026-11-01"}, "check both dates"),
    ],
)  # fmt: skip
def test_fields_are_checked_at_the_door(given, words):
    with pytest.raises(DataError, match=words):
        DeletionRequest(**given)
    assert DeletionRequest(received="2026-11-01T23:00:00", done="2026-11-01").done == "2026-11-01"


# -- which samples ----------------------------------------------------------------------------------


def facts(forget, retain, test=None) -> dict:
    given = {"forget": forget, "retain": retain, **({} if test is None else {"test": test})}
    split = make_split(small_mlp(), accepted(given), CPU)
    return {**described(split), **contents(split)}


def test_row_numbers_of_every_kind_of_data_that_knows_them():
    x, y = blobs()
    rows = [40, 3, 17]
    numbers = hashlib.sha256(b"".join(i.to_bytes(8, "little") for i in sorted(rows))).hexdigest()
    pair, subset = (purge.split(data, indices=rows) for data in ((x, y), TensorDataset(x, y)))
    for forget, retain in (pair, subset):
        found = facts(forget, retain, (x + 1, y))
        assert found["forget_rows"] == sorted(rows)
        assert (found["rows_of"], found["forget_digest"], found["request"]) == (len(y), numbers, {})
        assert found["forget_content"] == expected_digest(x[rows], y[rows])
        assert found["test_content"] == expected_digest(x + 1, y)
    reversed_ = Subset(TensorDataset(x, y), rows[::-1])
    assert facts(reversed_, subset[1]) == facts(*subset)  # the order of a request says nothing


def test_data_that_does_not_know_its_rows_has_a_digest_of_its_content_all_the_same():
    x, y = blobs()
    found = facts((x[:5], y[:5]), (x[5:], y[5:]))
    assert (found["forget_rows"], found["rows_of"], found["forget_digest"]) == (None, None, None)
    assert found["forget_content"] == expected_digest(x[:5], y[:5])
    assert found["retain_content"] == expected_digest(x[5:], y[5:])
    assert found["test_content"] is None


def test_a_class_is_named_and_single_samples_beside_it_are_listed():
    x, y = blobs()
    forget, retain = purge.split((x, y), classes=[1])
    found = facts(forget, retain)
    assert (found["request"], found["forget_rows"]) == ({"forget_classes": [1]}, [])
    single = int((y != 1).nonzero()[0])
    both = [*(y == 1).nonzero()[:, 0].tolist(), single]
    mixed = facts(*purge.split((x, y), indices=both))
    assert (mixed["request"], mixed["forget_rows"]) == ({}, [single])


def test_images_are_told_apart_by_their_pixels_whatever_is_made_of_them():
    pixels = torch.randint(
        0, 256, (9, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    labels = torch.arange(9) % 3
    for more in ({}, {"mean": (0.5,), "std": (0.2,), "size": 16}):
        images = purge.Images(pixels, labels, **more)
        assert content_digest(images) == expected_digest(pixels, labels)
        assert content_digest(images.select(torch.tensor([7, 2]))) == expected_digest(
            pixels[[2, 7]], labels[[2, 7]]
        )


def test_a_digest_knows_content_label_and_number_but_not_order(monkeypatch):
    x, y = torch.randn(6, 3), torch.tensor([0, 1, 2, 0, 1, 2])

    def of(x: Tensor, y: Tensor) -> str | None:
        return content_digest(as_samples((x, y), CPU, "data"))

    order = torch.tensor([3, 1, 0, 5, 2, 4])
    assert of(x, y) == of(x[order], y[order]) == expected_digest(x, y)
    other = x.clone()
    other[4, 2] = torch.nextafter(other[4, 2], torch.tensor(9.0))
    assert len({of(x, y), of(other, y), of(x, y.flip(0)), of(x[:5], y[:5])}) == 4
    monkeypatch.setattr("purge.data.identity.BLOCK", 1)  # one sample at a time
    assert of(x, y) == expected_digest(x, y)
    nested = content_digest(as_samples(({"a": x, "b": y * 2}, y), CPU, "data"))
    each = sorted(
        hashlib.sha256(b"".join(t[i].numpy().tobytes() for t in (x, y * 2, y))).digest() for i in range(6)
    )
    assert nested == hashlib.sha256(b"".join(each)).hexdigest()


class Noisy(Dataset):
    """Items that differ whenever they are read."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        return torch.randn(4), i % 3


def test_what_cannot_be_digested_or_is_too_large_is_left_open(monkeypatch):
    assert content_digest(as_samples(Noisy(), CPU, "data")) is None
    monkeypatch.setattr("purge.data.backends.RESIDENT_BYTES", 100)
    x, y = blobs()
    items, test = ([*zip(x + more, y.tolist(), strict=True)] for more in (0, 1))
    found = facts(*purge.split(items, indices=range(40)), test)
    assert (found["retain_content"], found["test_content"]) == (None, None)
    assert found["forget_content"] == expected_digest(x[:40], y[:40])  # whatever its size


def test_a_run_in_python_is_described_in_its_run_folder(tmp_path):
    x, y = blobs()
    forget, retain = purge.split((x, y), indices=[3, 40])
    model: nn.Module = small_mlp()
    asked = DeletionRequest(id="DSR-17", received="2026-11-01")
    result = purge.unlearn(
        model, forget, retain, request=asked, out=tmp_path / "run", steps=2, progress=False
    )
    found = purge.core.files.read_json(tmp_path / "run" / "run.json")
    assert (found["forget_rows"], found["rows_of"]) == ([3, 40], len(y))
    assert found["forget_content"] == expected_digest(x[[3, 40]], y[[3, 40]])
    assert found["original_digest"] == purge.models.checkpoint.digest(model) != found["digest"]
    assert found["model_class"] == type(model).__name__
    done = found["deletion_request"].pop("done")
    assert found["deletion_request"] == {"id": "DSR-17", "received": "2026-11-01"}
    assert done == found["finished"] == result.info["finished"]
