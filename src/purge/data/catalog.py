"""The data sets known by name; the only place where a constant of one of them is written.

Each is read from its original files, as its authors publish them, packed or unpacked, or from
Parquet in a folder of its name. Sizes, channels and augmentation are the paper's, but for PathMNIST:
its test images come from another hospital, whose stains look different, so its colours are varied, and
tissue has no top, so it is turned.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from purge.core.errors import DataError, FileError, did_you_mean
from purge.core.files import atomically
from purge.core.progress import progress_line
from purge.core.settings import checked_seed
from purge.data.cache import Source, cache_folder, find_source, images_of, shards_in
from purge.data.decode import Decoded
from purge.data.formats.published import (
    BATCHES,
    STL10,
    Read,
    read_cifar,
    read_digits,
    read_idx,
    read_pathmnist,
    read_stl10,
    read_svhn,
    read_tiny_imagenet,
)
from purge.data.images import Images
from purge.data.prefetch import DEVICE_FRACTION


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
        DIGITS, 1, None, (0.3053,), (0.3760,), read_digits,
    ),
    "mnist": DatasetEntry(
        "70,000 handwritten digits, 28×28, grey; as in the paper three channels at 224×224",
        DIGITS, 3, 224, (0.1307,), (0.3081,), read_idx,
        (PACKED_IDX, IDX), lambda: _from_mirror("MNIST"),
        {"epochs": 4, "batch_size": 256, "lr": 0.1},
    ),
    "fashion-mnist": DatasetEntry(
        "70,000 pieces of clothing, 28×28, grey",
        ("T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag",
         "ankle boot"), 1, 32, (0.2860,), (0.3530,), read_idx,
        (PACKED_IDX, IDX), lambda: _from_mirror("FashionMNIST"),
        {"epochs": 20, "batch_size": 256, "lr": 0.2},
    ),
    "cifar10": DatasetEntry(
        "60,000 small photographs of 10 kinds of things, 32×32",
        CIFAR10, 3, None, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616), read_cifar,
        (("cifar-10-python.tar.gz",),
         tuple(f"cifar-10-batches-py/{n}" for n in (*BATCHES, "test_batch"))),
        lambda: _from_archive("CIFAR10"),
        {"epochs": 58, "batch_size": 512, "lr": 0.4, "augment": "crop-flip"},
    ),
    "cifar100": DatasetEntry(
        "60,000 small photographs of 100 kinds of things, 32×32",
        (), 3, None, (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762), read_cifar,
        (("cifar-100-python.tar.gz",), tuple(f"cifar-100-python/{n}" for n in ("train", "test", "meta"))),
        lambda: _from_archive("CIFAR100"),
        {"epochs": 58, "batch_size": 512, "lr": 0.4, "augment": "crop-flip"},
    ),
    "svhn": DatasetEntry(
        "99,289 house numbers from street views, 32×32",
        DIGITS, 3, None, (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970), read_svhn,
        (("train_32x32.mat", "test_32x32.mat"),), _from_svhn,
        {"epochs": 20, "batch_size": 512, "lr": 0.2},
    ),
    "stl10": DatasetEntry(
        "13,000 photographs of 10 kinds of things, 96×96; as in the paper at 224×224",
        ("airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck"),
        3, 224, (0.4467, 0.4398, 0.4066), (0.2603, 0.2566, 0.2713), read_stl10,
        (("stl10_binary.tar.gz",), tuple(f"stl10_binary/{n}" for n in STL10)),
        lambda: _from_archive("STL10"),
        {"epochs": 60, "batch_size": 128, "lr": 0.1, "augment": "crop-flip"},
    ),
    "pathmnist": DatasetEntry(
        "97,176 pieces of colon tissue of 9 types, 28×28 (MedMNIST); as in the paper at 224×224",
        ("adipose", "background", "debris", "lymphocytes", "mucus", "smooth muscle",
         "normal colon mucosa", "cancer-associated stroma", "colorectal adenocarcinoma epithelium"),
        3, 224, (0.7405, 0.5330, 0.7058), (0.1237, 0.1768, 0.1244), read_pathmnist,
        (("pathmnist.npz",),),
        lambda: [Download("pathmnist.npz", "https://zenodo.org/records/10519652/files/pathmnist.npz",
                          "a8b06965200029087d5bd730944a56c1")],
        {"epochs": 10, "batch_size": 512, "lr": 0.1, "augment": "turn", "colour": 0.3,
         "label_smoothing": 0.1},
    ),
    "tiny-imagenet": DatasetEntry(
        "110,000 photographs of 200 kinds of things, 64×64; the validation part is for testing",
        (), 3, None, (0.4802, 0.4481, 0.3975), (0.2770, 0.2691, 0.2821), read_tiny_imagenet,
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
        raise DataError("a size from 8 to 1024 pixels", repr(size), "pass size=32, say")
    options: dict[str, Any] = {
        "split_seed": split_seed,
        "skip_bad": skip_bad,
        "progress": progress,
        "device_fraction": device_fraction,
    }
    if str(data) not in DATASETS:
        if not Path(data).exists():
            fix = did_you_mean(str(data), DATASETS)
            raise DataError("the name of a data set, or a path", repr(str(data)), fix)
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
    if entry.read is read_idx:  # several sets have files of these names, so never in the root itself
        return [root / name, root / {"mnist": "MNIST", "fashion-mnist": "FashionMNIST"}[name] / "raw"]
    return [root / name, root]


def _beside(entry: DatasetEntry, paths: list[Path]) -> list[Path]:
    """The images of an unpacked Tiny ImageNet, which no layout lists: a change of one must be seen."""
    if entry.read is not read_tiny_imagenet or paths[0].suffix == ".zip":
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
            f"the original files of {name} in {paths[0].parent}",
            "damaged or other ones",
            "remove them, so that they are downloaded again",
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
                f"{download.file} as published",
                "another file or half of it (checksum)",
                f"try again, or put the file from {download.url} into {folder}",
            )

    try:
        with urllib.request.urlopen(download.url, timeout=30) as answer:
            folder.mkdir(parents=True, exist_ok=True)  # not before there is something to put into it
            atomically(path, lambda to: write(answer, to))
    except NO_ANSWER as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()  # it is the server's answer as well
        raise FileError(
            f"{download.file} in {folder}",
            f"no such file, and no way to {download.url} ({getattr(error, 'reason', None) or error})",
            f"download it elsewhere and put it into {folder}, or say where it is with --data-dir",
        ) from None
    except OSError as error:
        raise FileError(
            f"a folder that can be written, {folder}", str(error), "choose another with --data-dir"
        ) from None
    return path
