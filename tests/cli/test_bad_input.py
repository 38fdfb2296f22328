"""Bad input to every door: one sentence says what was expected, what came and what to do.

Each row of a table is a request that must be refused: its name, the error, words of the message,
and what differs from a good request. The caller's model and files must be as they were.
"""

from __future__ import annotations

import copy
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import typer
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

import purge
from purge.cli import app as cli
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
from purge.models.checkpoint import digest, load_weights, save_weights
from purge.models.small_resnet import SmallResNet

SENTENCE = re.compile(r"Expected .+, got .+\. Fix: .+\.")
NAN, INF = float("nan"), float("inf")
HUGE = 10**30


def assert_sentence(message: str, words: str) -> None:
    assert len(message.splitlines()) == 1
    assert SENTENCE.fullmatch(message), message
    assert words in message
    typo = re.search(r"got '(.+)'\. Fix: did you mean '(.+)'\?", message)
    assert typo is None or typo[1] != typo[2], message


def tree(folder: Path) -> dict[Path, tuple[int, int]]:
    """Every path below a folder with its size and time of change."""
    return {p: (p.stat().st_size, p.stat().st_mtime_ns) for p in folder.rglob("*")}


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


class CountedStream(Stream):
    def __len__(self) -> int:
        return 1


class Picture:
    """Stands for an image object that no transform has turned into a tensor."""


