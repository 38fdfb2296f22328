"""Data of one's own: folders, Parquet, .npz; every mode of image; the cache; and what is refused."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import shutil
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

import purge
import purge.data.decode
from purge.core.errors import DataError, FileError
from purge.data.images import Images
from purge.data.prefetch import say_once

SENTENCE = re.compile(r"Expected .+, got .+\. Fix: .+\.")
Load = Callable[..., tuple[Images, Images]]


def sentence(error: pytest.ExceptionInfo[BaseException]) -> str:
    text = str(error.value)
    assert SENTENCE.fullmatch(text), text
    return text


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache of the test's own; what is kept there."""
    monkeypatch.setenv("PURGE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "decoded"


def load(data: Any, **options: Any) -> tuple[Images, Images]:
    return purge.load(data, progress=False, **options)


def noise(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng([seed, *shape]).integers(0, 256, shape, dtype=np.uint8)


def save(path: Path, pixels: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return path


def tree(root: Path, classes: dict[str, int], *, side: int = 8, seed: int = 0) -> dict[str, Any]:
    """Colour images in folders of classes; pixels (C, H, W) by path below the root."""
    made = {}
    for c, (name, n) in enumerate(classes.items()):
        for i in range(n):
            made[f"{name}/{i:03}.png"] = noise(side, side, 3, seed=1000 * seed + 100 * c + i)
    for path, pixels in made.items():
        save(root / path, pixels)
    return {path: pixels.transpose(2, 0, 1) for path, pixels in made.items()}


def paths_of(images: Images) -> list[str]:
    return [images.paths[i] for i in images.ids.tolist()]


def check(images: Images, made: dict[str, Any], below: str = "") -> None:
    """Every image is there, by its path, with the pixels that were written and the class of its folder."""
    for path, pixels, label in zip(
        paths_of(images), images.pixels.numpy(), images.labels.tolist(), strict=True
    ):
        assert np.array_equal(pixels, made[path.removeprefix(below)]), path
        assert path.removeprefix(below).split("/")[0] == images.names[label]


# -- folders ----------------------------------------------------------------------------------


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


def test_test_goes_before_validation(tmp_path):
    for part, n in (("train", 3), ("val", 2), ("test", 1)):
        tree(tmp_path / part, {"a": n, "b": n})
    assert [len(part) for part in load(tmp_path)] == [6, 2]


def test_one_tree_is_split_by_the_seed(tmp_path):
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


def test_a_tree_with_train_alone_is_split_too(tmp_path):
    made = tree(tmp_path / "train", {"a": 5, "b": 5})
    train, test = load(tmp_path)
    assert (len(train), len(test)) == (8, 2)
    check(train, made, "train/")
    inside, _ = load(tmp_path / "train")  # the same files, called by other paths
    check(inside, made)
    check(load(tmp_path)[0], made, "train/")


def test_trains_may_be_a_class(tmp_path):
    made = tree(tmp_path, {"car": 5, "plane": 5, "train": 5})
    train, _ = load(tmp_path)
    assert train.names == ("car", "plane", "train")
    check(train, made)


def test_numbered_classes_are_in_the_order_of_their_numbers(tmp_path):
    made = tree(tmp_path / "n", {str(i): 5 for i in (10, 2, 0, 1, 11)})
    train, _ = load(tmp_path / "n")
    assert train.names == ("0", "1", "2", "10", "11")
    check(train, made)
    tree(tmp_path / "mixed", {"b": 5, "10": 5, "9": 5, "B": 5, "٣": 5})
    assert load(tmp_path / "mixed")[0].names == ("9", "10", "B", "b", "٣")


def test_images_may_lie_deeper_in_folders_of_their_class(tmp_path):
    for i in range(5):
        save(tmp_path / "a" / f"day {i}" / "x.png", noise(8, 8, 3, seed=i))
        save(tmp_path / "b" / f"{i}.png", noise(8, 8, 3, seed=i))
    train, test = load(tmp_path)
    assert train.names == ("a", "b")
    assert "a/day 0/x.png" in paths_of(train) + paths_of(test)


def test_files_that_are_no_images_are_ignored(tmp_path):
    made = tree(tmp_path, {"a": 5, "b": 5})
    (tmp_path / "readme.txt").write_text("not a class")
    (tmp_path / "a" / "notes.txt").write_text("not an image")
    (tmp_path / "a" / "Thumbs.db").write_bytes(b"\0\1")
    for name in (".DS_Store", "._000.png", ".hidden.jpg"):  # Apple puts ._x.png beside every x.png
        (tmp_path / "b" / name).write_bytes(b"\0\5\x16\7\0\2\0\0Mac OS X")
    tree(tmp_path / ".git", {"c": 3})
    (tmp_path / "empty").mkdir()
    found = load(tmp_path)
    assert sum(map(len, found)) == 10
    assert found[0].names == ("a", "b")
    check(found[0], made)


def test_a_folder_may_be_called_by_a_dot(tmp_path, monkeypatch):
    made = tree(tmp_path / "own", {"a": 5, "b": 5})
    monkeypatch.chdir(tmp_path / "own")
    train, _ = load(".")
    check(train, made)
    assert train.source == load(tmp_path / "own")[0].source


def test_a_source_is_known_by_its_images_wherever_they_are_and_whatever_their_age(tmp_path):
    tree(tmp_path / "here", {"a": 5, "b": 5})
    shutil.copytree(tmp_path / "here", tmp_path / "there", copy_function=shutil.copyfile)
    source = load(tmp_path / "here")[0].source
    assert source == load(tmp_path / "there")[0].source
    (tmp_path / "there" / "a").rename(tmp_path / "there" / "c")  # then b comes first
    assert source != load(tmp_path / "there")[0].source
    one = next((tmp_path / "here" / "b").iterdir())
    Image.new("RGB", (8, 8)).save(one)
    assert source != load(tmp_path / "here")[0].source


# -- modes ------------------------------------------------------------------------------------


def stored(tmp_path: Path, *writes: Callable[[Path], Any], suffix: str = "png", **options: Any) -> Any:
    """The pixels (C, H, W) that files become; each is written by one of the functions."""
    for i, write in enumerate(writes):
        for part, name in (("train", "a"), ("train", "b"), ("test", "a")):
            path = tmp_path / part / name / f"{i}.{suffix}"
            path.parent.mkdir(parents=True, exist_ok=True)
            write(path)
    train, test = load(tmp_path, **options)
    assert torch.equal(train.pixels[: len(writes)], test.pixels)
    pixels = [x.numpy() for x in test.pixels]
    return pixels[0] if len(writes) == 1 else pixels


RAMP = np.arange(96, dtype=np.uint8).reshape(8, 12)  # no turn or flip of it is itself
COLOUR = np.stack([RAMP, 255 - RAMP, RAMP * 2], 2)


@pytest.mark.parametrize("suffix", ["png", "bmp", "tif", "pgm", "webp", "PNG", "gif"])
def test_grey_images_have_one_channel(suffix, tmp_path):
    options = {"lossless": True} if suffix == "webp" else {}
    found = stored(tmp_path, lambda p: Image.fromarray(RAMP).save(p, **options), suffix=suffix)
    if suffix == "webp":  # which knows colour only
        assert np.array_equal(found, np.broadcast_to(RAMP, (3, 8, 12)))
    else:
        assert np.array_equal(found, RAMP[None])


@pytest.mark.parametrize("suffix", ["png", "bmp", "tiff", "ppm", "webp"])
def test_colour_images_are_as_written(suffix, tmp_path):
    options = {"lossless": True} if suffix == "webp" else {}
    found = stored(tmp_path, lambda p: Image.fromarray(COLOUR).save(p, **options), suffix=suffix)
    assert np.array_equal(found, COLOUR.transpose(2, 0, 1))


def over_white(values: Any, alpha: Any) -> Any:
    a = alpha.astype(float) / 255
    return values.astype(float) * a + 255 * (1 - a)


ALPHA = np.resize(np.array([0, 255, 128, 51], dtype=np.uint8), (8, 12))


def test_transparent_colour_becomes_white(tmp_path):
    rgba = np.dstack([COLOUR, ALPHA])
    found = stored(tmp_path, lambda p: Image.fromarray(rgba, "RGBA").save(p))
    want = over_white(COLOUR, ALPHA[:, :, None]).transpose(2, 0, 1)
    assert np.abs(found - want).max() <= 1
    assert (found[:, ALPHA == 0] == 255).all()
    assert np.array_equal(found[:, ALPHA == 255], COLOUR.transpose(2, 0, 1)[:, ALPHA == 255])


def test_transparent_grey_becomes_white_and_stays_grey(tmp_path):
    la = Image.merge("LA", [Image.fromarray(RAMP), Image.fromarray(ALPHA)])
    found = stored(tmp_path, la.save)
    assert found.shape == (1, 8, 12)
    assert np.abs(found[0] - over_white(RAMP, ALPHA)).max() <= 1


def test_a_transparent_value_of_a_grey_or_colour_png_becomes_white(tmp_path):
    grey = stored(tmp_path / "L", lambda p: Image.fromarray(RAMP).save(p, transparency=5))
    want = RAMP.copy()
    want[RAMP == 5] = 255
    assert np.array_equal(grey, want[None])
    colour = stored(tmp_path / "RGB", lambda p: Image.fromarray(COLOUR).save(p, transparency=(5, 250, 10)))
    want = COLOUR.copy()
    want[RAMP == 5] = 255
    assert np.array_equal(colour, want.transpose(2, 0, 1))


def palette() -> Image.Image:
    image = Image.fromarray(RAMP % 4, "L").convert("P")
    image.putpalette([10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 110, 120] + [0] * 756)
    return image


@pytest.mark.parametrize("suffix", ["png", "gif", "bmp"])
def test_palettes_become_their_colours(suffix, tmp_path):
    colours = np.arange(10, 130, 10, dtype=np.uint8).reshape(4, 3)
    found = stored(tmp_path, lambda p: palette().save(p), suffix=suffix)
    assert np.array_equal(found, colours[RAMP % 4].transpose(2, 0, 1))


@pytest.mark.parametrize(
    ("suffix", "transparency"), [("png", 2), ("gif", 2), ("png", bytes([255, 255, 0, 255]))]
)
def test_the_transparent_colour_of_a_palette_becomes_white(suffix, transparency, tmp_path):
    colours = np.arange(10, 130, 10, dtype=np.uint8).reshape(4, 3)
    colours[2] = 255
    found = stored(tmp_path, lambda p: palette().save(p, transparency=transparency), suffix=suffix)
    assert np.array_equal(found, colours[RAMP % 4].transpose(2, 0, 1))


def test_the_first_picture_of_an_animation_counts(tmp_path):
    first, second = (Image.fromarray(x) for x in (RAMP, 255 - RAMP))
    found = stored(tmp_path, lambda p: first.save(p, save_all=True, append_images=[second]), suffix="gif")
    assert np.array_equal(found[0], RAMP)


@pytest.mark.parametrize("suffix", ["png", "tif", "pbm"])
def test_one_bit_is_black_and_white(suffix, tmp_path):
    bits = RAMP % 3 == 0
    found = stored(tmp_path, lambda p: Image.fromarray(bits).save(p), suffix=suffix)
    assert np.array_equal(found, np.where(bits, 255, 0).astype(np.uint8)[None])


WIDE = np.resize(np.array([0, 128, 129, 257, 514, 32768, 65406, 65407, 65535], dtype=np.uint16), (8, 12))


@pytest.mark.parametrize("kind", ["png", "tif", "big-endian tif", "pgm"])
def test_sixteen_bits_are_scaled_to_eight(kind, tmp_path):
    def write(path: Path) -> None:
        big = kind.startswith("big")
        swapped = Image.frombytes("I;16B", WIDE.shape[::-1], WIDE.astype(">u2").tobytes())
        (swapped if big else Image.fromarray(WIDE)).save(path)

    found = stored(tmp_path, write, suffix=kind.split()[-1])
    assert found.dtype == np.uint8
    assert np.array_equal(found, (WIDE / 257).round()[None])
    assert found[0, 0, :9].tolist() == [0, 0, 1, 1, 2, 128, 254, 255, 255]


def test_floats_are_taken_from_zero_to_one_or_to_255(tmp_path):
    unit = stored(
        tmp_path / "1", lambda p: Image.fromarray(RAMP.astype(np.float32) / 255).save(p), suffix="tif"
    )
    whole = stored(tmp_path / "255", lambda p: Image.fromarray(RAMP.astype(np.float32)).save(p), suffix="tif")
    assert np.array_equal(unit, RAMP[None])
    assert np.array_equal(whole, RAMP[None])


def test_print_colours_become_screen_colours(tmp_path):
    cmyk = Image.fromarray(COLOUR).resize((32, 32)).convert("CMYK")
    found = stored(tmp_path, lambda p: cmyk.save(p, quality=95), suffix="jpg")
    assert found.shape == (3, 32, 32)
    want = np.asarray(cmyk.convert("RGB")).transpose(2, 0, 1)
    assert np.abs(found.astype(int) - want).mean() < 5  # and not its negative
    with Image.open(tmp_path / "train" / "a" / "0.jpg") as image:
        assert image.mode == "CMYK"
        assert np.array_equal(found, np.asarray(image.convert("RGB")).transpose(2, 0, 1))


UPRIGHT = {  # what a camera that wrote this orientation means, from the standard
    1: lambda x: x,
    2: lambda x: x[:, ::-1],
    3: lambda x: x[::-1, ::-1],
    4: lambda x: x[::-1],
    5: lambda x: x.swapaxes(0, 1),
    6: lambda x: np.rot90(x, -1),
    7: lambda x: x[::-1, ::-1].swapaxes(0, 1),
    8: lambda x: np.rot90(x, 1),
}


@pytest.mark.parametrize("orientation", UPRIGHT)
@pytest.mark.parametrize("suffix", ["png", "jpg"])
def test_photographs_on_their_side_are_put_upright(suffix, orientation, tmp_path):
    exif = Image.Exif()
    exif[0x0112] = orientation
    photograph = noise(2, 3, 3).repeat(8, 0).repeat(8, 1)  # 16 high, 24 wide

    def write(path: Path) -> None:
        Image.fromarray(photograph).save(path, exif=exif, **({"quality": 95} if suffix == "jpg" else {}))

    found = stored(tmp_path, write, suffix=suffix).transpose(1, 2, 0)
    want = UPRIGHT[orientation](photograph)
    assert found.shape == want.shape == ((24, 16, 3) if orientation > 4 else (16, 24, 3))
    assert np.abs(found.astype(int) - want).mean() < (1 if suffix == "png" else 20)
    with Image.open(tmp_path / "train" / "a" / f"0.{suffix}") as image:
        assert np.array_equal(found, UPRIGHT[orientation](np.asarray(image)))


def test_grey_among_colours_gets_three_equal_channels(tmp_path):
    one, two = stored(
        tmp_path, lambda p: Image.fromarray(RAMP).save(p), lambda p: Image.fromarray(COLOUR).save(p)
    )
    assert np.array_equal(one, np.broadcast_to(RAMP, (3, 8, 12)))
    assert np.array_equal(two, COLOUR.transpose(2, 0, 1))


# -- sizes ------------------------------------------------------------------------------------


def striped(height: int, width: int) -> Any:
    """Red, green and blue from left to right (or from top to bottom), each a third."""
    n = max(height, width)
    line = np.zeros((n, 3), dtype=np.uint8)
    for c in range(3):
        line[c * n // 3 : (c + 1) * n // 3, c] = 255
    whole = np.broadcast_to(line[None], (min(height, width), n, 3))
    return np.ascontiguousarray(whole if width >= height else whole.swapaxes(0, 1))


def test_images_of_different_sizes_are_brought_to_one(tmp_path):
    def writes(*sides: tuple[int, int]) -> list[Callable[[Path], Any]]:
        return [lambda p, s=s: Image.fromarray(striped(*s)).save(p) for s in sides]

    wide, tall, large = stored(tmp_path, *writes((30, 90), (90, 30), (60, 180)), size=30)
    assert wide.shape == tall.shape == large.shape == (3, 30, 30)
    assert (wide[1] == 255).all()  # the centre of the shorter side: the green third, unscaled
    assert (wide[[0, 2]] == 0).all()
    assert np.array_equal(wide, tall)
    assert (large[1, :, 2:-2] == 255).all()
    assert load(tmp_path, size=30)[0].shape == (3, 30, 30)
    train, _ = load(tmp_path)  # nothing said: 224
    assert train.shape == train.pixel_shape == (3, 224, 224)


def test_large_images_of_one_size_are_brought_to_224(tmp_path):
    found = stored(tmp_path, lambda p: Image.fromarray(striped(300, 300)).save(p))
    assert found.shape == (3, 224, 224)
    assert found[:, 112, 10].tolist() == [255, 0, 0]
    assert found[:, 112, -10].tolist() == [0, 0, 255]
    assert found[:, 5, 112].tolist() == [0, 255, 0]


def test_images_of_one_size_up_to_256_are_kept_as_they_are(tmp_path):
    found = stored(tmp_path, lambda p: Image.fromarray(noise(200, 256)).save(p))
    assert np.array_equal(found[0], noise(200, 256))
    train, _ = load(tmp_path, size=64)
    assert train.shape == (1, 64, 64)
    assert train.pixel_shape == (1, 200, 256)


# -- images that cannot be read ---------------------------------------------------------------


def with_three_broken(root: Path) -> list[str]:
    """40 images, three of them broken: empty, truncated, text."""
    tree(root, {"a": 20, "b": 20}, side=24)
    whole = (root / "a" / "007.png").read_bytes()
    (root / "a" / "003.png").write_bytes(b"")
    (root / "a" / "007.png").write_bytes(whole[: len(whole) // 2])
    (root / "b" / "019.png").write_text("this is text")
    return ["a/003.png", "a/007.png", "b/019.png"]


def test_images_that_cannot_be_read_are_named_all_at_once(tmp_path, cache):
    bad = with_three_broken(tmp_path / "own")
    with pytest.raises(DataError) as error:
        load(tmp_path / "own")
    text = sentence(error)
    assert "3 that cannot" in text
    assert all(path in text for path in bad)
    assert "skip_bad" in text


def test_what_could_be_read_beside_bad_images_is_not_decoded_again(tmp_path, cache, monkeypatch):
    with_three_broken(tmp_path / "own")
    with pytest.raises(DataError):
        load(tmp_path / "own")
    monkeypatch.setattr("purge.data.decode._decode", lambda item, form: pytest.fail("decoded again"))
    assert sum(map(len, load(tmp_path / "own", skip_bad=True))) == 37


def test_a_link_to_nowhere_is_a_bad_image(tmp_path, cache):
    with_three_broken(tmp_path / "own")
    (tmp_path / "own" / "a" / "dead.png").symlink_to(tmp_path / "nowhere.png")
    with pytest.raises(DataError, match=r"4 that cannot.*a/dead\.png"):
        load(tmp_path / "own")


@pytest.mark.parametrize("parts", [("Training", "Testing"), ("TRAIN", "Val"), ("train", "Test")])
def test_parts_may_be_called_otherwise(tmp_path, cache, parts):
    for part, n in zip(parts, (6, 2), strict=True):
        for name in ("cat", "dog"):
            (tmp_path / "own" / part / name).mkdir(parents=True)
            for i in range(n):
                Image.new("L", (8, 8), i).save(tmp_path / "own" / part / name / f"{i}.png")
    train, test = load(tmp_path / "own")
    assert train.names == ("cat", "dog")
    assert (len(train), len(test)) == (12, 4)


def test_parts_without_one_for_training_are_not_classes(tmp_path, cache):
    for part in ("val", "test"):
        for name in ("cat", "dog"):
            (tmp_path / "own" / part / name).mkdir(parents=True)
            Image.new("L", (8, 8)).save(tmp_path / "own" / part / name / "0.png")
    with pytest.raises(DataError, match=r"Expected one folder per class.*contain the same folders"):
        load(tmp_path / "own")


def test_images_that_cannot_be_read_may_be_left_out(tmp_path, cache, caplog):
    bad = with_three_broken(tmp_path / "own")
    say_once.cache_clear()
    with caplog.at_level(logging.WARNING, logger="purge"):
        found = load(tmp_path / "own", skip_bad=True)
        again = load(tmp_path / "own", skip_bad=True)
    assert sum(map(len, found)) == sum(map(len, again)) == 37
    assert not set(bad) & set(paths_of(found[0]) + paths_of(found[1]))
    assert found[0].shape == (3, 24, 24)
    said = [r.getMessage() for r in caplog.records]
    assert len(said) == 1
    assert "3 of 40" in said[0]
    assert all(path in said[0] for path in bad)
    with pytest.raises(DataError) as error:  # to have them left out once is no leave for ever
        load(tmp_path / "own")
    assert all(path in sentence(error) for path in bad)


def test_paths_of_the_others_are_right_where_some_are_left_out(tmp_path):
    made = tree(tmp_path, {"a": 20, "b": 20})
    (tmp_path / "a" / "003.png").write_bytes(b"")
    for part in load(tmp_path, skip_bad=True):
        check(part, made)


def test_a_truncated_photograph_is_broken(tmp_path):
    tree(tmp_path, {"a": 5, "b": 5}, side=64)
    file = io.BytesIO()
    Image.fromarray(noise(64, 64, 3)).save(file, "JPEG")
    (tmp_path / "a" / "x.jpg").write_bytes(file.getvalue()[:-500])
    with pytest.raises(DataError, match=r"a/x\.jpg"):
        load(tmp_path)


def test_many_bad_images_are_counted(tmp_path):
    tree(tmp_path, {"a": 5, "b": 5})
    for i in range(130):
        (tmp_path / "a" / f"x{i:03}.png").write_bytes(b"")
    with pytest.raises(DataError) as error:
        load(tmp_path)
    text = sentence(error)
    assert "130 that cannot" in text
    assert "and 30 more" in text


def test_images_of_which_none_can_be_read_are_refused(tmp_path):
    for path in ("a/1.png", "b/2.png"):
        (tmp_path / path).parent.mkdir()
        (tmp_path / path).write_bytes(b"")
    for skip_bad in (False, True):
        with pytest.raises(DataError) as error:
            load(tmp_path, skip_bad=skip_bad)
        sentence(error)


# -- Parquet ----------------------------------------------------------------------------------


def png(pixels: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def parquet(
    path: Path,
    labels: list[int],
    *,
    seed: int = 0,
    metadata: dict[str, str] | None = None,
    columns: tuple[str, str] = ("image", "label"),
    paths: bool = True,
    extra: dict[str, Any] | None = None,
    **options: Any,
) -> Any:
    """Write images in the layout of Hugging Face; their pixels (N, C, H, W)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = noise(len(labels), 8, 8, 3, seed=seed)
    rows = [
        {"bytes": png(x), "path": f"{path.stem}_{i}.png" if paths else None} for i, x in enumerate(pixels)
    ]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    columns_of = {columns[0]: pa.array(rows, kind), **(extra or {}), columns[1]: pa.array(labels, pa.int64())}
    table = pa.table(columns_of).replace_schema_metadata(metadata)
    pq.write_table(table, path, **options)
    return pixels.transpose(0, 3, 1, 2)


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
def test_shards_are_put_together_in_order(below, held_out, tmp_path):
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
def test_names_come_from_what_parquet_says_about_itself(metadata, names, tmp_path):
    extra = {"source": pa.array([0, 1] * 5)}
    parquet(tmp_path / "all.parquet", [0, 1] * 5, metadata=metadata, extra=extra)
    assert load(tmp_path / "all.parquet")[0].names == names


def test_columns_may_have_the_names_that_cifar_has_there(tmp_path):
    pixels = parquet(tmp_path / "all.parquet", [0, 1] * 5, columns=("img", "fine_label"))
    train, _ = load(tmp_path)
    assert np.array_equal(train.pixels.numpy(), pixels[train.ids.numpy()])


def test_images_may_be_plain_bytes_and_paths_may_be_missing(tmp_path):
    pixels = noise(10, 8, 8, 3)
    table = pa.table({"image": [png(x) for x in pixels], "label": [0, 1] * 5})
    pq.write_table(table, tmp_path / "plain.parquet")
    train, _ = load(tmp_path / "plain.parquet")
    assert np.array_equal(train.pixels.numpy(), pixels.transpose(0, 3, 1, 2)[train.ids.numpy()])
    assert paths_of(train)[0] == f"plain.parquet row {train.ids[0]}"
    parquet(tmp_path / "x" / "none.parquet", [0, 1] * 5, paths=False)
    assert paths_of(load(tmp_path / "x")[0])[0].startswith("none.parquet row ")


def test_rows_of_parquet_that_cannot_be_read_are_named(tmp_path):
    rows = [png(noise(8, 8, 3, seed=i)) for i in range(10)]
    table = pa.table({"image": [*rows[:4], None, b"text", *rows[6:]], "label": [0, 1] * 5})
    pq.write_table(table, tmp_path / "x.parquet")
    with pytest.raises(DataError, match=r"2 that cannot \(x.parquet row 4, x.parquet row 5\)"):
        load(tmp_path / "x.parquet")
    assert sum(map(len, load(tmp_path / "x.parquet", skip_bad=True))) == 8


# -- .npz -------------------------------------------------------------------------------------


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
    labels = np.arange(len(pixels), dtype=np.uint8)[:, None] % 2  # as MedMNIST has them
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
def test_arrays_of_every_order(shape, axes, tmp_path):
    pixels = noise(*shape)
    want = pixels[:, None] if axes is None else pixels.transpose(axes)
    assert np.array_equal(arrays(tmp_path, pixels), want)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_arrays_of_floats_from_zero_to_one(dtype, tmp_path):
    pixels = np.arange(256, dtype=np.uint8).reshape(4, 8, 8)
    assert np.array_equal(arrays(tmp_path, (pixels / 255).astype(dtype))[:, 0], pixels)


@pytest.mark.parametrize("dtype", ["<u2", ">u2"])
def test_arrays_of_sixteen_bits(dtype, tmp_path):
    assert np.array_equal(
        arrays(tmp_path, np.stack([WIDE, WIDE.T.reshape(8, 12)]).astype(dtype))[0, 0], (WIDE / 257).round()
    )


def test_arrays_of_parts_that_differ_in_size(tmp_path):
    parts = {"train_images": noise(4, 8, 10), "train_labels": [0, 1, 0, 1]}
    parts |= {"test_images": np.full((2, 20, 20, 3), 77, dtype=np.uint8), "test_labels": [0, 1]}
    np.savez(tmp_path / "x.npz", **parts)
    train, test = load(tmp_path / "x.npz", size=8)
    assert train.pixel_shape == test.pixel_shape == (3, 8, 8)
    assert np.array_equal(train.pixels[:, 1].numpy(), parts["train_images"][:, :, 1:9])
    assert (test.pixels == 77).all()


# -- constants --------------------------------------------------------------------------------


def test_mean_and_spread_are_those_of_the_pixels(tmp_path):
    tree(tmp_path, {"a": 30, "b": 40}, side=16)
    train, test = load(tmp_path)
    pixels = torch.cat([train.pixels, test.pixels]).double() / 255
    assert train.mean == test.mean == pytest.approx(pixels.mean((0, 2, 3)).tolist(), abs=1e-4)
    assert train.std == pytest.approx(pixels.std((0, 2, 3), correction=0).tolist(), abs=1e-4)


def test_images_of_one_colour_have_a_spread_to_divide_by(tmp_path):
    for name in "ab":
        for i in range(5):
            save(tmp_path / name / f"{i}.png", np.full((8, 8), 77, dtype=np.uint8))
    x, _ = load(tmp_path)[0].take(torch.tensor([0]))
    assert x.isfinite().all()


# -- what is kept -----------------------------------------------------------------------------


def entries(cache: Path) -> list[str]:
    return sorted(p.name for p in cache.iterdir())


def no_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> None:
        raise AssertionError("an image was decoded")

    for name in ("_decode", "_header"):
        monkeypatch.setattr(purge.data.decode, name, never)


def test_the_second_load_decodes_nothing(tmp_path, cache, monkeypatch):
    tree(tmp_path / "own", {"a": 5, "b": 5})
    first = load(tmp_path / "own")
    kept = {p: (p.stat().st_mtime_ns, p.stat().st_ino) for p in cache.rglob("*")}
    no_decoding(monkeypatch)
    second = load(tmp_path / "own")
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a.pixels, b.pixels)
        assert torch.equal(a.labels, b.labels)
        assert (a.names, a.mean, a.std, a.source) == (b.names, b.mean, b.std, b.source)
        assert paths_of(a) == paths_of(b)
    assert load(tmp_path / "own", size=32)[0].shape == (3, 32, 32)  # made from what is kept as it is
    assert load(tmp_path / "own", split_seed=3)
    assert {p: (p.stat().st_mtime_ns, p.stat().st_ino) for p in cache.rglob("*")} == kept


def test_kept_images_are_mapped_into_memory_and_not_read(tmp_path, cache):
    pixels, labels = noise(2000, 64, 64), [0, 1] * 1000
    np.savez(
        tmp_path / "x.npz", train_images=pixels, train_labels=labels, test_images=pixels, test_labels=labels
    )
    train, _ = load(tmp_path / "x.npz")
    at = train.pixels.data_ptr()
    assert train.pixels.data_ptr() == at  # nothing is copied to look at them
    lines = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    mapped = [
        line[-1] for line in lines if int(line[0].split("-")[0], 16) <= at < int(line[0].split("-")[1], 16)
    ]
    assert len(mapped) == 1
    assert mapped[0].startswith(str(cache))
    assert mapped[0].endswith("train.bin")


def test_writing_into_mapped_images_does_not_change_what_is_kept(tmp_path, cache):
    tree(tmp_path / "own", {"a": 5, "b": 5})
    train, _ = load(tmp_path / "own")
    before = load(tmp_path / "own")[0].pixels.clone()
    train._store.fill_(7)
    assert torch.equal(load(tmp_path / "own")[0].pixels, before)


def test_a_changed_file_is_decoded_anew(tmp_path, cache):
    made = tree(tmp_path / "own", {"a": 5, "b": 5})
    load(tmp_path / "own")
    changed = noise(8, 8, 3, seed=99)
    save(tmp_path / "own" / "a" / "002.png", changed)
    made["a/002.png"] = changed.transpose(2, 0, 1)
    for part in load(tmp_path / "own"):
        check(part, made)
    extra = noise(8, 8, 3, seed=98)
    save(tmp_path / "own" / "b" / "new.png", extra)
    made["b/new.png"] = extra.transpose(2, 0, 1)
    found = load(tmp_path / "own")
    assert sum(map(len, found)) == 11
    (tmp_path / "own" / "b" / "new.png").unlink()
    assert sum(map(len, load(tmp_path / "own"))) == 10


def test_a_changed_file_of_the_same_size_is_seen_by_its_time(tmp_path, cache):
    np.savez(tmp_path / "x.npz", images=noise(10, 8, 8), labels=[0, 1] * 5)
    load(tmp_path / "x.npz")
    np.savez(tmp_path / "x.npz", images=noise(10, 8, 8, seed=1), labels=[0, 1] * 5)
    os.utime(tmp_path / "x.npz", ns=(1, 1))
    train, _ = load(tmp_path / "x.npz")
    assert np.array_equal(train.pixels[:, 0].numpy(), noise(10, 8, 8, seed=1)[train.ids.numpy()])


def damage(entry: Path, how: str) -> None:
    bin_file, facts = entry / "all.bin", entry / "facts.json"
    if how == "truncated pixels":
        bin_file.write_bytes(bin_file.read_bytes()[:-1])
    elif how == "no pixels":
        bin_file.unlink()
    elif how == "no facts":
        facts.unlink()
    elif how == "truncated facts":
        facts.write_bytes(facts.read_bytes()[:40])
    elif how == "empty facts":
        facts.write_bytes(b"")
    elif how == "other facts":
        facts.write_text('{"parts": {"all": []}, "form": [1]}')
    elif how == "binary facts":
        facts.write_bytes(b"\xff\xfe\0")
    else:
        shutil.rmtree(entry)
        entry.mkdir()


@pytest.mark.parametrize(
    "how",
    ["truncated pixels", "no pixels", "no facts", "truncated facts", "empty facts", "other facts",
     "binary facts", "empty"],
)  # fmt: skip
@pytest.mark.parametrize("size", [None, 16])
def test_a_damaged_entry_is_made_anew(how, size, tmp_path, cache):
    made = tree(tmp_path / "own", {"a": 5, "b": 5}, side=16 if size else 8)
    if size:  # of two sizes: not kept as they are
        save(tmp_path / "own" / "b" / "x.png", noise(20, 20, 3))
        made["b/x.png"] = None
    load(tmp_path / "own", size=size)
    (entry,) = cache.iterdir()
    assert entry.name.endswith("-16" if size else "-native")
    damage(entry, how)
    for part in load(tmp_path / "own", size=size):
        keep = [i for i, path in enumerate(paths_of(part)) if path != "b/x.png"]
        check(part.select(torch.tensor(keep)), made)
    assert entries(cache) == [entry.name]


class Killed(BaseException):
    """As a signal would: no Exception."""


@pytest.mark.parametrize("kind", [RuntimeError, KeyboardInterrupt, Killed])
def test_a_decode_that_ends_early_leaves_nothing(kind, tmp_path, cache, monkeypatch):
    made = tree(tmp_path / "own", {"a": 100, "b": 100})
    real, lock, seen = purge.data.decode._decode, threading.Lock(), []

    def failing(*args: Any) -> Any:
        with lock:
            seen.append(1)
        if len(seen) > 150:
            raise kind
        return real(*args)

    monkeypatch.setattr(purge.data.decode, "_decode", failing)
    with pytest.raises(kind):
        load(tmp_path / "own")
    assert entries(cache) == []
    monkeypatch.setattr(purge.data.decode, "_decode", real)
    check(load(tmp_path / "own")[0], made)


def test_what_a_killed_process_left_is_not_taken_for_an_entry(tmp_path, cache):
    made = tree(tmp_path / "own", {"a": 5, "b": 5})
    load(tmp_path / "own")
    (entry,) = cache.iterdir()
    (entry / "facts.json").unlink()
    entry.rename(cache / ".making-abc")
    check(load(tmp_path / "own")[0], made)
    assert entries(cache) == [".making-abc", entry.name]


def test_two_that_make_the_same_entry_at_once_both_get_it(tmp_path, cache, monkeypatch):
    made = tree(tmp_path / "own", {"a": 50, "b": 50})
    both = threading.Barrier(2, timeout=20)
    real = purge.data.decode.write

    def meet(*args: Any) -> Any:
        found = real(*args)
        both.wait()
        return found

    monkeypatch.setattr("purge.data.cache.write", meet)
    found: list[Any] = []

    def work() -> None:
        found.append(load(tmp_path / "own")[0])

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 2
    for part in found:
        check(part, made)
    assert len(entries(cache)) == 1


def test_a_cache_that_cannot_be_written_is_one_sentence(tmp_path, monkeypatch):
    tree(tmp_path / "own", {"a": 5, "b": 5})
    (tmp_path / "file").write_text("in the way")
    for cache in (tmp_path / "file", tmp_path / "file" / "below"):
        monkeypatch.setenv("PURGE_CACHE", str(cache))
        with pytest.raises(FileError) as error:
            load(tmp_path / "own")
        assert "PURGE_CACHE" in sentence(error)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_one_sentence_and_leaves_nothing(tmp_path, cache, monkeypatch):
    tree(tmp_path / "own", {"a": 5, "b": 5})
    real = purge.data.decode.write

    def full(part: Any, form: Any, path: Path, *rest: Any) -> Any:
        path.symlink_to("/dev/full")
        return real(part, form, path, *rest)

    monkeypatch.setattr("purge.data.cache.write", full)
    with pytest.raises(FileError) as error:
        load(tmp_path / "own")
    assert "No space left" in sentence(error)
    assert entries(cache) == []


def test_a_cache_may_be_shared_with_other_users(tmp_path, cache):
    tree(tmp_path / "own", {"a": 5, "b": 5})
    load(tmp_path / "own")
    (entry,) = cache.iterdir()
    assert entry.stat().st_mode & 0o055 == 0o055
    assert all(path.stat().st_mode & 0o044 == 0o044 for path in entry.iterdir())


def test_images_of_different_sizes_are_kept_once_per_size(tmp_path, cache):
    tree(tmp_path / "own", {"a": 5, "b": 5})
    save(tmp_path / "own" / "a" / "x.png", noise(20, 12, 3))
    for size in (16, 24, 16, None):
        load(tmp_path / "own", size=size)
    assert sorted(name.rsplit("-")[-1] for name in entries(cache)) == ["16", "224", "24"]


def test_the_same_name_in_another_place_is_another_source(tmp_path, cache):
    one = tree(tmp_path / "1" / "own", {"a": 5, "b": 5})
    two = tree(tmp_path / "2" / "own", {"a": 5, "b": 5}, seed=1)
    check(load(tmp_path / "1" / "own")[0], one)
    check(load(tmp_path / "2" / "own")[0], two)


# -- bad input --------------------------------------------------------------------------------


def test_folders_without_images_are_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "flat").mkdir()
    save(tmp_path / "flat" / "x.png", RAMP)  # of no class
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


def test_a_class_that_is_only_in_the_test_part_is_refused(tmp_path):
    tree(tmp_path / "train", {"cat": 3, "dog": 3})
    tree(tmp_path / "test", {"cat": 3, "dgo": 3})
    with pytest.raises(DataError, match="'dgo'") as error:
        load(tmp_path)
    sentence(error)


def test_too_few_images_to_hold_some_out_are_refused(tmp_path):
    tree(tmp_path, {"a": 2, "b": 1})
    with pytest.raises(DataError) as error:
        load(tmp_path)
    sentence(error)


@pytest.mark.parametrize(("labels", "got"), [([0, 1, 2, 3], "3"), ([0, -1, 1, 1], "-1")])
def test_labels_outside_the_names_are_refused(labels, got, tmp_path):
    parquet(tmp_path / "x.parquet", labels, metadata={"classes": '["a", "b", "c"]'})
    np.savez(tmp_path / "x.npz", images=noise(4, 8, 8), labels=labels, classes=["a", "b", "c"])
    for file in ("x.parquet", "x.npz"):
        with pytest.raises(DataError, match=f"from 0 to 2 in {file}, got {got}") as error:
            load(tmp_path / file)
        sentence(error)


class Payload:
    """Unpickled without care, it makes a folder."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


def test_objects_in_arrays_are_refused_and_not_run(tmp_path):
    objects = np.array([Payload(tmp_path / "it ran")], dtype=object)
    np.savez(tmp_path / "x.npz", images=noise(4, 8, 8), labels=objects)
    np.savez(tmp_path / "y.npz", images=noise(4, 8, 8), labels=[0, 1, 0, 1], other=objects)
    (tmp_path / "z.npz").write_bytes(__import__("pickle").dumps(Payload(tmp_path / "it ran")))
    for file in ("x.npz", "y.npz", "z.npz"):
        with pytest.raises(FileError) as error:
            load(tmp_path / file)
        assert file in sentence(error)
    assert not (tmp_path / "it ran").exists()


def test_damaged_arrays_are_one_sentence(tmp_path):
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


def sentence_or_nothing(path: Path) -> None:
    try:
        load(path)
    except purge.PurgeError as error:
        text = str(error)
    else:
        return
    assert SENTENCE.fullmatch(text), text


def test_every_flipped_byte_of_an_array_file_is_a_sentence_or_nothing(tmp_path):
    """Damage anywhere is refused with a sentence, or harmless; never another error."""
    path = tmp_path / "x.npz"
    np.savez_compressed(path, images=noise(4, 4, 4), labels=np.array([0, 1, 0, 1], dtype=np.uint8))
    whole = path.read_bytes()
    for at in range(0, len(whole), 7):
        damaged = bytearray(whole)
        damaged[at] ^= 0xFF
        path.write_bytes(damaged)
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
    "a name too few": {"images": noise(10, 8, 8), "labels": [0, 1] * 5, "classes": np.array(["a"])},
    "one name, not a list": {"images": noise(10, 8, 8), "labels": [0, 1] * 5, "classes": np.array("ab")},
}


@pytest.mark.parametrize("content", ODD.values(), ids=ODD.keys())
def test_arrays_that_are_not_images_and_labels_are_refused(content, tmp_path):
    np.savez(tmp_path / "x.npz", **content)
    with pytest.raises(DataError) as error:
        load(tmp_path / "x.npz")
    assert "x.npz" in sentence(error) or "one per label" in sentence(error)


def test_parquet_without_images_or_labels_is_refused(tmp_path):
    for columns in (("picture", "label"), ("image", "kind")):
        parquet(tmp_path / "x.parquet", [0, 1] * 3, columns=columns)
        with pytest.raises(DataError, match="columns 'image' and 'label'") as error:
            load(tmp_path / "x.parquet")
        assert columns[0] in sentence(error)
    for labels in (["a", "b"] * 3, [0, None] * 3, [0.5, 1.5] * 3, []):
        table = pa.table({"image": [png(RAMP)] * len(labels), "label": labels})
        pq.write_table(table, tmp_path / "y.parquet")
        with pytest.raises(DataError, match="whole numbers") as error:
            load(tmp_path / "y.parquet")
        sentence(error)


def test_damaged_parquet_is_one_sentence(tmp_path):
    path = tmp_path / "x.parquet"
    parquet(path, [0, 1] * 50)
    whole = path.read_bytes()
    middle = bytearray(whole)
    middle[200:-3000] = bytes(len(middle[200:-3000]))
    for content in (b"", b"text", whole[: len(whole) // 2], whole[:-1], bytes(middle)):
        path.write_bytes(content)
        with pytest.raises(FileError) as error:
            load(path)
        assert "x.parquet" in sentence(error)


def test_every_damaged_place_in_parquet_is_a_sentence_or_nothing(tmp_path, cache):
    """The head, the pages and the foot; checksums of images catch the rest."""
    path = tmp_path / "x.parquet"
    parquet(path, [0, 1] * 5)
    whole = path.read_bytes()
    for at in range(0, len(whole), len(whole) // 60):
        damaged = bytearray(whole)
        damaged[at : at + 8] = bytes(255 - b for b in damaged[at : at + 8])
        path.write_bytes(damaged)
        sentence_or_nothing(path)
    assert not [name for name in entries(cache) if name.startswith(".")]


def test_an_archive_of_ones_own_is_refused(tmp_path):
    """A folder is a folder: an archive of one's own images is refused, with the forms that are known."""
    with zipfile.ZipFile(tmp_path / "own.zip", "w") as archive:
        archive.writestr("a/1.png", png(RAMP))
    with pytest.raises(DataError, match="another kind of file") as error:
        load(tmp_path / "own.zip")
    sentence(error)
