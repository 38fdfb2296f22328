"""purge audit --truth: the right labels of mislabelled samples, from a file."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import purge
from purge.metrics.registry import PANELS
from purge.runs.folder import read_model
from purge.runs.requests import read_truth
from tests.cli.commands import Done, command, good, refusal

IDS = [900, 3, 17, 5]  # not in the order of the data


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A copy of the base model's run, since a panel writes into it, and a file of samples."""
    shutil.copytree(made / "base", tmp_path / "base")
    (tmp_path / "ids.txt").write_text("\n".join(map(str, IDS)))
    return tmp_path


def audited(folder: Path, *more: Any, metrics: str = "clean_label,fa_train") -> Done:
    ids = ("--forget-ids", folder / "ids.txt")
    return command("audit", folder / "base", *ids, "--metrics", metrics, "--json", "--quiet", *more)


def guesses(folder: Path, train: Any, rows: list[int]) -> np.ndarray:
    model = read_model(folder / "base", None, train).eval()
    with torch.no_grad():
        return model(train.take(torch.tensor(rows))[0]).argmax(1).numpy()


@pytest.mark.parametrize(
    "lines",
    [
        "{3}\n{5}\n{17}\n{900}\n",
        "{3} \n\n {5}\n{17}\n{900}",
        "900,{900}\n3,{3}\n17,{17}\n5,{5}\n",
        "900, {900}\n3, {3}\n17 ,{17}\n5,{5}",
    ],
)
def test_right_labels_from_a_file(folder: Path, digits: Any, lines: str) -> None:
    guess = dict(zip(sorted(IDS), guesses(folder, digits.train, sorted(IDS)), strict=True))
    right = {str(row): (k if row == 3 else (k + 1) % 10) for row, k in guess.items()}  # only sample 3 counts
    assert right["5"] != guess[3]  # in another order another number would count
    for row, label in right.items():
        lines = lines.replace(f"{{{row}}}", str(label))
    (folder / "truth.csv").write_text(lines)
    done = good(audited(folder, "--truth", folder / "truth.csv"))
    assert done.json["values"]["clean_label"]["value"] == pytest.approx(0.25)
    assert done.json["values"]["clean_label"]["n"] == 4


def test_an_array_and_a_panel(folder: Path, digits: Any) -> None:
    guess = guesses(folder, digits.train, sorted(IDS))
    np.save(folder / "truth.npy", np.array([guess[0], *((guess[1:] + 1) % 10)]))
    done = good(audited(folder, "--truth", folder / "truth.npy", metrics="quick"))
    assert {name.split(".")[0] for name in done.json["values"]} == {*PANELS["quick"], "clean_label"}
    assert done.json["values"]["clean_label"]["value"] == pytest.approx(0.25)


def test_right_labels_that_do_not_fit_are_refused(folder: Path) -> None:
    for content, words in {
        b"4\n1\n7\n": "got 3 lines",
        b"": "got 0 lines",
        b"4\n1\n7\nx\n": "the number or the name of a class, got 'x'",
        b"4\n1\n7\n10\n": "labels from 0 to 9 in truth, got 10",
        b"4\n1\n7\n-1\n": "got -1",
        b"900,2\n3,4\n17,7\n6,1\n": "none for sample 5",
        b"900,2\n3,4\n17,7\n17,1\n": "none for sample 5",
        b"900,2\n3,4\n17,7\n1\n": "got '900,2'",
        b"\xff\xfe\x00\x01": "got 1 lines",
    }.items():
        (folder / "truth.txt").write_bytes(content)
        assert words in refusal(audited(folder, "--truth", folder / "truth.txt"))
    (folder / "bad.npy").write_bytes(b"nothing")
    np.save(folder / "short.npy", np.arange(3))
    np.save(folder / "floats.npy", np.ones(4))
    for name, words in {
        "none.txt": "nothing there",
        "bad.npy": "a plain array in",
        "short.npy": "one label per sample in truth",
        "floats.npy": "whole numbers",
    }.items():
        assert words in refusal(audited(folder, "--truth", folder / name))


def named() -> purge.Images:
    """Six images of classes with names, and paths of their own."""
    pixels, paths = torch.zeros(6, 1, 8, 8, dtype=torch.uint8), [f"a b/{i}, x.png" for i in range(6)]
    return purge.Images(pixels, torch.arange(6) % 3, names=("cat", "polar bear", "tench, Tinca"), paths=paths)


@pytest.mark.parametrize(
    "lines",
    [
        ["polar bear", "tench, Tinca", "0"],
        ["1", "2", "cat"],
        ["a b/5, x.png,cat", "a b/1, x.png,polar bear", "a b/4, x.png,2"],
        ["5,cat", "4, 2", "a b/1, x.png, polar bear"],
    ],
)
def test_samples_and_classes_by_name(tmp_path: Path, lines: list[str]) -> None:
    (tmp_path / "truth").write_text("\n".join(lines))
    mask = torch.zeros(6, dtype=torch.bool)
    mask[[1, 4, 5]] = True
    assert read_truth(tmp_path / "truth", named(), mask) == [1, 2, 0]
