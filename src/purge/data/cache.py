"""Images from files: decoded once, in parallel, and kept on disk as bytes to be mapped into memory.

A source is a folder of images (``DIR/train/<class>/*`` and ``DIR/test/<class>/*``, or one tree of
classes), Parquet in the Hugging Face image layout, or an ``.npz``. What it becomes is kept under the
user's cache in a folder named by a digest of the source's files, so that the next start reads
nothing else.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray

from purge.core.errors import DataError, FileError
from purge.core.files import read_json, write_json
from purge.core.progress import progress_line
from purge.data.decode import DEFAULT_SIZE, Array, Decoded, Encoded, Parts, form_of, threads, write
from purge.data.images import Images
from purge.data.prefetch import DEVICE_FRACTION, say_once

SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".pbm",
            ".jfif", ".jpe", ".jp2", ".avif", ".tga", ".dib"}  # fmt: skip
TRAIN = ("train", "training")  # what the part for training may be called, in any case,
HELD_OUT = ("test", "testing", "val", "valid", "validation")  # and the one for testing
NAMED = 100  # bad images that an error names one by one
LAYOUT = 2  # of the kept folders; a new one makes old folders be made again


class Source(NamedTuple):
    """Where images come from, and how to read them should they not have been kept."""

    name: str
    files: list[Path]  # what the digest is of
    read: Callable[[], tuple[Parts, tuple[str, ...]]]  # the parts and the names of the classes


def cache_folder() -> Path:
    """``$PURGE_CACHE``, or ``purge`` in the user's cache."""
    user = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("PURGE_CACHE") or Path(user) / "purge")


def images_of(
    source: Source,
    *,
    size: int | None,
    split_seed: int,
    skip_bad: bool,
    progress: bool,
    mean: tuple[float, ...] = (),
    std: tuple[float, ...] = (),
    channels: int | None = None,
    device_fraction: float = DEVICE_FRACTION,
) -> tuple[Images, Images]:
    """The training and test images of a source, mapped from what is kept of it on disk."""
    folder = kept(source, size=size, progress=progress)
    facts = read_json(folder / "facts.json")
    bad = [path for part in facts["parts"].values() for path in part["bad"]]
    if bad and not skip_bad:
        raise _unreadable(bad)
    if bad:
        total = sum(len(part["labels"]) for part in facts["parts"].values()) + len(bad)
        say_once(f"{len(bad)} of {total} images cannot be read and are left out: {', '.join(bad[:NAMED])}.")

    def images(name: str) -> Images:
        part = facts["parts"][name]
        shape = (len(part["labels"]), *facts["form"])
        flat = torch.from_file(
            str(folder / f"{name}.bin"), shared=False, size=math.prod(shape), dtype=torch.uint8
        )
        return Images(
            flat.view(shape),
            torch.tensor(part["labels"]),
            mean=mean or tuple(facts["mean"]),
            std=std or tuple(facts["std"]),
            size=size,
            channels=channels,
            names=facts["names"],
            paths=part["paths"],
            source=f"{part['content']}-{name}",
            device_fraction=device_fraction,
        )

    if "all" not in facts["parts"]:
        return images("train"), images("test")
    everything = images("all")
    train, test = _split(everything.labels.numpy(), split_seed)
    return everything.select(torch.from_numpy(train)), everything.select(torch.from_numpy(test))


