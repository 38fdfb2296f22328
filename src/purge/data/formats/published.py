"""The standard data sets: downloads, verified by checksum, and readers of the files that authors publish.

A reader takes the paths of the files and returns the parts, and the class names if the files have them.
No code in a file is ever run.
"""

from __future__ import annotations

import gzip
import hashlib
import http.client
import io
import pickle
import tarfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from purge.core.errors import FileError
from purge.core.files import atomically, below
from purge.core.progress import progress_line
from purge.data.formats.source import Decoded, Encoded, Read


def fetch(url: str, md5: str, folder: Path, progress: bool) -> Path:
    """The path of a published file in ``folder``; it is downloaded if it is missing."""
    path = below(folder, url.rpartition("/")[2])
    if path.is_file():
        return path

    def save(to: Path) -> None:
        digest = hashlib.md5(usedforsecurity=False)
        megabytes = int(answer.headers["Content-Length"] or 0) >> 20
        with to.open("wb") as file, progress_line(f"download {path.name} (MB)", megabytes, progress) as on:
            while block := answer.read(1 << 20):
                file.write(block)
                digest.update(block)
                on(1, "")
        if digest.hexdigest() != md5:
            got, fix = "another or an incomplete file (wrong checksum)", f"try again, or put it into {folder}"
            raise FileError(f"the published {path.name} at {url}", got, fix)

    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            folder.mkdir(parents=True, exist_ok=True)  # only now: a failed download leaves no folder
            atomically(path, save)
    except (OSError, http.client.HTTPException) as error:  # of the network, or of the folder
        if isinstance(error, urllib.error.HTTPError):
            error.close()  # it holds the connection
        got = f"no such file, and downloading {url} failed ({getattr(error, 'reason', None) or error})"
        fix = f"download it elsewhere and put it into {folder}, or pass --data-dir if you have it"
        raise FileError(f"{path.name} in {folder}", got, fix) from None
    return path


def read_digits(_paths: list[Path]) -> Read:
    """The 1,797 digits of 8×8 pixels that scikit-learn contains; a fifth is held out."""
    from sklearn.datasets import load_digits  # slow to import
    from sklearn.model_selection import train_test_split

    raw = load_digits()
    pixels = (raw.images * (255 / 16)).round().astype(np.uint8)
    train, test = train_test_split(range(len(pixels)), test_size=0.2, random_state=0, stratify=raw.target)
    parts = (("train", train), ("test", test))
    return {part: Decoded(raw.target[rows].tolist(), pixels[rows]) for part, rows in parts}, ()


def read_idx(paths: list[Path]) -> Read:
    """The files of MNIST: a big-endian shape, then bytes; gzipped or not."""

    def array(path: Path) -> Any:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        shape = np.frombuffer(raw, ">u4", count=raw[3], offset=4)
        return np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3]).reshape(shape)

    train_x, train_y, test_x, test_y = map(array, paths)
    return {"train": Decoded(train_y.tolist(), train_x), "test": Decoded(test_y.tolist(), test_x)}, ()


ARRAYS = {("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode")}
ARRAYS |= {(f"numpy.{core}.multiarray", "_reconstruct") for core in ("core", "_core")}


class _ArraysOnly(pickle.Unpickler):
    """An unpickler that builds arrays and refuses everything else, so that no code is run."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in ARRAYS:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} is not an array")


def read_cifar(paths: list[Path]) -> Read:
    """The pickled batches of CIFAR-10 and CIFAR-100, from their folder or from the archive."""
    batches = {
        Path(name).name: _ArraysOnly(io.BytesIO(raw), encoding="latin1").load()
        for name, raw in _unpacked(paths, lambda n: not n.endswith((".html", ".txt~", ".txt")))
    }

    def part(*files: str) -> Decoded:
        parts = [batches[n] for n in files]
        labels = [int(y) for b in parts for y in b.get("labels", b.get("fine_labels"))]
        return Decoded(labels, np.concatenate([b["data"] for b in parts]).reshape(-1, 3, 32, 32))

    if "train" not in batches:
        return {"train": part(*(f"data_batch_{i}" for i in range(1, 6))), "test": part("test_batch")}, ()
    return {"train": part("train"), "test": part("test")}, tuple(batches["meta"]["fine_label_names"])


def read_svhn(paths: list[Path]) -> Read:
    """Matlab files with X (32, 32, 3, N) and y, where 10 is the label of the digit 0."""
    from scipy.io import loadmat  # slow to import

    train, test = map(loadmat, paths)
    return {
        part: Decoded((m["y"].reshape(-1) % 10).astype(int).tolist(), m["X"].transpose(3, 2, 0, 1))
        for part, m in (("train", train), ("test", test))
    }, ()


STL10 = ("train_X.bin", "train_y.bin", "test_X.bin", "test_y.bin")


def read_stl10(paths: list[Path]) -> Read:
    """Bytes, column by column: (N, 3, width, height), and labels from 1."""
    content = _unpacked(paths, lambda n: Path(n).name in STL10)
    files = {Path(n).name: np.frombuffer(raw, np.uint8) for n, raw in content}
    train_x, train_y, test_x, test_y = (files[n] for n in STL10)
    return {
        part: Decoded((y.astype(int) - 1).tolist(), x.reshape(-1, 3, 96, 96).transpose(0, 1, 3, 2))
        for part, x, y in (("train", train_x, train_y), ("test", test_x, test_y))
    }, ()


VAL = Path("val/images")


def read_tiny_imagenet(paths: list[Path]) -> Read:
    """200 folders of JPEGs; the validation part is used for testing, since the test labels are secret."""
    packed = paths[0].suffix == ".zip"
    root: Any = zipfile.Path(paths[0], "tiny-imagenet-200/") if packed else paths[0].parent

    def text(name: str) -> str:
        return str((root / name).read_text(encoding="utf-8"))

    def content(name: str) -> Any:
        try:
            return (root / name).read_bytes() if packed else root / name
        except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, FileNotFoundError):
            return b""  # reported with all other images that cannot be read

    def encoded(names: list[str], labels: list[int]) -> Encoded:
        return Encoded(labels, names, lambda i: content(names[i]))

    ids = sorted(text("wnids.txt").split())
    words = dict(line.split("\t", 1) for line in text("words.txt").splitlines() if "\t" in line)
    number = dict(zip(ids, range(len(ids)), strict=True))
    files = root.root.namelist() if packed else [p.as_posix() for p in paths]
    listing = [n.rpartition("tiny-imagenet-200/")[2] for n in files]
    train = sorted(n for n in listing if n.startswith("train/") and n.endswith(".JPEG"))
    rows = [line.split("\t") for line in text("val/val_annotations.txt").splitlines() if line]
    return {
        "train": encoded(train, [number[n.split("/")[1]] for n in train]),
        "test": encoded([below(VAL, r[0]).as_posix() for r in rows], [number[r[1]] for r in rows]),
    }, tuple(words.get(wnid, wnid).split(",")[0] for wnid in ids)


def _unpacked(paths: list[Path], wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """The name and content of each file, or of the wanted files inside the archive ``paths[0]``."""
    if not paths[0].name.endswith(".tar.gz"):
        yield from ((p.name, p.read_bytes()) for p in paths)
        return
    with tarfile.open(paths[0]) as archive:
        for member in archive:
            if member.isfile() and wanted(member.name) and (file := archive.extractfile(member)):
                yield member.name, file.read()
