"""purge train: a model, its reference, a training that was killed and resumed."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import purge
from purge.core.settings import as_dict
from purge.data.catalog import DATASETS
from purge.data.load import load
from purge.engine.resume import STATE
from purge.engine.seeding import seeded
from purge.engine.trainer import Recipe
from purge.models.checkpoint import digest, load_weights
from purge.models.forward import logits
from purge.models.small_resnet import SmallResNet
from purge.runs.folder import build_for
from tests.cli.commands import FEW_STEPS, command, good, names, read, refusal

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
    (folder / "base.txt").write_text(good(command("train", *DIGITS, "--out", folder / "base")).out)
    like = ("--like", folder / "base", "--without-class", 3, "--json")
    (folder / "without.json").write_text(good(command("train", *like, "--out", folder / "without")).out)
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
    spelled = good(command("train", *DIGITS, "--without-class", 3, "--out", tmp_path / "spelled", "--json"))
    assert spelled.json["seed"] == 1
    assert read(tmp_path / "spelled" / "run.json")["digest"] == facts["digest"]


def test_without_single_samples_and_like_a_reference(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "ids.txt").write_text("5, 3\n900\n")
    more = ("--without-ids", tmp_path / "ids.txt", "--set", "epochs=1", "--set", "lr=0.05")
    done = good(command("train", "--like", runs / "without", *more, "--out", tmp_path / "run"))
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


BAD = {
    "a typo in a setting": ((*DIGITS, "--set", "epoch=3"), "did you mean 'epochs'"),
    "a setting out of range": ((*DIGITS, "--set", "epochs=0"), "epochs >= 1"),
    "a setting without a value": ((*DIGITS, "--set", "epochs"), "--set key=value"),
    "a model not known": (("--data", "digits", "--model", "small-resnt"), "did you mean 'small-resnet'"),
    "a model of timm not known": (("--data", "digits", "--model", "timm:vit_tiny_patch16_22"), "did you"),
    "no model": (("--data", "digits"), "--model"),
    "data not known": (("--data", "digit", "--model", "small-resnet"), "did you mean 'digits'"),
    "no data": (("--model", "small-resnet"), "--data"),
    "a class not there": ((*DIGITS, "--without-class", 12), "got 12"),
    "a class by a wrong name": ((*DIGITS, "--without-class", "three"), "'three'"),
    "no file of samples": ((*DIGITS, "--without-ids", "nowhere.txt"), "nowhere.txt"),
    "a size of nothing": ((*DIGITS, "--size", 0), "got 0"),
    "no weights to begin with": ((*DIGITS, "--pretrained"), "published weights"),
    "augmentation not known": ((*DIGITS, "--set", "augment=rotate"), "augment"),
    "like nothing": (("--like", "nowhere"), "nothing there"),
    "a seed below zero": ((*DIGITS, "--seed", -1), "got -1"),
    "no such device": ((*DIGITS, "--device", "cuda:99"), "cuda:99"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_bad_request_ends_in_one_line_and_writes_nothing(case: str, tmp_path: Path) -> None:
    argv, words = BAD[case]
    assert words in refusal(command("train", *argv, "--out", tmp_path / "out"))
    assert names(tmp_path) == []


def test_a_folder_in_use_is_left_alone(runs: Path, tmp_path: Path) -> None:
    before = {p: p.read_bytes() for p in (runs / "base").iterdir()}
    assert "one with files in it" in refusal(command("train", *DIGITS, "--out", runs / "base"))
    assert {p: p.read_bytes() for p in (runs / "base").iterdir()} == before
    unlearned = ("unlearn", runs / "base", "--forget-class", 3, *FEW_STEPS, "--out", tmp_path / "unlearned")
    good(command(*unlearned))
    refused = refusal(command("train", "--like", tmp_path / "unlearned", "--out", tmp_path / "new"))
    assert "a run of purge train" in refused


def test_the_recipe_is_listed() -> None:
    plain = {row["setting"]: row["value"] for row in command("list", "recipe", "--json").json}
    assert plain == {k: str(v) for k, v in as_dict(Recipe()).items()}
    listed = good(command("list", "recipe", "cifar10")).out
    own = {row["setting"]: row["value"] for row in command("list", "recipe", "cifar10", "--json").json}
    changed = {k: str(v) for k, v in DATASETS["cifar10"].recipe.items()}
    assert changed
    assert own == {**plain, **changed}
    for name, value in own.items():
        assert re.search(rf"^ *{name} +{re.escape(value)} ", listed, re.M), name
    assert "did you mean 'cifar10'" in refusal(command("list", "recipe", "cifar-10"))
    models = good(command("list", "models")).out
    for form in ("small-resnet", "resnet18-gn", "timm:NAME", "hf:PATH", "module:function"):
        assert re.search(rf"^ *{form} ", models, re.M), form


# -- killed, and resumed ---------------------------------------------------------------------

MORTAL = """
import os, signal
from torch import nn

