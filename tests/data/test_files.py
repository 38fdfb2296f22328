"""Images in folders, .npz and Parquet: which count, their classes and parts, and what is refused."""

from __future__ import annotations

import io
import json
import os
import shutil
import socket
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from purge.core.errors import DataError, FileError, PurgeError
from purge.data.cache import copies
from tests.data.image_files import (
    RAMP,
    WIDE,
    Payload,
    check,
    entries,
    load,
    noise,
    parquet,
    paths_of,
    png,
    save,
    sentence,
    sentence_or_nothing,
    tree,
)

# -- folders --------------------------------------------------------------------------------------


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


# -- arrays in .npz -------------------------------------------------------------------------------

PARTED = noise(6, 8, 10, 3), [0, 1, 2, 0, 1, 2], noise(3, 8, 10, 3, seed=1), [2, 1, 0]


@pytest.mark.parametrize(
    "keys",
    [
        ("train_images", "train_labels", "test_images", "test_labels"),
        ("x_train", "y_train", "x_test", "y_test"),
    ],
)
def test_arrays_in_two_parts(keys, tmp_path):
    np.savez(tmp_path / "x.npz", **dict(zip(keys, PARTED, strict=True)))
    train, test = load(tmp_path / "x.npz")
    assert np.array_equal(train.pixels.numpy(), PARTED[0].transpose(0, 3, 1, 2))
    assert np.array_equal(test.pixels.numpy(), PARTED[2].transpose(0, 3, 1, 2))
    assert (train.labels.tolist(), test.labels.tolist()) == (PARTED[1], PARTED[3])
    assert train.names == ("0", "1", "2")
    assert train.shape == (3, 8, 10)


@pytest.mark.parametrize("keys", [("images", "labels"), ("x", "y")])
@pytest.mark.parametrize("compressed", [False, True])
def test_arrays_in_one_part_are_split_by_the_seed(keys, compressed, tmp_path):
    pixels, labels = noise(20, 8, 10), [0, 1] * 10
    save = np.savez_compressed if compressed else np.savez
    save(tmp_path / "x.npz", **{keys[0]: pixels, keys[1]: labels, "classes": np.array(["cat", "dog"])})
    train, test = load(tmp_path / "x.npz")
    assert train.names == ("cat", "dog")
    assert test.labels.bincount().tolist() == [2, 2]
    for part in (train, test):
        assert np.array_equal(part.pixels.numpy()[:, 0], pixels[part.ids.numpy()])


def arrays(tmp_path: Path, pixels: Any) -> Any:
    labels = np.arange(len(pixels), dtype=np.uint8)[:, None] % 2  # the shape of MedMNIST's labels
    parts = {"train_images": pixels, "train_labels": labels, "test_images": pixels, "test_labels": labels}
    np.savez(tmp_path / "x.npz", **parts)
    return load(tmp_path / "x.npz")[0].pixels.numpy()


@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((4, 8, 10), None),
        ((4, 8, 10, 1), (0, 3, 1, 2)),
        ((4, 8, 10, 3), (0, 3, 1, 2)),
        ((4, 1, 8, 10), (0, 1, 2, 3)),
        ((4, 3, 8, 10), (0, 1, 2, 3)),
    ],
)
def test_arrays_can_have_channels_first_or_last_or_none(shape, axes, tmp_path):
    pixels = noise(*shape)
    want = pixels[:, None] if axes is None else pixels.transpose(axes)
    assert np.array_equal(arrays(tmp_path, pixels), want)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, "<u2", ">u2"])
def test_floats_from_zero_to_one_and_sixteen_bits_are_scaled(dtype, tmp_path):
    if np.dtype(dtype).kind == "f":
        pixels = np.arange(256, dtype=np.uint8).reshape(4, 8, 8)
        assert np.array_equal(arrays(tmp_path, (pixels / 255).astype(dtype))[:, 0], pixels)
    else:
        found = arrays(tmp_path, np.stack([WIDE, WIDE]).astype(dtype))
        assert np.array_equal(found[0, 0], (WIDE / 257).round())


def test_parts_of_different_sizes_are_resized(tmp_path):
    parts = {"train_images": noise(4, 8, 10), "train_labels": [0, 1, 0, 1]}
    parts |= {"test_images": np.full((2, 20, 20, 3), 77, dtype=np.uint8), "test_labels": [0, 1]}
    np.savez(tmp_path / "x.npz", **parts)
    train, test = load(tmp_path / "x.npz", size=8)
    assert train.pixel_shape == test.pixel_shape == (3, 8, 8)
    assert np.array_equal(train.pixels[:, 1].numpy(), parts["train_images"][:, :, 1:9])
    assert (test.pixels == 77).all()


