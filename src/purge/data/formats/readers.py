"""Which reader knows the user's folder, file or pattern of files: the one that finds its own layout there."""

from __future__ import annotations

from pathlib import Path

from purge.core.errors import DataError, did_you_mean
from purge.data.catalog import DATASETS
from purge.data.formats import image_folder, npz, parquet, tar
from purge.data.formats.source import Source
from purge.data.sources import is_pattern

FORMATS = (npz.find, parquet.find, tar.find, image_folder.find)


def own_source(path: Path) -> Source:
    """The reader of a folder, a file or several files of images."""
    if not path.exists() and not is_pattern(path):
        fix = did_you_mean(str(path), DATASETS, "purge list datasets")
        raise DataError("the name of a data set, or a path", repr(str(path)), fix)
    path = path.absolute()  # "." has no name
    for find in FORMATS:
        if source := find(path):
            return source
    raise DataError(
        f"images in {path}: DIR/train/<class>/* and DIR/test/<class>/*, DIR/<class>/*, Parquet, .tar or .npz",
        "a folder without them" if path.is_dir() else "another kind of file",
        "put the images of each class into a folder of its own",
    )
