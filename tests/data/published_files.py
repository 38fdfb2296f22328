"""Writers of small files in the formats in which the standard data sets are published."""

from __future__ import annotations

import gzip
import pickle
import shutil
import struct
import tarfile
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image
from scipy.io import savemat

from purge.data.images import Images

IDX = [f"{a}-{b}" for a in ("train", "t10k") for b in ("images-idx3-ubyte", "labels-idx1-ubyte")]

CIFAR10 = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]

WNIDS = ["n02124075", "n01443537", "n04067472"]  # unsorted, as published

Parts = dict[str, tuple[Any, list[int]]]  # pixels (N, C, H, W) and labels of train and test


def some(n: int, channels: int, side: int, classes: int, *, seed: int = 0) -> tuple[Any, list[int]]:
    """Random images, and labels that include the lowest and the highest."""
    rng = np.random.default_rng([seed, n, channels, side])
    labels = [0, classes - 1, *rng.integers(0, classes, n - 2).tolist()]
    return rng.integers(0, 256, (n, channels, side, side), dtype=np.uint8), labels


def both(channels: int, side: int, classes: int) -> Parts:
    return {"train": some(10, channels, side, classes), "test": some(4, channels, side, classes, seed=1)}


def idx(array: Any) -> bytes:
    array = np.asarray(array, dtype=np.uint8)
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_idx(folder: Path, *, packed: bool = True) -> Parts:
    parts = both(1, 28, 10)
    folder.mkdir(parents=True)
    arrays = [a for x, y in parts.values() for a in (x[:, 0], y)]
    for name, array in zip(IDX, arrays, strict=True):
        raw = idx(array)
        (folder / (name + ".gz" * packed)).write_bytes(gzip.compress(raw) if packed else raw)
    return parts


def python2(value: Any) -> bytes:
    """A value as Python 2 pickled it with protocol 2: text and bytes are both its str."""
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
    """The pixels are those that Pillow reads, since JPEG is lossy."""
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
            mode = "L" if (label, i) == (1, 2) else "RGB"  # the published set has grey images too
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
    """Replace a folder by the archive that is published."""
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


NEW_CIFAR10 = partial(write_cifar10, dump=protocol2)
IDX_UNPACKED = partial(write_idx, packed=False)
C10, C100, TINY = "cifar-10-batches-py", "cifar-100-python", "tiny-imagenet-200"

LAYOUTS = {
    "mnist gz": Layout("mnist", "mnist", write_idx),
    "mnist unpacked": Layout("mnist", "mnist", IDX_UNPACKED),
    "mnist of torchvision": Layout("mnist", "MNIST/raw", write_idx),
    "fashion gz": Layout("fashion-mnist", "fashion-mnist", write_idx),
    "fashion of torchvision, unpacked": Layout("fashion-mnist", "FashionMNIST/raw", IDX_UNPACKED),
    "cifar10 folder": Layout("cifar10", C10, write_cifar10),
    "cifar10 folder, newer pickles": Layout("cifar10", f"cifar10/{C10}", NEW_CIFAR10),
    "cifar10 archive": Layout("cifar10", C10, packed(write_cifar10, tarred)),
    "cifar10 archive in its folder": Layout("cifar10", f"cifar10/{C10}", packed(write_cifar10, tarred)),
    "cifar100 folder": Layout("cifar100", f"cifar100/{C100}", write_cifar100),
    "cifar100 newer pickles": Layout("cifar100", C100, partial(write_cifar100, dump=protocol2)),
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
    """What the paper and torchvision say, written down independently of the table."""

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


def check(found: tuple[Images, Images], parts: Parts) -> None:
    for images, (pixels, labels) in zip(found, parts.values(), strict=True):
        assert np.array_equal(images.pixels.numpy(), pixels)
        assert images.labels.tolist() == labels
