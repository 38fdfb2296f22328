"""purge train: a model, its reference, a training that was killed and resumed."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

import purge
from purge.core.settings import as_dict
from purge.data.catalog import DATASETS
from purge.data.load import load
from purge.engine.seeding import seeded
from purge.engine.trainer import Recipe
from purge.models.checkpoint import digest, load_weights
from purge.models.forward import logits
from purge.models.small_resnet import SmallResNet
from purge.runs.folder import build_for
from tests.cli.commands import FEW_STEPS, command, names, ran, read, refused

DIGITS = ("--data", "digits", "--model", "small-resnet", "--set", "epochs=2")
FILES = ["history.parquet", "model.safetensors", "run.json"]


def stored(folder: Path, model: nn.Module | None = None) -> nn.Module:
    model = model or SmallResNet()
    load_weights(model, folder / "model.safetensors")
    return model.eval()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of the digits, and the reference without the 3 made like it."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "base.txt").write_text(ran("train", *DIGITS, "--out", folder / "base").out)
    like = ("--like", folder / "base", "--without-class", 3, "--json")
    (folder / "without.json").write_text(ran("train", *like, "--out", folder / "without").out)
    return folder


# -- a model, and the reference -------------------------------------------------------------------


def test_what_a_run_folder_contains(runs: Path) -> None:
    assert names(runs / "base") == FILES
    facts = read(runs / "base" / "run.json")
    model, (train, test) = stored(runs / "base"), load("digits")
    assert facts["digest"] == digest(model)
    assert (facts["model"], facts["data"], facts["seed"], facts["request"]) == (
        "small-resnet", "digits", 0, {},
    )  # fmt: skip
    assert facts["settings"] == {**as_dict(Recipe()), "epochs": 2}
    assert (facts["samples"], facts["steps"], facts["classes"]) == (len(train), 22, 10)
    assert {"python", "torch", "purge-unlearning"} <= facts["versions"].keys()
    right = logits(model, test).argmax(1) == test.labels
    assert facts["test_accuracy"] == pytest.approx(float(right.float().mean()))
    for c, accuracy in facts["class_accuracy"].items():
        assert accuracy == pytest.approx(float(right[test.labels == int(c)].float().mean()))
    assert len(facts["class_accuracy"]) == 10
    assert len(pq.read_table(runs / "base" / "history.parquet")) == 2


def test_what_is_printed(runs: Path) -> None:
    first, second, third = (runs / "base.txt").read_text().splitlines()
    facts = read(runs / "base" / "run.json")
    assert re.fullmatch(
        r"small-resnet on digits: 1437 images, 2 epochs in \d+\.\d s "
        r"\([\d.]+ GFLOP, [\d,]+ images/s\)\.",
        first,
    )
    lowest = min(facts["class_accuracy"], key=facts["class_accuracy"].get)
    assert second == (
        f"Test accuracy {facts['test_accuracy']:.1%}; lowest: class {lowest} "
        f"{facts['class_accuracy'][lowest]:.1%}."
    )
    assert third.startswith(f"Written to {runs / 'base'}. Next: purge unlearn {runs / 'base'} --forget-class")


def test_the_command_is_the_function(runs: Path) -> None:
    train, _ = load("digits")
    with seeded(0, torch.device("cpu")):
        fresh = build_for("small-resnet", train)
    result = purge.train(fresh, train, epochs=2, progress=False)
    assert digest(result.model) == read(runs / "base" / "run.json")["digest"]


def test_the_reference_never_saw_the_class(runs: Path, tmp_path: Path) -> None:
    train, test = load("digits")
    base, facts = (read(runs / name / "run.json") for name in ("base", "without"))
    printed = json.loads((runs / "without.json").read_text())
    assert facts["samples"] == printed["samples"] == int((train.labels != 3).sum())
    assert (facts["settings"], facts["seed"]) == (base["settings"], 1)
    assert facts["request"] == {"forget_classes": [3]}
    assert printed["class_accuracy"] == facts["class_accuracy"]
    assert facts["class_accuracy"]["3"] == 0
    assert not (logits(stored(runs / "without"), test).argmax(1) == 3).any()
    assert printed["images_per_second"] == pytest.approx(printed["steps"] * 128 / printed["seconds"])
    spelled = ran("train", *DIGITS, "--without-class", 3, "--out", tmp_path / "spelled", "--json")
    assert spelled.json["seed"] == 1
    assert read(tmp_path / "spelled" / "run.json")["digest"] == facts["digest"]


def test_without_single_samples_and_like_a_reference(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "ids.txt").write_text("5, 3\n900\n")
    more = ("--without-ids", tmp_path / "ids.txt", "--set", "epochs=1", "--set", "lr=0.05")
    done = ran("train", "--like", runs / "without", *more, "--out", tmp_path / "run")
    assert done.out.startswith("small-resnet on digits without 3 samples: 1434 images, 1 epoch in ")
    facts = read(tmp_path / "run" / "run.json")
    assert facts["request"] == {"forget_ids": [3, 5, 900]}  # that of the run it is like is not taken over
    assert (facts["seed"], facts["samples"]) == (2, 1434)
    assert facts["settings"] == {**read(runs / "base" / "run.json")["settings"], "epochs": 1, "lr": 0.05}
    train, _ = load("digits")
    with seeded(2, torch.device("cpu")):
        fresh = build_for("small-resnet", train)
    kept = train.select(torch.tensor([i for i in range(1437) if i not in (3, 5, 900)]))
    result = purge.train(fresh, kept, epochs=1, lr=0.05, seed=2, progress=False)
    assert digest(result.model) == facts["digest"]


def test_a_folder_in_use_is_left_alone(runs: Path, tmp_path: Path) -> None:
    before = {p: p.read_bytes() for p in (runs / "base").iterdir()}
    assert "one with files in it" in refused("train", *DIGITS, "--out", runs / "base")
    assert {p: p.read_bytes() for p in (runs / "base").iterdir()} == before
    unlearned = ("unlearn", runs / "base", "--forget-class", 3, *FEW_STEPS, "--out", tmp_path / "unlearned")
    ran(*unlearned)
    said = refused("train", "--like", tmp_path / "unlearned", "--out", tmp_path / "new")
    assert "a run of purge train" in said


def test_the_recipe_is_listed() -> None:
    plain = {row["setting"]: row["value"] for row in command("list", "recipe", "--json").json}
    assert plain == {k: str(v) for k, v in as_dict(Recipe()).items()}
    own = {row["setting"]: row["value"] for row in command("list", "recipe", "cifar10", "--json").json}
    changed = {k: str(v) for k, v in DATASETS["cifar10"].recipe.items()}
    assert changed
    assert own == {**plain, **changed}
    assert "did you mean 'cifar10'" in refused("list", "recipe", "cifar-10")
    models = ran("list", "models").out
    for form in ("small-resnet", "resnet18-gn", "timm:NAME", "hf:PATH", "module:function"):
        assert re.search(rf"^ *{form} ", models, re.M), form


def test_resuming_a_finished_training_does_nothing(runs: Path, tmp_path: Path) -> None:
    out = Path(shutil.copytree(runs / "base", tmp_path / "base"))
    before = {p: p.read_bytes() for p in out.iterdir()}
    done = ran("train", *DIGITS, "--out", out, "--resume")
    assert done.out == f"The training in {out} is finished; nothing to do.\n"
    told = ran("train", *DIGITS, "--out", out, "--resume", "--json").json
    facts = read(out / "run.json")
    assert told["folder"] == str(out)
    assert {k: facts[k] for k in told if k != "folder"} == {k: v for k, v in told.items() if k != "folder"}
    assert {p: p.read_bytes() for p in out.iterdir()} == before
