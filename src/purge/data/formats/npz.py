"""Images and labels as arrays in an ``.npz`` file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from purge.core.errors import DataError, FileError
from purge.data.formats.source import Array, Decoded, Read, Source, whole_labels

ARRAYS: tuple[dict[str, tuple[str, str]], ...] = (  # accepted names of images and labels, by part
    {"train": ("train_images", "train_labels"), "test": ("test_images", "test_labels")},
    {"train": ("x_train", "y_train"), "test": ("x_test", "y_test")},
    {"all": ("images", "labels")},
    {"all": ("x", "y")},
)


def find(path: Path) -> Source | None:
    """The source that ``path`` is, if it is an ``.npz`` file."""
    if path.suffix != ".npz" or not path.is_file():
        return None
    return Source(path.name, [path], lambda: read_npz([path]))


def read_npz(paths: list[Path]) -> Read:
    """Read one file; class names may be in an array ``classes`` or ``names``. No object is unpickled."""
    (path,) = paths
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
    except Exception:  # numpy raises many kinds of errors on a damaged file
        raise FileError(
            f"plain arrays in {path}", "a damaged file, or pickled objects", "save it again with numpy.savez"
        ) from None
    names = next((arrays[k] for k in ("classes", "names") if k in arrays), np.array([]))
    for keys in ARRAYS:
        if all(key in arrays for pair in keys.values() for key in pair):
            return {
                part: Decoded(whole_labels(arrays[y].reshape(-1).tolist(), path), _as_bytes(arrays[x], path))
                for part, (x, y) in keys.items()
            }, tuple(map(str, np.atleast_1d(names).tolist()))
    raise DataError(
        f"arrays images and labels, or train_images, train_labels, test_images … in {path.name}",
        ", ".join(arrays) or "none",
        "save the arrays under these names",
    )


def _as_bytes(pixels: NDArray[Any], path: Path) -> Array:
    """Pixels as uint8: 8 bits unchanged, 16 bits scaled down, floats from 0 to 1 scaled up."""
    shaped = pixels.ndim == 3 or (pixels.ndim == 4 and bool({1, 3} & {pixels.shape[1], pixels.shape[3]}))
    if shaped and pixels.size > 0:
        if pixels.dtype == np.uint8:
            return pixels
        if pixels.dtype.kind == "u" and pixels.itemsize == 2:
            return (pixels / 257).round().astype(np.uint8)
        if pixels.dtype.kind == "f" and 0 <= pixels.min() <= pixels.max() <= 1:
            return (pixels * 255).round().astype(np.uint8)
    raise DataError(
        f"images (N, H, W) or (N, H, W, 1 or 3) of bytes in {path.name}",
        f"{pixels.shape} of {pixels.dtype}",
        "save uint8 pixels, or floats from 0 to 1",
    )
