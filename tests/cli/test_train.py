"""purge train from the shell, and what follows it: own images, other architectures, a real kill."""

from __future__ import annotations

import importlib.util
import io
import json
import logging
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import nn

import purge
from purge.core.settings import as_dict
from purge.data.catalog import DATASETS
from purge.data.load import load
from purge.data.prefetch import say_once
from purge.engine.resume import STATE
from purge.engine.seeding import seeded
from purge.engine.trainer import Recipe
from purge.models.checkpoint import digest, load_weights
from purge.models.forward import logits
from purge.models.small_resnet import SmallResNet
from purge.models.zoo import build
from purge.runs.folder import build_for
from tests.cli.test_cli import Done, command, read

EXAMPLES = Path(__file__).parents[2] / "examples"
DIGITS = ("--data", "digits", "--model", "small-resnet", "--set", "epochs=2")
FILES = ["history.parquet", "model.safetensors", "run.json"]
FEW_STEPS = ("--set", "max_steps=2", "--set", "min_steps=1", "--set", "batch_size=16")


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def stored(folder: Path, model: nn.Module | None = None) -> nn.Module:
    model = model or SmallResNet()
    load_weights(model, folder / "model.safetensors")
    return model.eval()


def good(done: Done) -> Done:
    assert done.code == 0, done.err
    return done


def refusal(done: Done) -> str:
    """The one line that a bad request ends with."""
    assert (done.code, done.out) == (2, "")
    assert re.fullmatch(r"Error: Expected [^\n]+, got [^\n]+\. Fix: [^\n]+\.\n", done.err), done.err
    return done.err


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of the digits, and the reference without the 3 made like it."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "base.txt").write_text(good(command("train", *DIGITS, "--out", folder / "base")).out)
    like = ("--like", folder / "base", "--without-class", 3, "--json")
    (folder / "without.json").write_text(good(command("train", *like, "--out", folder / "without")).out)
    return folder


# -- a model, and the reference -------------------------------------------------------------------


def test_what_a_run_folder_tells(runs: Path) -> None:
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
        r"small-resnet on digits: 1437 images, 2 epochs in \d+\.\d s \([\d,]+ images/s\)\.", first
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
    "classes and samples": ((*DIGITS, "--without-class", 1, "--without-ids", "x"), "--without-class or"),
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


# -- killed, and gone on with ---------------------------------------------------------------------

MORTAL = """
import os, signal
from purge.models.small_resnet import SmallResNet

class Net(SmallResNet):
    steps = 0

    def forward(self, x):
        Net.steps += self.training
        if Net.steps == int(os.environ.get("KILLED_AT", -1)):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(x)

def net(classes, channels):
    return Net(classes, channels, width=4)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this system cannot kill a process by SIGKILL")
def test_a_killed_process_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_to_resume_what_is_finished_does_nothing(runs: Path, tmp_path: Path) -> None:
    out = Path(shutil.copytree(runs / "base", tmp_path / "base"))
    before = {p: p.read_bytes() for p in out.iterdir()}
    done = good(command("train", *DIGITS, "--out", out, "--resume"))
    assert done.out == f"The training in {out} is finished; nothing to do.\n"
    told = good(command("train", *DIGITS, "--out", out, "--resume", "--json")).json
    facts = read(out / "run.json")
    assert told["folder"] == str(out)
    assert {k: facts[k] for k in told if k != "folder"} == {k: v for k, v in told.items() if k != "folder"}
    assert {p: p.read_bytes() for p in out.iterdir()} == before


def test_resume_in_a_new_folder_starts_and_force_starts_anew(tmp_path: Path) -> None:
    few = (*DIGITS, "--set", "epochs=1", "--without-class", 1, "--out", tmp_path / "run")
    good(command("train", *few, "--resume"))
    facts = read(tmp_path / "run" / "run.json")
    assert (facts["seed"], facts["settings"]["epochs"]) == (1, 1)
    assert "one with files in it" in refusal(command("train", *few, "--seed", 5))
    ran_away = command("train", *few, "--force", "--set", "lr=1e30")
    assert "a finite loss" in refusal(ran_away)
    assert {STATE, "run.json"}.isdisjoint(names(tmp_path / "run"))
    good(command("train", *few, "--force", "--seed", 5))
    assert read(tmp_path / "run" / "run.json")["seed"] == 5
    assert names(tmp_path / "run") == FILES


# -- own images -----------------------------------------------------------------------------------


def example(name: str) -> Any:
    """An example as a module."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three hundred digits as PNG files, in folders of classes named by words."""
    folder = tmp_path_factory.mktemp("own") / "my digits"
    assert example("write_digits").write(folder, 30) == 300
    return folder


