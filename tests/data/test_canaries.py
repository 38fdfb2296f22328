"""Planting canaries: by fair coins, the same again for a seed, and nothing else is changed."""

from __future__ import annotations

import pytest
import torch
from scipy.stats import binomtest
from torch.utils.data import Subset, TensorDataset

import purge
from purge.core.errors import DataError, PurgeError
from purge.data.accept import as_samples

CPU = torch.device("cpu")
X = torch.arange(400.0).reshape(200, 2)
Y = torch.arange(200) % 5


def test_the_planted_are_in_the_data_with_their_wrong_labels_and_the_others_are_not():
    planted = purge.plant_canaries((X, Y), 60, seed=3)
    (x, y), (cx, cy) = planted.data, planted.samples
    own = Y[(cx[:, 0] / 2).long()]
    assert len(cy) == len(planted.included) == 60
    assert (cy != own).all()
    assert set(cy.tolist()) == {0, 1, 2, 3, 4}
    assert torch.equal(x[planted.rows], cx[planted.included])
    assert torch.equal(y[planted.rows], cy[planted.included])
    left = {float(row) for row in cx[~planted.included][:, 0]}
    assert not left & {float(row) for row in x[:, 0]}
    assert len(y) == 200 - len(left)
    rest = torch.ones(len(y), dtype=torch.bool)
    rest[planted.rows] = False
    assert torch.equal(y[rest], Y[(x[rest][:, 0] / 2).long()])  # all others stay as they were, in order
    assert (x[:, 0].diff() > 0).all()
    assert torch.equal(Y, torch.arange(200) % 5)  # the caller's own
    forget, retain = purge.split(planted.data, indices=planted.rows)
    assert torch.equal(forget[0], cx[planted.included])
    assert len(retain) == 140
    cx, cy = purge.plant_canaries((X, Y), 60, seed=3, mislabel=False).samples
    assert torch.equal(cy, Y[(cx[:, 0] / 2).long()])


def test_coins_are_fair_and_independent_of_the_labels_and_of_each_other():
    coins = torch.stack([purge.plant_canaries((X, Y), 50, seed=s).included for s in range(200)])
    assert binomtest(int(coins.sum()), coins.numel()).pvalue > 0.001
    assert coins.float().mean(0).std() < 0.06  # of 200 tosses: .035
    counts = coins.sum(1).float()
    assert 2.5 < counts.std() < 4.6  # binomial: 3.5; a fixed half would have none
    neighbours = (coins[:, 1:] == coins[:, :-1]).float().mean()
    assert neighbours == pytest.approx(0.5, abs=0.02)


def test_the_same_seed_gives_the_same_record_and_another_another():
    a, b, c = (purge.plant_canaries((X, Y), 60, seed=s) for s in (1, 1, 2))
    assert torch.equal(a.included, b.included)
    assert torch.equal(a.rows, b.rows)
    assert torch.equal(a.samples[1], b.samples[1])
    assert not torch.equal(a.included, c.included)


class Described(torch.utils.data.Dataset):
    """A dataset whose items are dicts."""

    def __len__(self) -> int:
        return len(Y)

    def __getitem__(self, i: int) -> dict:
        return {"x": X[i], "y": int(Y[i])}


@pytest.mark.parametrize(
    "data",
    [
        TensorDataset(X, Y),
        Subset(TensorDataset(torch.cat([X, X]), torch.cat([Y, Y])), range(200)),
        Described(),
        (X.numpy(), Y.numpy()),
        ({"a": X[:, :1], "b": X[:, 1:]}, Y),
        purge.Images((torch.arange(200)[:, None, None, None] * torch.ones(1, 2, 2)).byte(), Y),
    ],
    ids=["tensors", "subset", "dicts", "arrays", "inputs in a dict", "images"],
)
def test_data_of_every_kind_gives_the_record_of_a_pair(data):
    pair, planted = (purge.plant_canaries(d, 60, seed=3) for d in ((X, Y), data))
    assert torch.equal(planted.rows, pair.rows)
    assert torch.equal(planted.included, pair.included)
    for ours, theirs in ((planted.data, pair.data), (planted.samples, pair.samples)):
        assert torch.equal(ours.labels, theirs[1])
        samples = as_samples(ours, CPU, "data")
        x, y = samples.take(torch.tensor([0, 7]))
        assert torch.equal(y, theirs[1][[0, 7]])
        x = torch.cat([x["a"], x["b"]], 1) if isinstance(x, dict) else x
        x = (x[:, 0, 0, :] * 255).round() if x.ndim == 4 else x  # each image is its number
        assert torch.equal(x[:, 0] * (2 if isinstance(data, purge.Images) else 1), theirs[0][[0, 7], 0])


@pytest.mark.parametrize("n", [9, 101, True, 20.0, "20"])
def test_a_wrong_number_is_refused(n):
    with pytest.raises(DataError, match=r"from 10 to 100 canaries.*Fix: "):
        purge.plant_canaries((X, Y), n)


def test_other_refusals():
    with pytest.raises(DataError, match="mislabel=False"):
        purge.plant_canaries((X, torch.zeros(200, dtype=torch.long)), 20)
    with pytest.raises(PurgeError, match="seed"):
        purge.plant_canaries((X, Y), 20, seed=-1)
