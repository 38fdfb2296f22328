"""Reading data: a named data set, a folder or file of images, a table, or what a function returns."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor

from purge.core.errors import DataError, FileError, PurgeError, brief, did_you_mean, first_line
from purge.core.files import below
from purge.core.plugins import current_folder_importable, is_function, named
from purge.core.settings import checked_seed
from purge.data.accept import accepted
from purge.data.cache import name_in_cache, user_folder
from purge.data.catalog import DATASETS, DatasetEntry
from purge.data.decode import channels_first, decoded, is_large, on_shelves
from purge.data.formats import image_folder, npz, parquet, tar
from purge.data.formats.columns import is_table, read_table
from purge.data.formats.published import fetch
from purge.data.formats.source import Decoded, Encoded, Read, Source, class_names, held_out
from purge.data.images import Images, per_channel
from purge.data.prefetch import say_once
from purge.data.request import content_digest
from purge.data.samples import CPU, Origin, Samples
from purge.data.sources import DataSource, is_pattern
from purge.data.table import Encode, load_table

FORMATS = (npz.find, parquet.find, tar.find, image_folder.find)  # each finds its own layout, or None
Part: TypeAlias = tuple[Any, Sequence[int], Sequence[str], str]  # pixels, labels, paths, origin
MeanAndStd: TypeAlias = tuple[Sequence[float], Sequence[float]]  # of each channel, as they were measured
MOST_NAMED = 100  # bad images that a message names one by one


def load(
    data: str | os.PathLike[str],
    *,
    data_dir: str | os.PathLike[str] | None = None,
    size: int | None = None,
    split_seed: int = 0,
    skip_bad: bool = False,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    progress: bool = True,
    transform: Callable[[Tensor], Tensor] | None = None,
    stream: bool | None = None,
) -> tuple[Images, Images]:
    """Load the training and test images of a data set.

    Args:
        data: a name listed by ``purge list datasets``, or the path of your own folder or file.
        data_dir: where to look for a named data set, and to download it if it is missing; default:
            ``$PURGE_DATA``, then the user's cache.
        size: side of the square images that a model sees; default: the paper's size for named data
            sets, otherwise the images' own (224 if they are large or differ in size).
        split_seed: draws the fifth that is held out if the data has no test part.
        skip_bad: leave out images that cannot be read, instead of raising an error that names them.
        mean: of each channel (pixels from 0 to 1), or one for all; default: the data set's published one,
            or that of your images. Pass what the model was trained with.
        std: the spread of each channel, likewise.
        progress: show a line of progress on a terminal and in a notebook.
        transform: a function from a batch of scaled images (B, C, H, W) to a batch, which must not draw
            random numbers; applied last.
        stream: decode images whenever a batch needs them and keep none, for data larger than memory; default:
            if the files take more than 8 GiB. The images' own size, and the default mean and std, are then
            taken from 1,024 of them.

    Returns:
        The training images and the test images.

    Raises:
        DataError: an unknown name, or images that cannot be read.

    Example:
        >>> load("digits")
        (Images(1437 × 1×8×8 on cpu), Images(360 × 1×8×8 on cpu))
    """
    checked_seed(split_seed)
    source = DataSource(
        str(data), None if data_dir is None else str(data_dir), size, split_seed, skip_bad,
        None if mean is None else per_channel(mean, "mean"), None if std is None else per_channel(std, "std"),
        stream=stream,
    )  # fmt: skip
    parts = _images(source, transform, progress)
    return divided(parts["all"], split_seed) if "all" in parts else (parts["train"], parts["test"])


def read_source(
    source: DataSource, *, progress: bool, tokenizer: Callable[[str], tuple[Encode, tuple[str, ...]]]
) -> tuple[Samples, Samples | None]:
    """The training and test data of a source; None for the test data if all of it was trained on.

    ``tokenizer``: makes, of the folder that the source names, what makes tokens of its texts, and names of
    classes if the folder tells them.
    """
    path = Path(source.data)
    table = source.data not in DATASETS and is_table(path)
    if is_function(source.data):
        source.refuse_others("function")
        sets: tuple[Samples, Samples | None] = _from_function(source.data)
        has_test, fix = True, ""
    elif table and (source.label_column is not None or path.suffix != ".parquet"):
        if source.label_column is None:
            fix = f"pass --label with one of {', '.join([*read_table(path).columns][:20])}"
            raise DataError(f"the column of the classes in {path.name}", "no --label", fix)
        source.refuse_others("numbers" if source.text_column is None else "texts")
        encode, names = (None, ()) if source.tokenizer is None else tokenizer(source.tokenizer)
        sets = load_table(source, encode, names)
        has_test, fix = source.test_file is not None, "name it with --test FILE"
    else:
        source.refuse_others("images")
        parts = _images(source, _own_transform(source), progress)
        has_test, fix = "all" not in parts, "give it a test part, as DIR/test beside DIR/train"
        if has_test:
            sets = parts["train"], parts["test"]
        else:
            sets = divided(parts["all"], source.split_seed) if source.held_out else (parts["all"], None)
    if has_test and source.held_out is False:
        got = f"--all-trained for {path.name}, which has test data"
        raise DataError("data without test data for --all-trained", got, "leave it out")
    if not has_test and source.held_out is None:  # the model may have been trained on all of it
        fix += f", pass --all-trained if it was trained on all of {path.name}, or the --split-seed by which "
        fix += "purge held a fifth out"
        raise DataError("test data that the checkpoint was not trained on", f"{path.name} alone", fix)
    return sets


def _from_function(name: str) -> tuple[Samples, Samples]:
    """What ``module:function`` of the user returns: training and test data that fit into memory."""
    with current_folder_importable():
        function = named(name, DataError)
        try:
            pair = function()
        except PurgeError:
            raise
        except (Exception, SystemExit) as error:  # whatever the user's own code may raise
            raise DataError(f"{name} to return (train, test)", first_line(error), "correct it") from error
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        got = f"{len(pair)} of them" if isinstance(pair, (tuple, list)) else type(pair).__name__
        raise DataError(f"two data sets (train, test) from {name}", got, "return both as a pair")
    sets = accepted({f"train of {name}": pair[0], f"test of {name}": pair[1]})
    parts = []
    for (what, samples), data in zip(sets.items(), pair, strict=True):
        part = samples.to(CPU)
        if part.backend.dataset is not None:
            got = "items that differ when read again, or take too much memory"
            raise DataError(f"{what} that can be kept as tensors", got, "leave out random transforms")
        if not len(part):
            raise DataError(f"samples in {what}", "none", "return a set that is not empty")
        if part.pixel_shape is None:  # data of its own, by whose rows samples are named
            part = part.replaced(ids=torch.arange(len(part)), cut=True)
            part.names = part.names or class_names(getattr(data, "classes", ()), what)
        parts.append(part)
    highest = max(int(part.labels.max()) for part in parts)
    names = next((part.names for part in parts if part.names), tuple(map(str, range(highest + 1))))
    for part, which in zip(parts, ("train", "test"), strict=True):
        part.names = tuple(names)
        part.origin = Origin(f"{content_digest(part)}-{which}")
    return parts[0], parts[1]


def _own_transform(source: DataSource) -> Callable[[Tensor], Tensor] | None:
    """The user's own function of a batch of images; whoever chose it has seen to it that it may run."""
    if source.transform is None:
        return None
    with current_folder_importable():
        function = named(source.transform, DataError) if is_function(source.transform) else None
    if not callable(function):
        got = brief(source.transform) if function is None else type(function).__name__
        fix = "write --transform my_module:my_function, a function from a batch of images to a batch"
        raise DataError("module:function as --transform", got, fix)
    return cast("Callable[[Tensor], Tensor]", function)


