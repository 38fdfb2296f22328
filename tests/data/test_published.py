"""Published files: every format is read offline by name, as torchvision reads it; damage is one sentence."""

from __future__ import annotations

import pickle
import re
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision

import purge
from purge.core.errors import DataError, FileError
from purge.data.images import Images, resized
from tests.data.image_files import Payload, sentence
from tests.data.published_files import (
    C10,
    C100,
    KNOWN,
    LAYOUTS,
    TINY,
    check,
    tarred,
    write_cifar10,
    write_cifar100,
    write_stl10,
    write_tiny,
    zipped,
)


def read(name: str, root: Path, **options: Any) -> tuple[Images, Images]:
    return purge.load(name, data_dir=root, progress=False, **options)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_published_files_are_read_offline_by_name(layout, tmp_path):
    parts = layout.make(tmp_path)
    found = read(layout.name, tmp_path)
    check(found, parts)
    known = KNOWN[layout.name]
    for images, (pixels, _) in zip(found, parts.values(), strict=True):
        assert (images.shape, images.mean, images.std, images.names) == known
        x, y = images.take(torch.tensor([1, 0]))
        assert x.dtype == torch.float32
        assert y.tolist() == images.labels[[1, 0]].tolist()
        raw = torch.from_numpy(np.ascontiguousarray(pixels[[1, 0]]))
        mean, std = (torch.tensor(c).view(1, -1, 1, 1) for c in (known.mean, known.std))
        want = resized((raw / 255 - mean) / std, known.shape[1]).expand(-1, known.shape[0], -1, -1)
        assert torch.allclose(x, want, atol=1e-5)


@pytest.mark.parametrize(
    ("layout", "theirs", "root"),
    [
        ("mnist of torchvision", "MNIST", "."),
        ("fashion of torchvision, unpacked", "FashionMNIST", "."),
        ("cifar10 folder", "CIFAR10", "."),
        ("cifar100 folder", "CIFAR100", "cifar100"),
        ("svhn", "SVHN", "svhn"),
        ("stl10 folder", "STL10", "stl10"),
    ],
)
def test_files_are_read_as_torchvision_reads_them(layout, theirs, root, tmp_path):
    """Its checksums are taken out, so that it takes small files."""
    original, lists = getattr(torchvision.datasets, theirs), {}
    for name in ("train_list", "test_list"):
        if hasattr(original, name):
            lists[name] = [[file, None] for file, _ in getattr(original, name)]
    if hasattr(original, "meta"):
        lists["meta"] = {**original.meta, "md5": None}
    if hasattr(original, "split_list"):
        lists["split_list"] = {k: [u, f, None] for k, (u, f, _) in original.split_list.items()}
    small = type(theirs, (original,), lists)
    LAYOUTS[layout].make(tmp_path)
    if theirs == "STL10":
        (tmp_path / "stl10" / "stl10_binary" / "class_names.txt").write_text("\n".join(KNOWN["stl10"].names))
    if "MNIST" in theirs:  # it unpacks what it reads
        for file in (tmp_path / theirs / "raw").glob("*.gz"):
            torchvision.datasets.utils.extract_archive(str(file))
    for images, split in zip(read(LAYOUTS[layout].name, tmp_path), ("train", "test"), strict=True):
        how = {"split": split} if theirs in ("SVHN", "STL10") else {"train": split == "train"}
        reference = small(str(tmp_path / root), **how)
        pixels = np.asarray(reference.data).reshape(len(images), *reference.data.shape[1:])
        ours = images.pixels.numpy()
        ours = ours[:, 0] if pixels.ndim == 3 else ours
        assert np.array_equal(ours.transpose(0, 2, 3, 1) if "CIFAR" in theirs else ours, pixels)
        targets = reference.labels if hasattr(reference, "labels") else reference.targets
        assert images.labels.tolist() == list(map(int, targets))
        if hasattr(reference, "classes") and "MNIST" not in theirs:
            assert list(images.names) == reference.classes


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
        read("cifar10", tmp_path)
    assert "cifar10" in sentence(error)
    assert not mark.exists()


@pytest.mark.parametrize(
    "name",
    [
        "numpy.f2py.__main__ ndarray",
        "numpy.testing dtype",
        "numpy os",
        "builtins eval",
        "numpy.load _reconstruct",
    ],
)  # fmt: skip
def test_a_pickled_batch_can_build_arrays_but_import_nothing(name, tmp_path, monkeypatch):
    write_cifar10(tmp_path / C10)
    imported: list[str] = []
    real = __import__

    def spy(name: str, *args: Any, **options: Any) -> Any:
        imported.append(name)
        return real(name, *args, **options)

    monkeypatch.setattr("builtins.__import__", spy)
    content = b"\x80\x02c" + "{}\n{}\n".format(*name.split()).encode() + b"."
    (tmp_path / C10 / "data_batch_1").write_bytes(content)
    with pytest.raises(FileError) as error:
        read("cifar10", tmp_path)
    sentence(error)
    assert name.split()[0] not in imported


