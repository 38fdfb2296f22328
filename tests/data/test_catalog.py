"""The table of named data sets: where files are looked for, constants, names, sets of other packages."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import torchvision

import purge
from purge.core.errors import DataError, FileError
from purge.data.catalog import DATASETS
from tests.data.image_files import png, sentence
from tests.data.published_files import (
    KNOWN,
    LAYOUTS,
    check,
    some,
    write_idx,
    write_pathmnist,
)


def test_every_data_set_has_a_layout_under_test():
    assert {layout.name for layout in LAYOUTS.values()} == set(KNOWN) == set(DATASETS) - {"digits"}


def test_where_files_are_looked_for(tmp_path, monkeypatch):
    """In data_dir alone, or else in PURGE_DATA and the user's cache; a download goes to the first of them."""
    parts = write_pathmnist(tmp_path / "a" / "pathmnist")
    monkeypatch.setenv("PURGE_DATA", str(tmp_path / "a"))
    check(purge.load("pathmnist", progress=False), parts)
    monkeypatch.setenv("PURGE_DATA", str(tmp_path / "nothing"))
    with pytest.raises(AssertionError, match="download"):
        purge.load("pathmnist", progress=False)
    monkeypatch.setenv("PURGE_CACHE", str(tmp_path / "cache"))
    shutil.move(tmp_path / "a", tmp_path / "cache" / "data")
    check(purge.load("pathmnist", progress=False), parts)
    with pytest.raises(AssertionError, match="download"):
        purge.load("pathmnist", data_dir=tmp_path / "nothing", progress=False)
    published = tmp_path / "cache" / "data" / "pathmnist" / "pathmnist.npz"
    md5 = hashlib.md5(published.read_bytes()).hexdigest()
    entry = DATASETS["pathmnist"]._replace(downloads={published.as_uri(): md5})
    monkeypatch.setitem(DATASETS, "pathmnist", entry)
    purge.load("pathmnist", data_dir=tmp_path / "nothing", progress=False)
    assert (tmp_path / "nothing" / "pathmnist" / "pathmnist.npz").is_file()


def test_mnist_and_fashion_mnist_are_not_mixed_up(tmp_path):
    write_idx(tmp_path / "mnist", packed=True)
    with pytest.raises(AssertionError, match="download"):
        purge.load("fashion-mnist", data_dir=tmp_path, progress=False)
    with pytest.raises(AssertionError, match="download"):
        purge.load("mnist", data_dir=tmp_path / "mnist", progress=False)


def test_a_named_set_in_parquet_gets_the_names_and_constants_of_the_table(tmp_path):
    """Without names in the file; in the folder itself or in data/, loaded by path before or not."""
    pixels, labels = some(10, 3, 32, 10)
    for at in (tmp_path / "a" / "cifar10", tmp_path / "b" / "cifar10" / "data"):
        at.mkdir(parents=True)
        for part in ("train", "test"):
            rows = [{"bytes": png(x.transpose(1, 2, 0)), "path": f"{i}.png"} for i, x in enumerate(pixels)]
            table = pa.table({"image": rows, "label": labels})
            pq.write_table(table, at / f"{part}-00000-of-00001.parquet")
        root = tmp_path / at.relative_to(tmp_path).parts[0]
        assert purge.load(root / "cifar10", progress=False)[0].names == tuple("0123456789")
        found = purge.load("cifar10", data_dir=root, progress=False)
        check(found, {"train": (pixels, labels), "test": (pixels, labels)})
        assert (found[0].shape, found[0].mean, found[0].std, found[0].names) == KNOWN["cifar10"]


def test_a_given_size_overrides_that_of_the_table(tmp_path):
    parts = LAYOUTS["mnist gz"].make(tmp_path)
    train, _ = purge.load("mnist", data_dir=tmp_path, size=32, progress=False)
    assert train.shape == (3, 32, 32)
    assert train.pixel_shape == (1, 28, 28)
    x, _ = train.take(torch.tensor([0]))
    assert torch.equal(x[:, 0], x[:, 2])
    check(purge.load("mnist", data_dir=str(tmp_path), progress=False), parts)  # data_dir can be a string


def test_digits_need_no_files(tmp_path, monkeypatch):
    monkeypatch.setenv("PURGE_CACHE", str(tmp_path / "cache"))
    train, test = purge.load("digits", data_dir=tmp_path)
    assert (len(train), len(test), train.shape, train.names) == (1437, 360, (1, 8, 8), tuple("0123456789"))
    assert purge.load("digits", size=32)[0].shape == (1, 32, 32)
    assert not list(tmp_path.iterdir())