def _split(labels: NDArray[np.int64], seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Positions for training and testing: a fifth of each class, drawn from the seed, is for testing."""
    order = np.random.default_rng(seed).permutation(len(labels))
    held = [order[labels[order] == c] for c in np.unique(labels)]
    test = np.sort(np.concatenate([rows[: round(0.2 * len(rows))] for rows in held]))
    if not len(test):
        raise DataError(
            "at least 3 images of some class", "fewer", "add images, or a test folder of your own"
        )
    return np.setdiff1d(np.arange(len(labels)), test), test


# -- keeping ----------------------------------------------------------------------------------


def kept(source: Source, *, size: int | None, progress: bool) -> Path:
    """The folder with the decoded images of a source; made now if there is none."""
    digest = _digest(source)
    at = cache_folder() / "decoded"
    wanted = at / f"{digest}-{size or DEFAULT_SIZE}"
    for folder in (at / f"{digest}-native", wanted):
        if _complete(folder):
            return folder
    parts, names = source.read()
    _check_parts(source.name, parts, names)
    form, native = form_of(parts, size, progress)
    workers = threads(form, native=native)
    final = at / f"{digest}-native" if native else wanted
    try:
        at.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=at, prefix=".making-") as making:
            found, counts = {}, np.zeros((form.channels, 256), dtype=np.int64)
            total = sum(len(p.labels) for p in parts.values())
            with progress_line(f"decode {source.name}", total, progress) as on:
                for name, part in parts.items():
                    to = Path(making, f"{name}.bin")
                    made = write(part, form, to, counts, lambda n: on(n, ""), workers)
                    found[name] = {**made, "content": _content(to, made["labels"], names)}
            if not all(part["labels"] for part in found.values()):
                fix = "check the files"
                raise DataError(f"images that can be read in {source.name}", "none", fix)
            mean, std = _constants(counts)
            known = {"source": source.name, "form": form, "names": names, "mean": mean, "std": std}
            write_json(Path(making, "facts.json"), {**known, "parts": found})
            _put(Path(making), final)
    except OSError as error:
        got = error.strerror or str(error)
        raise FileError(
            f"a cache that can be written, {at}", got, "set PURGE_CACHE to a folder with room"
        ) from None
    return final


def _put(made: Path, final: Path) -> None:
    """Give a finished folder its name, in place of a damaged one; another process may be faster."""
    made.chmod(0o755)  # temporary folders are for their maker only, caches may be shared
    if final.exists() and not _complete(final):
        shutil.rmtree(final)
    try:
        made.rename(final)
    except OSError:
        if not _complete(final):
            raise


def _digest(source: Source) -> str:
    """A digest of the source's name and the paths, sizes and times of change of its files."""
    h = hashlib.sha256(json.dumps([LAYOUT, source.name]).encode())
    for path in source.files:
        try:
            facts = path.stat()
            known = [facts.st_size, facts.st_mtime_ns]
        except OSError:  # a link to nowhere; decoding will say so
            known = []
        h.update(json.dumps([str(path.absolute()), *known]).encode())
    return h.hexdigest()[:32]


def _content(pixels: Path, labels: list[int], names: tuple[str, ...]) -> str:
    """A digest of decoded images and their labels: the same wherever their files were, and whenever made."""
    with pixels.open("rb") as file:
        h = hashlib.file_digest(file, "sha256")
    h.update(json.dumps([labels, names]).encode())
    return h.hexdigest()[:32]


def _complete(folder: Path) -> bool:
    """Is all there that facts.json, which is written last, speaks of?"""
    try:
        facts = read_json(folder / "facts.json")
        sizes = {
            folder / f"{name}.bin": len(part["labels"]) * math.prod(facts["form"])
            for name, part in facts["parts"].items()
        }
    except (FileError, KeyError, TypeError, AttributeError):
        return False
    return all(path.is_file() and path.stat().st_size == size for path, size in sizes.items())


def _check_parts(source: str, parts: Parts, names: tuple[str, ...]) -> None:
    for name, part in parts.items():
        if not part.labels:
            raise DataError(f"images in the {name} part of {source}", "none", "add some")
        if not 0 <= min(part.labels) <= max(part.labels) < len(names):
            outside = min(part.labels) if min(part.labels) < 0 else max(part.labels)
            raise DataError(
                f"labels from 0 to {len(names) - 1} in {source}",
                str(outside),
                "number the classes 0 … K-1, or correct the list of their names",
            )
    if len(names) < 2:
        raise DataError(f"at least 2 classes in {source}", str(len(names)), "add another class")


def _unreadable(bad: list[str]) -> DataError:
    more = f" and {len(bad) - NAMED} more" if len(bad) > NAMED else ""
    return DataError(
        "images that can be read",
        f"{len(bad)} that cannot ({', '.join(bad[:NAMED])}{more})",
        "repair or remove them, or leave them out with --skip-bad (skip_bad=True)",
    )


def _constants(counts: NDArray[np.int64]) -> tuple[list[float], list[float]]:
    """Mean and standard deviation of each channel, in units of 255, from how often each value occurs."""
    values, n = np.arange(256) / 255, counts.sum(1)
    mean = counts @ values / n
    std = np.sqrt(np.maximum(counts @ values**2 / n - mean**2, 0))
    return mean.round(4).tolist(), np.maximum(std.round(4), 1e-3).tolist()


# -- the forms that a user's own data may have ------------------------------------------------


def find_source(path: Path, names: tuple[str, ...] = ()) -> Source:
    """A folder or file of the user's as a source of images; ``names``: where Parquet tells none."""
    path = path.absolute()  # "." has no name
    if path.is_file() and path.suffix == ".npz":
        return Source(path.name, [path], lambda: read_npz(path))
    if shards := shards_in(path):
        files = [f for found in shards.values() for f in found]
        return Source(path.name, files, lambda: read_parquet(shards, names))
    if path.is_dir() and (trees := _trees(path)):
        images = {part: _images_in(root) for part, root in trees.items()}
        if files := [f for found in images.values() for _, f in found]:
            return Source(path.name, files, lambda: _read_folders(path, images))
    raise DataError(
        f"images in {path}: DIR/train/<class>/* and DIR/test/<class>/*, DIR/<class>/*, Parquet or .npz",
        "a folder without them" if path.is_dir() else "another kind of file",
        "put the images of each class into a folder of its own",
    )


def _trees(path: Path) -> dict[str, Path]:
    """The folders whose subfolders are classes: train and test, or one for all."""
    folders = {d.name.lower(): d for d in sorted(path.iterdir()) if d.is_dir()}
    train = next((folders[n] for n in TRAIN if n in folders), None)
    held_out = next((folders[n] for n in HELD_OUT if n in folders), None)
    if train and (held_out or any(train.glob("*/"))):  # else a class of trains
        return {"train": train, "test": held_out} if held_out else {"all": train}
    inner = [{d.name for d in f.iterdir() if d.is_dir()} for f in folders.values() if f.name[0] != "."]
    if len(inner) > 1 and len(inner[0]) > 1 and all(names == inner[0] for names in inner):
        raise DataError(
            f"folders of classes in {path}, or train and test",
            f"{', '.join(f.name for f in folders.values())}, which hold the same folders",
            "call the part for training train and the one for testing test",
        )
    return {"all": path}


def _images_in(root: Path) -> list[tuple[str, Path]]:
    """Class and path of every image below a folder of classes, in order."""
    classes = sorted((d for d in root.iterdir() if d.is_dir() and not d.name.startswith(".")), key=_by_number)
    return [(d.name, f) for d in classes for f in sorted(d.rglob("*")) if _is_image(f)]


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".")  # ._x.jpg is Apple's, no image