def spoiled(model: nn.Module, name: str, value: float) -> nn.Module:
    """A copy with one number of a weight or buffer replaced."""
    model = copy.deepcopy(model)
    model.state_dict()[name].view(-1)[0] = value
    return model


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
    ("test empty", DataError, "samples in test", lambda t: {"test": (t.x[:0], t.y[:0])}),
    ("empty subset", DataError, "samples in forget", lambda t: parts([], range(20))),
    ("empty images", DataError, "samples in retain", lambda t: pictures([1], [])),
    ("a sample in both, tensors", DataError, "1 in both (first: 0)", lambda t: {
        "forget": tuple(torch.cat([r[7:8], f]) for f, r in zip(t.forget, t.retain, strict=True))}),
    ("same tensors twice", DataError, "in both", lambda t: {"retain": t.forget}),
    ("a sample in both, subsets", DataError, "1 in both (first: 4)", lambda t: parts(range(5), range(4, 20))),
    ("a sample in both, negative index", DataError, "1 in both", lambda t: parts([1, -1], range(2, 20))),
    ("a sample in both, nested subsets", DataError, "1 in both (first: 3)", lambda t: {
        **(p := parts(range(5), [])), "retain": Subset(Subset(p["forget"].dataset, [9, 3]), [0, 1])}),
    ("a sample in both, tensors and dataset", DataError, "in both", lambda t: {
        "retain": TensorDataset(t.x, t.y)}),
    ("a sample in both, images of one source", DataError, "1 in both (first: 4)", lambda t: (
        pictures([3, 4], [4, 5], source="pictures"))),
    ("a sample in both, images by content", DataError, "1 in both", lambda t: pictures([3, 4], [4, 5])),
    ("labels are floats", DataError, "torch.float32", lambda t: {"forget": labelled(t.forget, Tensor.float)}),
    ("labels are bools", DataError, "torch.bool", lambda t: {"retain": labelled(t.retain, Tensor.bool)}),
    ("labels are one-hot", DataError, "one-hot", lambda t: {
        "retain": labelled(t.retain, lambda y: nn.functional.one_hot(y, 3))}),
    ("labels are negative", DataError, "got -1", lambda t: {"retain": labelled(t.retain, first_is(-1))}),
    ("labels too large", DataError, "got 3", lambda t: {"retain": labelled(t.retain, first_is(3))}),
    ("test labels too large", DataError, "in test", lambda t: {"test": labelled(t.test, first_is(9))}),
    ("labels are words", DataError, "labels in retain", lambda t: {
        "retain": (t.retain[0], np.array(["cat"] * len(t.retain[1])))}),
    ("nan in the inputs", DataError, "sample 5", lambda t: {"forget": holed(t.forget, NAN)}),
    ("infinity in the inputs", DataError, "sample 5", lambda t: {"retain": holed(t.retain, INF)}),
    ("nan in the test inputs", DataError, "in test", lambda t: {"test": holed(t.test, NAN)}),
    ("inputs and labels of unequal length", DataError, "as many inputs as labels", lambda t: {
        "forget": (t.forget[0], t.forget[1][:-1])}),
    ("three tensors", DataError, "a pair of tensors", lambda t: {"forget": (*t.forget, t.forget[1])}),
    ("a pair of lists", DataError, "(list, list)", lambda t: {"forget": ([[0.0] * 6], [0])}),
    ("a list of items", DataError, "a pair of tensors", lambda t: {"forget": [(torch.zeros(6), 0)] * 5}),
    ("a tensor alone", DataError, "a pair of tensors", lambda t: {"forget": t.forget[0]}),
    ("no data at all", DataError, "NoneType", lambda t: {"forget": None}),
    ("a dict of tensors", DataError, "dict", lambda t: {"forget": {"x": t.x, "y": t.y}}),
    ("sets of different shapes", DataError, "(5,) of float32", lambda t: {
        "model": nn.Sequential(nn.AdaptiveAvgPool1d(6), t.model),
        "retain": (t.retain[0][:, :5], t.retain[1])}),
    ("a forward pass without gradients", ModelError, "without a gradient", lambda t: {
        "model": Returns(t.model, Tensor.detach)}),
    ("a data loader", DataError, "DataLoader", lambda t: {"forget": DataLoader(TensorDataset(*t.forget))}),
    ("a stream", DataError, "Stream", lambda t: {"forget": Stream()}),
    ("a stream with a length", DataError, "CountedStream", lambda t: {"forget": CountedStream()}),
    ("items of one", DataError, "items (x, y)", lambda t: {"forget": Items(torch.zeros(6))}),
    ("items of three", DataError, "items (x, y)", lambda t: {"forget": Items((torch.zeros(6), 0, 1))}),
    ("items are dicts", DataError, "a dict of 'a'", lambda t: {
        "forget": Items({"a": torch.zeros(6), "y": 0})}),
    ("inputs are images", DataError, "Picture", lambda t: {"retain": Items((Picture(), 0))}),
    ("inputs are paths", DataError, "got str", lambda t: {"retain": Items(("cat.png", 0))}),
    ("labels of items are words", DataError, "got str", lambda t: {"retain": Items((torch.zeros(6), "cat"))}),
    ("labels of items are floats", DataError, "got float", lambda t: {
        "retain": Items((torch.zeros(6), 0.0))}),
    ("items of unequal shape", DataError, "retain", lambda t: {
        "retain": Items((torch.zeros(6), 1), (torch.zeros(7), 2))}),
    ("second item is not a pair", DataError, "retain", lambda t: {
        "retain": Items((torch.zeros(6), 1), torch.zeros(6))}),
    ("more class names than outputs", ModelError, "a model with 5 outputs", lambda t: (
        pictures([0, 3], [1, 2], names="abcde"))),
    # the model
    ("model is a name", ModelError, "got str", lambda t: {"model": "resnet18"}),
    ("model is a state dict", ModelError, "OrderedDict", lambda t: {"model": t.model.state_dict()}),
    ("output 1-d", ModelError, "(2,)", lambda t: {"model": Returns(t.model, lambda z: z[:, 0])}),
    ("output 0-d", ModelError, "got ()", lambda t: {"model": Returns(t.model, Tensor.sum)}),
    ("output 3-d", ModelError, "(2, 3, 1)", lambda t: {"model": Returns(t.model, lambda z: z[..., None])}),
    ("output of another batch", ModelError, "(1, 3)", lambda t: {"model": Returns(t.model, lambda z: z[:1])}),
    ("output None", ModelError, "NoneType", lambda t: {"model": Returns(t.model, lambda z: None)}),
    ("output a word", ModelError, "got str", lambda t: {"model": Returns(t.model, lambda z: "cat")}),
    ("output an empty tuple", ModelError, "got tuple", lambda t: {"model": Returns(t.model, lambda z: ())}),
    ("output a dict without logits", ModelError, "got dict", lambda t: {
        "model": Returns(t.model, lambda z: {"scores": z})}),
    ("one output", ModelError, "(2, 1)", lambda t: {"model": Returns(t.model, lambda z: z[:, :1])}),
    ("too few outputs", DataError, "the model has 2 outputs", lambda t: {
        "model": Returns(t.model, lambda z: z[:, :2])}),
    ("nan in a weight", ModelError, "3.weight", lambda t: {"model": spoiled(t.model, "3.weight", NAN)}),
    ("infinity in a weight", ModelError, "5.bias", lambda t: {"model": spoiled(t.model, "5.bias", -INF)}),
    ("nan in a buffer", ModelError, "1.running_var", lambda t: {
        "model": spoiled(t.model, "1.running_var", NAN)}),
    ("nan in the logits", ModelError, "finite logits", lambda t: {
        "model": Returns(t.model, lambda z: z * NAN)}),
    ("infinity in the logits", ModelError, "finite logits", lambda t: {
        "model": Returns(t.model, lambda z: z + INF)}),
    ("inputs of another width", ModelError, "(2, 5)", lambda t: {
        "forget": (t.forget[0][:, :5], t.forget[1])}),
    ("retain of another width", PurgeError, "(5,) of float32 in retain", lambda t: {
        "retain": (t.retain[0][:, :5], t.retain[1])}),
    ("inputs of another type", ModelError, "torch.float64", lambda t: {
        "forget": (t.forget[0].double(), t.forget[1])}),
    ("forward asserts its input", ModelError, "wrong size", lambda t: {
        "model": Fails(AssertionError("wrong size"))}),
    ("forward fails in two lines", ModelError, "first", lambda t: {
        "model": Fails(RuntimeError("first\nsecond"))}),
    ("forward fails without words", ModelError, "ValueError", lambda t: {"model": Fails(ValueError())}),
    ("model without memory", ModelError, "meta", lambda t: {"model": nn.Linear(6, 3, device="meta")}),
    ("nothing trainable", ModelError, "trainable", lambda t: {"model": frozen(t.model)}),
    ("freeze everything", ModelError, "trainable", lambda t: {"freeze": ("0", "1", "3", "5")}),
    ("a precision that is none", MethodError, "fp8", lambda t: {"precision": "fp8"}),
    ("a graph that is none", MethodError, "maybe", lambda t: {"graph": "maybe"}),
    ("a graph without a GPU", DeviceError, "cpu", lambda t: {"graph": True}),
    ("freeze nothing", MethodError, "'fc'", lambda t: {"freeze": ("fc",)}),
    ("no such layer", MethodError, "'layer9'", lambda t: {"layers": ("layer9",), "erasure": 0.1}),
    ("no such layer, erasure off", MethodError, "'layer9'", lambda t: {"layers": ("layer9",)}),
    ("a layer that never runs", MethodError, "'idle'", lambda t: {
        "model": Columns(), "layers": ("idle",), "erasure": 0.1}),
    ("a layer that is turned", MethodError, "'turned'", lambda t: {
        "model": Columns(), "layers": ("turned",), "erasure": 0.1}),
    # the request
    ("unknown method", MethodError, "did you mean 'purge-paper'", lambda t: {"method": "purge-papr"}),
    ("method is a class", MethodError, "Purge", lambda t: {"method": Purge}),
    ("method is None", MethodError, "NoneType", lambda t: {"method": None}),
    ("unknown setting", MethodError, "did you mean 'epochs'", lambda t: {"epoch": 3}),
    ("unknown setting of stopping", MethodError, "did you mean 'forget_target'", lambda t: {
        "forget_tagret": 0}),
    ("setting of another method", MethodError, "'objective'", lambda t: {
        "method": "gradient-ascent", "objective": "ga"}),
    ("value of another method", MethodError, "'shared'", lambda t: {
        "method": "gradient-ascent", "norm": "shared"}),
    ("stop is a word", MethodError, "'x'", lambda t: {"stop": "x"}),
    ("stop is a word, target beside it", MethodError, "'x'", lambda t: {"stop": "x", "forget_target": 0.1}),
    ("layers is a number", MethodError, "layers", lambda t: {"layers": 3}),
    ("layers are numbers", MethodError, "layers", lambda t: {"layers": [3]}),
    ("freeze is a number", MethodError, "freeze", lambda t: {"freeze": 3}),
    ("lr is a list", MethodError, "lr", lambda t: {"lr": [0.1]}),
    ("epochs beyond floats", MethodError, "epochs", lambda t: {"epochs": 10**400}),
    ("lr beyond single precision", PurgeError, "lr", lambda t: {"lr": 1e45}),
    ("device nonsense", DeviceError, "'nonsense'", lambda t: {"device": "nonsense"}),
    ("device not there", DeviceError, "'cuda:99'", lambda t: {"device": "cuda:99"}),
    ("device without memory", DeviceError, "'meta'", lambda t: {"device": "meta"}),
    ("device is a list", DeviceError, "cpu", lambda t: {"device": ["cpu"]}),
    ("seed negative", PurgeError, "got -1", lambda t: {"seed": -1}),
    ("seed a float", PurgeError, "got 1.0", lambda t: {"seed": 1.0}),
    ("seed a word", PurgeError, "got '1'", lambda t: {"seed": "1"}),
    ("seed a bool", PurgeError, "got True", lambda t: {"seed": True}),
    ("seed None", PurgeError, "got None", lambda t: {"seed": None}),
    ("seed too large", PurgeError, str(HUGE), lambda t: {"seed": HUGE}),
    ("out has files", FileError, "an empty folder", lambda t: {"out": t.full}),
    ("out is a file", FileError, "got a file", lambda t: {"out": t.file}),
    ("out below a file", FileError, "got a file", lambda t: {"out": t.file / "run"}),
    ("out of a name too long", FileError, "name", lambda t: {"out": t.tmp / ("x" * 300)}),
    ("out is a number", FileError, "int", lambda t: {"out": 3}),
]  # fmt: skip

