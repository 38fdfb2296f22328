"""Folders of images: which files count, which class they are in, how they are split, what is refused."""

from __future__ import annotations

import shutil
import zipfile

import pytest
from PIL import Image

from purge.core.errors import DataError
from tests.data.image_files import (
    RAMP,
    check,
    load,
    noise,
    paths_of,
    png,
    save,
    sentence,
    tree,
)


@pytest.mark.parametrize("held_out", ["test", "val", "valid", "validation"])
def test_folders_of_two_parts(held_out, tmp_path):
    train = tree(tmp_path / "train", {"cat": 4, "dog": 3, "eel": 2})
    test = tree(tmp_path / held_out, {"cat": 2, "eel": 1}, seed=1)
    found = load(tmp_path)
    assert [len(part) for part in found] == [9, 3]
    assert found[0].names == found[1].names == ("cat", "dog", "eel")
    check(found[0], train, "train/")
    check(found[1], test, f"{held_out}/")
    assert found[1].labels.tolist() == [0, 0, 2]
    assert found[0].source != found[1].source
    assert load(str(tmp_path))[0].shape == (3, 8, 8)


def test_a_test_folder_is_preferred_to_a_validation_folder(tmp_path):
    for part, n in (("train", 3), ("val", 2), ("test", 1)):
        tree(tmp_path / part, {"a": n, "b": n})
    assert [len(part) for part in load(tmp_path)] == [6, 2]


def test_a_folder_without_parts_is_split_by_the_seed(tmp_path):
    made = tree(tmp_path, {"a": 10, "b": 25, "c": 4})
    train, test = load(tmp_path)
    check(train, made)
    check(test, made)
    assert test.labels.bincount().tolist() == [2, 5, 1]  # a fifth of each
    assert not set(paths_of(train)) & set(paths_of(test))
    assert sorted(paths_of(train) + paths_of(test)) == sorted(made)
    assert train.source == test.source
    assert not set(train.ids.tolist()) & set(test.ids.tolist())
    assert paths_of(load(tmp_path)[1]) == paths_of(test)
    others = [paths_of(load(tmp_path, split_seed=s)[1]) for s in range(5)]
    assert paths_of(test) == others[0]
    assert len(set(map(tuple, others))) == 5


def test_a_folder_with_only_a_training_part_is_split_too(tmp_path):
    made = tree(tmp_path / "train", {"a": 5, "b": 5})
    train, test = load(tmp_path)
    assert (len(train), len(test)) == (8, 2)
    check(train, made, "train/")
    inside, _ = load(tmp_path / "train")  # the same files under other paths
    check(inside, made)
    check(load(tmp_path)[0], made, "train/")


def test_train_can_be_the_name_of_a_class(tmp_path):
    made = tree(tmp_path, {"car": 5, "plane": 5, "train": 5})
    train, _ = load(tmp_path)
    assert train.names == ("car", "plane", "train")
    check(train, made)


def test_numbered_classes_are_in_numerical_order(tmp_path):
    made = tree(tmp_path / "n", {str(i): 5 for i in (10, 2, 0, 1, 11)})
    train, _ = load(tmp_path / "n")
    assert train.names == ("0", "1", "2", "10", "11")
    check(train, made)
    tree(tmp_path / "mixed", {"b": 5, "10": 5, "9": 5, "B": 5, "٣": 5})
    assert load(tmp_path / "mixed")[0].names == ("9", "10", "B", "b", "٣")


def test_images_can_be_in_subfolders_of_their_class(tmp_path):
    for i in range(5):
        save(tmp_path / "a" / f"day {i}" / "x.png", noise(8, 8, 3, seed=i))
        save(tmp_path / "b" / f"{i}.png", noise(8, 8, 3, seed=i))
    train, test = load(tmp_path)
    assert train.names == ("a", "b")
    assert "a/day 0/x.png" in paths_of(train) + paths_of(test)


def test_files_that_are_not_images_are_ignored(tmp_path):
    made = tree(tmp_path, {"a": 5, "b": 5})
    (tmp_path / "readme.txt").write_text("not a class")
    (tmp_path / "a" / "notes.txt").write_text("not an image")
    (tmp_path / "a" / "Thumbs.db").write_bytes(b"\0\1")
    for name in (".DS_Store", "._000.png", ".hidden.jpg"):  # macOS writes ._x.png beside x.png
        (tmp_path / "b" / name).write_bytes(b"\0\5\x16\7\0\2\0\0Mac OS X")
    tree(tmp_path / ".git", {"c": 3})
    (tmp_path / "empty").mkdir()
    found = load(tmp_path)
    assert sum(map(len, found)) == 10
    assert found[0].names == ("a", "b")
    check(found[0], made)


