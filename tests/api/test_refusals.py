"""Bad input to every door: one sentence says what was expected, what came and what to do.

Each row of a table is a request that must be refused: its name, the error, words of the message,
and what differs from a good request. The caller's model and files must be as they were.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset, Subset

import purge
from purge.core.errors import (
    DataError,
    DeviceError,
    FileError,
    MethodError,
    MetricError,
    ModelError,
    PurgeError,
    RunError,
)
from purge.methods import Purge
from purge.models.checkpoint import digest
from tests.refusals import NAN, SETTINGS, assert_sentence, spoiled, tree, words_for

# -- parts of bad requests ----------------------------------------------------------------------


class Returns(nn.Module):
    """A classifier whose output is spoiled on its way out."""

    def __init__(self, inner: nn.Module, change: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.inner, self.change = copy.deepcopy(inner), change

    def forward(self, x: Tensor) -> Any:
        return self.change(self.inner(x))


class Fails(nn.Module):
    """A classifier that refuses every batch with the given error."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.fc, self.error = nn.Linear(6, 3), error

    def forward(self, x: Tensor) -> Tensor:
        raise self.error


class Hole(nn.Module):
    """A classifier that gives NaN for the inputs that begin with one number."""

    def __init__(self, inner: nn.Module, begin: Tensor) -> None:
        super().__init__()
        self.inner, self.begin = copy.deepcopy(inner), begin

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(x[:, :1] == self.begin, NAN, self.inner(x))