def test_pickled_objects_are_refused_and_not_run(tmp_path):
    objects = np.array([Payload(tmp_path / "it ran")], dtype=object)
    np.savez(tmp_path / "x.npz", images=noise(4, 8, 8), labels=objects)
    np.savez(tmp_path / "y.npz", images=noise(4, 8, 8), labels=[0, 1, 0, 1], other=objects)
    (tmp_path / "z.npz").write_bytes(__import__("pickle").dumps(Payload(tmp_path / "it ran")))
    for file in ("x.npz", "y.npz", "z.npz"):
        with pytest.raises(FileError) as error:
            load(tmp_path / file)
        assert file in sentence(error)
    assert not (tmp_path / "it ran").exists()


ODD_ARRAYS = {
    "no such arrays": {"pictures": noise(10, 8, 8), "labels": [0, 1] * 5},
    "one part alone": {"train_images": noise(10, 8, 8), "train_labels": [0, 1] * 5},
    "nothing": {},
    "no labels": {"images": noise(0, 8, 8), "labels": np.zeros(0, int)},
    "labels are floats": {"images": noise(10, 8, 8), "labels": [0.0, 1.0] * 5},
    "labels are words": {"images": noise(10, 8, 8), "labels": ["a", "b"] * 5},
    "labels are truths": {"images": noise(10, 8, 8), "labels": [True, False] * 5},
    "labels are rows": {"images": noise(10, 8, 8), "labels": np.eye(10, 2, dtype=int)},
    "too few labels": {"images": noise(10, 8, 8), "labels": [0, 1, 0] * 3},
    "flat images": {"images": noise(10, 64), "labels": [0, 1] * 5},
    "five channels": {"images": noise(10, 8, 8, 5), "labels": [0, 1] * 5},
    "floats above one": {"images": noise(10, 8, 8) / 2, "labels": [0, 1] * 5},
    "floats below zero": {"images": noise(10, 8, 8) / 255 - 0.5, "labels": [0, 1] * 5},
    "not a number": {"images": np.full((10, 8, 8), np.nan), "labels": [0, 1] * 5},
    "wide integers": {"images": noise(10, 8, 8).astype(int), "labels": [0, 1] * 5},
    "no pixels": {"images": noise(10, 0, 8), "labels": [0, 1] * 5},
    "a class without a name": {"images": noise(4, 8, 8), "labels": [0, 1, 2, 3], "classes": ["a", "b", "c"]},
    "an endless name": {"images": noise(4, 8, 8), "labels": [0, 1] * 2, "classes": ["a" * 10_000, "b"]},
    "an empty name": {"images": noise(4, 8, 8), "labels": [0, 1] * 2, "classes": ["", "b"]},
    "a negative label": {"images": noise(4, 8, 8), "labels": [0, -1, 1, 1]},
    "an id as label": {"images": noise(4, 8, 8), "labels": [0, 1, 2**40, 2**63 - 1]},
    "a name too few": {"images": noise(10, 8, 8), "labels": [0, 1] * 5, "classes": np.array(["a"])},
    "one name, not a list": {"images": noise(10, 8, 8), "labels": [0, 1] * 5, "classes": np.array("ab")},
}


@pytest.mark.parametrize("content", ODD_ARRAYS.values(), ids=ODD_ARRAYS.keys())
def test_arrays_that_are_not_images_and_labels_are_refused(content, tmp_path):
    np.savez(tmp_path / "x.npz", **content)
    with pytest.raises(DataError) as error:
        load(tmp_path / "x.npz")
    assert "x.npz" in sentence(error) or "one per label" in sentence(error)


# -- Parquet as Hugging Face lays it out ----------------------------------------------------------


def test_one_parquet_file_is_split_by_the_seed(tmp_path):
    labels = [0, 1, 2] * 10
    pixels = parquet(tmp_path / "all.parquet", labels, row_group_size=7)
    train, test = load(tmp_path / "all.parquet")
    assert train.names == ("0", "1", "2")
    assert test.labels.bincount().tolist() == [2, 2, 2]
    for part in (train, test):
        assert np.array_equal(part.pixels.numpy(), pixels[part.ids.numpy()])
        assert part.labels.tolist() == [labels[i] for i in part.ids.tolist()]
        assert paths_of(part) == [f"all_{i}.png" for i in part.ids.tolist()]
    assert load(tmp_path / "all.parquet", split_seed=1)[1].ids.tolist() != test.ids.tolist()