def _by_number(path: Path) -> tuple[int, str]:
    """Classes called 0, 1, … 10 in the order of their numbers, others by name."""
    return (int(path.name), "") if path.name.isascii() and path.name.isdigit() else (1 << 62, path.name)


def _read_folders(root: Path, files: dict[str, list[tuple[str, Path]]]) -> tuple[Parts, tuple[str, ...]]:
    names = tuple(dict.fromkeys(c for c, _ in files.get("train", files.get("all", []))))
    if strange := sorted({c for c, _ in files.get("test", [])} - set(names)):
        raise DataError(
            f"test images of the classes in {root / 'train'}",
            f"a class {strange[0]!r} that is only in the test part",
            "give both parts the same folders of classes",
        )
    number = {name: i for i, name in enumerate(names)}
    return {
        part: Encoded(
            [number[c] for c, _ in found],
            [f.relative_to(root).as_posix() for _, f in found],
            lambda found=found: (f for _, f in found),  # type: ignore[misc]
        )
        for part, found in files.items()
    }, names


def shards_in(path: Path) -> dict[str, list[Path]]:
    """Parquet files by part: ``train-*`` and ``test-*``, or all of them together."""
    if path.is_file():
        return {"all": [path]} if path.suffix == ".parquet" else {}
    found = sorted(path.glob("*.parquet")) or sorted(path.glob("data/*.parquet"))
    train = [f for f in found if f.name.startswith("train")]
    for name in HELD_OUT:
        if train and (test := [f for f in found if f.name.startswith(name)]):
            return {"train": train, "test": test}
    return {"all": train or found} if found else {}


def read_parquet(shards: dict[str, list[Path]], names: tuple[str, ...] = ()) -> tuple[Parts, tuple[str, ...]]:
    """Hugging Face's image layout: ``image`` with ``bytes`` and ``path``, and ``label``."""
    schemas = {path: _schema(path) for files in shards.values() for path in files}
    first = next(iter(schemas))
    columns = {path: _columns(path, schema) for path, schema in schemas.items()}

    def encoded(files: list[Path]) -> Encoded:
        labels: list[int] = []
        paths: list[str] = []
        rows: list[str] = []
        for path in files:
            image, label = columns[path]
            with _opened(path) as file:
                labels += _whole(file.read([label])[label].to_pylist(), path)
                rows += [f"{path.name} row {i}" for i in range(len(labels) - len(rows))]
                kind = schemas[path].field(image).type
                named = pa.types.is_struct(kind) and kind.get_field_index("path") >= 0
                listed = file.read([f"{image}.path"])[image].to_pylist() if named else []
            paths += [row["path"] or "" if row else "" for row in listed]
        unique = all(paths) and len(paths) == len(labels) == len(set(paths))
        return Encoded(
            labels,
            paths if unique else rows,
            lambda: (item for path in files for item in _rows(path, columns[path][0])),
        )

    parts: Parts = {part: encoded(files) for part, files in shards.items()}
    highest = max((max(p.labels, default=0) for p in parts.values()), default=0)
    told = _class_names(schemas[first], columns[first][1])
    return parts, told or names or tuple(map(str, range(highest + 1)))


