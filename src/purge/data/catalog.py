"""The data sets known by name; the only place that holds a constant of one of them.

Each is read from the files that its authors publish, packed or unpacked, or from Parquet in a folder of
its name. Sizes, channels and augmentation are the paper's, except for PathMNIST: its test images come
from another hospital, whose stains look different, so its colours are varied, and tissue has no top, so
its images are rotated.

An installed package adds data sets through entry points of the group ``purge.datasets``: the entry
point's name is the name of the data set, and its object is a :class:`DatasetEntry`.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from purge.data.formats.source import Read

GROUP = "purge.datasets"


class DatasetEntry(NamedTuple):
    """A data set: what is known about it, how to find its files and how to read them.

    Files are looked for in a folder named like the data set, then in ``folders``. Each row of ``layouts``
    lists file names or glob patterns; the first row of which every pattern matches is passed to ``read``.
    Without layouts, ``read([])`` must return decoded images.
    """

    about: str
    names: tuple[str, ...]  # of the classes; empty if the files have them
    channels: int
    size: int | None  # of the images that a model sees; None: as stored
    mean: tuple[float, ...]
    std: tuple[float, ...]
    read: Callable[[list[Path]], Read]
    layouts: tuple[tuple[str, ...], ...] = ()
    downloads: Mapping[str, str] = MappingProxyType({})  # addresses and MD5s of the first layout's files
    recipe: Mapping[str, Any] = MappingProxyType({})  # training settings that differ from the defaults
    folders: tuple[str, ...] = (".",)  # below the data folder


def _reader(module: str, function: str) -> Callable[[list[Path]], Read]:
    """A reader in ``data/formats``, imported when it is called: listing names must be fast."""

    def read(paths: list[Path]) -> Read:
        reader: Read = getattr(importlib.import_module(f"purge.data.formats.{module}"), function)(paths)
        return reader

    return read


DIGITS = tuple("0123456789")
IDX = tuple(f"{a}-{b}" for a in ("train", "t10k") for b in ("images-idx3-ubyte", "labels-idx1-ubyte"))
IDX_LAYOUTS = (tuple(f"{name}.gz" for name in IDX), IDX)


def _idx_at(base: str, *checksums: str) -> dict[str, str]:
    return {base + file: md5 for file, md5 in zip(IDX_LAYOUTS[0], checksums, strict=True)}


BUILT_IN: dict[str, DatasetEntry] = {
    "digits": DatasetEntry(
        "1,797 handwritten digits, 8×8, included in scikit-learn: no download",
        DIGITS, 1, None, (0.3053,), (0.3760,), _reader("published", "read_digits"),
    ),
    "mnist": DatasetEntry(
        "70,000 handwritten digits, 28×28, greyscale; as in the paper, three channels at 224×224",
        DIGITS, 3, 224, (0.1307,), (0.3081,), _reader("published", "read_idx"), IDX_LAYOUTS,
        _idx_at("https://ossci-datasets.s3.amazonaws.com/mnist/",
                "f68b3c2dcbeaaa9fbdd348bbdeb94873", "d53e105ee54ea40749a09fcbcd1e9432",
                "9fb629c4189551a2d022fa330f9573f3", "ec29112dd5afa0611ce80d1b7f02629c"),
        {"epochs": 4, "batch_size": 256, "lr": 0.1},
        ("MNIST/raw",),  # as torchvision; not the data folder itself: fashion-mnist has files of these names
    ),
    "fashion-mnist": DatasetEntry(
        "70,000 pieces of clothing, 28×28, greyscale",
        ("T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag",
         "ankle boot"),
        1, 32, (0.2860,), (0.3530,), _reader("published", "read_idx"), IDX_LAYOUTS,
        _idx_at("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
                "8d4fb7e6c68d591d4c3dfef9ec88bf0d", "25c81989df183df01b3e8a0aad5dffbe",
                "bef4ecab320f06d8554ea6380940ec79", "bb300cfdad3c16e7a12a480ee83cd310"),
        {"epochs": 20, "batch_size": 256, "lr": 0.2},
        ("FashionMNIST/raw",),
    ),
    "cifar10": DatasetEntry(
        "60,000 small photographs in 10 classes, 32×32",
        ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
        3, None, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616), _reader("published", "read_cifar"),
        (("cifar-10-python.tar.gz",),
         (*(f"cifar-10-batches-py/data_batch_{i}" for i in range(1, 6)), "cifar-10-batches-py/test_batch")),
        {"https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz": "c58f30108f718f92721af3b95e74349a"},
        {"epochs": 58, "batch_size": 512, "lr": 0.4, "augment": "crop-flip"},
    ),
    "cifar100": DatasetEntry(
        "60,000 small photographs in 100 classes, 32×32",
        (), 3, None, (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762), _reader("published", "read_cifar"),
        (("cifar-100-python.tar.gz",), tuple(f"cifar-100-python/{n}" for n in ("train", "test", "meta"))),
        {"https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz": "eb9058c3a382ffc7106e4002c42a8d85"},
        {"epochs": 58, "batch_size": 512, "lr": 0.4, "augment": "crop-flip"},
    ),
    "svhn": DatasetEntry(
        "99,289 house numbers from street views, 32×32",
        DIGITS, 3, None, (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970),
        _reader("published", "read_svhn"), (("train_32x32.mat", "test_32x32.mat"),),
        {"http://ufldl.stanford.edu/housenumbers/train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373",
         "http://ufldl.stanford.edu/housenumbers/test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3"},
        {"epochs": 20, "batch_size": 512, "lr": 0.2},
    ),
    "stl10": DatasetEntry(
        "13,000 photographs in 10 classes, 96×96; as in the paper, at 224×224",
        ("airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck"),
        3, 224, (0.4467, 0.4398, 0.4066), (0.2603, 0.2566, 0.2713), _reader("published", "read_stl10"),
        (("stl10_binary.tar.gz",),
         tuple(f"stl10_binary/{n}.bin" for n in ("train_X", "train_y", "test_X", "test_y"))),
        {"http://ai.stanford.edu/~acoates/stl10/stl10_binary.tar.gz": "91f7769df0f17e558f3565bffb0c7dfb"},
        {"epochs": 60, "batch_size": 128, "lr": 0.1, "augment": "crop-flip"},
    ),
    "pathmnist": DatasetEntry(
        "97,176 patches of colon tissue of 9 types, 28×28 (MedMNIST); as in the paper, at 224×224",
        ("adipose", "background", "debris", "lymphocytes", "mucus", "smooth muscle",
         "normal colon mucosa", "cancer-associated stroma", "colorectal adenocarcinoma epithelium"),
        3, 224, (0.7405, 0.5330, 0.7058), (0.1237, 0.1768, 0.1244), _reader("npz", "read_npz"),
        (("pathmnist.npz",),),
        {"https://zenodo.org/records/10519652/files/pathmnist.npz": "a8b06965200029087d5bd730944a56c1"},
        {"epochs": 10, "batch_size": 512, "lr": 0.1, "augment": "turn", "colour": 0.3,
         "label_smoothing": 0.1},
    ),
    "tiny-imagenet": DatasetEntry(
        "110,000 photographs in 200 classes, 64×64; the validation part is used for testing",
        (), 3, None, (0.4802, 0.4481, 0.3975), (0.2770, 0.2691, 0.2821),
        _reader("published", "read_tiny_imagenet"),
        (("tiny-imagenet-200.zip",),
         tuple(f"tiny-imagenet-200/{n}" for n in ("wnids.txt", "words.txt", "val/val_annotations.txt",
                                                  "train/*/images/*.JPEG", "val/images/*.JPEG"))),
        {"http://cs231n.stanford.edu/tiny-imagenet-200.zip": "90528d7ca1a48142e341f4ef8d21d0de"},
        {"epochs": 40, "batch_size": 256, "lr": 0.2, "augment": "crop-flip"},
    ),
}  # fmt: skip

FORMS = {
    "DIR": "your images: DIR/train/<class>/* and DIR/test/<class>/*, or DIR/<class>/*, a fifth held out",
    "FILE.parquet": "or a folder of them: columns image and label, as Hugging Face lays out images",
    "FILE.npz": "arrays images and labels, or train_images, train_labels, test_images, test_labels",
    "module:function": "a function of yours that returns (train, test): purge.Images, (x, y) or a dataset",
}


DATASETS: dict[str, DatasetEntry]  # the built-in data sets and those of installed packages


def __getattr__(name: str) -> Any:
    """Build DATASETS on first use: other packages import this module before theirs are defined."""
    if name != "DATASETS":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    table = globals()["DATASETS"] = dict(BUILT_IN)
    for point in entry_points(group=GROUP):
        try:
            entry = point.load()
        except (Exception, SystemExit) as error:  # a broken package must not stop the others
            entry = error
        if isinstance(entry, DatasetEntry) and point.name not in table:
            table[point.name] = entry
        else:
            why = "the name is taken" if point.name in table else f"not a DatasetEntry: {entry!r}"
            logging.getLogger("purge").warning("Data set %s (%s) ignored: %s", point.name, point.value, why)
    return table


def list_datasets() -> dict[str, str]:
    """The data sets known by name, and the forms of your own.

    Returns:
        Name → one line about it.

    Example:
        >>> "digits" in list_datasets()
        True
    """
    from purge.data.catalog import DATASETS  # builds it on first use

    return {**{name: entry.about for name, entry in DATASETS.items()}, **FORMS}