@pytest.mark.parametrize("below", [".", "data"])
@pytest.mark.parametrize("held_out", ["test", "validation"])
def test_shards_are_concatenated_in_order(below, held_out, tmp_path):
    at = tmp_path / below
    first = parquet(at / "train-00000-of-00002.parquet", [0, 1, 2], seed=1)
    second = parquet(at / "train-00001-of-00002.parquet", [2, 1], seed=2)
    held = parquet(at / f"{held_out}-00000-of-00001.parquet", [1, 0], seed=3)
    train, test = load(tmp_path)
    assert np.array_equal(train.pixels.numpy(), np.concatenate([first, second]))
    assert train.labels.tolist() == [0, 1, 2, 2, 1]
    assert np.array_equal(test.pixels.numpy(), held)
    assert test.labels.tolist() == [1, 0]


HUGGINGFACE = {
    "info": {
        "features": {
            "source": {"names": ["web", "camera"], "_type": "ClassLabel"},
            "image": {"_type": "Image"},
            "label": {"names": ["cat", "dog"], "_type": "ClassLabel"},
        }
    }
}


@pytest.mark.parametrize(
    ("metadata", "names"),
    [
        ({"classes": json.dumps(["cat", "dog", "eel"])}, ("cat", "dog", "eel")),
        ({"huggingface": json.dumps(HUGGINGFACE)}, ("cat", "dog")),  # of the label, not of another column
        (None, ("0", "1")),
        ({"huggingface": "{not json"}, ("0", "1")),
        ({"huggingface": json.dumps({"info": {"features": {"label": {"dtype": "int64"}}}})}, ("0", "1")),
        ({"huggingface": "[]"}, ("0", "1")),
    ],
)
def test_class_names_come_from_the_metadata(metadata, names, tmp_path):
    extra = {"source": pa.array([0, 1] * 5)}
    parquet(tmp_path / "all.parquet", [0, 1] * 5, metadata=metadata, extra=extra)
    assert load(tmp_path / "all.parquet")[0].names == names


def test_the_column_names_of_cifar_are_known(tmp_path):
    pixels = parquet(tmp_path / "all.parquet", [0, 1] * 5, columns=("img", "fine_label"))
    train, _ = load(tmp_path)
    assert np.array_equal(train.pixels.numpy(), pixels[train.ids.numpy()])


def test_images_can_be_plain_bytes_and_have_no_paths(tmp_path):
    pixels = noise(10, 8, 8, 3)
    table = pa.table({"image": [png(x) for x in pixels], "label": [0, 1] * 5})
    pq.write_table(table, tmp_path / "plain.parquet")
    train, _ = load(tmp_path / "plain.parquet")
    assert np.array_equal(train.pixels.numpy(), pixels.transpose(0, 3, 1, 2)[train.ids.numpy()])
    assert paths_of(train)[0] == f"plain.parquet row {train.ids[0]}"
    parquet(tmp_path / "x" / "none.parquet", [0, 1] * 5, paths=False)
    assert paths_of(load(tmp_path / "x")[0])[0].startswith("none.parquet row ")


def test_rows_that_cannot_be_read_are_named(tmp_path):
    rows = [png(noise(8, 8, 3, seed=i)) for i in range(10)]
    table = pa.table({"image": [*rows[:4], None, b"text", *rows[6:]], "label": [0, 1] * 5})
    pq.write_table(table, tmp_path / "x.parquet")
    with pytest.raises(DataError, match=r"2 that cannot \(x.parquet row 4, x.parquet row 5\)"):
        load(tmp_path / "x.parquet")
    assert sum(map(len, load(tmp_path / "x.parquet", skip_bad=True))) == 8


TEN = [png(x) for x in noise(10, 8, 8)]
ODD_COLUMNS = {
    "no images": ({"picture": TEN, "label": [0, 1] * 5}, "one column 'image' and one column 'label'"),
    "no labels": ({"image": TEN, "kind": [0, 1] * 5}, "one column 'image' and one column 'label'"),
    "words": ({"image": TEN, "label": ["a", "b"] * 5}, "whole numbers"),
    "a gap": ({"image": TEN, "label": [0, None] * 5}, "whole numbers"),
    "floats": ({"image": TEN, "label": [0.5, 1.5] * 5}, "whole numbers"),
    "no rows": ({"image": TEN[:0], "label": []}, "whole numbers"),
    "an id": ({"image": TEN, "label": [0, 2**40] * 5}, str(2**40)),
    "negative": ({"image": TEN, "label": [0, -1] * 5}, "labels from 0 to 0 in x.parquet, got -1"),
    "null": ({"image": pa.nulls(10, pa.binary()), "label": [0, 1] * 5}, "images that can be read"),
    "numbers": ({"image": [3] * 10, "label": [0, 1] * 5}, "images that can be read"),
    "lists": ({"image": [[1, 2]] * 10, "label": [0, 1] * 5}, "images that can be read"),
    "paths": ({"image": [{"bytes": None, "path": 7}] * 10, "label": [0, 1] * 5}, "images that can be read"),
    "text": ({"image": [{"bytes": "x", "path": "a"}] * 10, "label": [0, 1] * 5}, "images that can be read"),
}


