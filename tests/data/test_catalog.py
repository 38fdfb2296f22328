"""Data sets by name: every original format read offline, downloads with checksums, damage in a sentence."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import pickle
import re
import shutil
import socket
import struct
import tarfile
import threading
import urllib.request
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import torchvision
from PIL import Image
from scipy.io import savemat

import purge
from purge.core.errors import DataError, FileError
from purge.data.catalog import DATASETS, Download
from purge.data.images import Images, resized

SENTENCE = re.compile(r"Expected .+, got .+\. Fix: .+\.")
IDX = [f"{a}-{b}" for a in ("train", "t10k") for b in ("images-idx3-ubyte", "labels-idx1-ubyte")]
CIFAR10 = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
WNIDS = ["n02124075", "n01443537", "n04067472"]  # in no order, as in the original

Parts = dict[str, tuple[Any, list[int]]]  # pixels (N, C, H, W) and labels of train and test


def sentence(error: pytest.ExceptionInfo[BaseException]) -> str:
    text = str(error.value)
    assert SENTENCE.fullmatch(text), text
    assert "\n" not in text
    return text


def some(n: int, channels: int, side: int, classes: int, *, seed: int = 0) -> tuple[Any, list[int]]:
    """Random images, so that no turn or flip of one is itself, and labels with the lowest and highest."""
    rng = np.random.default_rng([seed, n, channels, side])
    labels = [0, classes - 1, *rng.integers(0, classes, n - 2).tolist()]
    return rng.integers(0, 256, (n, channels, side, side), dtype=np.uint8), labels


def both(channels: int, side: int, classes: int) -> Parts:
    return {"train": some(10, channels, side, classes), "test": some(4, channels, side, classes, seed=1)}


# -- writers of original files ----------------------------------------------------------------


def idx(array: Any) -> bytes:
    array = np.asarray(array, dtype=np.uint8)
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_idx(folder: Path, *, packed: bool) -> Parts:
    parts = both(1, 28, 10)
    folder.mkdir(parents=True)
    arrays = [a for x, y in parts.values() for a in (x[:, 0], y)]
    for name, array in zip(IDX, arrays, strict=True):
        raw = idx(array)
        (folder / (name + ".gz" * packed)).write_bytes(gzip.compress(raw) if packed else raw)
    return parts


def python2(value: Any) -> bytes:
    """A value as cPickle of Python 2 wrote it with protocol 2: text and bytes are both its str."""
    if isinstance(value, str):
        value = value.encode("latin1")
    if isinstance(value, bytes):
        head = b"U" + bytes([len(value)]) if len(value) < 256 else b"T" + struct.pack("<i", len(value))
        return head + value
    if isinstance(value, int):
        return b"J" + struct.pack("<i", value)
    if isinstance(value, list):
        return b"](" + b"".join(map(python2, value)) + b"e"
    if isinstance(value, dict):
        return b"}(" + b"".join(python2(k) + python2(v) for k, v in value.items()) + b"u"
    assert value.dtype == np.uint8
    made = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n(K\x00tU\x01b\x87R"
    shape = b"(" + b"".join(map(python2, map(int, value.shape))) + b"t"
    kind = b"cnumpy\ndtype\n(U\x02u1K\x00K\x01tR(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    return made + b"(K\x01" + shape + kind + b"\x89" + python2(value.tobytes()) + b"tb"


def original(value: Any) -> bytes:
    return b"\x80\x02" + python2(value) + b"."


def protocol2(value: Any) -> bytes:
    return pickle.dumps(value, protocol=2)


def write_cifar10(folder: Path, dump: Callable[[Any], bytes] = original) -> Parts:
    parts = both(3, 32, 10)
    folder.mkdir(parents=True)
    x, y = parts["train"]
    names = [f"data_batch_{i}" for i in range(1, 6)]
    batches = [(n, x[2 * i : 2 * i + 2], y[2 * i : 2 * i + 2]) for i, n in enumerate(names)]
    for name, pixels, labels in [*batches, ("test_batch", *parts["test"])]:
        rows = pixels.reshape(len(pixels), 3072)
        files = [f"{name}_{i}.png" for i in range(len(rows))]
        content = {"batch_label": name, "labels": labels, "data": rows, "filenames": files}
        (folder / name).write_bytes(dump(content))
    (folder / "batches.meta").write_bytes(
        dump({"num_cases_per_batch": 2, "label_names": CIFAR10, "num_vis": 3072})
    )
    (folder / "readme.html").write_text("<meta HTTP-EQUIV='REFRESH'>")
    return parts


def write_cifar100(folder: Path, dump: Callable[[Any], bytes] = original) -> Parts:
    parts = both(3, 32, 100)
    folder.mkdir(parents=True)
    for name, (pixels, labels) in parts.items():
        content = {
            "filenames": [f"{i}.png" for i in range(len(labels))],
            "batch_label": f"{name} batch 1 of 1",
            "fine_labels": labels,
            "coarse_labels": [0] * len(labels),
            "data": pixels.reshape(len(pixels), 3072),
        }
        (folder / name).write_bytes(dump(content))
    fine = [f"kind {i}" for i in range(100)]
    (folder / "meta").write_bytes(dump({"fine_label_names": fine, "coarse_label_names": ["all"]}))
    (folder / "file.txt~").write_text("")
    return parts


def write_svhn(folder: Path) -> Parts:
    parts = both(3, 32, 10)
    folder.mkdir(parents=True)
    for name, (pixels, labels) in parts.items():
        ten_for_zero = np.array([[y or 10] for y in labels], dtype=np.uint8)
        savemat(
            folder / f"{name}_32x32.mat",
            {"X": pixels.transpose(2, 3, 1, 0), "y": ten_for_zero},
            do_compression=True,
        )
    return parts


def write_stl10(folder: Path) -> Parts:
    parts = both(3, 96, 10)
    folder.mkdir(parents=True)
    for name, (pixels, labels) in parts.items():
        (folder / f"{name}_X.bin").write_bytes(pixels.transpose(0, 1, 3, 2).tobytes())
        (folder / f"{name}_y.bin").write_bytes(bytes(y + 1 for y in labels))
    (folder / "unlabeled_X.bin").write_bytes(b"much more")
    (folder / "class_names.txt").write_text("airplane\nbird\n")
    return parts


def write_pathmnist(folder: Path) -> Parts:
    parts = both(3, 28, 9)
    folder.mkdir(parents=True)
    arrays = {}
    for name, (pixels, labels) in {**parts, "val": some(6, 3, 28, 9, seed=2)}.items():
        arrays[f"{name}_images"] = pixels.transpose(0, 2, 3, 1)
        arrays[f"{name}_labels"] = np.array(labels, dtype=np.uint8)[:, None]
    np.savez_compressed(folder / "pathmnist.npz", **arrays)
    return parts


def write_tiny(folder: Path) -> Parts:
    """Expected pixels are what Pillow reads: JPEG loses some."""
    train, test = [], []
    rng = np.random.default_rng(0)

    def jpeg(path: Path, mode: str = "RGB") -> Any:
        path.parent.mkdir(parents=True, exist_ok=True)
        raw = rng.integers(0, 256, (4, 4, 3), dtype=np.uint8).repeat(16, 0).repeat(16, 1)
        Image.fromarray(raw).convert(mode).save(path, "JPEG", quality=95)
        with Image.open(path) as image:
            found = np.asarray(image.convert("RGB"))
        assert np.abs(found.astype(int) - raw).mean() < 12 or mode == "L"
        return found.transpose(2, 0, 1)

    ids = sorted(WNIDS)
    for label, wnid in enumerate(ids):
        for i in range(3):
            mode = "L" if (label, i) == (1, 2) else "RGB"  # the original has grey ones
            at = folder / "train" / wnid / "images" / f"{wnid}_{i}.JPEG"
            train.append((jpeg(at, mode), label))
        (folder / "train" / wnid / f"{wnid}_boxes.txt").write_text(f"{wnid}_0.JPEG\t0\t0\t62\t62\n")
    lines = []
    for i, label in enumerate((2, 0, 1, 0)):
        test.append((jpeg(folder / "val" / "images" / f"val_{i}.JPEG"), label))
        lines.append(f"val_{i}.JPEG\t{ids[label]}\t0\t32\t44\t62\n")
    (folder / "val" / "val_annotations.txt").write_text("".join(lines))
    (folder / "test" / "images").mkdir(parents=True)
    (folder / "wnids.txt").write_text("\n".join(WNIDS) + "\n")
    (folder / "words.txt").write_text(
        "n00001740\tentity\nn01443537\tgoldfish, Carassius auratus\nn02124075\tEgyptian cat\n"
    )
    return {
        name: (np.stack([x for x, _ in rows]), [y for _, y in rows])
        for name, rows in (("train", train), ("test", test))
    }


def tarred(folder: Path) -> None:
    """Replace a folder by the archive that its authors publish."""
    name = {
        "cifar-10-batches-py": "cifar-10-python",
        "cifar-100-python": "cifar-100-python",
        "stl10_binary": "stl10_binary",
    }[folder.name]
    with tarfile.open(folder.parent / f"{name}.tar.gz", "w:gz") as archive:
        archive.add(folder, folder.name)
    shutil.rmtree(folder)


def zipped(folder: Path) -> None:
    with zipfile.ZipFile(folder.parent / f"{folder.name}.zip", "w") as archive:
        for path in sorted(folder.rglob("*")):
            archive.write(path, path.relative_to(folder.parent))
    shutil.rmtree(folder)


def packed(write: Callable[[Path], Parts], pack: Callable[[Path], None]) -> Callable[[Path], Parts]:
    def made(folder: Path) -> Parts:
        parts = write(folder)
        pack(folder)
        return parts

    return made


class Layout(NamedTuple):
    name: str
    where: str  # below the root
    write: Callable[[Path], Parts]

    def make(self, root: Path) -> Parts:
        return self.write(root / self.where)


def write_idx_gz(folder: Path) -> Parts:
    return write_idx(folder, packed=True)


def write_idx_raw(folder: Path) -> Parts:
    return write_idx(folder, packed=False)


def write_cifar10_anew(folder: Path) -> Parts:
    return write_cifar10(folder, protocol2)


def write_cifar100_anew(folder: Path) -> Parts:
    return write_cifar100(folder, protocol2)


C10, C100, TINY = "cifar-10-batches-py", "cifar-100-python", "tiny-imagenet-200"
LAYOUTS = {
    "mnist gz": Layout("mnist", "mnist", write_idx_gz),
    "mnist unpacked": Layout("mnist", "mnist", write_idx_raw),
    "mnist of torchvision": Layout("mnist", "MNIST/raw", write_idx_gz),
    "fashion gz": Layout("fashion-mnist", "fashion-mnist", write_idx_gz),
    "fashion of torchvision, unpacked": Layout("fashion-mnist", "FashionMNIST/raw", write_idx_raw),
    "cifar10 folder": Layout("cifar10", C10, write_cifar10),
    "cifar10 folder, newer pickles": Layout("cifar10", f"cifar10/{C10}", write_cifar10_anew),
    "cifar10 archive": Layout("cifar10", C10, packed(write_cifar10, tarred)),
    "cifar10 archive in its folder": Layout("cifar10", f"cifar10/{C10}", packed(write_cifar10, tarred)),
    "cifar100 folder": Layout("cifar100", f"cifar100/{C100}", write_cifar100),
    "cifar100 newer pickles": Layout("cifar100", C100, write_cifar100_anew),
    "cifar100 archive": Layout("cifar100", C100, packed(write_cifar100, tarred)),
    "svhn": Layout("svhn", "svhn", write_svhn),
    "svhn in the root": Layout("svhn", ".", lambda f: write_svhn(f / "x") and _up(f)),
    "stl10 folder": Layout("stl10", "stl10/stl10_binary", write_stl10),
    "stl10 archive": Layout("stl10", "stl10_binary", packed(write_stl10, tarred)),
    "pathmnist": Layout("pathmnist", "pathmnist", write_pathmnist),
    "tiny-imagenet folder": Layout("tiny-imagenet", TINY, write_tiny),
    "tiny-imagenet zip": Layout("tiny-imagenet", f"tiny-imagenet/{TINY}", packed(write_tiny, zipped)),
}  # fmt: skip


def _up(folder: Path) -> Parts:
    for path in (folder / "x").iterdir():
        path.rename(folder / path.name)
    return both(3, 32, 10)


class Known(NamedTuple):
    """What the paper and torchvision say, written down a second time."""

    shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    names: tuple[str, ...]


KNOWN = {
    "mnist": Known((3, 224, 224), (0.1307,), (0.3081,), tuple("0123456789")),
    "fashion-mnist": Known(
        (1, 32, 32), (0.2860,), (0.3530,),
        ("T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag",
         "ankle boot"),
    ),
    "cifar10": Known((3, 32, 32), (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616), tuple(CIFAR10)),
    "cifar100": Known(
        (3, 32, 32), (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762),
        tuple(f"kind {i}" for i in range(100))
    ),
    "svhn": Known((3, 32, 32), (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970), tuple("0123456789")),
    "stl10": Known(
        (3, 224, 224), (0.4467, 0.4398, 0.4066), (0.2603, 0.2566, 0.2713),
        ("airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck"),
    ),
    "pathmnist": Known(
        (3, 224, 224), (0.7405, 0.5330, 0.7058), (0.1237, 0.1768, 0.1244),
        ("adipose", "background", "debris", "lymphocytes", "mucus", "smooth muscle", "normal colon mucosa",
         "cancer-associated stroma", "colorectal adenocarcinoma epithelium"),
    ),
    "tiny-imagenet": Known(
        (3, 64, 64), (0.4802, 0.4481, 0.3975), (0.2770, 0.2691, 0.2821),
        ("goldfish", "Egyptian cat", "n04067472")
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    """Every test is offline: an attempt to download fails, unless the test publishes the files itself."""
    real = urllib.request.urlopen

    def local(url: str, **options: Any) -> Any:
        assert url.startswith(("file:", "http://127.0.0.1")), "a download was tried"
        return real(url, **options)

    monkeypatch.setattr("urllib.request.urlopen", local)


def check(found: tuple[Images, Images], parts: Parts) -> None:
    for images, (pixels, labels) in zip(found, parts.values(), strict=True):
        assert np.array_equal(images.pixels.numpy(), pixels)
        assert images.labels.tolist() == labels


# -- reading ----------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_original_files_are_read_offline_by_name(layout, tmp_path):
    parts = layout.make(tmp_path)
    found = purge.load(layout.name, data_dir=tmp_path, progress=False)
    check(found, parts)
    known = KNOWN[layout.name]
    for images in found:
        assert (images.shape, images.mean, images.std, images.names) == known
        x, y = images.take(torch.tensor([1, 0]))
        assert x.shape == (2, *known.shape)
        assert x.dtype == torch.float32
        assert y.tolist() == images.labels[[1, 0]].tolist()
        raw = torch.from_numpy(
            np.ascontiguousarray(parts["train" if images is found[0] else "test"][0][[1, 0]])
        )
        mean, std = (torch.tensor(c).view(1, -1, 1, 1) for c in (known.mean, known.std))
        want = resized((raw / 255 - mean) / std, known.shape[1]).expand(-1, known.shape[0], -1, -1)
        assert torch.allclose(x, want, atol=1e-5)


def test_every_set_is_tested():
    assert {layout.name for layout in LAYOUTS.values()} == set(KNOWN) == set(DATASETS) - {"digits"}


def test_the_environment_says_where_data_is(tmp_path, monkeypatch):
    parts = LAYOUTS["cifar10 archive"].make(tmp_path / "a")
    monkeypatch.setenv("PURGE_DATA", str(tmp_path / "a"))
    check(purge.load("cifar10", progress=False), parts)
    monkeypatch.setenv("PURGE_DATA", str(tmp_path / "nothing"))
    with pytest.raises(AssertionError, match="download"):
        purge.load("cifar10", progress=False)
    monkeypatch.setenv("PURGE_CACHE", str(tmp_path / "cache"))
    shutil.move(tmp_path / "a", tmp_path / "cache" / "data")
    check(purge.load("cifar10", progress=False), parts)  # PURGE_DATA first, then the user's cache
    with pytest.raises(AssertionError, match="download"):
        purge.load("cifar10", data_dir=tmp_path / "nothing", progress=False)  # what is said, alone


def test_two_sets_with_files_of_the_same_names_are_not_mixed_up(tmp_path):
    write_idx(tmp_path / "mnist", packed=True)
    with pytest.raises(AssertionError, match="download"):
        purge.load("fashion-mnist", data_dir=tmp_path, progress=False)
    with pytest.raises(AssertionError, match="download"):
        purge.load("mnist", data_dir=tmp_path / "mnist", progress=False)


@pytest.mark.parametrize(("name", "theirs"), [("mnist", "MNIST"), ("fashion-mnist", "FashionMNIST")])
def test_idx_is_read_as_torchvision_reads_it(name, theirs, tmp_path):
    write_idx(tmp_path / theirs / "raw", packed=False)
    found = purge.load(name, data_dir=tmp_path, progress=False)
    for images, is_train in zip(found, (True, False), strict=True):
        reference = getattr(torchvision.datasets, theirs)(str(tmp_path), train=is_train)
        assert torch.equal(images.pixels[:, 0], reference.data)
        assert torch.equal(images.labels, reference.targets)


def unchecked(cls: type, **lists: Any) -> type:
    """A reader of torchvision's that takes small files: no checksums."""
    return type("Small", (cls,), lists)


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_cifar_is_read_as_torchvision_reads_it(name, tmp_path):
    original = getattr(torchvision.datasets, name.upper())
    lists = {k: [[file, None] for file, _ in getattr(original, k)] for k in ("train_list", "test_list")}
    small = unchecked(original, **lists, meta={**original.meta, "md5": None})
    LAYOUTS[f"{name} folder"].make(tmp_path)
    root = tmp_path if name == "cifar10" else tmp_path / name
    found = purge.load(name, data_dir=tmp_path, progress=False)
    for images, is_train in zip(found, (True, False), strict=True):
        reference = small(str(root), train=is_train)
        assert np.array_equal(images.pixels.numpy().transpose(0, 2, 3, 1), reference.data)
        assert images.labels.tolist() == reference.targets
        assert list(images.names) == reference.classes