AUDIT: list[tuple[str, type[PurgeError], str, Change]] = [
    ("forget empty", DataError, "samples in forget", lambda t: {"forget": (t.x[:0], t.y[:0])}),
    ("a sample in both", DataError, "in both", lambda t: {"retain": t.forget}),
    ("test labels too large", DataError, "in test", lambda t: {"test": labelled(t.test, first_is(9))}),
    ("model None", ModelError, "NoneType", lambda t: {"model": None}),
    ("model None beside an original", ModelError, "NoneType", lambda t: {"model": None, "original": t.model}),
    ("model a path", ModelError, "got str", lambda t: {"model": "runs/purge"}),
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
    ("unknown panel", MetricError, "did you mean 'standard'", lambda t: {"metrics": "standrad"}),
    ("no metric", MetricError, "got none", lambda t: {"metrics": []}),
    ("metrics None", MetricError, "NoneType", lambda t: {"metrics": None}),
    ("a metric by number", MetricError, "got int", lambda t: {"metrics": [3]}),
    ("device not there", DeviceError, "'cuda:99'", lambda t: {"device": "cuda:99"}),
    ("seed negative", PurgeError, "got -1", lambda t: {"seed": -1}),
]  # fmt: skip

TRAIN: list[tuple[str, type[PurgeError], str, Change]] = [
    ("model a name", ModelError, "got str", lambda t: {"model": "resnet18"}),
    ("dataset empty", DataError, "samples in the dataset", lambda t: {"dataset": (t.x[:0], t.y[:0])}),
    ("dataset a stream", DataError, "Stream", lambda t: {"dataset": Stream()}),
    ("nan in the inputs", DataError, "sample 5", lambda t: {"dataset": holed(t.retain, NAN)}),
    ("labels too large", DataError, "got 3", lambda t: {"dataset": labelled(t.retain, first_is(3))}),
    ("nothing trainable", ModelError, "trainable", lambda t: {"model": frozen(t.model)}),
    ("unknown setting", MethodError, "did you mean 'epochs'", lambda t: {"epoch": 3}),
    ("epochs zero", MethodError, "epochs", lambda t: {"epochs": 0}),
    ("lr negative", MethodError, "lr", lambda t: {"lr": -0.1}),
    ("batch size a word", MethodError, "batch_size", lambda t: {"batch_size": "all"}),
    ("momentum too large", MethodError, "momentum", lambda t: {"momentum": 1.5}),
    ("seed a float", PurgeError, "got 0.5", lambda t: {"seed": 0.5}),
    ("device nonsense", DeviceError, "'nonsense'", lambda t: {"device": "nonsense"}),
    ("loss runs away", RunError, "finite", lambda t: {"lr": 1e30, "epochs": 5, "batch_size": 16}),
    ("weights run away in the only step", RunError, "finite", lambda t: {"lr": 1e30, "epochs": 1}),
    ("lr beyond single precision", PurgeError, "lr", lambda t: {"lr": 1e45}),
]  # fmt: skip

SPLIT: list[tuple[str, type[PurgeError], str, Change]] = [
    ("nothing said", DataError, "got none", lambda t: {}),
    ("classes and indices", DataError, "classes and indices", lambda t: {"classes": [0], "indices": [1]}),
    ("indices and fraction", DataError, "indices and fraction", lambda t: {"indices": [1], "fraction": 0.5}),
    ("a class that is not there", DataError, "got 7", lambda t: {"classes": [0, 7]}),
    ("a negative class", DataError, "got -1", lambda t: {"classes": -1}),
    ("no class", DataError, "got none", lambda t: {"classes": []}),
    ("every class", DataError, "something to retain", lambda t: {"classes": [0, 1, 2]}),
    ("a class as a word", DataError, "'1'", lambda t: {"classes": "1"}),
    ("a class as a float", DataError, "1.5", lambda t: {"classes": 1.5}),
    ("a class as a bool", DataError, "True", lambda t: {"classes": True}),
    ("fraction 0", DataError, "got 0", lambda t: {"fraction": 0}),
    ("fraction 1", DataError, "got 1", lambda t: {"fraction": 1}),
    ("fraction 2", DataError, "got 2", lambda t: {"fraction": 2}),
    ("fraction nan", DataError, "got nan", lambda t: {"fraction": NAN}),
    ("fraction a word", DataError, "got '0.1'", lambda t: {"fraction": "0.1"}),
    ("fraction that takes all", DataError, "something to retain", lambda t: {"fraction": 0.9999}),
    ("seed a word", PurgeError, "seed", lambda t: {"fraction": 0.5, "seed": "x"}),
    ("seed a float", PurgeError, "seed", lambda t: {"fraction": 0.5, "seed": 0.5}),
    ("seed negative", PurgeError, "seed", lambda t: {"fraction": 0.5, "seed": -1}),
    ("an index too large", DataError, "got 96", lambda t: {"indices": [0, 96]}),
    ("an index beyond 64 bits", DataError, str(HUGE), lambda t: {"indices": [HUGE]}),
    ("an index negative", DataError, "got -1", lambda t: {"indices": [0, -1]}),
    ("no index", DataError, "indices", lambda t: {"indices": []}),
    ("every index", DataError, "something to retain", lambda t: {"indices": range(96)}),
    ("indices are floats", DataError, "indices", lambda t: {"indices": [0.0, 1.0]}),
    ("indices are words", DataError, "indices", lambda t: {"indices": ["a", "b"]}),
    ("indices are a mask", DataError, "indices", lambda t: {"indices": torch.ones(96, dtype=torch.bool)}),
    ("indices are 2-d", DataError, "indices", lambda t: {"indices": torch.zeros(2, 2, dtype=torch.long)}),
    ("a stream", DataError, "Stream", lambda t: {"dataset": Stream(), "fraction": 0.5}),
    ("no data", DataError, "NoneType", lambda t: {"dataset": None, "classes": [0]}),
    ("labels are floats", DataError, "torch.float32", lambda t: {
        "dataset": (t.x, t.y.float()), "classes": [0]}),
]  # fmt: skip