@pytest.mark.parametrize(("content", "words"), ODD_COLUMNS.values(), ids=ODD_COLUMNS.keys())
def test_parquet_without_images_and_labels_is_refused(content, words, tmp_path, cache):
    pq.write_table(pa.table(content), tmp_path / "x.parquet")
    with pytest.raises(DataError, match=words) as error:
        load(tmp_path / "x.parquet")
    sentence(error)
    assert not entries(cache)


@pytest.mark.parametrize("columns", [["image", "image", "label"], ["image", "label", "label"]])
def test_a_column_that_is_there_twice_is_refused(columns, tmp_path):
    given = [TEN if name == "image" else [0, 1] * 5 for name in columns]
    pq.write_table(pa.Table.from_arrays(list(map(pa.array, given)), columns), tmp_path / "a.parquet")
    with pytest.raises(DataError, match="one column") as error:
        load(tmp_path / "a.parquet")
    sentence(error)


# -- damage, pipes, loops and names that lead elsewhere -------------------------------------------


@pytest.mark.parametrize("suffix", ["npz", "parquet"])
def test_damaged_files_are_reported_in_one_sentence(suffix, tmp_path):
    path, single = tmp_path / f"x.{suffix}", io.BytesIO()
    np.save(single, noise(4, 8, 8))
    if suffix == "npz":
        np.savez_compressed(path, images=noise(40, 8, 8), labels=[0, 1] * 20)
    else:
        parquet(path, [0, 1] * 50)
    whole = path.read_bytes()
    middle = bytearray(whole)
    middle[100 : len(whole) // 2] = bytes(len(whole) // 2 - 100)
    for content in (b"", b"text", whole[: len(whole) // 2], whole[:-1], bytes(middle), single.getvalue()):
        path.write_bytes(content)
        with pytest.raises(FileError) as error:
            load(path)
        assert path.name in sentence(error)
    for at in range(0, len(whole), len(whole) // 40):  # in the header, the pages and the footer
        path.write_bytes(whole[:at] + bytes(255 - b for b in whole[at : at + 8]) + whole[at + 8 :])
        sentence_or_nothing(path)


def folder(tmp_path: Path) -> Path:
    for name in ("cat", "dog"):
        for i in range(5):
            save(tmp_path / "data" / name / f"{i}.png", noise(8, 8, seed=i))
    return tmp_path / "data"


def fifo(path: Path) -> None:
    os.mkfifo(path)


def listening(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # the path of a socket must be short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


def loop(path: Path) -> None:
    path.symlink_to(path.name)


@pytest.mark.parametrize(
    "make", [fifo, listening, Path.mkdir, loop], ids=["pipe", "socket", "folder", "loop"]
)
def test_what_is_named_like_an_image_and_is_none_is_named(tmp_path: Path, cache: Path, make: Any) -> None:
    data = folder(tmp_path)
    make(data / "cat" / "odd.png")
    with pytest.raises(DataError) as caught:
        load(data)
    assert "1 that cannot (cat/odd.png)" in sentence(caught)
    train, test = load(data, skip_bad=True)
    assert len(train) + len(test) == 10


def test_a_pipe_among_parquet_files_is_refused(tmp_path: Path, cache: Path) -> None:
    os.mkfifo(tmp_path / "train-0.parquet")
    with pytest.raises(FileError) as caught:
        load(tmp_path)
    assert "train-0.parquet" in sentence(caught)


def test_names_in_the_cache_stay_in_the_cache(tmp_path: Path, cache: Path) -> None:
    data = tmp_path / "a.npz"
    np.savez(data, images=noise(10, 8, 8), labels=[0, 1] * 5)
    pixels = load(data)[0].pixels.clone()
    (facts,) = cache.glob("*/facts.json")
    content = json.loads(facts.read_text())
    stolen = tmp_path / "stolen.bin"
    stolen.write_bytes(bytes(10 * 64))
    content["parts"] = {"../../../stolen": content["parts"]["all"]}
    facts.write_text(json.dumps(content))
    assert load(data)[0].pixels.equal(pixels)  # decoded again
    with pytest.raises(PurgeError):
        copies(["../../../etc/passwd"])
