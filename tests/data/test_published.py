"""Published files: every format is read offline by name, and damage is reported in one sentence."""

from __future__ import annotations

import pickle
import re
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision

import purge
from purge.core.errors import DataError, FileError
from purge.data.images import resized
from tests.data.image_files import Payload, sentence
from tests.data.published_files import (
    C10,
    C100,
    KNOWN,
    LAYOUTS,
    check,
    tarred,
    write_cifar10,
    write_cifar100,
    write_idx,
    write_stl10,
    write_svhn,
    write_tiny,
    zipped,
)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_published_files_are_read_offline_by_name(layout, tmp_path):
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


@pytest.mark.parametrize(("name", "theirs"), [("mnist", "MNIST"), ("fashion-mnist", "FashionMNIST")])
def test_idx_is_read_as_torchvision_reads_it(name, theirs, tmp_path):
    write_idx(tmp_path / theirs / "raw", packed=False)
    found = purge.load(name, data_dir=tmp_path, progress=False)
    for images, is_train in zip(found, (True, False), strict=True):
        reference = getattr(torchvision.datasets, theirs)(str(tmp_path), train=is_train)
        assert torch.equal(images.pixels[:, 0], reference.data)
        assert torch.equal(images.labels, reference.targets)


def unchecked(cls: type, **lists: Any) -> type:
    """A data set of torchvision without checksums, so that it takes small files."""
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
def test_a_pickled_batch_can_build_arrays_but_import_nothing(module_and_name, tmp_path, monkeypatch):
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
def test_a_truncated_file_is_reported_in_one_sentence(layout, tmp_path):
    layout.make(tmp_path)
    for path in files_of(tmp_path)[:6]:
        whole = path.read_bytes()
        for part in (0, 3, len(whole) // 2, len(whole) * 9 // 10):
            if path.suffix in (".JPEG", ".txt"):
                continue  # tested below
            path.write_bytes(whole[:part])
            with pytest.raises(FileError) as error:
                purge.load(layout.name, data_dir=tmp_path, progress=False)
            assert layout.name in sentence(error)
        path.write_bytes(whole)
    purge.load(layout.name, data_dir=tmp_path, progress=False)


def test_fewer_images_than_labels_are_refused(tmp_path):
    """If a file is cut between two images, nothing in the format shows it."""
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


def test_a_repaired_image_of_tiny_imagenet_is_decoded_again(tmp_path):
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
    (tmp_path / "stl10_binary" / "train_y.bin").write_bytes(bytes(range(10)))  # from 0 instead of 1
    with pytest.raises(DataError) as error:
        purge.load("stl10", data_dir=tmp_path, progress=False)
    assert "-1" in sentence(error)