IMAGES: list[tuple[str, type[PurgeError], str, Change]] = [
    ("pixels are floats", DataError, "torch.float32", lambda t: {"pixels": torch.zeros(4, 1, 2, 2)}),
    ("pixels are 3-d", DataError, "(4, 2, 2)", lambda t: {"pixels": torch.zeros(4, 2, 2, dtype=torch.uint8)}),
    ("pixels are an array", DataError, "ndarray", lambda t: {"pixels": np.zeros((4, 1, 2, 2), np.uint8)}),
    ("too many means", DataError, "one mean per channel", lambda t: {"mean": (0.5, 0.5, 0.5)}),
    ("too many stds", DataError, "one std per channel", lambda t: {"std": (0.5, 0.5)}),
    ("no mean", DataError, "one mean per channel", lambda t: {"mean": ()}),
    ("mean is one number", DataError, "mean", lambda t: {"mean": 0.5}),
    ("std is zero", DataError, "std", lambda t: {"std": (0.0,)}),
    ("labels of another length", DataError, "(3,)", lambda t: {"labels": torch.arange(3)}),
    ("labels are floats", DataError, "torch.float32", lambda t: {"labels": torch.zeros(4)}),
    ("labels are negative", DataError, "got -1", lambda t: {"labels": torch.tensor([0, 1, 0, -1])}),
    ("labels are words", DataError, "labels", lambda t: {"labels": ["cat", "dog", "cat", "dog"]}),
    ("ids of another length", DataError, "ids", lambda t: {"ids": torch.arange(3)}),
]  # fmt: skip

DOORS = {"unlearn": UNLEARN, "audit": AUDIT, "train": TRAIN, "split": SPLIT, "Images": IMAGES}
CASES = [
    pytest.param(door, error, words, change, id=f"{door}-{name}".replace(" ", "_"))
    for door, table in DOORS.items()
    for name, error, words, change in table
]


@pytest.fixture
def given(toy: tuple[Any, ...], tmp_path: Path) -> SimpleNamespace:
    """A good request in pieces, a folder with a file in it, and a file."""
    model, forget, retain, test = toy
    full, file = tmp_path / "full", tmp_path / "file"
    full.mkdir()
    (full / "notes.txt").write_text("mine")
    file.write_text("mine")
    x, y = (torch.cat(both) for both in zip(forget, retain, strict=True))
    return SimpleNamespace(
        model=model, forget=forget, retain=retain, test=test, x=x, y=y, tmp=tmp_path, full=full, file=file
    )


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
    models = [a for a in arguments.values() if isinstance(a, nn.Module) and not _on_meta(a)]
    before, files = [digest(m) for m in models], tree(folder)
    with pytest.raises(PurgeError) as caught:
        getattr(purge, door)(**arguments)
    assert type(caught.value) is error or error is PurgeError
    assert_sentence(str(caught.value), words)
    assert "--" not in str(caught.value), "an option of the command line"
    assert [digest(m) for m in models] == before
    assert tree(folder) == files
    return caught.value


def _on_meta(model: nn.Module) -> bool:
    return any(p.is_meta for p in model.parameters())


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


def test_a_lazy_model_is_refused(given: SimpleNamespace) -> None:
    with pytest.raises(ModelError) as caught:
        purge.unlearn(nn.LazyLinear(3), given.forget, given.retain, progress=False)
    assert_sentence(str(caught.value), "not yet initialised")


@pytest.mark.skipif(
    torch.cuda.is_available(), reason="what is asked for is missing only where there is no GPU"
)
def test_cuda_is_refused_where_there_is_none(given: SimpleNamespace) -> None:
    for door in ("unlearn", "audit", "train"):
        refused(door, good(door, given) | {"device": "cuda"}, DeviceError, "'cuda'", given.tmp)


