"""Is this the right data? --mean and --std, accuracies that a run recorded, and --data module:function."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

import purge
from purge.core.files import write_json
from tests.cli.commands import FEW_STEPS, command, ran, read, refusal, refused

SCALED = ("--mean", "0.3", "--std", "0.4")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Digits in a file, a model trained on it with a mean and std of its own, and class 3 forgotten."""
    folder = tmp_path_factory.mktemp("right")
    found = load_digits()
    pixels = (found.images[:900] * 15).astype(np.uint8)
    names = np.array(["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"])
    np.savez(folder / "own.npz", images=pixels, labels=found.target[:900], names=names)
    ran("train", "--data", folder / "own.npz", "--model", "small-resnet", *SCALED, "--quiet",
                 "--set", "epochs=4", "--out", folder / "base")  # fmt: skip
    ran("unlearn", folder / "base", "--forget-class", "three", *FEW_STEPS, "--quiet",
                 "--out", folder / "run")  # fmt: skip
    return folder


# -- mean and std -----------------------------------------------------------------------------------


def test_mean_and_std_are_recorded_and_used_again(runs: Path) -> None:
    for name in ("base", "run"):
        facts = read(runs / name / "run.json")
        assert (facts["mean"], facts["std"]) == ([0.3], [0.4])
    ran("train", "--like", runs / "base", "--set", "epochs=1", "--quiet", "--out", runs / "like")
    assert read(runs / "like" / "run.json")["mean"] == [0.3]
    found = ran("audit", runs / "run", "--metrics", "ta", "--json").json
    accuracy = read(runs / "base" / "run.json")["test_accuracy"]
    assert found["original"]["ta"]["value"] == pytest.approx(accuracy)


def test_images_are_scaled_as_asked(runs: Path) -> None:
    train, test = purge.load(runs / "own.npz", mean=[0.3], std=(0.4,))
    plain, _ = purge.load(runs / "own.npz")
    assert (train.mean, train.std, test.mean) == ((0.3,), (0.4,), (0.3,))
    expected = (plain.pixels[:5] / 255 - 0.3) / 0.4
    assert np.allclose(train.take(torch.arange(5))[0], expected)
    assert plain.mean != train.mean


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--mean", "0.3;0.4"], "numbers with commas as --mean"),
        (["--std", ""], "numbers with commas as --std"),
        (["--mean", "nan"], "one finite mean per channel"),
        (["--mean", "0.1,0.2"], "one finite mean per channel"),
        (["--std", "0"], "one finite std per channel (1), above 0"),
    ],
)
def test_wrong_numbers_are_refused(runs: Path, tmp_path: Path, options: list[str], words: str) -> None:
    argv = ["train", "--data", runs / "own.npz", "--model", "small-resnet", "--out", tmp_path / "run"]
    assert words in refused(*argv, *options)


def test_a_reference_that_was_scaled_otherwise_is_refused(runs: Path) -> None:
    ran("train", "--like", runs / "base", "--without-class", "three", "--mean", "0.5", "--set",
                 "epochs=1", "--quiet", "--out", runs / "other")  # fmt: skip
    done = command("audit", runs / "run", "--retrained", runs / "other", "--metrics", "ra")
    assert "Expected images scaled as for the retrained model (mean 0.5), got mean 0.3" in refusal(done)


# -- what a run recorded ----------------------------------------------------------------------------


def test_another_normalisation_than_the_run_had_is_refused(runs: Path, tmp_path: Path) -> None:
    other, out = ("--mean", "0.9", "--std", "0.05"), ("--out", tmp_path / "run")
    for argv in (
        ["unlearn", runs / "base", "--forget-class", 3, *out],
        ["audit", runs / "run", "--metrics", "ra"],
    ):
        said = refused(*argv, *other)
        assert re.search(r"scaled as for the (given|audited) model \(mean 0.3\), got mean 0.9", said)
    # of a run that did not write it down, the accuracy tells
    older = copied(runs / "base", tmp_path / "base", mean=None, std=None)
    said = refused("unlearn", older, "--forget-class", 3, *out, *other)
    accuracy = read(older / "run.json")["test_accuracy"]
    assert f"Expected {accuracy:.1%} right on test data, as base recorded, got " in said
    assert all(word in said for word in ("--mean and --std", "order of the classes", "weights"))
    assert not (tmp_path / "run").exists()


def copied(run: Path, to: Path, **changes: Any) -> Path:
    """A copy of a run folder whose run.json says something else."""
    to.mkdir()
    (to / "model.safetensors").write_bytes((run / "model.safetensors").read_bytes())
    write_json(to / "run.json", {**read(run / "run.json"), **changes})
    return to


def test_another_order_of_the_classes_is_refused(runs: Path, tmp_path: Path) -> None:
    content = dict(np.load(runs / "own.npz"))
    out = ("--out", tmp_path / "run")
    named = tmp_path / "named.npz"
    np.savez(named, **{**content, "names": content["names"][::-1]})
    done = command("unlearn", runs / "base", "--data", named, "--forget-class", 3, *out)
    assert "Expected the classes of base (zero, one, two" in refusal(done)
    # two of ten classes have changed places, under the same names
    swapped, labels = tmp_path / "swapped.npz", content["labels"].copy()
    labels[content["labels"] == 4], labels[content["labels"] == 7] = 7, 4
    np.savez(swapped, **{**content, "labels": labels})
    done = command("unlearn", runs / "base", "--data", swapped, "--forget-class", 3, *out)
    assert "as base recorded" in refusal(done)


