"""Reading data: a named data set, a folder or file of images, a table, or what a function returns."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from purge.core.errors import DataError, FileError, brief
from purge.core.files import below
from purge.core.plugins import current_folder_importable, is_function, named
from purge.core.settings import checked_seed
from purge.data.cache import name_in_cache, user_folder
from purge.data.catalog import DATASETS, DatasetEntry
from purge.data.decode import channels_first, decoded
from purge.data.download import fetch
from purge.data.formats import parquet
from purge.data.formats.readers import own_source
from purge.data.formats.source import Decoded, Read, Source, held_out
from purge.data.formats.tables import is_table, read_table
from purge.data.images import Images, per_channel
from purge.data.own import from_function
from purge.data.prefetch import DEVICE_FRACTION, say_once
from purge.data.samples import Samples
from purge.data.sources import DataSource
from purge.data.streamed import fingerprint, is_large, on_shelves
from purge.data.table import Encode, load_table

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
    device_fraction: float = DEVICE_FRACTION,
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
        device_fraction: share of the free device memory that the images may take up.
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
    parts = _images(source, transform, device_fraction, progress)
    return divided(parts["all"], split_seed) if "all" in parts else (parts["train"], parts["test"])


def read_source(
    source: DataSource, *, progress: bool, tokenizer: Callable[[str], tuple[Encode, tuple[str, ...]]]
) -> tuple[Samples, Samples | None]:
    """The training and test data of a source; None for the test data if all of it was trained on.

    ``tokenizer``: makes, of the folder that the source names, what makes tokens of its texts, and names of
    classes if the folder tells them.
    """
    table = source.data not in DATASETS and is_table(Path(source.data))
    if is_function(source.data):
        source.refuse_others("function")
        _refuse_all_trained(source)
        return from_function(source.data)
    if not table or (source.label_column is None and source.data.endswith(".parquet")):
        source.refuse_others("images")
        parts = _images(source, _own_transform(source), DEVICE_FRACTION, progress)
        if "all" not in parts:
            _refuse_all_trained(source)
            return parts["train"], parts["test"]
        _check_unseen(source, "give it a test part, as DIR/test beside DIR/train")
        return divided(parts["all"], source.split_seed) if source.held_out else (parts["all"], None)
    path = Path(source.data)
    if source.label_column is None:
        fix = f"pass --label with one of {', '.join([*read_table(path).columns][:20])}"
        raise DataError(f"the column of the classes in {path.name}", "no --label", fix)
    source.refuse_others("numbers" if source.text_column is None else "texts")
    if source.test_file is None:
        _check_unseen(source, "name it with --test FILE")
    encode, names = (None, ()) if source.tokenizer is None else tokenizer(source.tokenizer)
    return load_table(
        path, label=source.label_column, text=source.text_column, id=source.id_column, encode=encode,
        test=None if source.test_file is None else Path(source.test_file), names=names,
        split_seed=source.split_seed, hold_out=source.held_out is not False, mean=source.mean,
        std=source.std,
    )  # fmt: skip


def _check_unseen(source: DataSource, fix: str) -> None:
    """Refuse to call a part of the data unseen that the model may have been trained on."""
    if source.held_out is None:
        name = Path(source.data).name
        raise DataError(
            "test data that the checkpoint was not trained on",
            f"{name} alone",
            f"{fix}, pass --all-trained if it was trained on all of {name}, or the --split-seed by which "
            "purge held a fifth out",
        )


def _refuse_all_trained(source: DataSource) -> None:
    if source.held_out is False:
        got = f"--all-trained for {Path(source.data).name}, which has test data"
        raise DataError("data without test data for --all-trained", got, "leave it out")


def _own_transform(source: DataSource) -> Callable[[Tensor], Tensor] | None:
    """The user's own function of a batch of images; whoever chose it has seen to it that it may run."""
    if source.transform is None:
        return None
    if not is_function(source.transform):
        fix = "write --transform my_module:my_function"
        raise DataError("module:function as --transform", brief(source.transform), fix)
    with current_folder_importable():
        function = named(source.transform, DataError)
    if not callable(function):
        fix = "name a function from a batch of images to a batch"
        raise DataError(f"a function as {source.transform}", type(function).__name__, fix)
    return cast("Callable[[Tensor], Tensor]", function)


def _images(
    source: DataSource,
    transform: Callable[[Tensor], Tensor] | None,
    device_fraction: float,
    progress: bool,
) -> dict[str, Images]:
    """The images of ``train`` and ``test``, or ``all`` of data without a test part."""
    size = source.size
    if size is not None and not (isinstance(size, int) and 8 <= size <= 1024):
        raise DataError("a size from 8 to 1024 pixels", brief(size), "pass size=32, say")
    mean, std = source.mean, source.std
    entry = DATASETS.get(source.data)
    if entry is not None:
        size, mean, std = size or entry.size, mean or entry.mean, std or entry.std
    if entry is not None and not entry.layouts:
        parts, facts = _in_memory(source.data, entry)
    else:
        folder = None if source.data_dir is None else Path(source.data_dir)
        files = (
            _named_source(source.data, entry, folder, progress) if entry else own_source(Path(source.data))
        )
        if source.stream or (source.stream is None and not source.skip_bad and is_large(files)):
            parts, facts = _from_disk(files, size, source.skip_bad, measure=mean is None or std is None)
        else:
            parts, facts = _from_cache(files, size, source.skip_bad, progress)
    images = {}
    for which, part in parts.items():
        images[which] = Images(
            part.pixels,
            torch.tensor(part.labels),
            mean=mean or facts["mean"],
            std=std or facts["std"],
            size=size,
            channels=entry.channels if entry else None,
            names=facts["names"],
            paths=part.paths,
            source=part.source,
            device_fraction=device_fraction,
            transform=transform,
        )
        images[which].cached = facts.get("cached", "")
    return images