def test_svhn_is_read_as_torchvision_reads_it(tmp_path):
    original = torchvision.datasets.SVHN
    small = unchecked(original, split_list={k: [u, f, None] for k, (u, f, _) in original.split_list.items()})
    write_svhn(tmp_path / "svhn")
    found = purge.load("svhn", data_dir=tmp_path, progress=False)
    for images, split in zip(found, ("train", "test"), strict=True):
        reference = small(str(tmp_path / "svhn"), split=split)
        assert np.array_equal(images.pixels.numpy(), reference.data)
        assert images.labels.tolist() == reference.labels.tolist()


def test_stl10_is_read_as_torchvision_reads_it(tmp_path):
    original = torchvision.datasets.STL10
    lists = {k: [[file, None] for file, _ in getattr(original, k)] for k in ("train_list", "test_list")}
    write_stl10(tmp_path / "stl10_binary")
    names = "\n".join(KNOWN["stl10"].names)
    (tmp_path / "stl10_binary" / "class_names.txt").write_text(names)
    found = purge.load("stl10", data_dir=tmp_path, progress=False)
    for images, split in zip(found, ("train", "test"), strict=True):
        reference = unchecked(original, **lists)(str(tmp_path), split=split)
        assert np.array_equal(images.pixels.numpy(), reference.data)
        assert images.labels.tolist() == reference.labels.tolist()
        assert list(images.names) == reference.classes