def _images(
    source: DataSource, transform: Callable[[Tensor], Tensor] | None, progress: bool
) -> dict[str, Images]:
    """The images of ``train`` and ``test``, or ``all`` of data without a test part."""
    size, mean, std = source.size, source.mean, source.std
    if size is not None and not (isinstance(size, int) and 8 <= size <= 1024):
        raise DataError("a size from 8 to 1024 pixels", brief(size), "pass size=32, say")
    entry = DATASETS.get(source.data)
    if entry is not None:
        size, mean, std = size or entry.size, mean or entry.mean, std or entry.std
    found, names, measured, cached = _pixels(source, entry, size, mean is None or std is None, progress)
    mean, std = mean or tuple(measured[0]), std or tuple(measured[1])
    images = {}
    for which, (pixels, labels, paths, origin) in found.items():
        images[which] = Images(
            pixels, torch.tensor(labels), mean=mean, std=std, size=size, names=names, paths=paths,
            channels=entry.channels if entry else None, source=origin, transform=transform,
        )  # fmt: skip
        images[which].cached = cached
    return images


def _pixels(
    source: DataSource, entry: DatasetEntry | None, size: int | None, measure: bool, progress: bool
) -> tuple[dict[str, Part], Sequence[str], MeanAndStd, str]:
    """The pixels of each part, the names of the classes, mean and std, and where in the cache they are."""
    found: dict[str, Part] = {}
    if entry is not None and not entry.layouts:  # without files: read every time, never cached
        parts, names = cast("tuple[dict[str, Decoded], tuple[str, ...]]", entry.read([]))
        names = entry.names or names
        for which, part in parts.items():
            pixels = torch.from_numpy(channels_first(part.pixels))
            found[which] = pixels, part.labels, (), f"{source.data}-{which}"
        return found, names, ((), ()), ""
    files = _named_source(source, entry, progress) if entry else _own_source(Path(source.data))
    stream = source.stream
    if stream is None:
        stream = not source.skip_bad and is_large(files)
    if stream and source.skip_bad:
        got = "both, but which images are bad is not known ahead"
        fix = "leave out one of them, and repair or remove what an error names"
        raise DataError("either stream or skip_bad", got, fix)
    if stream:
        shelves, names, measured = on_shelves(files, size, measure)
        for which, shelf in shelves.items():
            origin = f"{_fingerprint(files, shelf.part, names)}-{which}"
            found[which] = shelf, shelf.part.labels, shelf.part.paths, origin
        return found, names, measured, ""
    at, facts = decoded(files, size=size, progress=progress)
    _check_bad(facts["parts"], source.skip_bad)
    for which, part in facts["parts"].items():
        path, shape = below(at, which, ending=".bin"), (len(part["labels"]), *facts["form"])
        # Mapped into memory; writing to it does not change the cache.
        pixels = torch.from_file(str(path), shared=False, size=math.prod(shape), dtype=torch.uint8)
        origin = f"{part['content']}-{which}"
        found[which] = pixels.view(shape), part["labels"], part["paths"], origin
    return found, facts["names"], (facts["mean"], facts["std"]), name_in_cache(at)


