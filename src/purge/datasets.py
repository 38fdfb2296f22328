"""The data sets known by name; the only place where a constant of one of them is written.

Each is read from its original files, as its authors publish them, packed or unpacked, or from
Parquet in a folder of its name. Sizes, channels and augmentation are the paper's.
"""

from __future__ import annotations

import gzip
import hashlib
import http.client
import io
import os
import pickle
import ssl
import tarfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch

from purge.decoding import Decoded, Encoded, Parts
from purge.errors import DataError, FileError, did_you_mean, expected
from purge.files import atomically
from purge.images import Images
from purge.placement import DEVICE_FRACTION
from purge.progress import progress_line
from purge.reading import (
    Source,
    cache_folder,
    find_source,
    images_of,
    read_npz,
    shards_in,
)
from purge.settings import checked_seed

Read = tuple[Parts, tuple[str, ...]]  # the parts, and class names where the files tell them


class Download(NamedTuple):
    """A file as its authors publish it."""

    file: str
    url: str
    md5: str


class DatasetEntry(NamedTuple):
    """A data set: how to read it, and what is known about it."""

    about: str
    names: tuple[str, ...]  # of the classes; empty: the files tell
    channels: int
    size: int | None  # that a model gets; None: as stored
    mean: tuple[float, ...]
    std: tuple[float, ...]
    read: Callable[[list[Path]], Read]
    layouts: tuple[tuple[str, ...], ...] = ()  # files to look for; any complete row will do
    downloads: Callable[[], list[Download]] = list
    recipe: Mapping[str, Any] = MappingProxyType({})  # settings of training that differ from the defaults


# -- original formats -------------------------------------------------------------------------


@cache
def _digits_once() -> Parts:
    """1,797 handwritten digits of 8×8 pixels that come with scikit-learn; a fifth is for testing."""
    from sklearn.datasets import load_digits  # takes long to import
    from sklearn.model_selection import train_test_split

    raw = load_digits()
    pixels = (raw.images * (255 / 16)).round().astype(np.uint8)
    train, test = train_test_split(range(len(pixels)), test_size=0.2, random_state=0, stratify=raw.target)
    return {
        part: Decoded(raw.target[rows].tolist(), pixels[rows])
        for part, rows in (("train", train), ("test", test))
    }


def _digits(_paths: list[Path]) -> Read:
    return _digits_once(), ()


def _idx(paths: list[Path]) -> Read:
    """The files of MNIST: big-endian sizes, then bytes; packed with gzip or not."""

    def array(path: Path) -> Any:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        shape = np.frombuffer(raw, ">u4", count=raw[3], offset=4)
        return np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3]).reshape(shape)

    train_x, train_y, test_x, test_y = map(array, paths)
    return {"train": Decoded(train_y.tolist(), train_x), "test": Decoded(test_y.tolist(), test_x)}, ()


ARRAYS = {("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode")}
ARRAYS |= {(f"numpy.{core}.multiarray", "_reconstruct") for core in ("core", "_core")}