def test_a_set_by_name_in_parquet_has_the_names_and_constants_of_the_set(tmp_path):
    """Parquet of the layout of Hugging Face, with no names in it, directly or in data/."""
    pixels, labels = some(10, 3, 32, 10)
    for at in (tmp_path / "a" / "cifar10", tmp_path / "b" / "cifar10" / "data"):
        at.mkdir(parents=True)
        for part in ("train", "test"):
            rows = [{"bytes": _png(x), "path": f"{i}.png"} for i, x in enumerate(pixels)]
            table = pa.table({"image": rows, "label": labels})
            pq.write_table(table, at / f"{part}-00000-of-00001.parquet")
        found = purge.load("cifar10", data_dir=tmp_path / at.relative_to(tmp_path).parts[0], progress=False)
        check(found, {"train": (pixels, labels), "test": (pixels, labels)})
        assert (found[0].shape, found[0].mean, found[0].std, found[0].names) == KNOWN["cifar10"]


def _png(pixels: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels.transpose(1, 2, 0)).save(file, "PNG")
    return file.getvalue()


def test_names_of_a_set_are_not_lost_to_the_same_file_given_by_path(tmp_path):
    """What is kept of pathmnist.npz as a file of one's own knows no names."""
    write_pathmnist(tmp_path / "pathmnist")
    own, _ = purge.load(tmp_path / "pathmnist" / "pathmnist.npz", progress=False)
    assert own.names == tuple(map(str, range(9)))
    named, _ = purge.load("pathmnist", data_dir=tmp_path, progress=False)
    assert named.names == KNOWN["pathmnist"].names
    assert purge.load(tmp_path / "pathmnist" / "pathmnist.npz", progress=False)[0].names == own.names


