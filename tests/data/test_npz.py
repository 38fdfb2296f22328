"""Arrays in .npz files, and files that are refused."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from purge.core.errors import DataError, FileError
from tests.data.image_files import (
    WIDE,
    Payload,
    load,
    noise,
    sentence,
    sentence_or_nothing,
)

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


def test_damaged_arrays_are_reported_in_one_sentence(tmp_path):
    path = tmp_path / "x.npz"
    np.savez_compressed(path, images=noise(40, 8, 8), labels=[0, 1] * 20)
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[100:140] = bytes(40)
    single = io.BytesIO()
    np.save(single, noise(4, 8, 8))
    for content in (b"", b"text", whole[: len(whole) // 2], whole[:-1], bytes(flipped), single.getvalue()):
        path.write_bytes(content)
        with pytest.raises(FileError) as error:
            load(path)
        assert "x.npz" in sentence(error)
    for at in range(0, len(whole), len(whole) // 40):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        sentence_or_nothing(path)


ODD = {
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


@pytest.mark.parametrize("content", ODD.values(), ids=ODD.keys())
def test_arrays_that_are_not_images_and_labels_are_refused(content, tmp_path):
    np.savez(tmp_path / "x.npz", **content)
    with pytest.raises(DataError) as error:
        load(tmp_path / "x.npz")
    assert "x.npz" in sentence(error) or "one per label" in sentence(error)