class Net(nn.Sequential):
    steps = 0

    def forward(self, x):
        Net.steps += self.training
        if Net.steps == int(os.environ.get("KILLED_AT", -1)):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(x)

def net(classes):
    return Net(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, classes))
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this system cannot kill a process by SIGKILL")
def test_a_killed_training_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed in the fourth of five epochs, of eleven steps each: two or three are in the file."""
    (tmp_path / "mortal.py").write_text(MORTAL)
    monkeypatch.chdir(tmp_path)
    argv = ["train", "--data", "digits", "--model", "mortal:net", "--set", "epochs=5", "--set", "ema=0.9"]
    argv += ["--set", "augment=crop-flip"]
    killed = subprocess.run(
        [sys.executable, "-m", "purge", *argv, "--out", "killed"],
        env={**os.environ, "KILLED_AT": "38", "OMP_NUM_THREADS": "1"}, timeout=120, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert (killed.returncode, killed.stdout, killed.stderr) == (-signal.SIGKILL, "", "")
    assert len(load_file(tmp_path / "killed" / STATE)["losses"]) in (2, 3)
    assert "one with an unfinished training" in refusal(command(*argv, "--out", "killed"))
    assert "another seed" in refusal(command(*argv, "--out", "killed", "--resume", "--seed", 4))
    good(command(*argv, "--out", "killed", "--resume"))
    good(command(*argv, "--out", "whole"))
    resumed, whole = (read(tmp_path / name / "run.json") for name in ("killed", "whole"))
    assert resumed.pop("seconds") > 0
    assert whole.pop("seconds") > 0
    assert resumed.pop("finished") <= whole.pop("finished")
    assert resumed == whole
    histories = [pq.read_table(tmp_path / name / "history.parquet") for name in ("killed", "whole")]
    assert histories[0].equals(histories[1])
    assert names(tmp_path / "killed") == names(tmp_path / "whole") == FILES


def test_resuming_a_finished_training_does_nothing(runs: Path, tmp_path: Path) -> None:
    out = Path(shutil.copytree(runs / "base", tmp_path / "base"))
    before = {p: p.read_bytes() for p in out.iterdir()}
    done = good(command("train", *DIGITS, "--out", out, "--resume"))
    assert done.out == f"The training in {out} is finished; nothing to do.\n"
    told = good(command("train", *DIGITS, "--out", out, "--resume", "--json")).json
    facts = read(out / "run.json")
    assert told["folder"] == str(out)
    assert {k: facts[k] for k in told if k != "folder"} == {k: v for k, v in told.items() if k != "folder"}
    assert {p: p.read_bytes() for p in out.iterdir()} == before


def test_resume_starts_in_a_new_folder_and_force_starts_again(tmp_path: Path) -> None:
    few = (*DIGITS, "--set", "epochs=1", "--without-class", 1, "--out", tmp_path / "run")
    good(command("train", *few, "--resume"))
    facts = read(tmp_path / "run" / "run.json")
    assert (facts["seed"], facts["settings"]["epochs"]) == (1, 1)
    assert "one with files in it" in refusal(command("train", *few, "--seed", 5))
    ran_away = command("train", *few, "--force", "--set", "lr=1e30")
    assert "a finite loss" in refusal(ran_away)
    assert read(tmp_path / "run" / "run.json") == facts  # the old run stays until the new one is whole
    assert STATE not in names(tmp_path / "run")
    good(command("train", *few, "--force", "--seed", 5))
    assert read(tmp_path / "run" / "run.json")["seed"] == 5
    assert names(tmp_path / "run") == FILES