class Columns(nn.Module):
    """A classifier with a layer that never runs and one that gives one row per feature."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.idle, self.turned = nn.Linear(6, 3), nn.Linear(6, 3), nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.turned(self.fc(x).T).T


class Items(Dataset):
    """A map-style dataset of whatever items it is given."""

    def __init__(self, *items: Any) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, i: int) -> Any:
        return self.items[i]


class Stream(IterableDataset):
    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        yield torch.zeros(6), 0


def holed(data: tuple[Tensor, Tensor], value: float) -> tuple[Tensor, Tensor]:
    """The same data with one number of sample 5 replaced."""
    x = data[0].clone()
    x[5, 2] = value
    return x, data[1]


def labelled(data: tuple[Tensor, Tensor], change: Callable[[Tensor], Any]) -> tuple[Tensor, Any]:
    return data[0], change(data[1].clone())


def first_is(value: int) -> Callable[[Tensor], Tensor]:
    return lambda y: torch.cat([torch.tensor([value]), y[1:]])


def parts(forget: range | list[int], retain: range | list[int]) -> dict[str, Any]:
    """Forget and retain as subsets of one dataset of 20 samples."""
    y = torch.arange(20) % 3
    whole = Items(*((torch.full((6,), float(i)), int(y[i])) for i in range(20)))
    return {"forget": Subset(whole, forget), "retain": Subset(whole, retain)}


def images(n: int = 12, *, shape: tuple[int, ...] = (1, 4, 4), **more: Any) -> purge.Images:
    g = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (n, *shape), generator=g, dtype=torch.uint8)
    return purge.Images(pixels, torch.arange(n) % 3, **more)


def picture_net(classes: int = 3) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, classes))


def pictures(forget: list[int], retain: list[int], **more: Any) -> dict[str, Any]:
    whole = images(**more)
    sets = {"forget": forget, "retain": retain}
    chosen = {part: whole.select(torch.tensor(index, dtype=torch.long)) for part, index in sets.items()}
    return {"model": picture_net(), **chosen}


def frozen(model: nn.Module) -> nn.Module:
    return copy.deepcopy(model).requires_grad_(False)


# -- purge.unlearn ------------------------------------------------------------------------------

Change = Callable[[SimpleNamespace], dict[str, Any]]

UNLEARN: list[tuple[str, type[PurgeError], str, Change]] = [
    # the data
    ("forget empty", DataError, "samples in forget", lambda t: {"forget": (t.x[:0], t.y[:0])}),
    ("retain empty", DataError, "samples in retain", lambda t: {"retain": (t.x[:0], t.y[:0])}),
    ("a sample in both, tensors", DataError, "1 in both (first: 0)", lambda t: {
        "forget": tuple(torch.cat([r[7:8], f]) for f, r in zip(t.forget, t.retain, strict=True))}),
    ("a sample in both, subsets", DataError, "1 in both (first: 4)", lambda t: parts(range(5), range(4, 20))),
    ("a sample in both, nested subsets", DataError, "1 in both (first: 3)", lambda t: {
        **(p := parts(range(5), [])), "retain": Subset(Subset(p["forget"].dataset, [9, 3]), [0, 1])}),
    ("a sample in both, images by content", DataError, "1 in both", lambda t: pictures([3, 4], [4, 5])),
    ("labels are shares", DataError, "one-hot", lambda t: {
        "retain": labelled(t.retain, lambda y: nn.functional.one_hot(y, 3) * 0.9 + 0.1 / 3)}),
    ("labels are of several classes", DataError, "one class per sample", lambda t: {
        "retain": labelled(t.retain, lambda y: 1 - nn.functional.one_hot(y, 3))}),
    ("labels are negative", DataError, "got -1", lambda t: {"retain": labelled(t.retain, first_is(-1))}),
    ("labels too large", DataError, "got 3", lambda t: {"retain": labelled(t.retain, first_is(3))}),
    ("nan in the inputs", DataError, "sample 5", lambda t: {"forget": holed(t.forget, NAN)}),
    ("nan in the test inputs", DataError, "in test", lambda t: {"test": holed(t.test, NAN)}),
    ("inputs and labels of unequal length", DataError, "as many inputs as labels", lambda t: {
        "forget": (t.forget[0], t.forget[1][:-1])}),
    ("a pair of lists", DataError, "(list, list)", lambda t: {"forget": ([[0.0] * 6], [0])}),
    ("nothing retained", DataError, "NoneType", lambda t: {"retain": None}),
    ("sets of different shapes", DataError, "(5,) of float32", lambda t: {
        "model": nn.Sequential(nn.AdaptiveAvgPool1d(6), t.model),
        "retain": (t.retain[0][:, :5], t.retain[1])}),
    ("a forward pass without gradients", ModelError, "without a gradient", lambda t: {
        "model": Returns(t.model, Tensor.detach)}),
    ("a stream", DataError, "Stream", lambda t: {"forget": Stream()}),
    ("items are dicts", DataError, "a dict of 'a'", lambda t: {
        "forget": Items({"a": torch.zeros(6), "y": 0})}),
    ("items of unequal shape", DataError, "retain", lambda t: {
        "retain": Items((torch.zeros(6), 1), (torch.zeros(7), 2))}),
    ("more class names than outputs", ModelError, "a model with 5 outputs", lambda t: (
        pictures([0, 3], [1, 2], names="abcde"))),
    # the model
    ("model is a name", ModelError, "got str", lambda t: {"model": "resnet18"}),
    ("output 1-d", ModelError, "(2,)", lambda t: {"model": Returns(t.model, lambda z: z[:, 0])}),
    ("output 3-d", ModelError, "(2, 3, 1)", lambda t: {"model": Returns(t.model, lambda z: z[..., None])}),
    ("output a dict without logits", ModelError, "got dict", lambda t: {
        "model": Returns(t.model, lambda z: {"scores": z})}),
    ("one output", ModelError, "(2, 1)", lambda t: {"model": Returns(t.model, lambda z: z[:, :1])}),
    ("too few outputs", DataError, "the model has 2 outputs", lambda t: {
        "model": Returns(t.model, lambda z: z[:, :2])}),
    ("nan in a weight", ModelError, "3.weight", lambda t: {"model": spoiled(t.model, "3.weight", NAN)}),
    ("nan in the logits", ModelError, "finite logits", lambda t: {
        "model": Returns(t.model, lambda z: z * NAN)}),
    ("retain of another width", PurgeError, "(5,) of float32 in retain", lambda t: {
        "retain": (t.retain[0][:, :5], t.retain[1])}),
    ("forward fails in two lines", ModelError, "first", lambda t: {
        "model": Fails(RuntimeError("first\nsecond"))}),
    ("model not yet built", ModelError, "not yet initialised", lambda t: {"model": nn.LazyLinear(3)}),
    ("model without memory", ModelError, "meta", lambda t: {"model": nn.Linear(6, 3, device="meta")}),
    ("freeze everything", ModelError, "trainable", lambda t: {"freeze": ("0", "1", "3", "5")}),
    ("a precision that is none", MethodError, "fp8", lambda t: {"precision": "fp8"}),
    ("a graph that is none", MethodError, "maybe", lambda t: {"graph": "maybe"}),
    ("a graph without a GPU", DeviceError, "cpu", lambda t: {"graph": True}),
    ("freeze nothing", MethodError, "'fc'", lambda t: {"freeze": ("fc",)}),
    ("no such layer, erasure off", MethodError, "'layer9'", lambda t: {
        "method": "purge-paper", "layers": ("layer9",)}),
    ("a layer that is turned", MethodError, "'turned'", lambda t: {
        "method": "purge-paper", "model": Columns(), "layers": ("turned",), "erasure": 0.1}),
    # the request
    ("unknown method", MethodError, "did you mean 'purge-paper'", lambda t: {"method": "purge-papr"}),
    ("method is a class", MethodError, "Purge", lambda t: {"method": Purge}),
    ("setting of another method", MethodError, "'objective'", lambda t: {
        "method": "gradient-ascent", "objective": "ga"}),
    ("device nonsense", DeviceError, "'nonsense'", lambda t: {"device": "nonsense"}),
    ("device without memory", DeviceError, "'meta'", lambda t: {"device": "meta"}),
    ("seed negative", PurgeError, "got -1", lambda t: {"seed": -1}),
    ("out has files", FileError, "an empty folder", lambda t: {"out": t.full}),
    ("out is a file", FileError, "got a file", lambda t: {"out": t.file}),
    ("out is a number", FileError, "int", lambda t: {"out": 3}),
]  # fmt: skip

AUDIT: list[tuple[str, type[PurgeError], str, Change]] = [
    ("model None", ModelError, "NoneType", lambda t: {"model": None}),
    ("retrained a path", ModelError, "got str", lambda t: {"retrained": "runs/retrain"}),
    ("original of other outputs", ModelError, "outputs", lambda t: {
        "original": Returns(t.model, lambda z: torch.cat([z, z], 1))}),
    ("retrained of other outputs", ModelError, "outputs from the retrained model", lambda t: {
        "retrained": Returns(t.model, lambda z: torch.cat([z, z], 1))}),
    ("nan in a weight of retrained", ModelError, "5.bias", lambda t: {
        "retrained": spoiled(t.model, "5.bias", NAN)}),
    ("nan in some logits", ModelError, "finite logits", lambda t: {
        "model": Returns(t.model, lambda z: torch.where(torch.arange(len(z))[:, None] == 9, NAN, z))}),
    ("unknown metric", MetricError, "did you mean 'fa_test'", lambda t: {"metrics": ["ra", "fa_tst"]}),
    ("no metric", MetricError, "got none", lambda t: {"metrics": []}),
    ("a metric by number", MetricError, "got int", lambda t: {"metrics": [3]}),
]  # fmt: skip

TRAIN: list[tuple[str, type[PurgeError], str, Change]] = [
    ("dataset empty", DataError, "samples in the dataset", lambda t: {"dataset": (t.x[:0], t.y[:0])}),
    ("nothing trainable", ModelError, "trainable", lambda t: {"model": frozen(t.model)}),
    ("batches of one, batchnorm", MethodError, "batches of at least 2", lambda t: {"batch_size": 1}),
    ("loss runs away", RunError, "finite", lambda t: {"lr": 1e30, "epochs": 5, "batch_size": 16}),
    ("weights run away in the only step", RunError, "finite", lambda t: {"lr": 1e30, "epochs": 1}),
    ("lr beyond single precision", PurgeError, "lr", lambda t: {"lr": 1e45}),
]  # fmt: skip

SPLIT: list[tuple[str, type[PurgeError], str, Change]] = [
    ("nothing said", DataError, "got none", lambda t: {}),
    ("classes and indices", DataError, "classes and indices", lambda t: {"classes": [0], "indices": [1]}),
    ("a class that is not there", DataError, "got 7", lambda t: {"classes": [0, 7]}),
    ("every class", DataError, "something to retain", lambda t: {"classes": [0, 1, 2]}),
    ("fraction 1", DataError, "got 1", lambda t: {"fraction": 1}),
    ("fraction that takes all", DataError, "something to retain", lambda t: {"fraction": 0.9999}),
    ("seed negative", PurgeError, "seed", lambda t: {"fraction": 0.5, "seed": -1}),
    ("an index too large", DataError, "got 96", lambda t: {"indices": [0, 96]}),
    ("no index", DataError, "indices", lambda t: {"indices": []}),
    ("every index", DataError, "something to retain", lambda t: {"indices": range(96)}),
    ("indices are words", DataError, "indices", lambda t: {"indices": ["a", "b"]}),
    ("a mask of others", DataError, "96 samples", lambda t: {"indices": torch.ones(9, dtype=torch.bool)}),
]  # fmt: skip

IMAGES: list[tuple[str, type[PurgeError], str, Change]] = [
    ("pixels are floats", DataError, "torch.float32", lambda t: {"pixels": torch.zeros(4, 1, 2, 2)}),
    ("pixels are 3-d", DataError, "(4, 2, 2)", lambda t: {"pixels": torch.zeros(4, 2, 2, dtype=torch.uint8)}),
    ("too many means", DataError, "one finite mean per channel", lambda t: {"mean": (0.5, 0.5, 0.5)}),
    ("labels are floats", DataError, "torch.float32", lambda t: {"labels": torch.zeros(4)}),
    ("labels of another length", DataError, "(3,)", lambda t: {"labels": torch.arange(3)}),
    ("ids of another length", DataError, "ids", lambda t: {"ids": torch.arange(3)}),
]  # fmt: skip

DOORS = {"unlearn": UNLEARN, "audit": AUDIT, "train": TRAIN, "split": SPLIT, "Images": IMAGES}
CASES = [
    pytest.param(door, error, words, change, id=f"{door}-{name}".replace(" ", "_"))
    for door, table in DOORS.items()
    for name, error, words, change in table
]


def good(door: str, t: SimpleNamespace) -> dict[str, Any]:
    """The arguments of a request that is accepted."""
    sets = {"model": t.model, "forget": t.forget, "retain": t.retain, "progress": False}
    return {
        "unlearn": sets,
        "audit": sets | {"test": t.test},
        "train": {"model": t.model, "dataset": (t.x, t.y), "epochs": 1, "progress": False},
        "split": {"dataset": (t.x, t.y)},
        "Images": {"pixels": torch.zeros(4, 1, 2, 2, dtype=torch.uint8), "labels": torch.arange(4)},
    }[door]


def refused(
    door: str, arguments: dict[str, Any], error: type[PurgeError], words: str, folder: Path
) -> PurgeError:
    """Make the request; it must be refused as it should be, with every model and file unchanged."""
    hollow = (nn.LazyLinear, nn.Linear)  # without memory there is no digest
    models = [a for a in arguments.values() if isinstance(a, nn.Module) and not isinstance(a, hollow)]
    before, files = [digest(m) for m in models], tree(folder)
    with pytest.raises(PurgeError) as caught:
        getattr(purge, door)(**arguments)
    assert type(caught.value) is error or error is PurgeError
    assert_sentence(str(caught.value), words)
    assert "--" not in str(caught.value), "an option of the command line"
    assert [digest(m) for m in models] == before
    assert tree(folder) == files
    return caught.value


@pytest.mark.parametrize(("door", "more"), [
    ("unlearn", {}), ("audit", {"metrics": "ra"}), ("train", {}), ("split", {"classes": 0}), ("Images", {}),
])  # fmt: skip
def test_the_request_that_the_cases_spoil_is_accepted(
    given: SimpleNamespace, door: str, more: dict[str, Any]
) -> None:
    assert getattr(purge, door)(**good(door, given), **more) is not None


@pytest.mark.parametrize(("door", "error", "words", "change"), CASES)
def test_python_refuses(
    given: SimpleNamespace, door: str, error: type[PurgeError], words: str, change: Change
) -> None:
    refused(door, good(door, given) | change(given), error, words, given.tmp)


@pytest.mark.skipif(
    torch.cuda.is_available(), reason="what is asked for is missing only where there is no GPU"
)
def test_cuda_is_refused_where_there_is_none(given: SimpleNamespace) -> None:
    for door in ("unlearn", "audit", "train"):
        refused(door, good(door, given) | {"device": "cuda"}, DeviceError, "'cuda'", given.tmp)


UNUSUAL: list[tuple[str, Change]] = [
    ("split", lambda t: {"classes": np.int64(0)}),
    ("split", lambda t: {"classes": torch.tensor([0, 1])}),
    ("unlearn", lambda t: {"batch_size": 1}),
    ("unlearn", lambda t: {"method": "purge-paper", "norm": "train", "batch_size": 1}),
    ("unlearn", lambda t: {"retain": (t.retain[0][:1], t.retain[1][:1])}),
]


def test_the_unusual_works(given: SimpleNamespace) -> None:
    before = digest(given.model)
    for door, change in UNUSUAL:
        getattr(purge, door)(**good(door, given) | change(given))
    assert digest(given.model) == before


# -- settings ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "key", "value"), SETTINGS, ids=str)
def test_python_refuses_the_setting(given: SimpleNamespace, method: str, key: str, value: Any) -> None:
    request = good("unlearn", given) | {"method": method, key: value}
    assert key in str(refused("unlearn", request, MethodError, words_for(key, value), given.tmp))


# -- a loss that becomes NaN ---------------------------------------------------------------------

RUNAWAY: dict[str, dict[str, Any]] = {
    "gradient-ascent": {"lr": 1e30, "epochs": 5, "batch_size": 8},
    "gradient-ascent frozen": {"lr": 1e30, "epochs": 5, "batch_size": 8, "norm": "frozen"},
    "purge-paper": {"lr": 1e30, "space": "none", "clip": 0, "retain_budget": None, "check_every": 0},
    "purge": {"weight_decay": 1e38},
    "gradient-ascent in its only step": {"lr": 1e38, "epochs": 1, "momentum": 0.0},
}


@pytest.mark.parametrize("name", RUNAWAY)
def test_a_runaway_run_is_given_up(given: SimpleNamespace, name: str) -> None:
    request = good("unlearn", given) | {"method": name.split()[0], "out": given.tmp / "out"} | RUNAWAY[name]
    error = refused("unlearn", request, RunError, "NaN or infinity", given.tmp)
    step = re.search(r"at step (\d+)", str(error))
    assert step is not None
    assert 1 <= int(step[1]) <= RUNAWAY[name].get("steps", 20)


@pytest.mark.parametrize(
    "method", sorted({*purge.list_methods()} - {"sisa", "amnesiac", "convolution-transpose"})
)
def test_nan_for_one_sample_only_is_found_in_the_run(given: SimpleNamespace, method: str) -> None:
    model = Hole(given.model, given.forget[0][-1, 0])
    request = good("unlearn", given) | {"model": model, "method": method}
    if method == "scrub-r":  # which needs test data of the class
        request["test"] = given.test
    refused("unlearn", request, RunError, "at step", given.tmp)