def _fingerprint(source: Source, part: Encoded, names: Sequence[str]) -> str:
    """Tells the images of a part from others by labels, names and sizes of files, not by pixels."""
    h = hashlib.sha256(np.asarray(part.labels, "<i8").tobytes())
    h.update(json.dumps([list(names), [p.stat().st_size for p in source.files if p.is_file()]]).encode())
    h.update("\n".join(part.paths).encode(errors="backslashreplace"))
    return h.hexdigest()[:32]


def divided(images: Images, split_seed: int) -> tuple[Images, Images]:
    """The images for training and for testing, of data without a test part."""
    train, test = held_out(images.labels.numpy(), split_seed)
    return images.select(torch.from_numpy(train)), images.select(torch.from_numpy(test))


def _check_bad(parts: dict[str, Any], skip_bad: bool) -> None:
    """Refuse images that could not be decoded, or say that they are left out."""
    bad = [path for part in parts.values() for path in part["bad"]]
    if not bad:
        return
    which = ", ".join(bad[:MOST_NAMED]) + (f" and {n} more" if (n := len(bad) - MOST_NAMED) > 0 else "")
    if not skip_bad:
        fix = "repair or remove them, or leave them out with --skip-bad (skip_bad=True)"
        raise DataError("images that can be read", f"{len(bad)} that cannot ({which})", fix)
    total = sum(len(part["labels"]) for part in parts.values()) + len(bad)
    say_once(f"{len(bad)} of {total} images cannot be read and are left out: {which}.")


def _own_source(path: Path) -> Source:
    """The images of the user's folder, file, or pattern of files."""
    if not path.exists() and not is_pattern(path):
        fix = did_you_mean(str(path), DATASETS, "purge list datasets")
        raise DataError("the name of a data set, or a path", repr(str(path)), fix)
    path = path.absolute()  # "." has no name
    source = next(filter(None, (find(path) for find in FORMATS)), None)
    if source is None:
        what = "DIR/train/<class>/* and DIR/test/<class>/*, DIR/<class>/*, Parquet, .tar or .npz"
        got = "a folder without them" if path.is_dir() else "another kind of file"
        fix = "put the images of each class into a folder of its own"
        raise DataError(f"images in {path}: {what}", got, fix)
    return source


def _named_source(source: DataSource, entry: DatasetEntry, progress: bool) -> Source:
    """Parquet in a folder of the data set's name, or its published files; downloads them if missing."""
    name, own, paths = source.data, os.environ.get("PURGE_DATA"), list[Path]()
    roots = [Path(root) for root in (own, user_folder() / "data") if root]
    if source.data_dir is not None:
        roots = [Path(source.data_dir)]
    for root in roots:
        for folder in [below(root, name)] + [root] * (root.name == name):
            if shards := parquet.find(folder):
                return shards._replace(names=entry.names)
        if paths := _layout_in(root, name, entry):
            break
    at = below(roots[0], name)
    if not paths and not entry.downloads:
        raise FileError(f"{', '.join(entry.layouts[0])} in {at}", "no such file", "pass --data-dir")
    paths = paths or [fetch(url, md5, at, progress) for url, md5 in entry.downloads.items()]

    def read() -> Read:
        try:
            parts, names = entry.read(paths)
            if any(len(p.pixels) != len(p.labels) for p in parts.values() if isinstance(p, Decoded)):
                raise EOFError("images or labels are missing")
        except PurgeError:
            raise
        except Exception:  # libraries raise many kinds of errors on a damaged file
            what = f"the published files of {name} in {paths[0].parent}"
            fix = "remove them, and they will be downloaded again"
            raise FileError(what, "damaged or different ones", fix) from None
        return parts, entry.names or names

    return Source(name, paths, read)


def _layout_in(root: Path, name: str, entry: DatasetEntry) -> list[Path]:
    """The files of the first layout that is complete in one of the folders where it may be."""
    folders = (below(root, name), *(root / inner for inner in entry.folders))
    for layout, folder in product(entry.layouts, folders):
        found = [sorted(p for p in folder.glob(pattern) if p.is_file()) for pattern in layout]
        if all(found):
            return [path for paths in found for path in paths]
    return []