@contextmanager
def _opened(path: Path) -> Iterator[pq.ParquetFile]:
    try:
        with pq.ParquetFile(path) as file:
            yield file
    except (pa.ArrowException, OSError):
        raise FileError(f"Parquet in {path}", "a damaged file", "write it again") from None


def _schema(path: Path) -> pa.Schema:
    with _opened(path) as file:
        return file.schema_arrow


def _columns(path: Path, schema: pa.Schema) -> tuple[str, str]:
    image = next((c for c in ("image", "img") if c in schema.names), None)
    label = next((c for c in ("label", "labels", "fine_label") if c in schema.names), None)
    if image is None or label is None:
        raise DataError(
            f"columns 'image' and 'label' in {path.name}",
            ", ".join(map(repr, schema.names)) or "none",
            "rename the columns",
        )
    return image, label


def _rows(path: Path, column: str) -> Iterator[bytes]:
    with _opened(path) as file:
        for batch in file.iter_batches(1024, columns=[column]):
            for row in batch.column(0).to_pylist():
                found = row.get("bytes") if isinstance(row, dict) else row
                yield found if isinstance(found, bytes) else b""


def _class_names(schema: pa.Schema, label: str) -> tuple[str, ...]:
    """Class names as metadata may give them: our key, or the features that Hugging Face writes."""
    metadata = schema.metadata or {}
    try:
        if b"classes" in metadata:
            return tuple(map(str, json.loads(metadata[b"classes"])))
        features = json.loads(metadata.get(b"huggingface", b"{}"))["info"]["features"]
        return tuple(map(str, features[label]["names"]))
    except (ValueError, KeyError, TypeError):
        return ()


def read_npz(path: Path) -> tuple[Parts, tuple[str, ...]]:
    """Arrays ``train_images``, ``train_labels``, ``test_…``; ``x_train`` …; or ``images``, ``labels``."""
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
    except Exception:  # a damaged file can fail in any way inside its reader
        raise FileError(
            f"plain arrays in {path}", "a damaged file, or one of Python objects", "write it again"
        ) from None
    for keys in (
        {"train": ("train_images", "train_labels"), "test": ("test_images", "test_labels")},
        {"train": ("x_train", "y_train"), "test": ("x_test", "y_test")},
        {"all": ("images", "labels")},
        {"all": ("x", "y")},
    ):
        if all(key in arrays for pair in keys.values() for key in pair):
            parts: Parts = {
                part: Decoded(_whole(arrays[y].reshape(-1).tolist(), path), _bytes(arrays[x], path))
                for part, (x, y) in keys.items()
            }
            highest = max(max(p.labels, default=0) for p in parts.values())
            given = next((arrays[k] for k in ("classes", "names") if k in arrays), np.arange(highest + 1))
            return parts, tuple(map(str, np.atleast_1d(given).tolist()))
    raise DataError(
        f"arrays images and labels, or train_images, train_labels, test_images … in {path.name}",
        ", ".join(arrays) or "none",
        "save the arrays under these names",
    )


def _whole(labels: list[Any], path: Path) -> list[int]:
    wrong = [v for v in labels if isinstance(v, bool) or not isinstance(v, int)]
    if wrong or not labels:
        raise DataError(
            f"whole numbers as labels in {path.name}",
            repr(wrong[0]) if wrong else "none",
            "number the classes 0 … K-1",
        )
    return labels


def _bytes(pixels: NDArray[Any], path: Path) -> Array:
    """Pixels of an array as bytes: 8 bits as they are, 16 scaled, floats from 0 to 1."""
    shaped = pixels.ndim == 3 or (pixels.ndim == 4 and bool({1, 3} & {pixels.shape[1], pixels.shape[3]}))
    shaped = shaped and pixels.size > 0
    if shaped and pixels.dtype == np.uint8:
        return pixels
    if shaped and pixels.dtype.kind == "u" and pixels.itemsize == 2:
        return (pixels / 257).round().astype(np.uint8)
    if shaped and pixels.dtype.kind == "f" and 0 <= pixels.min() <= pixels.max() <= 1:
        return (pixels * 255).round().astype(np.uint8)
    raise DataError(
        f"images (N, H, W) or (N, H, W, 1 or 3) of bytes in {path.name}",
        f"{pixels.shape} of {pixels.dtype}",
        "save uint8 pixels, or floats from 0 to 1",
    )
