"""Random transforms: they are found, training keeps them, and an audit reads the data without them."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, Subset
from torchvision import transforms
from torchvision.datasets import FakeData
from torchvision.transforms import v2

import purge
from purge.data.accept import accepted, as_samples
from purge.data.augmented import deterministic, plain
from purge.data.backends import Items
from purge.data.items import Form
from tests.nets import blobs, small_mlp

CPU = torch.device("cpu")


class Flipped(Dataset[Any]):
    """Blobs whose features are reversed now and then."""

    def __init__(self, p: float, n: int = 40, seed: int = 0) -> None:
        (self.x, self.y), self.p = blobs(n, seed=seed), p

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        x = self.x[i]
        return x.flip(0) if torch.rand(()) < self.p else x, int(self.y[i])


def moving(data: Dataset[Any]) -> bool:
    return Items(data, len(data), Form(), None, "the data").moving


@pytest.mark.parametrize("n", [1, 5, 40])
def test_a_rare_flip_is_always_found(n):
    data = Flipped(0.1, n)  # two readings of eight items missed it in a fifth of the cases
    found = 0
    for seed in range(300):
        torch.manual_seed(seed)
        found += moving(data)
    assert found == 300
    assert not moving(Flipped(0.0, n))


def test_data_that_is_not_a_number_is_not_random():
    class Holes(Flipped):
        def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
            return torch.tensor([float("nan"), 1.0]), 0

    assert not moving(Holes(0.0))


# -- what an audit reads -----------------------------------------------------------------------

RANDOM = {
    "v1": transforms.Compose([
        transforms.RandomCrop(12, padding=2), transforms.RandomHorizontalFlip(0.1),
        transforms.ColorJitter(0.3), transforms.ToTensor(),
        transforms.Normalize(0.5, 0.25), transforms.RandomErasing(0.1),
    ]),
    "v2": v2.Compose([
        v2.ToImage(), v2.RandomCrop(12, padding=2), v2.RandomApply([v2.RandomRotation(30)], 0.1),
        v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5], [0.25]), v2.GaussianNoise(),
    ]),
    "nested": transforms.Compose([
        transforms.ToTensor(),
        nn.Sequential(transforms.RandomVerticalFlip(0.1), transforms.Normalize(0.5, 0.25)),
    ]),
}  # fmt: skip
PLAIN = transforms.Compose([transforms.ToTensor(), transforms.Normalize(0.5, 0.25)])


def pictures(transform, n: int = 60, seed: int = 0) -> FakeData:
    return FakeData(n, (3, 12, 12), 3, transform=transform, random_offset=1000 * seed)


def images_net(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(400, 3))


@pytest.mark.parametrize("kind", RANDOM)
def test_an_audit_reads_torchvision_data_without_its_random_transforms(kind):
    before = copy.deepcopy(RANDOM[kind])
    train, test = pictures(RANDOM[kind]), pictures(RANDOM[kind], seed=1)
    forget, retain = purge.split(train, indices=range(20))
    assert not as_samples(forget, CPU, "forget").steady  # for training they stay
    given = {"metrics": "quick", "progress": False}
    report = purge.audit(images_net(0), forget, retain, test, **given)
    plain_train, plain_test = pictures(PLAIN), pictures(PLAIN, seed=1)
    want = purge.audit(images_net(0), *purge.split(plain_train, indices=range(20)), plain_test, **given)
    assert "augmented" not in report.info
    for name, value in want.values.items():
        assert report[name].value == (None if value.value is None else pytest.approx(value.value, abs=1e-6))
    assert train.transform is RANDOM[kind]  # the caller's data is untouched
    assert repr(RANDOM[kind]) == repr(before)
    assert not as_samples(train, CPU, "train").steady


def test_parts_of_one_dataset_stay_parts_of_one_dataset():
    train = pictures(RANDOM["v1"])
    forget, retain = (plain(part) for part in purge.split(train, indices=[0, 1]))
    assert forget.steady
    assert forget.origin.same(retain.origin)
    with pytest.raises(purge.PurgeError, match="1 in both"):
        purge.audit(images_net(0), Subset(train, [0, 1, 2]), Subset(train, [2, 3, 4]), None, progress=False)


def test_data_without_random_transforms_is_passed_on():
    for data in (blobs(), pictures(PLAIN), Flipped(0.1)):
        samples = accepted({"x": data})["x"]
        assert plain(samples) is samples


@pytest.mark.parametrize("parts", [("forget",), ("retain", "test"), ("forget", "retain", "test")])
def test_what_cannot_be_taken_away_is_said(parts):
    given = {name: Flipped(0.1 if name in parts else 0.0, 40, seed)
             for seed, name in enumerate(("forget", "retain", "test"))}  # fmt: skip
    report = purge.audit(small_mlp(), **given, metrics="fa_train", progress=False)
    listed = {1: "forget", 2: "retain and test", 3: "forget, retain and test"}[len(parts)]
    assert report.info["augmented"].startswith(f"{listed}: items differ whenever they are read")
    assert report.to_dict()["info"]["augmented"] == report.info["augmented"]


def test_a_transform_of_ones_own_is_not_taken_away():
    class RandomShift:
        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.rand(())

    own = transforms.Compose([transforms.ToTensor(), transforms.RandomHorizontalFlip(), RandomShift()])
    train = pictures(own)
    assert [type(t).__name__ for t in deterministic(own).transforms] == ["ToTensor", "RandomShift"]
    report = purge.audit(
        images_net(0), *purge.split(train, indices=range(20)), pictures(PLAIN, seed=1), metrics="fa_train",
        progress=False,
    )  # fmt: skip
    assert report.info["augmented"].startswith("forget and retain: ")


def test_random_crops_become_crops_of_the_centre():
    x = torch.arange(3 * 40 * 40).float().reshape(3, 40, 40)
    for home in (transforms, v2):
        assert torch.equal(deterministic(home.RandomCrop(32))(x), home.CenterCrop(32)(x))
        found = deterministic(home.RandomResizedCrop(28))
        assert torch.equal(found(x), home.CenterCrop(28)(home.Resize(32)(x)))
    assert deterministic(transforms.RandomHorizontalFlip()) is None


def test_data_that_would_change_its_shape_is_left_alone():
    sizes = transforms.Compose([transforms.ToTensor(), v2.RandomResize(8, 9), transforms.RandomErasing(1.0)])
    samples = accepted({"x": pictures(sizes)})["x"]
    assert plain(samples) is samples