def divided(images: Images, split_seed: int) -> tuple[Images, Images]:
    """The images for training and for testing, of data without a test part."""
    train, test = held_out(images.labels.numpy(), split_seed)
    return images.select(torch.from_numpy(train)), images.select(torch.from_numpy(test))


class _Part(NamedTuple):
    pixels: Any  # a tensor of them, or a Shelf
    labels: list[int]
    paths: list[str]
    source: str  # tells the images of one part from all others


def _in_memory(name: str, entry: DatasetEntry) -> tuple[dict[str, _Part], dict[str, Any]]:
    """A data set without files: read every time, never cached."""
    parts, names = entry.read([])
    found = {
        which: _Part(torch.from_numpy(channels_first(part.pixels)), part.labels, [], f"{name}-{which}")
        for which, part in parts.items()
        if isinstance(part, Decoded)
    }
    if found.keys() != parts.keys():
        raise DataError(f"decoded images from the reader of {name}", "encoded ones", "return Decoded parts")
    return found, {"names": entry.names or names}


def _from_cache(
    source: Source, size: int | None, skip_bad: bool, progress: bool
) -> tuple[dict[str, _Part], dict[str, Any]]:
    """The images of a source, mapped into memory; writing to them does not change the cache."""
    at, facts = decoded(source, size=size, progress=progress)
    _check_bad(facts["parts"], skip_bad)
    found = {}
    for which, part in facts["parts"].items():
        shape = (len(part["labels"]), *facts["form"])
        flat = torch.from_file(
            str(below(at, which, ending=".bin")), shared=False, size=math.prod(shape), dtype=torch.uint8
        )
        found[which] = _Part(flat.view(shape), part["labels"], part["paths"], f"{part['content']}-{which}")
    return found, {**facts, "cached": name_in_cache(at)}


def _from_disk(
    source: Source, size: int | None, skip_bad: bool, measure: bool
) -> tuple[dict[str, _Part], dict[str, Any]]:
    """The images of a source where they are, to be decoded when they are needed."""
    if skip_bad:
        fix = "leave out one of them, and repair or remove what an error names"
        raise DataError("either stream or skip_bad", "both, but which images are bad is not known ahead", fix)
    shelves, names, scale = on_shelves(source, size, measure)
    found = {
        which: _Part(shelf, part.labels, part.paths, fingerprint(source, part, names, which))
        for which, shelf in shelves.items()
        for part in [shelf.part]
    }
    return found, {"names": names, "mean": scale[0], "std": scale[1]}


def _check_bad(parts: dict[str, Any], skip_bad: bool) -> None:
    """Refuse images that could not be decoded, or say that they are left out."""
    bad = [path for part in parts.values() for path in part["bad"]]
    named = ", ".join(bad[:MOST_NAMED])
    if bad and not skip_bad:
        more = f" and {len(bad) - MOST_NAMED} more" if len(bad) > MOST_NAMED else ""
        raise DataError(
            "images that can be read",
            f"{len(bad)} that cannot ({named}{more})",
            "repair or remove them, or leave them out with --skip-bad (skip_bad=True)",
        )
    if bad:
        total = sum(len(part["labels"]) for part in parts.values()) + len(bad)
        say_once(f"{len(bad)} of {total} images cannot be read and are left out: {named}.")


def _named_source(name: str, entry: DatasetEntry, data_dir: Path | None, progress: bool) -> Source:
    """Parquet in a folder of the data set's name, or its published files; downloads them if missing."""
    given = os.environ.get("PURGE_DATA")
    default = [*([Path(given)] if given else []), user_folder() / "data"]
    roots = default if data_dir is None else [data_dir]
    for root in roots:
        for at in (below(root, name), *([root] if root.name == name else [])):
            if source := parquet.find(at):
                return source._replace(names=entry.names)
        for layout in entry.layouts:
            for at in (below(root, name), *(root / inner for inner in entry.folders)):
                found = [sorted(p for p in at.glob(pattern) if p.is_file()) for pattern in layout]
                if all(found):
                    return _published_source(name, entry, [path for paths in found for path in paths])
    at = below(roots[0], name)
    if not entry.downloads:
        raise FileError(f"{', '.join(entry.layouts[0])} in {at}", "no such file", "pass --data-dir")
    return _published_source(
        name, entry, [fetch(url, md5, at, progress) for url, md5 in entry.downloads.items()]
    )


def _published_source(name: str, entry: DatasetEntry, paths: list[Path]) -> Source:
    def read() -> Read:
        try:
            parts, names = entry.read(paths)
            if any(isinstance(p, Decoded) and len(p.pixels) != len(p.labels) for p in parts.values()):
                raise EOFError("images or labels are missing")
        except (FileError, DataError):
            raise
        except Exception:  # libraries raise many kinds of errors on a damaged file
            raise FileError(
                f"the published files of {name} in {paths[0].parent}",
                "damaged or different ones",
                "remove them, and they will be downloaded again",
            ) from None
        return parts, entry.names or names

    return Source(name, paths, read)
