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
from tests.data.image_files import COLOUR, RAMP, WIDE, check, load, noise, paths_of, save, sentence, tree


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


def first(pixels: Any) -> Any:
    return pixels.transpose(2, 0, 1)


def whitened(pixels: Any, at: Any) -> Any:
    found = pixels.copy()
    found[at] = 255
    return found


ALPHA = np.resize(np.array([0, 255, 128, 51], dtype=np.uint8), (8, 12))
OVER_WHITE = ALPHA / 255
BITS = RAMP % 3 == 0
COLOURS = np.arange(10, 130, 10, dtype=np.uint8).reshape(4, 3)
PALETTE = Image.fromarray(RAMP % 4, "L").convert("P")
PALETTE.putpalette([*COLOURS.ravel().tolist(), *[0] * 756])
UNIT = RAMP.astype(np.float32)
BIG_ENDIAN = Image.frombytes("I;16B", WIDE.shape[::-1], WIDE.astype(">u2").tobytes())
GREY, RGB = Image.fromarray(RAMP), Image.fromarray(COLOUR)
TRANSPARENT = Image.merge("LA", [GREY, Image.fromarray(ALPHA)])
LIGHT = RAMP * OVER_WHITE + 255 * (1 - OVER_WHITE)
VIVID = first(COLOUR * OVER_WHITE[..., None] + 255 * (1 - OVER_WHITE[..., None]))
SHOWN = COLOURS[RAMP % 4]
# by mode: the image, the kinds of files, options of saving, the pixels wanted, and how far off they may be
MODES: dict[str, tuple[Image.Image, str, dict[str, Any], Any, float]] = {
    "grey": (GREY, "png bmp tif pgm PNG gif", {}, RAMP[None], 0),
    "grey without a form for it": (GREY, "webp", {"lossless": True}, np.stack([RAMP] * 3), 0),
    "colour": (RGB, "png bmp tiff ppm", {}, first(COLOUR), 0),
    "colour in WebP": (RGB, "webp", {"lossless": True}, first(COLOUR), 0),
    "one bit": (Image.fromarray(BITS), "png tif pbm", {}, np.where(BITS, 255, 0)[None], 0),
    "16 bits": (Image.fromarray(WIDE), "png tif pgm", {}, (WIDE / 257).round()[None], 0),
    "16 bits, big-endian": (BIG_ENDIAN, "tif", {}, (WIDE / 257).round()[None], 0),
    "floats up to 1": (Image.fromarray(UNIT / 255), "tif", {}, RAMP[None], 0),
    "floats up to 255": (Image.fromarray(UNIT), "tif", {}, RAMP[None], 0),
    "transparent grey": (TRANSPARENT, "png", {}, LIGHT[None], 1),
    "transparent colour": (Image.fromarray(np.dstack([COLOUR, ALPHA]), "RGBA"), "png", {}, VIVID, 1),
    "a transparent grey": (GREY, "png", {"transparency": 5}, whitened(RAMP, RAMP == 5)[None], 0),
    "a transparent colour": (
        RGB,
        "png",
        {"transparency": (5, 250, 10)},
        first(whitened(COLOUR, RAMP == 5)),
        0,
    ),
    "palette": (PALETTE, "png gif bmp", {}, first(SHOWN), 0),
    "a transparent colour of a palette": (
        PALETTE,
        "png gif",
        {"transparency": 2},
        first(whitened(SHOWN, RAMP % 4 == 2)),
        0,
    ),
    "transparency of each colour of a palette": (
        PALETTE,
        "png",
        {"transparency": bytes([255, 255, 0, 255])},
        first(whitened(SHOWN, RAMP % 4 == 2)),
        0,
    ),
    "an animation": (
        GREY,
        "gif",
        {"save_all": True, "append_images": [Image.fromarray(255 - RAMP)]},
        RAMP[None],
        0,
    ),
}


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_is_decoded(mode, tmp_path):
    image, suffixes, options, want, off = MODES[mode]
    for suffix in suffixes.split():
        found = stored(tmp_path / suffix, lambda p: image.save(p, **options), suffix=suffix)
        assert found.dtype == np.uint8
        assert found.shape == want.shape
        assert np.abs(found - want.astype(float)).max() <= off, suffix


def test_cmyk_images_are_converted_to_rgb(tmp_path):
    cmyk = RGB.resize((32, 32)).convert("CMYK")
    found = stored(tmp_path, lambda p: cmyk.save(p, quality=95), suffix="jpg")
    want = first(np.asarray(cmyk.convert("RGB")))
    assert np.abs(found.astype(int) - want).mean() < 5  # not inverted


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
    found = stored(tmp_path, lambda p: Image.fromarray(photograph).save(p, exif=exif), suffix=suffix)
    with Image.open(tmp_path / "train" / "a" / f"0.{suffix}") as image:
        assert np.array_equal(found, first(UPRIGHT[orientation](np.asarray(image))))


def test_a_grey_image_among_colour_images_gets_three_equal_channels(tmp_path):
    one, two = stored(tmp_path, GREY.save, RGB.save)
    assert np.array_equal(one, np.stack([RAMP] * 3))
    assert np.array_equal(two, first(COLOUR))


