"""Files of data that bite: pipes and loops among images, labels of 2^40, columns that are there twice."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from purge.core.errors import DataError, FileError, PurgeError
from purge.data.cache import copies
from tests.data.image_files import load, noise, save, sentence


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