def test_a_class_that_differs_is_noticed_even_if_the_others_hide_it(runs: Path, tmp_path: Path) -> None:
    facts = read(runs / "base" / "run.json")
    wrong = {**facts["class_accuracy"], "4": 0.2}
    folder = copied(runs / "base", tmp_path / "base", class_accuracy=wrong)
    done = command("unlearn", folder, "--forget-class", 3, "--out", tmp_path / "run")
    assert "Expected 20.0% right on test data of class 4 (four), as base recorded" in refusal(done)


def test_other_weights_than_the_run_recorded_are_refused(runs: Path, tmp_path: Path) -> None:
    folder = copied(runs / "base", tmp_path / "base")
    torch.manual_seed(0)  # a fresh network may be better than chance by luck
    fresh = purge.build("small-resnet", classes=10, channels=1)
    purge.models.checkpoint.save_weights(fresh, folder / "model.safetensors")
    out = ("--forget-class", 3, "--out", tmp_path / "run")
    assert "run.json recorded" in refused("unlearn", folder, *out)
    # a file of weights has no record, but chance is still refused
    file, how = folder / "model.safetensors", ("--data", runs / "own.npz", "--model", "small-resnet")
    how += ("--split-seed", 0)
    assert "no better than chance" in refused("unlearn", file, *how, *out)
    trained = runs / "base" / "model.safetensors"
    ran("unlearn", trained, *how, *SCALED, *out, *FEW_STEPS)
    facts = read(tmp_path / "run" / "run.json")
    assert facts["deployed"] == str(trained)
    assert facts["deployed_digest"] == read(runs / "base" / "run.json")["digest"]


# -- module:function --------------------------------------------------------------------------------

MODULE = """
import numpy as np, torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset
import purge

x, y = load_digits(return_X_y=True)
x = (x / 16).astype(np.float32)

def table():
    return (x[:600], y[:600]), TensorDataset(torch.from_numpy(x[600:900]), torch.from_numpy(y[600:900]))

def images():
    pixels = torch.from_numpy((x * 255).astype(np.uint8)).view(-1, 1, 8, 8)
    parts = (slice(0, 600), slice(600, 900))
    return [purge.Images(pixels[p], torch.from_numpy(y[p]), mean=(0.3,), std=(0.4,)) for p in parts]

def net(classes, channels):
    return nn.Sequential(nn.Linear(channels, 32), nn.ReLU(), nn.Linear(32, classes))

def one(): return (x, y)
def three(): return (x, y), (x, y), (x, y)
def nested(): return ({"a": x, "b": x}, y), ({"a": x, "b": x}, y)
def empty(): return (x[:0], y[:0]), (x, y)
def broken(): raise RuntimeError("no connection")
number = 5
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module of the user in the current folder."""
    (tmp_path / "my_shop.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("my_shop", None)


@pytest.mark.parametrize(("data", "model"), [("table", "my_shop:net"), ("images", "small-resnet")])
def test_a_whole_pass_over_the_data_of_a_function(module: Path, data: str, model: str) -> None:
    argv = ["--data", f"my_shop:{data}", "--model", model, "--quiet"]
    recipe = ["--set", "epochs=3", "--set", "lr=0.2", "--set", "batch_size=32"]
    ran("train", *argv, *recipe, "--out", "base")
    base = read(module / "base" / "run.json")
    assert (base["data"], base["classes"], base["samples"]) == (f"my_shop:{data}", 10, 600)
    assert base["test_accuracy"] >= 0.7
    (module / "ids").write_text("5 17 4")
    out = ["--forget-ids", "ids", "--out", "run", *FEW_STEPS]
    said = refused("unlearn", "base", *out)  # run.json names code
    assert "--trust" in said
    ran("unlearn", "base", *out, "--trust")
    facts = read(module / "run" / "run.json")
    assert facts["request"] == {"forget_ids": [4, 5, 17]}
    assert facts["forget_rows"] == [4, 5, 17]
    assert facts["source"] == base["source"] != ""
    if data == "images":  # the rest is the same
        return
    again = ran("train", "--like", "base", "--without-ids", "ids", "--trust", "--quiet", "--out", "ref")
    assert "without 3 samples: 597 " in again.out
    found = ran("audit", "run", "--retrained", "ref", *argv, "--metrics", "quick", "--json").json
    assert (found["info"]["forget_samples"], found["info"]["retain_samples"]) == (3, 597)
    assert found["original"]["ta"]["value"] == pytest.approx(base["test_accuracy"])


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("one", "a dataset whose items can be looked up by number, got ndarray. Fix: pass (inputs, labels)"),
        ("three", "two data sets (train, test) from my_shop:three, got 3 of them"),
        ("nested", "a model that takes the dataset, a batch of 2 × a: (64,) of float32, b:"),
        ("empty", "samples in train of my_shop:empty, got none"),
        ("broken", "my_shop:broken to return (train, test), got RuntimeError: no connection"),
        ("tabel", "did you mean 'table'"),
        ("number", "got TypeError"),
    ],
)
def test_what_a_function_may_not_return(module: Path, function: str, words: str) -> None:
    done = command("train", "--data", f"my_shop:{function}", "--model", "my_shop:net", "--out", "run")
    assert words in refusal(done)


def test_a_function_prepares_its_data_itself(module: Path) -> None:
    argv = ["train", "--data", "my_shop:images", "--model", "small-resnet", "--out", "run"]
    for option in (("--mean", "0.5"), ("--size", 16)):
        assert f"{option[0]} for my_shop:images, which is data of a function" in refused(*argv, *option)


def test_a_module_that_is_not_there_and_a_file_with_a_colon(module: Path) -> None:
    argv = ["train", "--model", "small-resnet", "--out", "run", "--data"]
    assert "a module 'my_shp' that can be imported" in refused(*argv, "my_shp:table")
    (module / "my_shop:table").mkdir()  # a folder of that name is a folder
    assert "images in" in refused(*argv, "my_shop:table")