def test_a_size_of_ones_own_goes_before_the_papers(tmp_path):
    parts = LAYOUTS["mnist gz"].make(tmp_path)
    train, _ = purge.load("mnist", data_dir=tmp_path, size=32, progress=False)
    assert train.shape == (3, 32, 32)
    assert train.pixel_shape == (1, 28, 28)
    x, _ = train.take(torch.tensor([0]))
    assert torch.equal(x[:, 0], x[:, 2])
    check(purge.load("mnist", data_dir=str(tmp_path), progress=False), parts)  # text will do as well


def test_digits_need_no_files_at_all(tmp_path, monkeypatch):
    monkeypatch.setenv("PURGE_CACHE", str(tmp_path / "cache"))
    train, test = purge.load("digits", data_dir=tmp_path)
    assert (len(train), len(test), train.shape, train.names) == (1437, 360, (1, 8, 8), tuple("0123456789"))
    assert purge.load("digits", size=32)[0].shape == (1, 32, 32)
    assert not list(tmp_path.iterdir())


# -- damage -----------------------------------------------------------------------------------


class Payload:
    """Unpickled without care, it makes a file."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("archived", [False, True])
def test_code_in_a_batch_of_cifar_is_not_run(protocol, archived, tmp_path):
    folder, mark = tmp_path / C10, tmp_path / "it ran"
    write_cifar10(folder)
    whole = {"data": np.zeros((1, 3072), dtype=np.uint8), "labels": [Payload(mark)]}
    (folder / "data_batch_3").write_bytes(pickle.dumps(whole, protocol=protocol))
    if archived:
        tarred(folder)
    with pytest.raises(FileError) as error:
        purge.load("cifar10", data_dir=tmp_path, progress=False)
    assert "cifar10" in sentence(error)
    assert not mark.exists()


@pytest.mark.parametrize(
    "module_and_name",
    [
        "numpy.f2py.__main__ ndarray",
        "numpy.testing dtype",
        "numpy os",
        "builtins eval",
        "numpy.load _reconstruct",
    ],
)
def test_a_batch_may_build_arrays_and_import_nothing(module_and_name, tmp_path, monkeypatch):
    write_cifar10(tmp_path / C10)
    module, name = module_and_name.split()
    asked: list[str] = []
    monkeypatch.setattr("builtins.__import__", _spy(asked))
    (tmp_path / C10 / "data_batch_1").write_bytes(b"\x80\x02c" + f"{module}\n{name}\n".encode() + b".")
    with pytest.raises(FileError) as error:
        purge.load("cifar10", data_dir=tmp_path, progress=False)
    sentence(error)
    assert module not in asked


def _spy(asked: list[str]) -> Any:
    real = __import__

    def spy(name: str, *args: Any, **kwargs: Any) -> Any:
        asked.append(name)
        return real(name, *args, **kwargs)

    return spy


def files_of(root: Path) -> list[Path]:
    used = re.compile(r"(html|txt~|boxes\.txt|batches\.meta|class_names\.txt|unlabeled_X\.bin|words\.txt)$")
    return sorted(p for p in root.rglob("*") if p.is_file() and not used.search(p.name))


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_a_truncated_original_is_one_sentence(layout, tmp_path):
    layout.make(tmp_path)
    for path in files_of(tmp_path)[:6]:
        whole = path.read_bytes()
        for part in (0, 3, len(whole) // 2, len(whole) * 9 // 10):
            if path.suffix in (".JPEG", ".txt"):
                continue  # images and lists of theirs have tests of their own
            path.write_bytes(whole[:part])
            with pytest.raises(FileError) as error:
                purge.load(layout.name, data_dir=tmp_path, progress=False)
            assert layout.name in sentence(error)
        path.write_bytes(whole)
    purge.load(layout.name, data_dir=tmp_path, progress=False)


def test_originals_with_fewer_images_than_labels_are_damaged_ones(tmp_path):
    """Cut between two images, nothing in the format shows it."""
    write_stl10(tmp_path / "stl10_binary")
    path = tmp_path / "stl10_binary" / "train_X.bin"
    path.write_bytes(path.read_bytes()[: -96 * 96 * 3])
    with pytest.raises(FileError) as error:
        purge.load("stl10", data_dir=tmp_path, progress=False)
    assert "stl10" in sentence(error)


def test_an_archive_without_one_of_its_batches_is_refused(tmp_path):
    write_cifar10(tmp_path / C10)
    (tmp_path / C10 / "data_batch_3").unlink()
    tarred(tmp_path / C10)
    with pytest.raises(FileError) as error:
        purge.load("cifar10", data_dir=tmp_path, progress=False)
    sentence(error)


def test_files_of_another_set_are_refused(tmp_path):
    write_cifar100(tmp_path / C100)
    with tarfile.open(tmp_path / "cifar-10-python.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / C100, C100)
    with pytest.raises(purge.PurgeError) as error:
        purge.load("cifar10", data_dir=tmp_path, progress=False)
    sentence(error)


def test_a_damaged_image_inside_the_zip_is_named(tmp_path):
    write_tiny(tmp_path / "tiny-imagenet-200")
    zipped(tmp_path / "tiny-imagenet-200")
    path = tmp_path / "tiny-imagenet-200.zip"
    with zipfile.ZipFile(path) as archive:
        bad = "train/n02124075/images/n02124075_1.JPEG"
        info = archive.getinfo(f"tiny-imagenet-200/{bad}")
    raw = bytearray(path.read_bytes())
    at = info.header_offset + 30 + len(info.filename) + 200
    raw[at : at + 4] = b"\0\0\0\0"
    path.write_bytes(raw)
    with pytest.raises(DataError) as error:
        purge.load("tiny-imagenet", data_dir=tmp_path, progress=False)
    assert bad in sentence(error)
    train, _ = purge.load("tiny-imagenet", data_dir=tmp_path, progress=False, skip_bad=True)
    assert len(train) == 8


def test_a_repaired_image_of_tiny_imagenet_is_seen(tmp_path):
    """The lists are the same; only the image has changed."""
    parts = write_tiny(tmp_path / "tiny-imagenet-200")
    path = tmp_path / "tiny-imagenet-200" / "train" / "n02124075" / "images" / "n02124075_1.JPEG"
    whole = path.read_bytes()
    path.write_bytes(b"")
    train, _ = purge.load("tiny-imagenet", data_dir=tmp_path, progress=False, skip_bad=True)
    assert len(train) == 8
    path.write_bytes(whole)
    check(purge.load("tiny-imagenet", data_dir=tmp_path, progress=False), parts)


def test_tiny_imagenet_with_a_list_that_does_not_fit_is_refused(tmp_path):
    write_tiny(tmp_path / "tiny-imagenet-200")
    (tmp_path / "tiny-imagenet-200" / "wnids.txt").write_text("n01443537\n")
    with pytest.raises(FileError) as error:
        purge.load("tiny-imagenet", data_dir=tmp_path, progress=False)
    sentence(error)


def test_a_label_outside_the_set_is_refused(tmp_path):
    write_svhn(tmp_path / "svhn")
    write_stl10(tmp_path / "stl10_binary")
    (tmp_path / "stl10_binary" / "train_y.bin").write_bytes(bytes(range(10)))  # from 0, not from 1
    with pytest.raises(DataError) as error:
        purge.load("stl10", data_dir=tmp_path, progress=False)
    assert "-1" in sentence(error)


# -- downloads --------------------------------------------------------------------------------


@pytest.fixture
def offered(tmp_path, monkeypatch):
    """Original files at file:// addresses; the fixture gives a function that publishes a set."""

    def publish(layout: Layout, md5: Callable[[Path], str], url: str = "") -> Parts:
        parts = layout.make(tmp_path / "there")
        files = DATASETS[layout.name].layouts[0]
        at = {p.name: p for p in (tmp_path / "there").rglob("*")}
        downloads = tuple(Download(url or at[f].as_uri(), md5(at[f])) for f in files)
        entry = DATASETS[layout.name]._replace(downloads=downloads)
        monkeypatch.setitem(DATASETS, layout.name, entry)
        return parts

    return publish


