"""Samples, splits and fingerprints."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch.utils.data import Subset, TensorDataset

import purge
from purge.core.errors import DataError
from purge.data.accept import accepted, as_samples
from purge.data.identity import fingerprints, same_samples
from purge.data.images import Images
from purge.data.load import load
from purge.data.samples import Samples, batches
from tests.nets import blobs, plain_mlp, small_mlp

CPU = torch.device("cpu")


def pixels(n=6, channels=3):
    return torch.arange(n * channels * 4, dtype=torch.uint8).view(n, channels, 2, 2)


def test_split_by_class_index_and_fraction():
    x, y = blobs()
    forget, retain = purge.split((x, y), classes=[0, 2])
    assert set(forget[1].tolist()) == {0, 2}
    assert set(retain[1].tolist()) == {1}
    assert len(forget) + len(retain) == len(y)
    forget, retain = purge.split((x, y), indices=[5, 3, 5])
    assert torch.equal(forget[0], x[[3, 5]])
    forget, _ = purge.split((x, y), fraction=0.25, seed=3)
    again, _ = purge.split((x, y), fraction=0.25, seed=3)
    other, _ = purge.split((x, y), fraction=0.25, seed=4)
    assert len(forget) == 24
    assert torch.equal(forget[0], again[0])
    assert not torch.equal(forget[0], other[0])


def test_split_keeps_the_kind_of_data(digits):
    forget, retain = purge.split(digits.train, classes=0)
    assert isinstance(forget, Images)
    assert not set(forget.ids.tolist()) & set(retain.ids.tolist())
    subset, _ = purge.split(TensorDataset(*blobs()), classes=[1])
    assert all(y == 1 for _, y in subset)
    assert torch.equal(subset[0][0], subset.take(torch.tensor([0]))[0][0])


def of(data) -> Samples:
    return accepted({"x": data})["x"]


def test_ids_tell_parts_of_one_source_apart_even_with_equal_content():
    same = Images(torch.zeros(4, 1, 2, 2, dtype=torch.uint8), torch.zeros(4, dtype=torch.long), source="s")
    a, b = same.select(torch.tensor([0, 1])), same.select(torch.tensor([2, 3]))
    assert len(same_samples(a, b)) == 0
    assert same_samples(a, same.select(torch.tensor([1, 2]))).tolist() == [1]
    base = TensorDataset(*blobs())
    nested = Subset(Subset(base, [10, 11, 12]), [1])
    assert same_samples(of(nested), of(Subset(base, [11]))).tolist() == [11]
    assert same_samples(of(Subset(base, [-1])), of(base)).tolist() == [len(base) - 1]
    other = TensorDataset(*blobs())
    assert same_samples(of(Subset(other, [0])), of(Subset(base, [0]))) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.uint8, torch.bfloat16])
def test_fingerprints_are_equal_for_equal_samples_only(dtype):
    g = torch.Generator().manual_seed(0)
    x = torch.randint(0, 200, (5000, 7), generator=g).to(dtype)
    y = torch.randint(0, 5, (5000,), generator=g)
    whole = fingerprints(as_samples((x, y), CPU, "x"))
    some = torch.tensor([4999, 0, 70])
    assert torch.equal(fingerprints(as_samples((x[some], y[some]), CPU, "x")), whole[some])
    assert not torch.isin(fingerprints(as_samples((x[some], y[some] + 5), CPU, "x")), whole).any()
    distinct = {(tuple(row.tolist()), int(c)) for row, c in zip(x, y, strict=True)}
    assert len(whole.unique()) == len(distinct)


def test_no_batch_is_a_lone_leftover():
    sizes = [len(y) for _, y in batches(as_samples(blobs(n=513), CPU, "x"), 512)]
    assert sizes == [257, 256]


def test_digits_are_what_scikit_learn_ships():
    from sklearn.datasets import load_digits

    train, test = load("digits")
    raw = load_digits()
    assert len(train) == 1437
    assert len(test) == 360
    back = torch.cat([train.pixels, test.pixels])[:, 0].double() * 16 / 255
    assert sorted(map(tuple, back.round().flatten(1).tolist())) == sorted(
        map(tuple, raw.images.reshape(-1, 64))
    )
    counts = torch.cat([train.labels, test.labels]).bincount()
    assert counts.tolist() == torch.from_numpy(raw.target).bincount().tolist()
    x, _ = train.take(torch.arange(len(train)))
    assert abs(float(x.mean())) < 0.02
    assert abs(float(x.std()) - 1) < 0.02


def test_repeated_rows_do_not_stop_a_split_of_ones_own():
    """Rows of a table repeat; what split() cut apart is apart, what is pasted together is not."""
    g = torch.Generator().manual_seed(0)
    x, y = torch.randint(0, 2, (400, 6), generator=g).float(), torch.randint(3, (400,), generator=g)
    model = small_mlp()
    forget, retain = purge.split((x, y), fraction=0.1)
    few = {"steps": 2, "progress": False, "check": False}
    purge.unlearn(model, forget, retain, **few)
    with pytest.raises(purge.PurgeError, match="in both"):
        purge.unlearn(model, (forget[0], forget[1]), (retain[0], retain[1]), **few)


def test_images_follow_the_type_of_the_model():
    images = Images(pixels(12), torch.arange(12) % 3)
    forget, retain = purge.split(images, classes=[0])
    for dtype in (torch.float64, torch.bfloat16):
        model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 3)).to(dtype)
        few = {"steps": 2, "progress": False}
        result = purge.unlearn(model, forget, retain, **few)
        assert result.model[1].weight.dtype == dtype


def test_inputs_may_have_one_dimension():
    """Token numbers (N,) for an embedding."""
    model = torch.nn.Sequential(torch.nn.Embedding(50, 8), torch.nn.Linear(8, 3))
    x = torch.arange(48)
    forget, retain = purge.split((x, x % 3), classes=[0])
    result = purge.unlearn(model, forget, retain, steps=2, progress=False)
    assert result.steps == 2


class Counted(torch.utils.data.Dataset):
    """Counts how often an item is read; with noise, items are never the same twice."""

    def __init__(self, noise=0.0):
        self.x, self.y = blobs()
        self.noise, self.reads = noise, 0

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        self.reads += 1
        return self.x[i] + self.noise * torch.rand(6), int(self.y[i])


def test_random_transforms_are_drawn_anew_in_every_epoch():
    still, moving = Counted(), Counted(noise=0.1)
    for data in (still, moving):
        purge.train(small_mlp(), data, epochs=5, batch_size=32, progress=False)
    assert still.reads < 2 * len(still) + 200  # once, after some of it was read again and again
    assert moving.reads >= 5 * len(moving)


def test_inputs_that_carry_a_graph_are_left_alone():
    backbone, (x, y) = torch.nn.Linear(4, 8), (torch.randn(60, 4), torch.arange(60) % 4)
    features = backbone(x)
    parts = [(features[wanted], y[wanted]) for wanted in (y == 0, y != 0)]
    purge.unlearn(small_mlp(0, 8, 4), *parts, method="neggrad-plus", epochs=1, progress=False)
    assert all(p.grad is None for p in backbone.parameters())


def test_gradients_are_on_whatever_the_caller_has_switched_off():
    x, y = torch.randn(60, 8), torch.arange(60) % 4
    with torch.no_grad():
        result = purge.unlearn(
            small_mlp(0, 8, 4), (x[y == 0], y[y == 0]), (x[y != 0], y[y != 0]), progress=False
        )
        assert not torch.is_grad_enabled()
    assert result.steps > 0


class Noisy(torch.utils.data.Dataset):
    """Draws from the generators of Python, NumPy and torch, and has labels of 32 bits."""

    def __init__(self, classes):
        self.classes = classes

    def __len__(self):
        return 40

    def __getitem__(self, i):
        shift = random.random() + np.random.random() + torch.rand(())
        return torch.full((8,), float(i)) + shift, np.int32(self.classes[i % len(self.classes)])


def test_a_seed_repeats_what_a_dataset_draws_and_the_callers_generators_stay_as_they_were():
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    purge.split([*zip(torch.zeros(40, 8), [0, 1] * 20, strict=True)], classes=[0])
    models = [
        purge.unlearn(small_mlp(0, 8, 4), Noisy([0]), Noisy([1, 2, 3]), seed=seed, progress=False).model
        for seed in (1, 1, 2)
    ]
    after = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    assert after == before
    one, again, other = (torch.cat([p.flatten() for p in m.parameters()]) for m in models)
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_arrays_backwards_and_of_another_byte_order():
    x, y = np.random.default_rng(0).normal(size=(6, 2)).astype(">f4"), np.arange(6)
    found = as_samples((x[::-1], y[::-1]), torch.device("cpu"), "forget")
    assert torch.equal(found.take(torch.arange(6))[0], torch.tensor(x[::-1].astype("f4").copy()))
    assert found.labels.tolist() == [5, 4, 3, 2, 1, 0]


class Remembering(torch.nn.Module):
    """Keeps its features, with their graph; and has a mask with −∞, as attention does."""

    def __init__(self):
        super().__init__()
        self.first, self.head = torch.nn.Linear(8, 6), torch.nn.Linear(6, 4)
        self.register_buffer("mask", torch.full((2, 2), -torch.inf).triu(1))

    def forward(self, x):
        self.features = self.first(x).relu()
        return self.head(self.features)


@pytest.mark.parametrize(
    ("method", "few"),
    [("purge", {"steps": 2}), *((name, {"epochs": 1}) for name in ("purge-paper", "delete", "scrub"))],
)
def test_a_model_that_keeps_what_it_computed_can_be_copied(method, few):
    x, y = torch.randn(60, 8), torch.arange(60) % 4
    parts = [(x[wanted], y[wanted]) for wanted in (y == 0, y != 0)]
    assert purge.unlearn(Remembering(), *parts, method=method, progress=False, **few).steps > 0


def test_a_fresh_model_of_other_shapes_is_refused_before_it_is_trained():
    x, y = torch.randn(60, 8), torch.arange(60) % 4
    parts = [(x[wanted], y[wanted]) for wanted in (y == 0, y != 0)]
    with pytest.raises(purge.PurgeError, match="of the same architecture"):
        purge.unlearn(
            small_mlp(0, 8, 4), *parts, method="retrain", fresh=torch.nn.Linear(8, 4), progress=False
        )


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_look_finds_the_first_row_that_is_not_finite(bad):
    x, y = torch.zeros(5, 6), torch.arange(5) % 3
    x[2, 1] = x[4, 0] = bad
    samples = accepted({"the dataset": (x, y)})["the dataset"]
    assert samples.look().not_finite == 2
    assert samples.select(torch.tensor([0, 1, 3])).look().not_finite is None
    with pytest.raises(DataError, match="NaN or infinity in sample 2"):
        purge.unlearn(plain_mlp(), (x, y), blobs(), progress=False)
