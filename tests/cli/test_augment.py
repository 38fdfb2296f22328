"""purge unlearn --augment: by default as the run folder says that the model was trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import purge
from tests.augmenting import Augmenting
from tests.cli.commands import ran, read, refused

METHOD = "tests.augmenting:Augmenting"
ASKED = ("--forget-class", 3, "--set", "forget_target=1", "--method", METHOD, "--quiet")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of digits that was trained with crops and colours."""
    folder = tmp_path_factory.mktemp("augmented") / "base"
    how = ("--set", "epochs=1", "--set", "augment=crop", "--set", "colour=0.1")
    ran("train", "--data", "digits", "--model", "small-resnet", *how, "--out", folder, "--quiet")
    return folder


def used() -> Any:
    """How the samples of the last run were changed."""
    return Augmenting.seen["run"]._augment


def changed(base: Path, tmp_path: Path, **settings: Any) -> Path:
    """The run folder of somebody else."""
    folder = tmp_path / "theirs"
    folder.mkdir()
    facts = read(base / "run.json")
    facts["settings"] |= settings
    (folder / "run.json").write_text(json.dumps(facts))
    (folder / "model.safetensors").write_bytes((base / "model.safetensors").read_bytes())
    return folder


def test_the_recipe_of_the_run_folder_is_the_default(base: Path, tmp_path: Path) -> None:
    ran("unlearn", base, *ASKED, "--out", tmp_path / "one")
    assert used() == purge.Augmentation("crop", 0.1)
    assert Augmenting.seen["changed"] is not None
    assert read(tmp_path / "one" / "run.json")["augment"] == "crop, colour 0.1"
    # The next request asks the training that the first one began with.
    again = ("--forget-class", 5, *ASKED[2:])
    ran("unlearn", tmp_path / "one", *again, "--augment", "none", "--out", tmp_path / "two")
    assert Augmenting.seen["changed"] is None
    assert read(tmp_path / "two" / "run.json")["augment"] == "none"
    ran("unlearn", tmp_path / "two", "--forget-class", 6, *ASKED[2:], "--out", tmp_path / "three")
    assert used() == purge.Augmentation("crop", 0.1)


def test_of_a_file_of_weights_nothing_is_known(base: Path, tmp_path: Path) -> None:
    given = ("--data", "digits", "--model", "small-resnet")
    ran("unlearn", base / "model.safetensors", *given, *ASKED, "--out", tmp_path / "run")
    assert used() is None
    assert read(tmp_path / "run" / "run.json")["augment"] is None


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"augment": "mirror"}, "one of none, crop, flip, crop-flip, turn as augment in settings of "),
        ({"augment": ["crop"]}, "one of none, crop, flip, crop-flip, turn as augment in settings of "),
        ({"colour": 7}, "colour >= 0 and <= 1 in settings of "),
        ({"colour": "red"}, "a number as colour in settings of "),
    ],
)
def test_a_strange_recipe_is_refused_in_one_line(
    base: Path, tmp_path: Path, settings: dict[str, Any], words: str
) -> None:
    theirs = changed(base, tmp_path, **settings)
    said = refused("unlearn", theirs, *ASKED, "--out", tmp_path / "run")
    assert words in said
    assert str(theirs / "run.json") in said
    assert not (tmp_path / "run").exists()