def script(images: Path, runs: Path, chosen: str) -> Iterator[list[str]]:
    """The commands of the example, as the shell would call them."""
    text = (EXAMPLES / "own_images.sh").read_text()
    for name, value in (("images", images), ("runs", runs), ("class", chosen)):
        text = text.replace(f"${name}", str(value))
    for line in text.splitlines():
        if line.startswith("purge "):
            yield shlex.split(line)[1:]


@pytest.fixture(scope="module")
def own(pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Done]]:
    """The whole pass over own images, command by command."""
    folder = tmp_path_factory.mktemp("own-runs")
    chosen = sorted(p.relative_to(pictures).as_posix() for p in pictures.glob("train/*/*.png"))[::50]
    (folder / "images.txt").write_text("\n".join(chosen))
    return folder, [
        command(*argv, *(FEW_STEPS if "--forget-ids" in argv else ()))
        for argv in script(pictures, folder, "seven")
    ]


def test_the_whole_pass_over_own_images(own: tuple[Path, list[Done]], pictures: Path) -> None:
    folder, commands = own
    assert [done.code for done in commands] == [0] * 6, [done.err for done in commands]
    base, reference, unlearned, audited, single, audited_single = (done.out for done in commands)
    assert base.startswith("small-resnet on my digits: 240 images, 10 epochs in ")
    assert reference.startswith("small-resnet on my digits without class 5 (seven): 216 images, ")
    assert "(seven) 0.0%" not in reference  # the lowest of those it knows
    assert "Next: purge audit RUN --retrained" in reference
    assert unlearned.startswith("purge: 24 samples to forget (class 5 (seven)), ")
    assert "Forgotten: 24 samples, class 5 (seven)" in audited
    assert re.search(r"destinations\.\d \((zero|one|two|three|four|five|six|eight|nine)\)", audited)
    assert single.startswith("purge: 5 samples to forget, ")
    assert "Forgotten: 5 samples" in audited_single
    facts = read(folder / "base" / "run.json")
    assert facts["names"] == sorted(facts["names"])
    assert facts["names"][5] == "seven"
    assert facts["data"] == str(pictures)
    assert facts["test_accuracy"] >= 0.8
    assert read(folder / "reference" / "run.json")["seed"] == 1


def test_what_was_forgotten_of_own_images(own: tuple[Path, list[Done]], pictures: Path) -> None:
    folder, _ = own
    found = read(folder / "without-class" / "audit.json")
    for part in ("values", "retrained", "original"):
        assert all(math.isfinite(v["value"]) for v in found[part].values() if v["value"] is not None)
    assert found["retrained"]["fa_test"]["value"] == 0
    assert found["original"]["fa_train"]["value"] >= 0.9
    assert found["values"]["fa_train"]["value"] <= 0.3
    train, _ = load(pictures)
    ids = read(folder / "without-images" / "run.json")["request"]["forget_ids"]
    chosen = (folder / "images.txt").read_text().split("\n")
    assert sorted(train.paths[i] for i in ids) == chosen
    assert chosen[0] == "train/eight/0000.png"