class _ArraysOnly(pickle.Unpickler):
    """A reader of pickles that may build arrays and nothing else: no code in a file is run."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in ARRAYS:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} is not an array")


BATCHES = tuple(f"data_batch_{i}" for i in range(1, 6))


def _cifar(paths: list[Path]) -> Read:
    """The pickled batches of CIFAR-10 and CIFAR-100, in their folder or in the archive."""
    batches = {
        Path(name).name: _ArraysOnly(io.BytesIO(raw), encoding="latin1").load()
        for name, raw in _unpacked(paths, lambda n: not n.endswith((".html", ".txt~", ".txt")))
    }

    def part(*files: str) -> Decoded:
        found = [batches[n] for n in files]
        labels = [int(y) for b in found for y in b.get("labels", b.get("fine_labels"))]
        return Decoded(labels, np.concatenate([b["data"] for b in found]).reshape(-1, 3, 32, 32))

    if "train" not in batches:
        return {"train": part(*BATCHES), "test": part("test_batch")}, ()
    return {"train": part("train"), "test": part("test")}, tuple(batches["meta"]["fine_label_names"])


def _svhn(paths: list[Path]) -> Read:
    """Matlab files with X (32, 32, 3, N) and y, in which the digit 0 is called 10."""
    from scipy.io import loadmat  # takes long to import

    train, test = map(loadmat, paths)
    return {
        part: Decoded((m["y"].reshape(-1) % 10).astype(int).tolist(), m["X"].transpose(3, 2, 0, 1))
        for part, m in (("train", train), ("test", test))
    }, ()


STL10 = ("train_X.bin", "train_y.bin", "test_X.bin", "test_y.bin")


def _stl10(paths: list[Path]) -> Read:
    """Bytes, column by column: (N, 3, width, height), and labels from 1."""
    files = {Path(n).name: np.frombuffer(raw, np.uint8) for n, raw in _unpacked(paths, _is_stl10)}
    train_x, train_y, test_x, test_y = (files[n] for n in STL10)
    return {
        part: Decoded((y.astype(int) - 1).tolist(), x.reshape(-1, 3, 96, 96).transpose(0, 1, 3, 2))
        for part, x, y in (("train", train_x, train_y), ("test", test_x, test_y))
    }, ()


def _is_stl10(name: str) -> bool:
    return Path(name).name in STL10


def _pathmnist(paths: list[Path]) -> Read:
    parts, _ = read_npz(paths[0])
    return parts, ()


def _tiny_imagenet(paths: list[Path]) -> Read:
    """200 folders of JPEGs; the official validation part is for testing, as its labels are known."""
    packed = zipfile.ZipFile(paths[0]) if paths[0].suffix == ".zip" else None
    root = paths[0].parent

    def text(name: str) -> str:
        if packed is not None:
            return packed.read(f"tiny-imagenet-200/{name}").decode()
        return (root / name).read_text(encoding="utf-8")

    def content(name: str) -> bytes | Path:
        try:
            return root / name if packed is None else packed.read(f"tiny-imagenet-200/{name}")
        except (zipfile.BadZipFile, zlib.error, EOFError, KeyError):
            return b""  # named with all other images that cannot be read

    def encoded(names: list[str], labels: list[int]) -> Encoded:
        return Encoded(labels, names, lambda: (content(name) for name in names))

    ids = sorted(text("wnids.txt").split())
    words = dict(line.split("\t", 1) for line in text("words.txt").splitlines() if "\t" in line)
    number = {wnid: i for i, wnid in enumerate(ids)}
    listing = (
        [n.removeprefix("tiny-imagenet-200/") for n in packed.namelist()]
        if packed is not None
        else [p.relative_to(root).as_posix() for p in (root / "train").rglob("*.JPEG")]
    )
    train = sorted(n for n in listing if n.startswith("train/") and n.endswith(".JPEG"))
    rows = [line.split("\t") for line in text("val/val_annotations.txt").splitlines() if line]
    return {
        "train": encoded(train, [number[n.split("/")[1]] for n in train]),
        "test": encoded([f"val/images/{r[0]}" for r in rows], [number[r[1]] for r in rows]),
    }, tuple(words.get(wnid, wnid).split(",")[0] for wnid in ids)


def _unpacked(paths: list[Path], wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """Name and content of files, or of those wanted in the one archive given; nothing is unpacked."""
    if not paths[0].name.endswith(".tar.gz"):
        yield from ((p.name, p.read_bytes()) for p in paths)
        return
    with tarfile.open(paths[0]) as archive:
        for member in archive:
            if member.isfile() and wanted(member.name) and (file := archive.extractfile(member)):
                yield member.name, file.read()


# -- where they are published: addresses and checksums as torchvision and MedMNIST give them ------


def _from_mirror(dataset: str) -> list[Download]:
    from torchvision import datasets

    cls = getattr(datasets, dataset)
    mirror = next(m for m in cls.mirrors if "yann.lecun.com" not in m)  # which no longer answers
    return [Download(file, mirror + file, md5) for file, md5 in cls.resources]


def _from_archive(dataset: str) -> list[Download]:
    from torchvision import datasets

    cls = getattr(datasets, dataset)
    return [Download(cls.filename, cls.url, cls.tgz_md5)]


def _from_svhn() -> list[Download]:
    from torchvision import datasets

    split_list = datasets.SVHN.split_list
    return [Download(file, url, md5) for url, file, md5 in (split_list[p] for p in ("train", "test"))]


# -- the table --------------------------------------------------------------------------------

DIGITS = tuple("0123456789")
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
IDX = tuple(f"{a}-{b}" for a in ("train", "t10k") for b in ("images-idx3-ubyte", "labels-idx1-ubyte"))
PACKED_IDX = tuple(f"{name}.gz" for name in IDX)

DATASETS: dict[str, DatasetEntry] = {
    "digits": DatasetEntry(
        "1,797 handwritten digits, 8×8, inside scikit-learn: no download",
        DIGITS, 1, None, (0.3053,), (0.3760,), _digits,
    ),
    "mnist": DatasetEntry(
        "70,000 handwritten digits, 28×28, grey; as in the paper three channels at 224×224",
        DIGITS, 3, 224, (0.1307,), (0.3081,), _idx,
        (PACKED_IDX, IDX), lambda: _from_mirror("MNIST"),
        {"epochs": 4, "batch_size": 256, "lr": 0.1},
    ),
    "fashion-mnist": DatasetEntry(
        "70,000 pieces of clothing, 28×28, grey",
        ("T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag",
         "ankle boot"), 1, 32, (0.2860,), (0.3530,), _idx,
        (PACKED_IDX, IDX), lambda: _from_mirror("FashionMNIST"),
        {"epochs": 20, "batch_size": 256, "lr": 0.2},
    ),
    "cifar10": DatasetEntry(
        "60,000 small photographs of 10 kinds of things, 32×32",
        CIFAR10, 3, None, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616), _cifar,
        (("cifar-10-python.tar.gz",),
         tuple(f"cifar-10-batches-py/{n}" for n in (*BATCHES, "test_batch"))),
        lambda: _from_archive("CIFAR10"),
        {"epochs": 58, "batch_size": 512, "lr": 0.4, "augment": "crop-flip"},
    ),
    "cifar100": DatasetEntry(
        "60,000 small photographs of 100 kinds of things, 32×32",
        (), 3, None, (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762), _cifar,
        (("cifar-100-python.tar.gz",), tuple(f"cifar-100-python/{n}" for n in ("train", "test", "meta"))),
        lambda: _from_archive("CIFAR100"),
        {"epochs": 58, "batch_size": 512, "lr": 0.4, "augment": "crop-flip"},
    ),
    "svhn": DatasetEntry(
        "99,289 house numbers from street views, 32×32",
        DIGITS, 3, None, (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970), _svhn,
        (("train_32x32.mat", "test_32x32.mat"),), _from_svhn,
        {"epochs": 20, "batch_size": 512, "lr": 0.2},
    ),
    "stl10": DatasetEntry(
        "13,000 photographs of 10 kinds of things, 96×96; as in the paper at 224×224",
        ("airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck"),
        3, 224, (0.4467, 0.4398, 0.4066), (0.2603, 0.2566, 0.2713), _stl10,
        (("stl10_binary.tar.gz",), tuple(f"stl10_binary/{n}" for n in STL10)),
        lambda: _from_archive("STL10"),
        {"epochs": 60, "batch_size": 128, "lr": 0.1, "augment": "crop-flip"},
    ),
    "pathmnist": DatasetEntry(
        "97,176 pieces of colon tissue of 9 types, 28×28 (MedMNIST); as in the paper at 224×224",
        ("adipose", "background", "debris", "lymphocytes", "mucus", "smooth muscle",
         "normal colon mucosa", "cancer-associated stroma", "colorectal adenocarcinoma epithelium"),
        3, 224, (0.7405, 0.5330, 0.7058), (0.1237, 0.1768, 0.1244), _pathmnist,
        (("pathmnist.npz",),),
        lambda: [Download("pathmnist.npz", "https://zenodo.org/records/10519652/files/pathmnist.npz",
                          "a8b06965200029087d5bd730944a56c1")],
        {"epochs": 20, "batch_size": 512, "lr": 0.4},
    ),
    "tiny-imagenet": DatasetEntry(
        "110,000 photographs of 200 kinds of things, 64×64; the validation part is for testing",
        (), 3, None, (0.4802, 0.4481, 0.3975), (0.2770, 0.2691, 0.2821), _tiny_imagenet,
        (("tiny-imagenet-200.zip",),
         ("tiny-imagenet-200/wnids.txt", "tiny-imagenet-200/words.txt",
          "tiny-imagenet-200/val/val_annotations.txt")),
        lambda: [Download("tiny-imagenet-200.zip", "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
                          "90528d7ca1a48142e341f4ef8d21d0de")],
        {"epochs": 40, "batch_size": 256, "lr": 0.2, "augment": "crop-flip"},
    ),
}  # fmt: skip

FORMS = {
    "DIR": "your images: DIR/train/<class>/* and DIR/test/<class>/*, or DIR/<class>/*, a fifth held out",
    "FILE.parquet": "or a folder of them: columns image and label, as Hugging Face lays out images",
    "FILE.npz": "arrays images and labels, or train_images, train_labels, test_images, test_labels",
}


# -- finding them -----------------------------------------------------------------------------


def load(
    data: str | os.PathLike[str],
    *,
    data_dir: str | os.PathLike[str] | None = None,
    size: int | None = None,
    split_seed: int = 0,
    skip_bad: bool = False,
    device_fraction: float = DEVICE_FRACTION,
    progress: bool = True,
) -> tuple[Images, Images]:
    """The training and test images of a data set: a name, or your own folder or file.

    Named sets are looked for in ``data_dir`` (default: ``$PURGE_DATA``, then the user's cache) and
    downloaded there if they are nowhere. ``size``: side of the square that a model gets; default:
    the paper's for named sets, the images' own otherwise (224 where they are large or differ).
    ``split_seed`` draws the fifth that is held out where a folder has no test part. ``skip_bad``
    leaves out images that cannot be read instead of refusing all. ``device_fraction``: share of the
    free device memory up to which images are held there.
    """
    checked_seed(split_seed)
    if size is not None and not (isinstance(size, int) and 8 <= size <= 1024):
        raise DataError(expected("a size from 8 to 1024 pixels", repr(size), "pass size=32, say"))
    options: dict[str, Any] = {
        "split_seed": split_seed,
        "skip_bad": skip_bad,
        "progress": progress,
        "device_fraction": device_fraction,
    }
    if str(data) not in DATASETS:
        if not Path(data).exists():
            fix = did_you_mean(str(data), DATASETS)
            raise DataError(expected("the name of a data set, or a path", repr(str(data)), fix))
        return images_of(find_source(Path(data)), size=size, **options)
    name, entry = str(data), DATASETS[str(data)]
    if not entry.layouts:
        return _built_in(name, entry, size, device_fraction)
    source = _source(name, entry, None if data_dir is None else Path(data_dir), progress)
    return images_of(
        source,
        size=size or entry.size,
        mean=entry.mean,
        std=entry.std,
        channels=entry.channels,
        **options,
    )


def _built_in(name: str, entry: DatasetEntry, size: int | None, fraction: float) -> tuple[Images, Images]:
    """A data set that comes with a package: nothing to look for, nothing to keep."""
    parts, _ = entry.read([])
    train, test = (
        Images(
            torch.from_numpy(part.pixels)[:, None],
            torch.tensor(part.labels),
            mean=entry.mean,
            std=entry.std,
            size=size or entry.size,
            names=entry.names,
            source=f"{name}-{which}",
            device_fraction=fraction,
        )
        for which, part in parts.items()
        if isinstance(part, Decoded)
    )
    return train, test


def _source(name: str, entry: DatasetEntry, data_dir: Path | None, progress: bool) -> Source:
    """The original files of a data set, or Parquet in a folder of its name; downloaded if missing."""
    roots = [data_dir] if data_dir is not None else _roots()
    for root in roots:
        for folder in (root / name, *([root] if root.name == name else [])):
            if shards_in(folder):
                return find_source(folder, entry.names)
        for layout in entry.layouts:
            for folder in _folders(root, name, entry):
                paths = [folder / file for file in layout]
                if all(path.is_file() for path in paths):
                    files = [*paths, *_beside(entry, paths)]
                    return Source(name, files, lambda paths=paths: _read(name, entry, paths))  # type: ignore[misc]
    folder = roots[0] / name
    paths = [_fetch(download, folder, progress) for download in entry.downloads()]
    return Source(name, paths, lambda: _read(name, entry, paths))


def _roots() -> list[Path]:
    given = os.environ.get("PURGE_DATA")
    return [*([Path(given)] if given else []), cache_folder() / "data"]


def _folders(root: Path, name: str, entry: DatasetEntry) -> list[Path]:
    """Where below a root the files may lie: in a folder of the name, or where torchvision puts them."""
    if entry.read is _idx:  # several sets have files of these names, so never in the root itself
        return [root / name, root / {"mnist": "MNIST", "fashion-mnist": "FashionMNIST"}[name] / "raw"]
    return [root / name, root]


def _beside(entry: DatasetEntry, paths: list[Path]) -> list[Path]:
    """The images of an unpacked Tiny ImageNet, which no layout lists: a change of one must be seen."""
    if entry.read is not _tiny_imagenet or paths[0].suffix == ".zip":
        return []
    return sorted(f for part in ("train", "val") for f in (paths[0].parent / part).rglob("*.JPEG"))


def _read(name: str, entry: DatasetEntry, paths: list[Path]) -> Read:
    try:
        parts, names = entry.read(paths)
        if any(isinstance(p, Decoded) and len(p.pixels) != len(p.labels) for p in parts.values()):
            raise EOFError("images or labels are missing")
    except (FileError, DataError):
        raise
    except Exception:  # a damaged file can fail in any way inside its reader
        raise FileError(
            expected(
                f"the original files of {name} in {paths[0].parent}",
                "damaged or other ones",
                "remove them, so that they are downloaded again",
            )
        ) from None
    highest = max(max(part.labels, default=0) for part in parts.values())
    return parts, entry.names or names or tuple(map(str, range(highest + 1)))


NO_ANSWER = (
    urllib.error.URLError, http.client.HTTPException, ssl.SSLError, TimeoutError, ConnectionError,
)  # fmt: skip


def _fetch(download: Download, folder: Path, progress: bool) -> Path:
    """Download a file, with its checksum, unless it is there."""
    path = folder / download.file
    if path.is_file():
        return path

    def write(answer: Any, to: Path) -> None:
        digest = hashlib.md5(usedforsecurity=False)
        total = int(answer.headers.get("Content-Length") or 0)
        with (
            to.open("wb") as file,
            progress_line(f"download {download.file} (MB)", total >> 20, progress) as on,
        ):
            while block := answer.read(1 << 20):
                file.write(block)
                digest.update(block)
                on(1, "")
        if digest.hexdigest() != download.md5:
            raise FileError(
                expected(
                    f"{download.file} as published",
                    "another file or half of it (checksum)",
                    f"try again, or put the file from {download.url} into {folder}",
                )
            )

    try:
        with urllib.request.urlopen(download.url, timeout=30) as answer:
            folder.mkdir(parents=True, exist_ok=True)  # not before there is something to put into it
            atomically(path, lambda to: write(answer, to))
    except NO_ANSWER as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()  # it is the server's answer as well
        raise FileError(
            expected(
                f"{download.file} in {folder}",
                f"no such file, and no way to {download.url} ({getattr(error, 'reason', None) or error})",
                f"download it elsewhere and put it into {folder}, or say where it is with --data-dir",
            )
        ) from None
    except OSError as error:
        raise FileError(
            expected(f"a folder that can be written, {folder}", str(error), "choose another with --data-dir")
        ) from None
    return path