def test_addresses_and_checksums_are_those_of_torchvision():
    sets = torchvision.datasets
    for name, cls in (("mnist", sets.MNIST), ("fashion-mnist", sets.FashionMNIST)):
        mirrored = {mirror + file: md5 for mirror in cls.mirrors for file, md5 in cls.resources}
        assert DATASETS[name].downloads.items() <= mirrored.items()
    for name, cls in (("cifar10", sets.CIFAR10), ("cifar100", sets.CIFAR100), ("stl10", sets.STL10)):
        assert DATASETS[name].downloads == {cls.url: cls.tgz_md5}
    svhn = sets.SVHN.split_list
    assert DATASETS["svhn"].downloads == {svhn[p][0]: svhn[p][2] for p in ("train", "test")}


def test_entries_are_complete():
    for name, entry in DATASETS.items():
        assert len(entry.mean) == len(entry.std) in (1, entry.channels), name
        assert all(0 < v < 1 for v in (*entry.mean, *entry.std)), name
        assert len(set(entry.names)) == len(entry.names), name
        if name in KNOWN:
            assert tuple(url.rpartition("/")[2] for url in entry.downloads) == entry.layouts[0], name
            assert all(re.fullmatch("[0-9a-f]{32}", md5) for md5 in entry.downloads.values()), name


@pytest.mark.parametrize(
    ("given", "near"), [("cifar-10", "cifar10"), ("minst", "mnist"), ("tinyimagenet", "tiny-imagenet")]
)
def test_an_unknown_name_is_answered_with_the_nearest_one(given, near):
    with pytest.raises(DataError, match=f"did you mean '{near}'") as error:
        purge.load(given)
    assert given in sentence(error)


@pytest.mark.parametrize(
    "options",
    [{"size": size} for size in (7, 1025, 0, -1, 32.0, True, "32")]
    + [{"split_seed": seed} for seed in (-1, 0.5, 2**32, None)],
)
def test_options_out_of_range_are_refused(options):
    with pytest.raises(purge.PurgeError) as error:
        purge.load("digits", **options)
    assert repr(*options.values()) in sentence(error)


# -- data sets of other packages --------------------------------------------------------------

OWN = """
import numpy as np
from purge.data.catalog import DatasetEntry

def read(paths):
    from purge.data.formats.source import Decoded
    pixels = np.frombuffer(paths[0].read_bytes(), np.uint8).reshape(-1, 8, 8)
    labels = [i % 2 for i in range(len(pixels))]
    return {"train": Decoded(labels, pixels), "test": Decoded(labels, pixels)}, ()

stripes = DatasetEntry(
    "stripes and dots", ("stripe", "dot"), 1, None, (0.5,), (0.5,), read, layouts=(("stripes.raw",),)
)
number = 5
"""
POINTS = """[purge.datasets]
stripes = own_sets:stripes
number = own_sets:number
missing = own_sets:missing
digits = own_sets:stripes
"""
USE = """
import sys
import own_sets  # before purge, which then must not find it half imported
from purge.data.catalog import DATASETS
from purge.data.formats.source import Encoded
assert "torch" not in sys.modules
assert DATASETS["digits"].about != DATASETS["stripes"].about
import purge
assert purge.list_datasets()["stripes"] == "stripes and dots"
assert not {"number", "missing"} & purge.list_datasets().keys()
train, test = purge.load("stripes", data_dir=sys.argv[1])
print(len(train), train.names, train.shape)
"""


@pytest.fixture
def installed(tmp_path):
    """Runs Python code in a process where a package with data sets is installed."""
    info = tmp_path / "site" / "own_sets-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own-sets\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(POINTS)
    (tmp_path / "site" / "own_sets.py").write_text(OWN)
    path = os.pathsep.join([str(tmp_path / "site"), os.environ.get("PYTHONPATH", "")])

    def run(*args: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "PYTHONPATH": path}
        return subprocess.run([sys.executable, *args], env=env, capture_output=True, text=True)

    return run


def test_an_installed_package_adds_a_data_set(installed, tmp_path):
    (tmp_path / "stripes").mkdir()
    (tmp_path / "stripes" / "stripes.raw").write_bytes(bytes(range(256)))
    done = installed("-c", USE, str(tmp_path))
    assert done.stdout == "4 ('stripe', 'dot') (1, 8, 8)\n", done.stderr
    for ignored in ("number", "missing", "digits"):
        assert f"Data set {ignored} (own_sets:" in done.stderr
    listed = installed("-m", "purge", "list", "datasets")
    assert "stripes and dots" in listed.stdout, listed.stderr


def one_entry(monkeypatch: pytest.MonkeyPatch, **fields: Any) -> None:
    entry = DATASETS["digits"]._replace(**fields)
    monkeypatch.setitem(DATASETS, "own", entry)


def test_files_that_are_missing_and_not_published_are_named(tmp_path, monkeypatch):
    one_entry(monkeypatch, layouts=(("a.bin", "*.txt"),))
    with pytest.raises(FileError) as error:
        purge.load("own", data_dir=tmp_path)
    assert f"a.bin, *.txt in {tmp_path / 'own'}" in sentence(error)


def test_the_tables_of_data_sets_and_models_need_no_torch():
    code = (
        "import sys, purge.data.catalog, purge.models.zoo; assert not {'torch', 'numpy'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