ONCE = (
    "mnist gz",
    "mnist unpacked",
    "cifar10 folder",
    "cifar10 archive",
    "cifar100 folder",
    "svhn",
    "stl10 folder",
    "stl10 archive",
    "pathmnist",
    "tiny-imagenet zip",
)


@pytest.mark.parametrize("which", ONCE)
def test_a_truncated_file_is_reported_in_one_sentence(which, tmp_path):
    layout = LAYOUTS[which]
    layout.make(tmp_path)
    unused = re.compile(r"(html|txt~|batches\.meta|class_names\.txt|unlabeled_X\.bin)$")
    for path in sorted(p for p in tmp_path.rglob("*") if p.is_file() and not unused.search(p.name))[:4]:
        whole = path.read_bytes()
        for part in (0, 3, len(whole) // 2, len(whole) * 9 // 10):
            path.write_bytes(whole[:part])
            with pytest.raises(FileError) as error:
                read(layout.name, tmp_path)
            assert layout.name in sentence(error)
        path.write_bytes(whole)
    read(layout.name, tmp_path)


def without_an_image(root: Path) -> None:
    """A file that is cut between two images: nothing in the format shows it."""
    write_stl10(root / "stl10_binary")
    path = root / "stl10_binary" / "train_X.bin"
    path.write_bytes(path.read_bytes()[: -96 * 96 * 3])


def labels_from_0(root: Path) -> None:
    write_stl10(root / "stl10_binary")
    (root / "stl10_binary" / "train_y.bin").write_bytes(bytes(range(10)))  # they are published from 1


def without_a_batch(root: Path) -> None:
    write_cifar10(root / C10)
    (root / C10 / "data_batch_3").unlink()
    tarred(root / C10)


def of_another_set(root: Path) -> None:
    write_cifar100(root / C100)
    with tarfile.open(root / "cifar-10-python.tar.gz", "w:gz") as archive:
        archive.add(root / C100, C100)


def another_list(root: Path) -> None:
    write_tiny(root / TINY)
    (root / TINY / "wnids.txt").write_text("n01443537\n")


@pytest.mark.parametrize(
    ("name", "write", "words"),
    [
        ("stl10", without_an_image, "published files of stl10"),
        ("stl10", labels_from_0, "got -1"),
        ("cifar10", without_a_batch, "published files of cifar10"),
        ("cifar10", of_another_set, "cifar10"),
        ("tiny-imagenet", another_list, "published files of tiny-imagenet"),
    ],
)
def test_files_that_do_not_fit_together_are_refused(
    name: str, write: Callable[[Path], None], words: str, tmp_path: Path
) -> None:
    write(tmp_path)
    with pytest.raises(purge.PurgeError, match=words) as error:
        read(name, tmp_path)
    sentence(error)


def test_a_damaged_image_inside_the_zip_is_named(tmp_path):
    write_tiny(tmp_path / TINY)
    zipped(tmp_path / TINY)
    path = tmp_path / f"{TINY}.zip"
    with zipfile.ZipFile(path) as archive:
        bad = "train/n02124075/images/n02124075_1.JPEG"
        info = archive.getinfo(f"{TINY}/{bad}")
    raw = bytearray(path.read_bytes())
    at = info.header_offset + 30 + len(info.filename) + 200
    raw[at : at + 4] = b"\0\0\0\0"
    path.write_bytes(raw)
    with pytest.raises(DataError) as error:
        read("tiny-imagenet", tmp_path)
    assert bad in sentence(error)
    assert len(read("tiny-imagenet", tmp_path, skip_bad=True)[0]) == 8


def test_a_repaired_image_of_tiny_imagenet_is_decoded_again(tmp_path):
    """The lists are the same; only the image has changed."""
    parts = write_tiny(tmp_path / TINY)
    path = tmp_path / TINY / "train" / "n02124075" / "images" / "n02124075_1.JPEG"
    whole = path.read_bytes()
    path.write_bytes(b"")
    assert len(read("tiny-imagenet", tmp_path, skip_bad=True)[0]) == 8
    path.write_bytes(whole)
    check(read("tiny-imagenet", tmp_path), parts)