def md5_of(path: Path) -> str:
    return hashlib.md5(path.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    "which", ["mnist gz", "cifar10 archive", "svhn", "stl10 archive", "pathmnist", "tiny-imagenet zip"]
)
def test_missing_files_are_downloaded_and_read(which, offered, tmp_path, monkeypatch):
    layout = LAYOUTS[which]
    parts = offered(layout, md5_of)
    check(purge.load(layout.name, data_dir=tmp_path / "here", progress=False), parts)
    there = sorted(p.name for p in (tmp_path / "here" / layout.name).iterdir())
    assert there == sorted(DATASETS[layout.name].layouts[0])
    shutil.rmtree(tmp_path / "there")
    monkeypatch.setenv("PURGE_DATA", str(tmp_path / "here"))
    check(purge.load(layout.name, progress=False), parts)  # the second time it is there


def test_downloads_go_where_the_environment_says(offered, tmp_path, monkeypatch):
    parts = offered(LAYOUTS["pathmnist"], md5_of)
    monkeypatch.setenv("PURGE_CACHE", str(tmp_path / "cache"))
    check(purge.load("pathmnist", progress=False), parts)
    assert (tmp_path / "cache" / "data" / "pathmnist" / "pathmnist.npz").is_file()
    monkeypatch.setenv("PURGE_DATA", str(tmp_path / "mine"))
    (tmp_path / "cache" / "data" / "pathmnist" / "pathmnist.npz").unlink()
    check(purge.load("pathmnist", progress=False), parts)
    assert (tmp_path / "mine" / "pathmnist" / "pathmnist.npz").is_file()


