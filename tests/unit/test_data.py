"""Samples, splits and fingerprints."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import Subset, TensorDataset

import purge
from purge.checks import fingerprints, same_samples
from purge.data import Images, as_samples, batches
from purge.datasets import load
from tests.nets import blobs, small_mlp

CPU = torch.device("cpu")


def pixels(n=6, channels=3):
    return torch.arange(n * channels * 4, dtype=torch.uint8).view(n, channels, 2, 2)


def test_images_are_normalised_per_channel():
    images = Images(pixels(), torch.arange(6), mean=(0.1, 0.2, 0.3), std=(0.5, 1.0, 2.0))
    x, y = images.take(torch.tensor([4, 1]))
    raw = pixels()[[4, 1]].double() / 255
    want = (raw - torch.tensor([0.1, 0.2, 0.3]).view(1, 3, 1, 1)) / torch.tensor([0.5, 1, 2]).view(1, 3, 1, 1)
    assert torch.allclose(x.double(), want.double(), atol=1e-6)
    assert y.tolist() == [4, 1]
    assert torch.equal(images[-1][0], images.take(torch.tensor([5]))[0][0])
    assert images[-1][1] == 5
    with pytest.raises(IndexError):
        images[6]


def test_split_by_class_index_and_fraction():
    x, y = blobs()
    forget, retain = purge.split((x, y), classes=[0, 2])
    assert set(forget[1].tolist()) == {0, 2}
    assert set(retain[1].tolist()) == {1}
    assert len(forget[1]) + len(retain[1]) == len(y)
    forget, retain = purge.split((x, y), indices=[5, 3, 5])
    assert torch.equal(forget[0], x[[3, 5]])
    forget, _ = purge.split((x, y), fraction=0.25, seed=3)
    again, _ = purge.split((x, y), fraction=0.25, seed=3)
    other, _ = purge.split((x, y), fraction=0.25, seed=4)
    assert len(forget[1]) == 24
    assert torch.equal(forget[0], again[0])
    assert not torch.equal(forget[0], other[0])


def test_split_keeps_the_kind_of_data(digits):
    forget, retain = purge.split(digits.train, classes=0)
    assert isinstance(forget, Images)
    assert not set(forget.ids.tolist()) & set(retain.ids.tolist())
    subset, _ = purge.split(TensorDataset(*blobs()), classes=[1])
    assert isinstance(subset, Subset)
    assert all(int(y) == 1 for _, y in subset)


def test_ids_tell_parts_of_one_source_apart_even_with_equal_content():
    same = Images(torch.zeros(4, 1, 2, 2, dtype=torch.uint8), torch.zeros(4, dtype=torch.long), source="s")
    a, b = same.select(torch.tensor([0, 1])), same.select(torch.tensor([2, 3]))
    assert len(same_samples(a, b)) == 0
    assert same_samples(a, same.select(torch.tensor([1, 2]))).tolist() == [1]
    base = TensorDataset(*blobs())
    nested = Subset(Subset(base, [10, 11, 12]), [1])
    assert same_samples(nested, Subset(base, [11])).tolist() == [11]
    assert same_samples(Subset(TensorDataset(*blobs()), [0]), Subset(base, [0])) is None


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
    assert isinstance(forget, tuple)
    few = {"min_steps": 1, "max_steps": 1, "progress": False}
    purge.unlearn(model, forget, retain, **few)
    with pytest.raises(purge.PurgeError, match="in both"):
        purge.unlearn(model, (forget[0], forget[1]), (retain[0], retain[1]), **few)


def test_datasets_do_not_touch_the_callers_random_numbers():
    class Quiet(torch.utils.data.Dataset):
        def __len__(self):
            return 40

        def __getitem__(self, i):
            return torch.full((6,), float(i)), i % 3

    class Noisy(Quiet):
        def __getitem__(self, i):
            return torch.randn(6), i % 3

    from purge.models import digest

    torch.manual_seed(5)
    state = torch.get_rng_state()
    images = Quiet()
    forget, retain = purge.split(images, classes=[0])
    assert torch.equal(torch.get_rng_state(), state)
    forget, retain = purge.split(Noisy(), indices=range(10))
    few = {"min_steps": 1, "max_steps": 1, "progress": False}
    digests = {digest(purge.unlearn(small_mlp(), forget, retain, **few).model) for _ in range(2)}
    assert len(digests) == 1, "the same seed reads the same random data"


def test_images_follow_the_type_of_the_model():
    images = Images(pixels(12), torch.arange(12) % 3)
    forget, retain = purge.split(images, classes=[0])
    for dtype in (torch.float64, torch.bfloat16):
        model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 3)).to(dtype)
        few = {"min_steps": 1, "max_steps": 1, "progress": False}
        result = purge.unlearn(model, forget, retain, **few)
        assert result.model[1].weight.dtype == dtype


def test_inputs_may_have_one_dimension():
    """Token numbers (N,) for an embedding."""
    model = torch.nn.Sequential(torch.nn.Embedding(50, 8), torch.nn.Linear(8, 3))
    x = torch.arange(48)
    forget, retain = purge.split((x, x % 3), classes=[0])
    result = purge.unlearn(model, forget, retain, min_steps=2, max_steps=2, progress=False)
    assert result.steps == 2


class Counted(torch.utils.data.Dataset):
    """Counts how often an item is read; with noise, items are never the same twice."""

    def __init__(self, noise=0.0, targets=False):
        self.x, self.y = blobs()
        self.noise, self.reads = noise, 0
        if targets:
            self.targets = self.y.tolist()

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        self.reads += 1
        return self.x[i] + self.noise * torch.rand(6), int(self.y[i])


def test_random_transforms_are_drawn_anew_in_every_epoch():
    still, moving = Counted(), Counted(noise=0.1)
    for data in (still, moving):
        purge.train(small_mlp(), data, epochs=5, batch_size=32, progress=False)
    assert still.reads < 2 * len(still)
    assert moving.reads >= 5 * len(moving)


def test_labels_that_are_listed_are_not_read_one_by_one():
    data = Counted(targets=True)
    forget, _ = purge.split(data, classes=[0])
    assert data.reads == 0
    assert all(int(data.y[i]) == 0 for i in forget.indices)


def test_a_mask_selects_like_its_positions(digits):
    mask = digits.train.labels == 3
    part, same = digits.train.select(mask), digits.train.select(mask.nonzero()[:, 0])
    assert torch.equal(part.take(torch.arange(5))[0], same.take(torch.arange(5))[0])


@pytest.mark.parametrize("shift", [0, 10**12, -5])
def test_common_ids_are_found_whatever_their_size(shift):
    from purge.checks import _common

    a, b = torch.tensor([3, 9, 4, 7]) + shift, torch.tensor([1, 7, 3, 30]) + shift
    assert (_common(a, b) - shift).tolist() == [3, 7]
    assert _common(a, b[:0]).tolist() == []
