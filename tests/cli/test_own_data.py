"""The way from training to audit with one's own images, other file formats and other architectures."""

from __future__ import annotations

import logging
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from purge.data.load import load
from purge.models.zoo import build
from tests.benchmark import script
from tests.cli.commands import FEW_STEPS, names, ran, read, refused

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples"

# -- own images -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three hundred digits as PNG files, in folders of classes named by words."""
    folder = tmp_path_factory.mktemp("own") / "my digits"
    assert script(EXAMPLES / "write_digits.py").write(folder, 30) == 300
    return folder


@pytest.fixture(scope="module")
def own(pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The script of the example, and what it printed."""
    folder, path = tmp_path_factory.mktemp("own-runs") / "own", os.environ["PATH"]
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{path}", "OMP_NUM_THREADS": "1"}
    argv = ["bash", str(EXAMPLES / "own_images.sh"), str(pictures), str(folder), "seven"]
    done = subprocess.run(argv, cwd=folder.parent, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return folder, done.stdout


def test_the_whole_pass_over_own_images(own: tuple[Path, str], pictures: Path) -> None:
    folder, printed = own
    assert printed.startswith("small-resnet on my digits: 240 images, 10 epochs in ")
    assert "\nsmall-resnet on my digits without class 5 (seven): 216 images, " in printed
    assert "(seven) 0.0%" not in printed  # the lowest of those it knows
    assert "Next: purge audit RUN --retrained" in printed
    assert "\npurge: 24 samples to forget (class 5 (seven)), " in printed
    assert "Forgotten: 24 samples, class 5 (seven)" in printed
    assert re.search(r"destinations\.\d \((zero|one|two|three|four|five|six|eight|nine)\)", printed)
    assert "\npurge: 5 samples to forget, " in printed
    assert "Forgotten: 5 samples" in printed
    facts = read(folder / "base" / "run.json")
    assert facts["names"] == sorted(facts["names"])
    assert facts["names"][5] == "seven"
    assert facts["data"] == str(pictures)
    assert facts["test_accuracy"] >= 0.8
    assert read(folder / "reference" / "run.json")["seed"] == 1


def test_what_was_forgotten_of_own_images(own: tuple[Path, str], pictures: Path) -> None:
    folder, _ = own
    found = read(folder / "without-class" / "audit.json")
    for part in ("values", "retrained", "original"):
        assert all(math.isfinite(v["value"]) for v in found[part].values() if v["value"] is not None)
    assert found["retrained"]["fa_test"]["value"] == 0
    assert found["original"]["fa_train"]["value"] >= 0.9
    assert found["values"]["fa_train"]["value"] <= 0.3
    train, _ = load(pictures)
    ids = read(folder / "without-images" / "run.json")["request"]["forget_ids"]
    chosen = (folder / "images.txt").read_text().splitlines()
    assert sorted(train.paths[i] for i in ids) == chosen
    assert chosen[0] == "train/eight/0000.png"


def test_paths_and_names_that_are_not_there(own: tuple[Path, str], pictures: Path, tmp_path: Path) -> None:
    base, ids = own[0] / "base", tmp_path / "ids.txt"
    out = ("--out", tmp_path / "run")
    assert "did you mean 'seven'" in refused("unlearn", base, "--forget-class", "sevn", *out)
    for line, words in (
        ("train/seven/9999.png", "which is not there"),
        ("test/seven/0004.png", "which is not there"),
        (str(pictures / "train/seven/0000.png"), "such as train/eight/0000.png"),
    ):
        ids.write_text(f"train/seven/0000.png\n{line}\n")
        assert words in refused("unlearn", base, "--forget-ids", ids, *out)
    assert names(tmp_path) == ["ids.txt"]


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
    said = refused("train", *net, "--out", tmp_path / "run")
    assert f"3 that cannot ({', '.join(broken)})" in said
    assert names(tmp_path) == ["pics"]

    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # pytest's; without any, stderr is written to
    done = ran("train", *net, "--out", tmp_path / "run", "--skip-bad", "--split-seed", 3)
    assert done.err == f"3 of 40 images cannot be read and are left out: {', '.join(broken)}.\n"
    facts = read(tmp_path / "run" / "run.json")
    train, test = load(folder, skip_bad=True, split_seed=3)
    assert facts["samples"] == len(train) == 37 - len(test)
    path = train.paths[int(train.ids[0])]
    (tmp_path / "ids.txt").write_text(path)
    ids = ("--forget-ids", tmp_path / "ids.txt", *FEW_STEPS, "--out", tmp_path / "unlearned")
    ran("unlearn", tmp_path / "run", *ids)
    held_out = test.paths[int(test.ids[0])]
    (tmp_path / "ids.txt").write_text(held_out)
    assert "which is held out for testing" in refused("unlearn", tmp_path / "run", *ids, "--force")
    (tmp_path / "ids.txt").write_text(broken[0])
    assert "which is not there" in refused("unlearn", tmp_path / "run", *ids, "--force")
    audited = ran("audit", tmp_path / "unlearned", "--metrics", "quick", "--json").json
    assert audited["info"]["forget_samples"] == 1
    assert audited["info"]["retain_samples"] == len(train) - 1
    assert audited["info"]["names"] == ["five", "seven"]
    ran("train", "--like", tmp_path / "run", "--without-class", "five", "--out", tmp_path / "ref")
    assert read(tmp_path / "ref" / "run.json")["split_seed"] == 3


# -- other forms of data --------------------------------------------------------------------------

WORDS = ("zero", "one", "two")


def arrays(n: int) -> tuple[np.ndarray, np.ndarray]:
    """The first digits that are 0, 1 or 2."""
    train, _ = load("digits")
    rows = torch.isin(train.labels, torch.arange(3)).nonzero()[:n, 0]
    return train.pixels[rows, 0].numpy(), train.labels[rows].numpy()


def as_npz(folder: Path) -> Path:
    images, labels = arrays(90)
    np.savez(
        folder / "few.npz", train_images=images[:72], train_labels=labels[:72], test_images=images[72:],
        test_labels=labels[72:], classes=np.array(WORDS),
    )  # fmt: skip
    return folder / "few.npz"


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
        pytest.param("timm:vit_tiny_patch16_224", 32, False, marks=pytest.mark.slow),
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
    ran("train", *data, *few, "--out", "base")
    trust = ("--trust",) if name.startswith("own") else ()  # the run folders name code of one's own
    ran("train", "--like", "base", "--without-class", "one", *trust, "--out", "reference")
    if name == "hf:vit":  # the folder was named from here, and is found from elsewhere
        monkeypatch.chdir(tmp_path.parent)
    out = tmp_path / "unlearned"
    ran("unlearn", tmp_path / "base", "--forget-class", "one", *FEW_STEPS, *trust, "--out", out)
    reference = ("--retrained", tmp_path / "reference", *trust)
    panel = "standard" if name.startswith("own") else "quick,bn_recal"  # the attacks take long on the others
    audited = ran("audit", out, *reference, "--metrics", panel, "--json").json
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


def test_a_method_and_a_metric_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are in the current folder, and this command line names them."""
    monkeypatch.chdir(EXAMPLES)
    base = tmp_path / "base"
    few = ("--data", "digits", "--model", "small-resnet", "--set", "epochs=1")
    ran("train", *few, "--out", base)
    asked = ("--forget-class", 3, "--method", "own_method:NoisyHead", "--set", "epochs=1", "--set", "noise=0")
    done = ran("unlearn", base, *asked, "--out", tmp_path / "out")
    assert done.out.startswith("own_method:NoisyHead: ")
    facts = read(tmp_path / "out" / "run.json")
    assert (facts["preset"], facts["settings"]["noise"]) == ("own_method:NoisyHead", 0)
    metrics = ("--metrics", "ra, own_metric:SURE", "--json")
    found = ran("audit", tmp_path / "out", *metrics).json["values"]
    assert {name.split(".")[0] for name in found} == {"ra", "sure"}


def test_a_reference_begins_with_the_same_published_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    vit_folder(tmp_path / "vit", weights=True)
    data = ("--data", as_npz(tmp_path), "--model", "hf:vit", "--pretrained")
    few = ("--set", "epochs=1", "--set", "batch_size=24", "--set", "lr=1e-9")  # stays where it begins
    ran("train", *data, *few, "--out", "base")
    ran("train", "--like", "base", "--without-class", "one", "--out", "reference")
    ran("train", "--like", "base", "--model", "small-resnet", "--out", "other")
    facts = [read(tmp_path / name / "run.json") for name in ("base", "reference", "other")]
    assert [f["pretrained"] for f in facts] == [True, True, False]
    begun = build("hf:vit", classes=3, channels=1, size=8, pretrained=True).state_dict()
    for name in ("base", "reference"):
        found = load_file(tmp_path / name / "model.safetensors")
        for key, value in begun.items():
            torch.testing.assert_close(found[key], value, rtol=0, atol=1e-6)
