"""Folders of images: which files count, which class they are in, how they are split, what is refused."""

from __future__ import annotations

import shutil
import zipfile

import pytest
from PIL import Image

from purge.core.errors import DataError
from tests.data.image_files import RAMP, check, load, noise, paths_of, png, save, sentence, tree


@pytest.mark.parametrize(
    ("training", "testing"),
    [
        ("train", "test"),
        ("train", "val"),
        ("train", "valid"),
        ("Training", "Testing"),
        ("TRAIN", "validation"),
    ],
)
def test_folders_of_two_parts(training, testing, tmp_path):
    train = tree(tmp_path / training, {"cat": 4, "dog": 3, "eel": 2})
    test = tree(tmp_path / testing, {"cat": 2, "eel": 1}, seed=1)
    found = load(str(tmp_path))
    assert [len(part) for part in found] == [9, 3]
    assert found[0].names == found[1].names == ("cat", "dog", "eel")
    check(found[0], train, f"{training}/")
    check(found[1], test, f"{testing}/")
    assert found[0].source != found[1].source
    if testing == "val":
        tree(tmp_path / "test", {"cat": 1})  # is preferred
        assert [len(part) for part in load(tmp_path)] == [9, 1]


def test_a_folder_without_parts_is_split_by_the_seed(tmp_path, monkeypatch):
    made = tree(tmp_path / "own", {"a": 10, "b": 25, "c": 4})
    monkeypatch.chdir(tmp_path / "own")
    train, test = load(".")
    for part in (train, test):
        check(part, made)
    assert test.labels.bincount().tolist() == [2, 5, 1]  # a fifth of each
    assert sorted(paths_of(train) + paths_of(test)) == sorted(made)
    assert train.source == test.source
    assert not set(train.ids.tolist()) & set(test.ids.tolist())
    others = [paths_of(load(tmp_path / "own", split_seed=s)[1]) for s in range(5)]
    assert paths_of(test) == others[0]
    assert len(set(map(tuple, others))) == 5


def test_a_folder_with_only_a_training_part_is_split_too(tmp_path):
    made = tree(tmp_path / "train", {"a": 5, "b": 5})
    train, test = load(tmp_path)
    assert (len(train), len(test)) == (8, 2)
    check(train, made, "train/")
    check(load(tmp_path / "train")[0], made)  # the same files under other paths


@pytest.mark.parametrize(
    ("classes", "names"),
    [
        (["car", "plane", "train"], ("car", "plane", "train")),  # of railways
        (["10", "2", "0", "1", "11"], ("0", "1", "2", "10", "11")),
        (["b", "10", "9", "B", "٣"], ("9", "10", "B", "b", "٣")),
    ],
)
def test_classes_are_the_folders_in_order(classes, names, tmp_path):
    made = tree(tmp_path, dict.fromkeys(classes, 5))
    train, _ = load(tmp_path)
    assert train.names == names
    check(train, made)


def test_files_that_are_not_images_are_ignored(tmp_path):
    made = tree(tmp_path, {"a": 5, "b": 5, "b/day 1": 1})
    (tmp_path / "readme.txt").write_text("not a class")
    (tmp_path / "a" / "notes.txt").write_text("not an image")
    for name in (".DS_Store", "._000.png", ".hidden.jpg"):  # macOS writes ._x.png beside x.png
        (tmp_path / "b" / name).write_bytes(b"\0\5\x16\7\0\2\0\0Mac OS X")
    tree(tmp_path / ".git", {"c": 3})
    (tmp_path / "empty").mkdir()
    (tmp_path / "a" / "again").symlink_to(tmp_path / "a", target_is_directory=True)  # is not followed
    found = load(tmp_path)
    assert sum(map(len, found)) == 11
    assert found[0].names == ("a", "b")
    for part in found:
        check(part, made)


def test_the_source_id_depends_on_the_images_and_not_on_path_or_time(tmp_path):
    tree(tmp_path / "here", {"a": 5, "b": 5})
    shutil.copytree(tmp_path / "here", tmp_path / "there", copy_function=shutil.copyfile)
    source = load(tmp_path / "here")[0].source
    assert source == load(tmp_path / "there")[0].source
    (tmp_path / "there" / "a").rename(tmp_path / "there" / "c")  # so b comes first
    assert source != load(tmp_path / "there")[0].source
    Image.new("RGB", (8, 8)).save(tmp_path / "here" / "b" / "000.png")
    assert source != load(tmp_path / "here")[0].source


@pytest.mark.parametrize(
    ("images", "words"),
    [
        (["val/cat/0", "val/dog/0", "test/cat/0", "test/dog/0"], "one folder per class.*the same folders"),
        ([], "images in"),
        (["0"], "images in"),  # in no class
        (["train/0", "test/0"], "images in"),
        ([f"a/{i}" for i in range(10)], "at least 2 classes"),
        (["train/a/0", "train/b/0", "test/a/x.txt"], "images in the test part"),
        (["train/cat/0", "train/dog/0", "test/dgo/0"], "'dgo' that is only in the test part"),
        (["a/0", "a/1", "b/0"], "at least 3 samples of some class"),
    ],
)
def test_folders_that_cannot_be_understood_are_refused(images, words, tmp_path, cache):
    (tmp_path / "own").mkdir()
    for i, name in enumerate(images):
        at = save(tmp_path / "own" / f"{name}.png", noise(8, 8, seed=i))
        if name.endswith(".txt"):
            at.rename(at.with_suffix(""))
    with pytest.raises(DataError, match=words) as error:
        load(tmp_path / "own")
    sentence(error)


def test_an_archive_of_images_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "own.zip", "w") as archive:
        archive.writestr("a/1.png", png(RAMP))
    with pytest.raises(DataError, match="another kind of file") as error:
        load(tmp_path / "own.zip")
    sentence(error)