def test_a_download_with_another_checksum_leaves_nothing(offered, tmp_path):
    offered(LAYOUTS["pathmnist"], lambda _: "0" * 32)
    with pytest.raises(FileError) as error:
        purge.load("pathmnist", data_dir=tmp_path / "here", progress=False)
    text = sentence(error)
    assert "pathmnist.npz" in text
    assert "checksum" in text
    assert [p for p in (tmp_path / "here").rglob("*") if p.is_file()] == []


def test_only_what_is_missing_is_downloaded(offered, tmp_path):
    parts = offered(LAYOUTS["mnist gz"], md5_of)
    purge.load("mnist", data_dir=tmp_path / "here", progress=False)
    missing = tmp_path / "here" / "mnist" / f"{IDX[1]}.gz"
    kept = tmp_path / "here" / "mnist" / f"{IDX[0]}.gz"
    (tmp_path / "there" / "mnist" / kept.name).unlink()
    missing.unlink()
    check(purge.load("mnist", data_dir=tmp_path / "here", progress=False), parts)
    assert missing.is_file()


def test_without_a_network_the_message_says_which_file_goes_where(offered, tmp_path):
    offered(LAYOUTS["cifar10 archive"], md5_of, url="http://127.0.0.1:9/cifar-10-python.tar.gz")
    with pytest.raises(FileError) as error:
        purge.load("cifar10", data_dir=tmp_path / "here", progress=False)
    text = sentence(error)
    assert f"cifar-10-python.tar.gz in {tmp_path / 'here' / 'cifar10'}" in text
    assert "127.0.0.1:9" in text
    assert not (tmp_path / "here").exists()
    there = tmp_path / "there" / "cifar-10-python.tar.gz"
    (tmp_path / "here" / "cifar10").mkdir(parents=True)
    shutil.copy(there, tmp_path / "here" / "cifar10")  # what the message asks for works
    purge.load("cifar10", data_dir=tmp_path / "here", progress=False)


