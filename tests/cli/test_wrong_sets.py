"""Data and references that would make an audit look good, in the shell: one line, and nothing is written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from tests.cli.commands import FEW_STEPS, command, ran, read, refusal, refused
from tests.cli.conftest import Demo

TRAIN = ("--model", "small-resnet", "--set", "epochs=2", "--set", "batch_size=32", "--quiet")


def digits(path: Path, test: slice) -> Path:
    """200 digits; the rows of the test data, which should come after them."""
    found = load_digits()
    pixels, labels = (found.images * 15).astype(np.uint8), found.target
    pixels[1] = np.minimum(pixels[0] + 3, 240)  # lighter, and the rest of the same image
    np.savez(path, train_images=pixels[:200], train_labels=labels[:200], test_images=pixels[test],
             test_labels=labels[test])  # fmt: skip
    return path


def test_copies_that_stay_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    base, out, ids = tmp_path / "base", tmp_path / "out", tmp_path / "ids.txt"
    ids.write_text("0\n5\n")
    ran("train", "--data", digits(tmp_path / "d.npz", slice(200, 300)), *TRAIN, "--out", base)
    ran("unlearn", base, "--forget-ids", ids, *FEW_STEPS, "--quiet", "--out", out)
    words = "1 of 2 forgotten samples has a near-identical copy among the retained ones, none of them with"
    assert words in caplog.text
    found = {"exact": 0, "near": 1, "near_same_label": 0, "compared": 2, "test_forget": 0, "test_retain": 0}
    assert read(out / "run.json")["copies"] == found
    audited = ran("audit", out, "--metrics", "quick", "--quiet")
    assert " ".join(audited.out.split()).count(words) == 2, "below the table and among the findings"
    assert read(out / "audit.json")["info"]["copies"] == found


def test_a_retrained_model_that_is_none(shown: Demo, run: Path) -> None:
    base, retrain = shown.folder / "base" / "model.safetensors", shown.folder / "retrain"
    quick = ("--metrics", "ra", "--quiet", "--model", "small-resnet")
    assert "the original's own weights" in refused("audit", run, "--retrained", base, *quick)
    twice = ("--retrained", retrain, "--retrained", retrain)
    assert "the weights of another retrained model" in refused("audit", run, *twice, *quick)
    itself = command("audit", retrain, "--forget-class", 0, "--retrained", retrain, *quick)
    assert "the audited model's own weights" in refusal(itself)
