"""Files of data that bite: pipes and loops among images, labels of 2^40, columns that are there twice."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from purge.core.errors import DataError, FileError, PurgeError
from purge.data.cache import copies
from tests.data.image_files import load, noise, png, save, sentence


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


def test_a_folder_in_itself_is_read_once(tmp_path: Path, cache: Path) -> None:
    data = folder(tmp_path)
    (data / "cat" / "again").symlink_to(data / "cat", target_is_directory=True)
    assert sum(map(len, load(data))) == 10


def test_a_pipe_among_parquet_files_is_refused(tmp_path: Path, cache: Path) -> None:
    os.mkfifo(tmp_path / "train-0.parquet")
    with pytest.raises(FileError) as caught:
        load(tmp_path)
    assert "train-0.parquet" in sentence(caught)


def arrays(path: Path, labels: Any, **more: Any) -> Path:
    np.savez(path, images=noise(len(labels), 8, 8), labels=np.array(labels), **more)
    return path


@pytest.mark.parametrize(("labels", "words"), [
    ([0, 1, 2**40] * 5, str(2**40)), ([0, 1, -1] * 5, "got -1"), ([0.0, 1.0, 0.5] * 5, "0.0"),
    ([0, 1, 2**63 - 1] * 5, "labels from 0 to"),
])  # fmt: skip
def test_labels_of_arrays_and_parquet_are_refused(
    tmp_path: Path, cache: Path, labels: list[Any], words: str
) -> None:
    pictures = pa.array([png(x) for x in noise(len(labels), 8, 8)])
    pq.write_table(pa.table({"image": pictures, "label": pa.array(labels)}), tmp_path / "a.parquet")
    for path in (arrays(tmp_path / "a.npz", labels), tmp_path / "a.parquet"):
        with pytest.raises(DataError) as caught:
            load(path)
        assert words in sentence(caught)
    assert not list(cache.glob("*-*"))


@pytest.mark.parametrize("names", [["", "b"], ["x" * 10_000, "b"]], ids=["empty", "endless"])
def test_class_names_of_a_file_are_refused(tmp_path: Path, cache: Path, names: list[str]) -> None:
    with pytest.raises(DataError) as caught:
        load(arrays(tmp_path / "a.npz", [0, 1] * 5, classes=np.array(names)))
    assert "names of 1 to 300 characters" in sentence(caught)


def test_a_column_that_is_there_twice_is_refused(tmp_path: Path, cache: Path) -> None:
    pictures, labels = pa.array([png(x) for x in noise(10, 8, 8)]), pa.array([0, 1] * 5)
    for columns in (["image", "image", "label"], ["image", "label", "label"]):
        given = [pictures if name == "image" else labels for name in columns]
        pq.write_table(pa.Table.from_arrays(given, columns), tmp_path / "a.parquet")
        with pytest.raises(DataError) as caught:
            load(tmp_path / "a.parquet")
        assert "one column" in sentence(caught)


@pytest.mark.parametrize("images", [
    pa.nulls(10, pa.binary()), pa.array([3] * 10), pa.array(["a.png"] * 10), pa.array([[1, 2]] * 10),
    pa.array([{"bytes": None, "path": 7}] * 10), pa.array([{"bytes": "text", "path": "a"}] * 10),
], ids=["null", "numbers", "words", "lists", "paths by number", "bytes are text"])  # fmt: skip
def test_images_of_the_wrong_type_are_refused(tmp_path: Path, cache: Path, images: Any) -> None:
    pq.write_table(pa.table({"image": images, "label": [0, 1] * 5}), tmp_path / "a.parquet")
    with pytest.raises(DataError) as caught:
        load(tmp_path / "a.parquet")
    assert "images that can be read" in sentence(caught)


def test_names_in_the_cache_stay_in_the_cache(tmp_path: Path, cache: Path) -> None:
    data = arrays(tmp_path / "a.npz", [0, 1] * 5)
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