def striped(height: int, width: int) -> Any:
    """Red, green and blue from left to right (or from top to bottom), each a third."""
    n = max(height, width)
    line = np.zeros((n, 3), dtype=np.uint8)
    for c in range(3):
        line[c * n // 3 : (c + 1) * n // 3, c] = 255
    whole = np.broadcast_to(line[None], (min(height, width), n, 3))
    return np.ascontiguousarray(whole if width >= height else whole.swapaxes(0, 1))


def test_images_of_different_sizes_are_resized_and_cropped_to_one(tmp_path):
    writes = [Image.fromarray(striped(*sides)).save for sides in ((30, 90), (90, 30), (60, 180))]
    wide, tall, large = stored(tmp_path, *writes, size=30)
    assert wide.shape == tall.shape == large.shape == (3, 30, 30)
    assert (wide[1] == 255).all()  # the centre is the green third, unscaled
    assert (wide[[0, 2]] == 0).all()
    assert np.array_equal(wide, tall)
    assert (large[1, :, 2:-2] == 255).all()
    assert load(tmp_path, size=30)[0].shape == (3, 30, 30)
    train, _ = load(tmp_path)  # the default is 224
    assert train.shape == train.pixel_shape == (3, 224, 224)


def test_images_of_one_size_are_stored_unchanged_up_to_256_pixels(tmp_path):
    large = stored(tmp_path / "large", Image.fromarray(striped(300, 300)).save)
    assert large.shape == (3, 224, 224)
    assert [large[:, 112, 10].tolist(), large[:, 112, -10].tolist()] == [[255, 0, 0], [0, 0, 255]]
    found = stored(tmp_path / "small", Image.fromarray(noise(200, 256)).save)
    assert np.array_equal(found[0], noise(200, 256))
    train, _ = load(tmp_path / "small", size=64)
    assert (train.shape, train.pixel_shape) == ((1, 64, 64), (1, 200, 256))


def with_five_broken(root: Path) -> tuple[dict[str, Any], list[str]]:
    """42 images, five of them broken: empty, truncated, text, a link to nothing."""
    made = tree(root, {"a": 20, "b": 20}, side=24)
    whole = (root / "a" / "007.png").read_bytes()
    (root / "a" / "003.png").write_bytes(b"")
    (root / "a" / "007.png").write_bytes(whole[: len(whole) // 2])
    (root / "a" / "dead.png").symlink_to(root / "nowhere.png")
    file = io.BytesIO()
    Image.fromarray(noise(64, 64, 3)).save(file, "JPEG")
    (root / "a" / "x.jpg").write_bytes(file.getvalue()[:-500])
    (root / "b" / "019.png").write_text("this is text")
    return made, ["a/003.png", "a/007.png", "a/dead.png", "a/x.jpg", "b/019.png"]


def test_images_that_cannot_be_read_are_named_or_left_out(tmp_path, cache, caplog, monkeypatch):
    made, bad = with_five_broken(tmp_path / "own")
    (tmp_path / "own" / "a" / "x.jpg").unlink()  # of another size
    bad.remove("a/x.jpg")
    say_once.cache_clear()

    def refused() -> None:
        with pytest.raises(DataError, match=r"4 that cannot.*skip_bad") as error:
            load(tmp_path / "own")
        assert all(path in sentence(error) for path in bad)

    refused()
    # the good ones beside them are not decoded again
    monkeypatch.setattr("purge.data.decode.decode", lambda item, form: pytest.fail("decoded again"))
    with caplog.at_level(logging.WARNING, logger="purge"):
        load(tmp_path / "own", skip_bad=True)
        sets = load(tmp_path / "own", skip_bad=True)
    assert sum(map(len, sets)) == 37
    assert not set(bad) & {path for part in sets for path in paths_of(part)}
    for part in sets:
        check(part, made)
    (said,) = (r.getMessage() for r in caplog.records)
    assert all(path in said for path in ("4 of 41", *bad))
    refused()  # skip_bad is not remembered


def test_a_truncated_jpeg_is_a_bad_image(tmp_path):
    with_five_broken(tmp_path)
    with pytest.raises(DataError, match=r"5 that cannot.*a/x\.jpg"):
        load(tmp_path)


def test_many_bad_images_are_counted_and_all_of_them_are_refused(tmp_path):
    for name, n in (("a", 100), ("b", 30)):
        (tmp_path / name).mkdir()
        for i in range(n):
            (tmp_path / name / f"x{i:03}.png").write_bytes(b"")
    for skip_bad in (False, True):
        with pytest.raises(DataError, match="images that can be read") as error:
            load(tmp_path, skip_bad=skip_bad)
        sentence(error)
    tree(tmp_path, {"a": 5, "b": 5})
    with pytest.raises(DataError, match=r"130 that cannot.*and 30 more"):
        load(tmp_path)


def test_mean_and_std_are_those_of_the_pixels(tmp_path):
    tree(tmp_path / "own", {"a": 30, "b": 40}, side=16)
    train, test = load(tmp_path / "own")
    pixels = torch.cat([train.pixels, test.pixels]).double() / 255
    assert train.mean == test.mean == pytest.approx(pixels.mean((0, 2, 3)).tolist(), abs=1e-4)
    assert train.std == pytest.approx(pixels.std((0, 2, 3), correction=0).tolist(), abs=1e-4)
    for path in ("a/1", "a/2", "a/3", "b/1"):
        save(tmp_path / "plain" / f"{path}.png", np.full((8, 8), 77, dtype=np.uint8))
    x, _ = load(tmp_path / "plain")[0].take(torch.tensor([0]))  # the spread is above 0
    assert x.isfinite().all()