UNUSUAL: dict[str, Callable[[SimpleNamespace], Any]] = {
    "a class as a numpy number": lambda t: purge.split((t.x, t.y), classes=np.int64(0)),
    "classes as a tensor": lambda t: purge.split((t.x, t.y), classes=torch.tensor([0, 1])),
    "one sample by ascent, batchnorm": lambda t: purge.unlearn(
        t.model, *purge.split((t.x, t.y), indices=[0]), method="gradient-ascent", progress=False
    ),
    "batches of one, batchnorm": lambda t: purge.train(
        t.model, (t.x, t.y), epochs=1, batch_size=1, progress=False
    ),
    "unlearn in batches of one, batchnorm": lambda t: purge.unlearn(
        t.model, t.forget, t.retain, norm="train", batch_size=1, progress=False
    ),
    "retain of one sample": lambda t: purge.unlearn(
        t.model, t.forget, (t.retain[0][:1], t.retain[1][:1]), progress=False
    ),
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_the_unusual_works_or_is_refused_in_one_sentence(given: SimpleNamespace, name: str) -> None:
    before, refusal = digest(given.model), None
    try:
        UNUSUAL[name](given)
    except PurgeError as error:
        refusal = str(error)
    if refusal is not None:
        assert_sentence(refusal, "")
        assert "tensor(0)" not in refusal  # class 0 is in the data
    assert digest(given.model) == before


# -- settings, from Python and from the command line --------------------------------------------

SETTINGS: list[tuple[str, Any, str]] = [
    ("lr", -1, "got -1"),
    ("lr", 0, "got 0"),
    ("lr", "abc", "'abc'"),
    ("lr", "", "''"),
    ("lr", NAN, "nan"),
    ("lr", INF, "inf"),
    ("lr", True, "True"),
    ("lr", None, "None"),
    ("epochs", 2.5, "2.5"),
    ("epochs", 0, "got 0"),
    ("epochs", "two", "'two'"),
    ("epochs", "1e400", "1e400"),
    ("min_steps", 0, "got 0"),
    ("max_steps", -5, "got -5"),
    ("batch_size", 0, "got 0"),
    ("momentum", 1.5, "got 1.5"),
    ("momentum", -0.1, "got -0.1"),
    ("weight_decay", -1, "got -1"),
    ("temperature", 0, "got 0"),
    ("erasure", -0.1, "got -0.1"),
    ("kd", -1, "got -1"),
    ("gate", -1, "got -1"),
    ("clip", -1, "got -1"),
    ("cooldown", 1.5, "got 1.5"),
    ("nesterov", "maybe", "'maybe'"),
    ("descend", 2, "2"),
    ("objective", "kl_retian", "did you mean 'kl_retain'"),
    ("objective", 3, "3"),
    ("space", "updates", "did you mean 'update'"),
    ("norm", "shard", "did you mean 'shared'"),
    ("optimizer", "adam", "did you mean 'adamw'"),
    ("stop", "x", "'x'"),
    ("forget_target", 2, "got 2"),
    ("forget_target", -0.1, "got -0.1"),
    ("forget_target", "half", "'half'"),
    ("retain_budget", 0, "got 0"),
    ("retain_floor", -1, "got -1"),
    ("check_every", -1, "got -1"),
    ("check_every", 1.5, "1.5"),
    ("check_samples", 0, "got 0"),
    ("epoch_ends", "often", "'often'"),
    ("learning_rate", 0.1, "'learning_rate'"),
    ("epoch", 3, "did you mean 'epochs'"),
    ("forget_tagret", 0.1, "did you mean 'forget_target'"),
]
BY_SETTING = pytest.mark.parametrize(
    ("key", "value", "words"), SETTINGS, ids=[f"{k}={v}" for k, v, _ in SETTINGS]
)


@BY_SETTING
def test_python_refuses_the_setting(given: SimpleNamespace, key: str, value: Any, words: str) -> None:
    message = str(refused("unlearn", good("unlearn", given) | {key: value}, MethodError, words, given.tmp))
    assert key in message


# -- records that are read and written -----------------------------------------------------------

RECORDS: list[tuple[str, type[PurgeError], str, Callable[[SimpleNamespace], Any]]] = [
    ("no audit", FileError, "nothing there", lambda t: purge.Report.from_json(t.full / "audit.json")),
    ("an audit that is not JSON", FileError, "JSON", lambda t: purge.Report.from_json(t.file)),
    ("a metric that was not measured", MetricError, "did you mean 'ra'", lambda t: (
        purge.Report({"ra": purge.Value(1.0), "ta": purge.Value(0.9)}, {}, {})["raa"])),
    ("a missing value without a reason", MetricError, "a reason", lambda t: purge.Value(None)),
    ("a result into a folder with files", FileError, "an empty folder", lambda t: (
        purge.Result(t.model, purge.Stopping(), [], "schedule", 0.0, 0).save(t.full))),
    ("a stopping out of range", MethodError, "forget_target", lambda t: purge.Stopping(forget_target=2)),
    ("a method out of range", MethodError, "lr", lambda t: Purge(lr=-1)),
]  # fmt: skip


@pytest.mark.parametrize(("error", "words", "call"), [r[1:] for r in RECORDS], ids=[r[0] for r in RECORDS])
def test_records_refuse(
    given: SimpleNamespace, error: type[PurgeError], words: str, call: Callable[[SimpleNamespace], Any]
) -> None:
    before = tree(given.tmp)
    with pytest.raises(error) as caught:
        call(given)
    assert_sentence(str(caught.value), words)
    assert tree(given.tmp) == before


# -- a loss that becomes NaN ---------------------------------------------------------------------

RUNAWAY = {
    "gradient-ascent": {"lr": 1e30, "epochs": 5, "batch_size": 8},
    "gradient-ascent frozen": {"lr": 1e30, "epochs": 5, "batch_size": 8, "norm": "frozen"},
    "purge-paper": {"lr": 1e30, "space": "none", "clip": 0, "retain_budget": None, "check_every": 0},
    "purge": {"lr": 1e30, "space": "none", "clip": 0, "retain_budget": None, "norm": "frozen"},
}


@pytest.mark.parametrize("name", RUNAWAY)
def test_a_runaway_run_is_given_up(given: SimpleNamespace, name: str) -> None:
    request = good("unlearn", given) | {"method": name.split()[0], "out": given.tmp / "out"} | RUNAWAY[name]
    error = refused("unlearn", request, RunError, "NaN or infinity", given.tmp)
    step = re.search(r"at step (\d+)", str(error))
    assert step is not None
    assert 1 <= int(step[1]) <= 20


def test_weights_that_run_away_in_the_only_step(given: SimpleNamespace) -> None:
    request = {"method": "gradient-ascent", "lr": 1e38, "epochs": 1, "momentum": 0.0}
    refused("unlearn", good("unlearn", given) | request, RunError, "at step 1 ", given.tmp)


@pytest.mark.parametrize("method", sorted({*purge.list_methods()} - {"sisa", "amnesiac"}))
def test_nan_for_one_sample_only_is_found_in_the_run(given: SimpleNamespace, method: str) -> None:
    model = Hole(given.model, given.forget[0][-1, 0])
    request = good("unlearn", given) | {"model": model, "method": method}
    refused("unlearn", request, RunError, "at step", given.tmp)


# -- the command line ----------------------------------------------------------------------------


@pytest.fixture(scope="session")
def stored_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder with an untrained model."""
    folder = tmp_path_factory.mktemp("stored") / "base"
    folder.mkdir()
    torch.manual_seed(0)
    save_weights(SmallResNet(), folder / "model.safetensors")
    (folder / "run.json").write_text(json.dumps({"model": "small-resnet", "data": "digits", "request": {}}))
    return folder


class Shop:
    """Files for the command line in a folder of their own."""

    def __init__(self, tmp: Path, stored_run: Path) -> None:
        self.tmp, self.base, self.out = tmp, tmp / "base", tmp / "out"
        shutil.copytree(stored_run, self.base)

    def unlearn(
        self, *more: Any, of: Path | None = None, what: tuple[Any, ...] = ("--forget-class", 3)
    ) -> Any:
        out = () if "--out" in more else ("--out", self.out)
        return ["unlearn", of or self.base, *what, *out, *more]

    def file(self, name: str, content: str | bytes) -> Path:
        path = self.tmp / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def ids(self, content: str) -> list[Any]:
        return self.unlearn(what=("--forget-ids", self.file("ids.txt", content)))

    def named(self, path: Path) -> list[Any]:
        """A request on a file of weights."""
        return self.unlearn("--model", "small-resnet", "--data", "digits", of=path)

    def saved(self, content: Any, *, share: float = 1, legacy: bool = False) -> list[Any]:
        """A request on a file that torch wrote, cut to a share of its length."""
        path = self.tmp / "a.pt"
        torch.save(content, path, _use_new_zipfile_serialization=not legacy)
        cut(path, share)
        return self.named(path)

    def stored(self, change: Callable[[Path], None]) -> list[Any]:
        """A request on the run folder with its weights changed."""
        change(self.base / "model.safetensors")
        return self.unlearn()

    def facts(self, content: str | bytes | None = None, **facts: Any) -> Path:
        """The run folder with another run.json: this content, or with other facts in it."""
        path = self.base / "run.json"
        if content is None:
            content = json.dumps(json.loads(path.read_text()) | facts)
        self.file("base/run.json", content)
        return self.base

    def report(self, *more: Any, value: Any = 0.5, info: dict[str, Any] | None = None, **facts: Any) -> Any:
        """A request for the page of the run folder, with an audit of one value and other facts."""
        audit = {"values": {"ra": {"value": value}}, "retrained": {}, "original": {}, "info": info or {}}
        self.file("base/audit.json", json.dumps(audit))
        return ["report", self.facts(**facts), *more]

    def limit(self, text: str) -> list[Any]:
        """A request for an audit with a limit; there is no run: the limit is looked at before."""
        return ["audit", self.tmp / "none", "--fail-if", text]

    def pipe(self) -> Path:
        os.mkfifo(self.tmp / "pipe")
        return self.tmp / "pipe"


@pytest.fixture
def shop(tmp_path: Path, stored_run: Path) -> Shop:
    return Shop(tmp_path, stored_run)


def cut(path: Path, share: float) -> None:
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])


def remove(path: Path) -> Path:
    path.unlink()
    return path.parent


def with_file(folder: Path) -> Path:
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    return folder


class RunsCode:
    """A pickle that makes a folder when it is read."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.marker),)


COMMANDS: list[tuple[str, str, Callable[[Shop], list[Any]]]] = [
    # what must be forgotten
    ("neither class nor ids", "neither", lambda s: s.unlearn(what=())),
    ("class and ids", "both", lambda s: s.unlearn("--forget-ids", s.file("ids.txt", "1"))),
    ("class by a wrong name", "got 'three'", lambda s: s.unlearn(what=("--forget-class", "three"))),
    ("class not there", "got 10", lambda s: s.unlearn(what=("--forget-class", 10))),
    ("class negative", "got -1", lambda s: s.unlearn(what=("--forget-class", -1))),
    ("every class", "something to retain", lambda s: s.unlearn(
        what=tuple(word for k in range(10) for word in ("--forget-class", k)))),
    ("ids missing", "nothing there", lambda s: s.unlearn(what=("--forget-ids", s.tmp / "none.txt"))),
    ("ids empty", "ids.txt", lambda s: s.ids("\n")),
    ("ids are words", "'seven'", lambda s: s.ids("5\nseven\n")),
    ("ids are floats", "'1.5'", lambda s: s.ids("1.5")),
    ("ids negative", "'-3'", lambda s: s.ids("-3")),
    ("ids out of range", "got 1437", lambda s: s.ids("0, 1437")),
    ("ids beyond 64 bits", str(HUGE), lambda s: s.ids(str(HUGE))),
    ("ids with a superscript", "²", lambda s: s.ids("2²")),
    ("every id", "something to retain", lambda s: s.ids(" ".join(map(str, range(1437))))),
    # names
    ("unknown method", "did you mean 'purge'", lambda s: s.unlearn("--method", "purg")),
    ("unknown data", "did you mean 'digits'", lambda s: s.unlearn("--data", "digit")),
    ("unknown model", "did you mean 'small-resnet'", lambda s: s.unlearn("--model", "smal-resnet")),
    ("set without =", "--set key=value", lambda s: s.unlearn("--set", "lr")),
    ("set without key", "''", lambda s: s.unlearn("--set", "=3")),
    ("set stop and its target", "'x'", lambda s: s.unlearn("--set", "stop=x", "--set", "forget_target=0.1")),
    ("set layers that are not there", "'layer9'", lambda s: s.unlearn(
        "--set", "layers=layer3,layer9", "--set", "erasure=0.1")),
    ("set freeze of nothing", "'head'", lambda s: s.unlearn("--set", "freeze=head")),
    ("set freeze of all", "trainable", lambda s: s.unlearn("--set", "freeze=conv1,bn1,layer,fc")),
    ("unknown metric", "did you mean 'fa_test'", lambda s: ["audit", s.base, "--metrics", "ra,fa_tst"]),
    ("limit on a part that is not there", "did you mean 'fa_test'", lambda s: s.limit("fa_test.steps>2")),
    ("limit on a part of a plain metric", "'mia.loss'", lambda s: s.limit("mia.loss>0.1")),
    ("limit on a metric of parts", "did you mean 'bn_recal.delta'", lambda s: s.limit("bn_recal>2")),
    ("limit in percent of what is not", "leave out the %", lambda s: s.limit("mia>40%")),
    ("limit of infinity", "'fa_test>inf'", lambda s: s.limit("fa_test>inf")),
    ("limit with an underscore", "'fa_test>1_0'", lambda s: s.limit("fa_test>1_0")),
    ("limit on what is not measured", "add lira to --metrics", lambda s: s.limit("lira.auroc>0.6")),
    ("limit on a class not there", "name one of 0 to 9", lambda s: [
        "audit", s.base, "--forget-class", 3, "--fail-if", "class_accuracy.10<50"]),
    ("no metric", "got none", lambda s: ["audit", s.base, "--metrics", ","]),
    ("settings of an unknown method", "did you mean 'purge'", lambda s: ["list", "methods", "purg"]),
    ("settings of a metric", "'ra'", lambda s: ["list", "metrics", "ra"]),
    ("unknown shelf", "did you mean 'methods'", lambda s: ["list", "method"]),
    # device and seed
    ("device nonsense", "'nonsense'", lambda s: s.unlearn("--device", "nonsense")),
    ("device not there", "'cuda:99'", lambda s: s.unlearn("--device", "cuda:99")),
    ("audit device not there", "'cuda:99'", lambda s: [
        "audit", s.base, "--forget-class", 3, "--device", "cuda:99"]),
    ("seed negative", "got -1", lambda s: s.unlearn("--seed", -1)),
    ("audit seed negative", "got -1", lambda s: ["audit", s.base, "--forget-class", 3, "--seed", -1]),
    ("demo seed negative", "got -1", lambda s: ["demo", "--quick", "--out", s.out, "--seed", -1]),
    ("demo seed too large", str(HUGE), lambda s: ["demo", "--quick", "--out", s.out, "--seed", HUGE]),
    # where to write
    ("out has files", "an empty folder", lambda s: s.unlearn("--out", with_file(s.out))),
    ("out is a file", "got a file", lambda s: s.unlearn("--out", s.file("file", "mine"))),
    ("out is a file, with force", "got a file", lambda s: s.unlearn(
        "--out", s.file("file", "mine"), "--force")),
    ("out below a file", "got a file", lambda s: s.unlearn("--out", s.file("file", "mine") / "run")),
    ("out is the run itself", "an empty folder", lambda s: s.unlearn("--out", s.base)),
    ("demo out has files", "overwrite with --force", lambda s: ["demo", "--out", with_file(s.out)]),
    ("report out is a pipe", "something else", lambda s: s.report("--out", s.pipe(), "--force")),
    ("report out is a folder", "name a file", lambda s: s.report("--out", with_file(s.out), "--force")),
    ("report of a run twice", "name each run once", lambda s: s.report(
        s.base / ".." / "base", "--out", s.tmp / "a.html")),
    ("demo out is a file", "got a file", lambda s: ["demo", "--out", s.file("file", "mine")]),
    # checkpoints
    ("checkpoint missing", "nothing there", lambda s: s.unlearn(of=s.tmp / "none")),
    ("weights missing", "no such file", lambda s: s.unlearn(of=remove(s.base / "model.safetensors"))),
    ("weights truncated", "truncated", lambda s: s.stored(lambda p: cut(p, 0.5))),
    ("weights cut in the header", "truncated", lambda s: s.stored(lambda p: cut(p, 0.001))),
    ("weights empty", "truncated", lambda s: s.stored(lambda p: cut(p, 0))),
    ("weights of another architecture", "another architecture", lambda s: s.stored(
        lambda p: save_weights(nn.Linear(2, 2), p))),
    ("weights of another size", "0 missing, 0 unexpected, 56 of another shape", lambda s: s.stored(
        lambda p: save_weights(SmallResNet(width=8), p))),
    ("weights with nan", "fc.bias", lambda s: s.stored(
        lambda p: save_weights(spoiled(SmallResNet(), "fc.bias", NAN), p))),
    ("pt truncated", "damaged", lambda s: s.saved(SmallResNet().state_dict(), share=0.5)),
    ("pt empty", "truncated", lambda s: s.saved(SmallResNet().state_dict(), share=0)),
    ("old pt truncated", "damaged", lambda s: s.saved(SmallResNet().state_dict(), share=0.5, legacy=True)),
    ("old pt cut in the header", "damaged", lambda s: s.saved(
        SmallResNet().state_dict(), share=0.001, legacy=True)),
    ("pt is text", "damaged", lambda s: s.named(s.file("a.pt", "0.5\n"))),
    ("pt is text of another kind", "damaged", lambda s: s.named(s.file("a.pt", "epoch,loss\n1,0.5\n"))),
    ("pt of another architecture", "another architecture", lambda s: s.saved({"w": torch.ones(2)})),
    ("pt with numbers as keys", "another architecture", lambda s: s.saved({0: torch.ones(2)})),
    ("pt within a dict", "a dict of tensors", lambda s: s.saved({"model": SmallResNet().state_dict()})),
    ("pt of a whole model", "plain weights", lambda s: s.saved(nn.Linear(2, 2))),
    ("pt without a model's name", "--model", lambda s: [
        w for w in s.saved(SmallResNet().state_dict()) if w not in ("--model", "small-resnet")]),
    ("pt without a data set's name", "--data", lambda s: [
        w for w in s.saved(SmallResNet().state_dict()) if w not in ("--data", "digits")]),
    # run folders
    ("no run.json", "run.json", lambda s: s.unlearn(of=remove(s.base / "run.json"))),
    ("run.json not JSON", "JSON", lambda s: s.unlearn(of=s.facts("{'model': "))),
    ("run.json not text", "JSON", lambda s: s.unlearn(of=s.facts(b"\xff\xfe"))),
    ("run.json a list", "got list", lambda s: s.unlearn(of=s.facts("[]"))),
    ("run.json without model", "architecture", lambda s: s.unlearn(of=s.facts("{}"))),
    ("run.json with a model by number", "model", lambda s: s.unlearn(of=s.facts(model=5))),
    ("run.json with data as a list", "data", lambda s: s.unlearn(of=s.facts(data=["digits"]))),
    ("report, no seconds", "a number as seconds", lambda s: s.report(seconds=None)),
    ("report, steps in words", "a whole number as steps", lambda s: s.report(steps="many")),
    ("report, an unlearned run without steps", "a number as seconds", lambda s: s.report(preset="purge")),
    ("report, target in words", "a number as forget_target", lambda s: s.report(forget_target="low")),
    ("report, stopped by a list", "a word as stopped_by", lambda s: s.report(stopped_by=["schedule"])),
    ("report, finished yesterday", "got 'yesterday'", lambda s: s.report(finished="yesterday")),
    ("report, finished by number", "got 5", lambda s: s.report(finished=5)),
    ("report, audited yesterday", "audit.json", lambda s: s.report(info={"finished": "yesterday"})),
    ("report, a value in words", "an audit in", lambda s: s.report(value="0.5")),
    ("report, names in one word", "an audit in", lambda s: s.report(info={"names": "abc"})),
    ("audit, no run", "nothing there", lambda s: ["audit", s.tmp / "none"]),
    ("audit, no run.json", "run.json", lambda s: ["audit", remove(s.base / "run.json")]),
    ("audit, a file of weights", "--model", lambda s: ["audit", s.base / "model.safetensors"]),
    ("audit, nothing to forget", "neither", lambda s: ["audit", s.base]),
    ("audit, another request", "request", lambda s: ["audit", s.facts(request={"forget": [3]})]),
    ("audit, a request of words", "request", lambda s: ["audit", s.facts(request="all of it")]),
    ("audit, original by number", "original", lambda s: [
        "audit", s.facts(original=5), "--forget-class", 3]),
    ("audit, no such retrained run", "nothing there", lambda s: [
        "audit", s.base, "--forget-class", 3, "--retrained", s.tmp / "none"]),
    ("audit, no such original run", "nothing there", lambda s: [
        "audit", s.base, "--forget-class", 3, "--original", s.tmp / "none"]),
]  # fmt: skip

PARSED: list[tuple[str, str, Callable[[Shop], list[Any]]]] = [
    ("unknown command", "'forget'", lambda s: ["forget"]),
    ("mistyped command", "Did you mean 'list'? Fix", lambda s: ["lisst"]),
    ("unknown option", "--frobnicate", lambda s: s.unlearn("--frobnicate")),
    ("no out", "--out", lambda s: ["unlearn", s.base, "--forget-class", 3]),
    ("no checkpoint", "checkpoint", lambda s: ["unlearn", "--out", s.out]),
    ("a seed as a word", "--seed", lambda s: s.unlearn("--seed", "one")),
    ("an option without its value", "--set", lambda s: s.unlearn("--set")),
    ("one argument too many", "extra", lambda s: s.unlearn("extra")),
]


def run_refused(argv: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """Run the command line; it must end with one line on stderr. The message is returned."""
    monkeypatch.setattr(sys, "argv", ["purge", *map(str, argv)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return complaint(ended.value.code, *capsys.readouterr())


def complaint(code: Any, out: str, err: str) -> str:
    assert code == 2
    assert out == ""
    assert err.startswith("Error: ")
    assert err.endswith("\n")
    assert len(err.splitlines()) == 1, err
    return err.removeprefix("Error: ").rstrip("\n")


def options_of(command: str) -> set[str]:
    group: Any = typer.main.get_command(cli.app)
    return {option for p in group.commands[command].params for option in p.opts}


@pytest.mark.parametrize(("words", "argv"), [c[1:] for c in COMMANDS], ids=[c[0] for c in COMMANDS])
def test_the_command_refuses(
    shop: Shop,
    words: str,
    argv: Callable[[Shop], list[Any]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    request = argv(shop)
    before = tree(shop.tmp)
    message = run_refused(request, monkeypatch, capsys)
    assert_sentence(message, words)
    assert tree(shop.tmp) == before
    _, fix = message.split(". Fix: ", 1)
    assert set(re.findall(r"--[a-z]+", fix)) <= options_of(request[0]), "an option that it does not have"


@pytest.mark.parametrize(("words", "argv"), [c[1:] for c in PARSED], ids=[c[0] for c in PARSED])
def test_the_parser_refuses(
    shop: Shop,
    words: str,
    argv: Callable[[Shop], list[Any]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    message = run_refused(argv(shop), monkeypatch, capsys)
    assert words in message
    assert re.search(r"[^.?][.?] Fix: see purge( [a-z]+)? --help\.$", message), message
    assert not shop.out.exists()


@BY_SETTING
def test_set_refuses(
    shop: Shop,
    key: str,
    value: Any,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    message = run_refused(shop.unlearn("--set", f"{key}={value}"), monkeypatch, capsys)
    assert_sentence(message, words)
    assert key in message
    assert not shop.out.exists()


def test_a_runaway_run_writes_nothing(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = shop.unlearn("--method", "gradient-ascent", "--set", "lr=1e30", "--set", "batch_size=64")
    assert_sentence(run_refused(argv, monkeypatch, capsys), "at step ")
    assert not shop.out.exists()


@pytest.mark.parametrize("name", ["torch.pt", "old.pt", "plain.pt", "plain.bin", "model.safetensors"])
def test_a_pickle_is_never_run(
    shop: Shop, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    marker, path = shop.tmp / "marker", shop.tmp / name
    content = {**SmallResNet().state_dict(), "extra": RunsCode(marker)}
    if name in ("torch.pt", "old.pt"):
        torch.save(content, path, _use_new_zipfile_serialization=name == "torch.pt")
        torch.load(path, weights_only=False)
    else:
        path.write_bytes(pickle.dumps(RunsCode(marker)))
        pickle.loads(path.read_bytes())
    assert marker.exists()  # it does run code where it is let
    marker.rmdir()

    message = run_refused(shop.named(path), monkeypatch, capsys)
    assert_sentence(message, name)
    assert not marker.exists()
    assert not shop.out.exists()


@pytest.mark.parametrize("form", ["safetensors", "pt", "old pt"])
def test_a_checkpoint_cut_anywhere_is_refused(tmp_path: Path, form: str) -> None:
    model = SmallResNet(width=2)
    path = tmp_path / f"a.{form.split()[-1]}"
    if form == "safetensors":
        save_weights(model, path)
    else:
        torch.save(model.state_dict(), path, _use_new_zipfile_serialization=form == "pt")
    whole = path.read_bytes()
    load_weights(model, path)
    for size in [*range(0, 4000, 61), *range(4000, len(whole) - 1, len(whole) // 20), len(whole) - 1]:
        path.write_bytes(whole[:size])
        with pytest.raises(FileError) as caught:
            load_weights(model, path)
        assert_sentence(str(caught.value), path.name)


def test_a_refused_audit_leaves_the_old_one(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (shop.base / "audit.json").write_text("{}")
    run_refused(["audit", shop.base, "--forget-class", 11], monkeypatch, capsys)
    assert (shop.base / "audit.json").read_text() == "{}"


def test_in_processes_of_their_own(shop: Shop) -> None:
    """The same through the real entry point: exit code, one line, no traceback, nothing written."""
    marker, evil = shop.tmp / "marker", shop.tmp / "evil.pt"
    torch.save(RunsCode(marker), evil)
    requests = {
        "got -1": shop.unlearn("--set", "lr=-1"),
        "got 10": shop.unlearn(what=("--forget-class", 10)),
        "not run": shop.named(evil),
    }
    before = tree(shop.tmp)
    started = {
        words: subprocess.Popen(
            [sys.executable, "-m", "purge", *map(str, argv)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        for words, argv in requests.items()
    }
    ended = {words: (process.communicate(timeout=120), process) for words, process in started.items()}
    for words, ((out, err), process) in ended.items():
        assert_sentence(complaint(process.returncode, out, err), words)
    assert not marker.exists()
    assert tree(shop.tmp) == before


def test_the_shop_sells_good_wares(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The requests that the cases above spoil are accepted as they are."""
    few = ("--set", "epochs=1", "--method", "gradient-ascent", "--quiet")
    for argv in (shop.unlearn(*few), [*shop.saved(SmallResNet().state_dict()), *few, "--force"]):
        monkeypatch.setattr(sys, "argv", ["purge", *map(str, argv)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert ended.value.code == 0
        assert (shop.out / "run.json").exists()
        assert capsys.readouterr().err == ""


def test_a_report_copes_with_fewer_names_than_classes(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    info = {"names": ["cat"], "forget_classes": [0, 3], "forget_samples": 3, "retain_samples": 4}
    argv = shop.report(info=info, request={"forget_classes": [0, 3]})
    monkeypatch.setattr(sys, "argv", ["purge", *map(str, argv)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert (ended.value.code, capsys.readouterr().err) == (0, "")
    assert "class 0 (cat), class 3" in (shop.base / "report.html").read_text(encoding="utf-8")
