"""Decoding: every mode and size of image, and images that cannot be read."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from purge.core.errors import DataError
from purge.data.prefetch import say_once
from tests.data.image_files import (
    COLOUR,
    RAMP,
    WIDE,
    check,
    load,
    noise,
    paths_of,
    save,
    sentence,
    tree,
)


def stored(tmp_path: Path, *writes: Callable[[Path], Any], suffix: str = "png", **options: Any) -> Any:
    """The decoded pixels (C, H, W) of the files that the functions write."""
    for i, write in enumerate(writes):
        for part, name in (("train", "a"), ("train", "b"), ("test", "a")):
            path = tmp_path / part / name / f"{i}.{suffix}"
            path.parent.mkdir(parents=True, exist_ok=True)
            write(path)
    train, test = load(tmp_path, **options)
    assert torch.equal(train.pixels[: len(writes)], test.pixels)
    pixels = [x.numpy() for x in test.pixels]
    return pixels[0] if len(writes) == 1 else pixels


@pytest.mark.parametrize("suffix", ["png", "bmp", "tif", "pgm", "webp", "PNG", "gif"])
def test_grey_images_have_one_channel(suffix, tmp_path):
    options = {"lossless": True} if suffix == "webp" else {}
    found = stored(tmp_path, lambda p: Image.fromarray(RAMP).save(p, **options), suffix=suffix)
    if suffix == "webp":  # WebP has no greyscale
        assert np.array_equal(found, np.broadcast_to(RAMP, (3, 8, 12)))
    else:
        assert np.array_equal(found, RAMP[None])


@pytest.mark.parametrize("suffix", ["png", "bmp", "tiff", "ppm", "webp"])
def test_colour_images_are_decoded_exactly(suffix, tmp_path):
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


def test_the_transparent_colour_of_a_png_becomes_white(tmp_path):
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
def test_palette_images_are_decoded_to_their_colours(suffix, tmp_path):
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


def test_the_first_frame_of_an_animation_is_used(tmp_path):
    first, second = (Image.fromarray(x) for x in (RAMP, 255 - RAMP))
    found = stored(tmp_path, lambda p: first.save(p, save_all=True, append_images=[second]), suffix="gif")
    assert np.array_equal(found[0], RAMP)


@pytest.mark.parametrize("suffix", ["png", "tif", "pbm"])
def test_one_bit_images_are_black_and_white(suffix, tmp_path):
    bits = RAMP % 3 == 0
    found = stored(tmp_path, lambda p: Image.fromarray(bits).save(p), suffix=suffix)
    assert np.array_equal(found, np.where(bits, 255, 0).astype(np.uint8)[None])


@pytest.mark.parametrize("kind", ["png", "tif", "big-endian tif", "pgm"])
def test_sixteen_bit_images_are_scaled_to_eight(kind, tmp_path):
    def write(path: Path) -> None:
        big = kind.startswith("big")
        swapped = Image.frombytes("I;16B", WIDE.shape[::-1], WIDE.astype(">u2").tobytes())
        (swapped if big else Image.fromarray(WIDE)).save(path)

    found = stored(tmp_path, write, suffix=kind.split()[-1])
    assert found.dtype == np.uint8
    assert np.array_equal(found, (WIDE / 257).round()[None])
    assert found[0, 0, :9].tolist() == [0, 0, 1, 1, 2, 128, 254, 255, 255]


def test_float_images_are_read_on_a_scale_of_one_or_of_255(tmp_path):
    unit = stored(
        tmp_path / "1", lambda p: Image.fromarray(RAMP.astype(np.float32) / 255).save(p), suffix="tif"
    )
    whole = stored(tmp_path / "255", lambda p: Image.fromarray(RAMP.astype(np.float32)).save(p), suffix="tif")
    assert np.array_equal(unit, RAMP[None])
    assert np.array_equal(whole, RAMP[None])


def test_cmyk_images_are_converted_to_rgb(tmp_path):
    cmyk = Image.fromarray(COLOUR).resize((32, 32)).convert("CMYK")
    found = stored(tmp_path, lambda p: cmyk.save(p, quality=95), suffix="jpg")
    assert found.shape == (3, 32, 32)
    want = np.asarray(cmyk.convert("RGB")).transpose(2, 0, 1)
    assert np.abs(found.astype(int) - want).mean() < 5  # not inverted
    with Image.open(tmp_path / "train" / "a" / "0.jpg") as image:
        assert image.mode == "CMYK"
        assert np.array_equal(found, np.asarray(image.convert("RGB")).transpose(2, 0, 1))


UPRIGHT = {  # by EXIF orientation, from the standard
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
def test_photographs_are_rotated_by_their_exif_orientation(suffix, orientation, tmp_path):
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


def test_a_grey_image_among_colour_images_gets_three_equal_channels(tmp_path):
    one, two = stored(
        tmp_path, lambda p: Image.fromarray(RAMP).save(p), lambda p: Image.fromarray(COLOUR).save(p)
    )
    assert np.array_equal(one, np.broadcast_to(RAMP, (3, 8, 12)))
    assert np.array_equal(two, COLOUR.transpose(2, 0, 1))


def striped(height: int, width: int) -> Any:
    """Red, green and blue from left to right (or from top to bottom), each a third."""
    n = max(height, width)
    line = np.zeros((n, 3), dtype=np.uint8)
    for c in range(3):
        line[c * n // 3 : (c + 1) * n // 3, c] = 255
    whole = np.broadcast_to(line[None], (min(height, width), n, 3))
    return np.ascontiguousarray(whole if width >= height else whole.swapaxes(0, 1))


def test_images_of_different_sizes_are_resized_and_cropped_to_one(tmp_path):
    def writes(*sides: tuple[int, int]) -> list[Callable[[Path], Any]]:
        return [lambda p, s=s: Image.fromarray(striped(*s)).save(p) for s in sides]

    wide, tall, large = stored(tmp_path, *writes((30, 90), (90, 30), (60, 180)), size=30)
    assert wide.shape == tall.shape == large.shape == (3, 30, 30)
    assert (wide[1] == 255).all()  # the centre is the green third, unscaled
    assert (wide[[0, 2]] == 0).all()
    assert np.array_equal(wide, tall)
    assert (large[1, :, 2:-2] == 255).all()
    assert load(tmp_path, size=30)[0].shape == (3, 30, 30)
    train, _ = load(tmp_path)  # the default is 224
    assert train.shape == train.pixel_shape == (3, 224, 224)


def test_large_images_of_one_size_are_resized_to_224(tmp_path):
    found = stored(tmp_path, lambda p: Image.fromarray(striped(300, 300)).save(p))
    assert found.shape == (3, 224, 224)
    assert found[:, 112, 10].tolist() == [255, 0, 0]
    assert found[:, 112, -10].tolist() == [0, 0, 255]
    assert found[:, 5, 112].tolist() == [0, 255, 0]


def test_images_of_one_size_up_to_256_are_stored_unchanged(tmp_path):
    found = stored(tmp_path, lambda p: Image.fromarray(noise(200, 256)).save(p))
    assert np.array_equal(found[0], noise(200, 256))
    train, _ = load(tmp_path, size=64)
    assert train.shape == (1, 64, 64)
    assert train.pixel_shape == (1, 200, 256)


def with_three_broken(root: Path) -> list[str]:
    """40 images, three of them broken: empty, truncated, text."""
    tree(root, {"a": 20, "b": 20}, side=24)
    whole = (root / "a" / "007.png").read_bytes()
    (root / "a" / "003.png").write_bytes(b"")
    (root / "a" / "007.png").write_bytes(whole[: len(whole) // 2])
    (root / "b" / "019.png").write_text("this is text")
    return ["a/003.png", "a/007.png", "b/019.png"]


def test_one_error_names_all_images_that_cannot_be_read(tmp_path, cache):
    bad = with_three_broken(tmp_path / "own")
    with pytest.raises(DataError) as error:
        load(tmp_path / "own")
    text = sentence(error)
    assert "3 that cannot" in text
    assert all(path in text for path in bad)
    assert "skip_bad" in text


def test_good_images_beside_bad_ones_are_not_decoded_again(tmp_path, cache, monkeypatch):
    with_three_broken(tmp_path / "own")
    with pytest.raises(DataError):
        load(tmp_path / "own")
    monkeypatch.setattr("purge.data.decode.decode", lambda item, form: pytest.fail("decoded again"))
    assert sum(map(len, load(tmp_path / "own", skip_bad=True))) == 37


def test_a_broken_link_is_a_bad_image(tmp_path, cache):
    with_three_broken(tmp_path / "own")
    (tmp_path / "own" / "a" / "dead.png").symlink_to(tmp_path / "nowhere.png")
    with pytest.raises(DataError, match=r"4 that cannot.*a/dead\.png"):
        load(tmp_path / "own")


def test_images_that_cannot_be_read_can_be_left_out(tmp_path, cache, caplog):
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
    with pytest.raises(DataError) as error:  # skip_bad is not remembered
        load(tmp_path / "own")
    assert all(path in sentence(error) for path in bad)


def test_the_paths_of_the_others_are_right_if_some_are_left_out(tmp_path):
    made = tree(tmp_path, {"a": 20, "b": 20})
    (tmp_path / "a" / "003.png").write_bytes(b"")
    for part in load(tmp_path, skip_bad=True):
        check(part, made)


def test_a_truncated_jpeg_is_a_bad_image(tmp_path):
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


def test_data_without_any_readable_image_is_refused(tmp_path):
    for path in ("a/1.png", "b/2.png"):
        (tmp_path / path).parent.mkdir()
        (tmp_path / path).write_bytes(b"")
    for skip_bad in (False, True):
        with pytest.raises(DataError) as error:
            load(tmp_path, skip_bad=skip_bad)
        sentence(error)


def test_mean_and_std_are_those_of_the_pixels(tmp_path):
    tree(tmp_path, {"a": 30, "b": 40}, side=16)
    train, test = load(tmp_path)
    pixels = torch.cat([train.pixels, test.pixels]).double() / 255
    assert train.mean == test.mean == pytest.approx(pixels.mean((0, 2, 3)).tolist(), abs=1e-4)
    assert train.std == pytest.approx(pixels.std((0, 2, 3), correction=0).tolist(), abs=1e-4)


def test_images_of_one_colour_get_a_std_above_zero(tmp_path):
    for name in "ab":
        for i in range(5):
            save(tmp_path / name / f"{i}.png", np.full((8, 8), 77, dtype=np.uint8))
    x, _ = load(tmp_path)[0].take(torch.tensor([0]))
    assert x.isfinite().all()