def test_paths_and_names_that_are_not_there(
    own: tuple[Path, list[Done]], pictures: Path, tmp_path: Path
) -> None:
    base, ids = own[0] / "base", tmp_path / "ids.txt"
    out = ("--out", tmp_path / "run")
    assert "did you mean 'seven'" in refusal(command("unlearn", base, "--forget-class", "sevn", *out))
    for line, words in (
        ("train/seven/9999.png", "which is not there"),
        ("test/seven/0004.png", "which is not there"),
        (str(pictures / "train/seven/0000.png"), "such as train/eight/0000.png"),
    ):
        ids.write_text(f"train/seven/0000.png\n{line}\n")
        assert words in refusal(command("unlearn", base, "--forget-ids", ids, *out))
    assert names(tmp_path) == ["ids.txt"]


@pytest.mark.slow
def test_the_example_as_a_script(tmp_path: Path) -> None:
    env = {
        **os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
    }  # fmt: skip

    def run(*argv: Any) -> str:
        done = subprocess.run(
            [str(a) for a in argv], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        return done.stdout

    assert run(sys.executable, EXAMPLES / "write_digits.py", "pics", 30) == "300 images in pics\n"
    out = run("bash", EXAMPLES / "own_images.sh", "pics", "runs/own")
    assert "Forgotten: 24 samples, class 0 (eight)" in out
    assert "Forgotten: 5 samples" in out
    made = {"base", "reference", "without-class", "without-images", "images.txt"}
    assert set(names(tmp_path / "runs" / "own")) == made


def test_three_broken_images_of_forty(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused with their names; with --skip-bad left out, also by what follows on that run."""
    folder, broken = tmp_path / "pics", ["five/0003.png", "seven/0000.png", "seven/0011.png"]
    for word in ("five", "seven"):
        shutil.copytree(pictures / "train" / word, folder / word)
        for extra in sorted((folder / word).iterdir())[20:]:
            extra.unlink()
    for name, content in zip(broken, (b"", b"no image", (folder / broken[2]).read_bytes()[:60]), strict=True):
        (folder / name).write_bytes(content)
    net = ("--data", folder, "--model", "small-resnet", "--set", "epochs=3", "--set", "batch_size=8")
    refused = refusal(command("train", *net, "--out", tmp_path / "run"))
    assert f"3 that cannot ({', '.join(broken)})" in refused
    assert names(tmp_path) == ["pics"]

    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # pytest's; without any, stderr is written to
    done = good(command("train", *net, "--out", tmp_path / "run", "--skip-bad", "--split-seed", 3))
    assert done.err == f"3 of 40 images cannot be read and are left out: {', '.join(broken)}.\n"
    facts = read(tmp_path / "run" / "run.json")
    train, test = load(folder, skip_bad=True, split_seed=3)
    assert facts["samples"] == len(train) == 37 - len(test)
    path = train.paths[int(train.ids[0])]
    (tmp_path / "ids.txt").write_text(path)
    ids = ("--forget-ids", tmp_path / "ids.txt", *FEW_STEPS, "--out", tmp_path / "unlearned")
    good(command("unlearn", tmp_path / "run", *ids))
    held_out = test.paths[int(test.ids[0])]
    (tmp_path / "ids.txt").write_text(held_out)
    assert "which is held out for testing" in refusal(command("unlearn", tmp_path / "run", *ids, "--force"))
    (tmp_path / "ids.txt").write_text(broken[0])
    assert "which is not there" in refusal(command("unlearn", tmp_path / "run", *ids, "--force"))
    audited = good(command("audit", tmp_path / "unlearned", "--metrics", "quick", "--json")).json
    assert audited["info"]["forget_samples"] == 1
    assert audited["info"]["retain_samples"] == len(train) - 1
    assert audited["info"]["names"] == ["five", "seven"]
    good(command("train", "--like", tmp_path / "run", "--without-class", "five", "--out", tmp_path / "ref"))
    assert read(tmp_path / "ref" / "run.json")["split_seed"] == 3


# -- other forms of data --------------------------------------------------------------------------

WORDS = ("zero", "one", "two")


def arrays(n: int) -> tuple[np.ndarray, np.ndarray]:
    """The first digits that are 0, 1 or 2."""
    train, _ = load("digits")
    rows = torch.isin(train.labels, torch.arange(3)).nonzero()[:n, 0]
    return train.pixels[rows, 0].numpy(), train.labels[rows].numpy()


def as_tree(folder: Path) -> Path:
    for i, (image, label) in enumerate(zip(*arrays(90), strict=True)):
        path = folder / "tree" / WORDS[label] / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    return folder / "tree"


def as_parquet(folder: Path) -> Path:
    def png(image: np.ndarray) -> bytes:
        file = io.BytesIO()
        Image.fromarray(image).save(file, "PNG")
        return file.getvalue()

    images, labels = arrays(90)
    known = {"info": {"features": {"label": {"names": WORDS, "_type": "ClassLabel"}}}}
    (folder / "parquet").mkdir()
    for part, rows in (("train", slice(0, 72)), ("test", slice(72, 90))):
        cells = [{"bytes": png(x), "path": f"{part}-{i}.png"} for i, x in enumerate(images[rows])]
        table = pa.table({"image": cells, "label": labels[rows]})
        table = table.replace_schema_metadata({"huggingface": json.dumps(known)})
        pq.write_table(table, folder / "parquet" / f"{part}-00000-of-00001.parquet")
    return folder / "parquet"


def as_npz(folder: Path) -> Path:
    images, labels = arrays(90)
    np.savez(
        folder / "few.npz", train_images=images[:72], train_labels=labels[:72], test_images=images[72:],
        test_labels=labels[72:], classes=np.array(WORDS),
    )  # fmt: skip
    return folder / "few.npz"


@pytest.mark.parametrize("form", [as_tree, as_parquet, as_npz])
def test_every_form_of_data_goes_the_whole_way(form: Any, tmp_path: Path) -> None:
    base, chosen = tmp_path / "base", ("--split-seed", 7) if form is as_tree else ()
    few = ("--model", "small-resnet", "--set", "epochs=2", "--set", "batch_size=16")
    done = good(command("train", "--data", form(tmp_path), *few, *chosen, "--out", base))
    facts = read(base / "run.json")
    assert f"{facts['samples']} images" in done.out
    assert (sorted(facts["names"]), facts["split_seed"]) == (sorted(WORDS), 7 if chosen else 0)
    assert facts["samples"] == pytest.approx(72, abs=1)
    good(command("train", "--like", base, "--without-class", "two", "--out", tmp_path / "reference"))
    assert read(tmp_path / "reference" / "run.json")["split_seed"] == facts["split_seed"]
    out = tmp_path / "unlearned"
    done = good(command("unlearn", base, "--forget-class", "two", *FEW_STEPS, "--out", out))
    assert "(two))" in done.out
    quick = ("--metrics", "quick", "--json")
    audited = good(command("audit", out, "--retrained", tmp_path / "reference", *quick)).json
    assert audited["retrained"]["fa_test"]["value"] == 0
    assert audited["info"]["retain_samples"] == read(tmp_path / "reference" / "run.json")["samples"]


# -- other architectures --------------------------------------------------------------------------

OWN = """
from torch import nn

def net(classes, size):
    return nn.Sequential(
        nn.Flatten(), nn.Linear(size * size, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, classes)
    )
"""


def vit_folder(folder: Path, *, weights: bool) -> None:
    """A folder as Hugging Face lays out a classifier, tiny."""
    import transformers

    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=8,
        patch_size=4, num_channels=1, num_labels=3,
    )  # fmt: skip
    config.architectures = ["ViTForImageClassification"]
    config.save_pretrained(folder)
    if weights:
        torch.manual_seed(9)
        transformers.ViTForImageClassification(config).save_pretrained(folder)


@pytest.mark.parametrize(
    ("name", "size", "batchnorm"),
    [
        ("timm:vit_tiny_patch16_224", 32, False),
        ("hf:vit", 8, False),
        ("small-resnet-gn", 8, False),
        ("own_model:net", 8, True),
    ],
)
def test_other_architectures_go_the_whole_way(
    name: str, size: int, batchnorm: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_model.py").write_text(OWN)
    if name == "hf:vit":
        vit_folder(tmp_path / "vit", weights=False)
    data = ("--data", as_npz(tmp_path), "--model", name, "--size", size)
    few = ("--set", "epochs=1", "--set", "batch_size=24", "--set", "lr=0.01")
    good(command("train", *data, *few, "--out", "base"))
    good(command("train", "--like", "base", "--without-class", "one", "--out", "reference"))
    if name == "hf:vit":  # the folder was named from here, and is found from elsewhere
        monkeypatch.chdir(tmp_path.parent)
    out = tmp_path / "unlearned"
    good(command("unlearn", tmp_path / "base", "--forget-class", "one", *FEW_STEPS, "--out", out))
    reference = ("--retrained", tmp_path / "reference")
    panel = "standard" if name.startswith("own") else "quick,bn_recal"  # the attacks take long on the others
    audited = good(command("audit", out, *reference, "--metrics", panel, "--json")).json
    assert audited["info"]["classes"] == 3
    for part in ("values", "retrained", "original"):
        for key, v in audited[part].items():
            if v["value"] is None:
                assert v["why"], key
            else:
                assert math.isfinite(v["value"]), key
    for key in ("ta", "fa_test", "ra", "mia", "feature_cosine", "kl_retrain", "agreement"):
        assert audited["values"][key]["value"] is not None, key
    if batchnorm:
        assert audited["values"]["bn_recal.after"]["value"] is not None
    else:
        assert audited["values"]["bn_recal"]["value"] is None
        assert "BatchNorm" in audited["values"]["bn_recal"]["why"]


def test_a_reference_begins_with_the_same_published_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    vit_folder(tmp_path / "vit", weights=True)
    data = ("--data", as_npz(tmp_path), "--model", "hf:vit", "--pretrained")
    few = ("--set", "epochs=1", "--set", "batch_size=24", "--set", "lr=1e-9")  # stays where it begins
    good(command("train", *data, *few, "--out", "base"))
    good(command("train", "--like", "base", "--without-class", "one", "--out", "reference"))
    good(command("train", "--like", "base", "--model", "small-resnet", "--out", "other"))
    facts = [read(tmp_path / name / "run.json") for name in ("base", "reference", "other")]
    assert [f["pretrained"] for f in facts] == [True, True, False]
    begun = build("hf:vit", classes=3, channels=1, size=8, pretrained=True).state_dict()
    for name in ("base", "reference"):
        found = load_file(tmp_path / name / "model.safetensors")
        for key, value in begun.items():
            torch.testing.assert_close(found[key], value, rtol=0, atol=1e-6)


# -- one request after the other ------------------------------------------------------------------


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base model, class 3 forgotten, then class 5, and a reference without class 3."""
    runs = tmp_path_factory.mktemp("twice")
    quick = ["--set", "min_steps=20", "--set", "max_steps=20"]
    for argv in (
        ["train", "--data", "digits", "--model", "small-resnet", "--set", "epochs=4", "--out", runs / "base"],
        ["unlearn", runs / "base", "--forget-class", 3, *quick, "--out", runs / "three"],
        ["unlearn", runs / "three", "--forget-class", 5, *quick, "--out", runs / "both"],
        ["train", "--like", runs / "base", "--without-class", 3, "--out", runs / "without3"],
    ):
        assert command(*argv, "--quiet").code == 0
    return runs


def test_what_was_forgotten_before_is_not_taught_again(twice: Path) -> None:
    one, two = (read(twice / name / "run.json") for name in ("three", "both"))
    assert two["request"] == {"forget_classes": [5]}
    assert two["gone"] == {"forget_classes": [3]}
    of_5 = two["forget_samples"]
    assert two["retain_samples"] == one["retain_samples"] - of_5  # class 3 is not among them
    report = command("audit", twice / "both", "--metrics", "fa_train", "--json").json
    assert report["info"]["forget_classes"] == [3, 5]
    only = command("audit", twice / "both", "--forget-class", 5, "--metrics", "fa_train", "--json").json
    assert only["info"]["forget_samples"] == of_5
    assert only["info"]["retain_samples"] == report["info"]["retain_samples"]


def test_another_reference_is_remarked_upon(twice: Path, caplog: pytest.LogCaptureFixture) -> None:
    say_once.cache_clear()
    quick = ["--metrics", "fa_train"]
    assert command("audit", twice / "three", "--retrained", twice / "without3", *quick).code == 0
    assert not caplog.records
    assert command("audit", twice / "both", "--retrained", twice / "without3", *quick).code == 0
    assert "without other data" in caplog.text


def test_a_reference_for_images_of_another_size_is_refused(twice: Path, tmp_path: Path) -> None:
    large = tmp_path / "large"
    argv = ["train", "--like", twice / "without3", "--size", 16, "--set", "epochs=1", "--out", large]
    assert command(*argv).code == 0
    assert read(large / "run.json")["request"] == {"forget_classes": [3]}  # as the one it is like
    done = command("audit", twice / "three", "--retrained", large)
    assert done.code == 2
    assert "size 16" in done.err


def test_a_finished_training_is_not_taken_for_another(twice: Path) -> None:
    base = twice / "base"
    argv = ["train", "--data", "digits", "--model", "small-resnet", "--set", "epochs=4", "--out", base]
    assert command(*argv, "--resume").code == 0
    done = command(*argv, "--resume", "--seed", 9)
    assert done.code == 2
    assert "another seed" in done.err


def test_a_models_name_is_looked_at_before_the_data(tmp_path: Path) -> None:
    done = command("train", "--data", tmp_path / "nothing", "--model", "resnt18", "--out", tmp_path / "out")
    assert done.code == 2
    assert "resnet18" in done.err


# -- trainings that deletions need ------------------------------------------------------------------


def test_shards_are_trained_cut_and_audited_from_the_shell(tmp_path: Path) -> None:
    base, gone, again, reference = (tmp_path / n for n in ("base", "gone", "again", "reference"))
    (tmp_path / "ids").write_text("5\n6\n")
    few = ["--set", "epochs=2", "--set", "batch_size=64"]
    for argv in (
        ["train", "--data", "digits", "--model", "small-resnet", "--shards", 3, "--slices", 2, *few,
         "--out", base],
        ["unlearn", base, "--forget-class", 3, "--method", "sisa", "--out", gone],
        ["unlearn", gone, "--forget-ids", tmp_path / "ids", "--method", "sisa", "--out", again],
        ["train", "--like", base, "--seed", 0, "--without-class", 3, "--out", reference],
    ):  # fmt: skip
        done = command(*argv, "--quiet")
        assert done.code == 0, done.err
    assert read(gone / "run.json")["digest"] == read(reference / "run.json")["digest"]  # exact deletion
    assert 1 <= len(read(again / "run.json")["retrained"]) <= 2  # two samples are in two shards at most
    report = command("audit", again, "--retrained", reference, "--metrics", "fa_train,ra", "--json").json
    assert report["values"]["ra"]["value"] is not None
    refused = command(
        "train", "--data", "digits", "--model", "small-resnet", "--slices", 2, "--out", tmp_path / "z"
    )
    assert refused.code == 2
    assert "--shards" in refused.err


def test_updates_are_logged_and_taken_back_from_the_shell(tmp_path: Path) -> None:
    (tmp_path / "ids").write_text("5\n")
    base, out, log = tmp_path / "base", tmp_path / "out", tmp_path / "log"
    argv = ["train", "--data", "digits", "--model", "small-resnet", "--set", "epochs=2", "--log-updates", log,
            "--log-only-ids", tmp_path / "ids", "--out", base]  # fmt: skip
    assert command(*argv, "--quiet").code == 0
    done = command("unlearn", base, "--forget-ids", tmp_path / "ids", "--method", "amnesiac", "--out", out)
    assert done.code == 0, done.err
    refused = command("unlearn", base, "--forget-class", 3, "--method", "amnesiac", "--out", tmp_path / "no")
    assert refused.code == 2  # the log has only the steps of that one sample
    assert (
        command("unlearn", base, "--forget-class", 3, "--method", "sisa", "--out", tmp_path / "no").code == 2
    )