def test_the_current_folder_can_be_loaded_as_a_dot(tmp_path, monkeypatch):
    made = tree(tmp_path / "own", {"a": 5, "b": 5})
    monkeypatch.chdir(tmp_path / "own")
    train, _ = load(".")
    check(train, made)
    assert train.source == load(tmp_path / "own")[0].source


def test_the_source_id_depends_on_the_images_and_not_on_path_or_time(tmp_path):
    tree(tmp_path / "here", {"a": 5, "b": 5})
    shutil.copytree(tmp_path / "here", tmp_path / "there", copy_function=shutil.copyfile)
    source = load(tmp_path / "here")[0].source
    assert source == load(tmp_path / "there")[0].source
    (tmp_path / "there" / "a").rename(tmp_path / "there" / "c")  # so b comes first
    assert source != load(tmp_path / "there")[0].source
    one = next((tmp_path / "here" / "b").iterdir())
    Image.new("RGB", (8, 8)).save(one)
    assert source != load(tmp_path / "here")[0].source


@pytest.mark.parametrize("parts", [("Training", "Testing"), ("TRAIN", "Val"), ("train", "Test")])
def test_parts_can_have_other_common_names(tmp_path, cache, parts):
    for part, n in zip(parts, (6, 2), strict=True):
        for name in ("cat", "dog"):
            (tmp_path / "own" / part / name).mkdir(parents=True)
            for i in range(n):
                Image.new("L", (8, 8), i).save(tmp_path / "own" / part / name / f"{i}.png")
    train, test = load(tmp_path / "own")
    assert train.names == ("cat", "dog")
    assert (len(train), len(test)) == (12, 4)


def test_parts_without_a_training_part_are_not_taken_for_classes(tmp_path, cache):
    for part in ("val", "test"):
        for name in ("cat", "dog"):
            (tmp_path / "own" / part / name).mkdir(parents=True)
            Image.new("L", (8, 8)).save(tmp_path / "own" / part / name / "0.png")
    with pytest.raises(DataError, match=r"Expected one folder per class.*contain the same folders"):
        load(tmp_path / "own")


def test_folders_without_images_are_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "flat").mkdir()
    save(tmp_path / "flat" / "x.png", RAMP)  # in no class
    save(tmp_path / "parts" / "train" / "x.png", RAMP)
    save(tmp_path / "parts" / "test" / "x.png", RAMP)
    (tmp_path / "text.txt").write_text("")
    for data in ("empty", "flat", "parts", "text.txt"):
        with pytest.raises(DataError) as error:
            load(tmp_path / data)
        assert data in sentence(error)


def test_one_class_is_not_enough(tmp_path):
    tree(tmp_path, {"a": 10})
    with pytest.raises(DataError, match="at least 2 classes") as error:
        load(tmp_path)
    sentence(error)


def test_a_part_without_images_is_refused(tmp_path):
    tree(tmp_path / "train", {"a": 3, "b": 3})
    (tmp_path / "test" / "a").mkdir(parents=True)
    with pytest.raises(DataError, match="test part") as error:
        load(tmp_path)
    sentence(error)


def test_a_class_only_in_the_test_part_is_refused(tmp_path):
    tree(tmp_path / "train", {"cat": 3, "dog": 3})
    tree(tmp_path / "test", {"cat": 3, "dgo": 3})
    with pytest.raises(DataError, match="'dgo'") as error:
        load(tmp_path)
    sentence(error)


def test_too_few_images_to_hold_any_out_are_refused(tmp_path):
    tree(tmp_path, {"a": 2, "b": 1})
    with pytest.raises(DataError) as error:
        load(tmp_path)
    sentence(error)


def test_an_archive_of_images_is_refused(tmp_path):
    """The error lists the forms that are accepted."""
    with zipfile.ZipFile(tmp_path / "own.zip", "w") as archive:
        archive.writestr("a/1.png", png(RAMP))
    with pytest.raises(DataError, match="another kind of file") as error:
        load(tmp_path / "own.zip")
    sentence(error)