@pytest.mark.parametrize(
    "answer",
    [
        b"this is not http\r\n\r\n",
        b"",
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nhalf of it",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\nhalf",
    ],
    ids=["no http", "nothing", "404", "half", "half a chunk"],
)
def test_an_odd_server_is_one_sentence_and_leaves_nothing(answer, offered, tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(5)

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        offered(LAYOUTS["pathmnist"], md5_of, url=f"http://127.0.0.1:{server.getsockname()[1]}/pathmnist.npz")
        with pytest.raises(FileError) as error:
            purge.load("pathmnist", data_dir=tmp_path / "here", progress=False)
        thread.join()
    assert "pathmnist.npz" in sentence(error)
    assert [p for p in (tmp_path / "here").rglob("*") if p.is_file()] == []


def test_a_folder_that_cannot_be_made_is_one_sentence(offered, tmp_path):
    offered(LAYOUTS["pathmnist"], md5_of)
    (tmp_path / "here").write_text("a file")
    with pytest.raises(FileError) as error:
        purge.load("pathmnist", data_dir=tmp_path / "here", progress=False)
    assert "here" in sentence(error)


def test_addresses_and_checksums_fit_the_files_that_are_looked_for():
    for name in KNOWN:
        entry = DATASETS[name]
        downloads = entry.downloads
        assert tuple(d.file for d in downloads) == entry.layouts[0], name
        for download in downloads:
            assert re.fullmatch(r"https?://\S+/" + re.escape(download.file), download.url), download
            assert re.fullmatch("[0-9a-f]{32}", download.md5), download
            assert "yann.lecun.com" not in download.url, "a server that no longer answers"


def test_constants_of_the_table_have_the_right_shapes():
    for name, entry in DATASETS.items():
        assert len(entry.mean) == len(entry.std) in (1, entry.channels), name
        assert all(0 < v < 1 for v in (*entry.mean, *entry.std)), name
        assert len(set(entry.names)) == len(entry.names), name


# -- bad input --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "near"), [("cifar-10", "cifar10"), ("minst", "mnist"), ("tinyimagenet", "tiny-imagenet")]
)
def test_an_unknown_name_is_answered_with_the_nearest(given, near):
    with pytest.raises(DataError, match=f"did you mean '{near}'") as error:
        purge.load(given)
    assert given in sentence(error)


@pytest.mark.parametrize("size", [7, 1025, 0, -1, 32.0, True, "32"])
def test_a_size_out_of_range_is_refused(size, tmp_path):
    with pytest.raises(DataError) as error:
        purge.load("digits", size=size)
    assert repr(size) in sentence(error)


@pytest.mark.parametrize("seed", [-1, 0.5, 2**32, None])
def test_a_seed_out_of_range_is_refused(seed):
    with pytest.raises(purge.PurgeError) as error:
        purge.load("digits", split_seed=seed)
    sentence(error)
