"""Images that are read when they are needed: the same as kept ones, and no more than is drawn."""

from __future__ import annotations

import gzip
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, Subset

import purge
from purge.core.errors import DataError, FileError, PurgeError
from purge.data import backends, decode, overlap
from purge.data.accept import accepted, as_samples
from purge.data.cache import cache_folder, clear, entries
from purge.data.formats import tar
from purge.data.formats.parquet import _row_group
from purge.data.load import load
from tests.cli.commands import FEW_STEPS, command, good, read, refusal
from tests.data.image_files import add, jpegs, write_all, write_tar

FORMS = ("folder", "parquet", "tar")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_all(tmp_path_factory.mktemp("images"))


@pytest.mark.parametrize("form", FORMS)
def test_streamed_images_are_those_that_are_kept(written, form):
    kept = load(written[form], stream=False)
    own = load(written[form], stream=True)[0]
    assert own.mean == pytest.approx(kept[0].mean, abs=1e-3)
    assert own.std == pytest.approx(kept[0].std, abs=1e-3)
    gone = load(written[form], stream=True, mean=kept[0].mean, std=kept[0].std)
    g = torch.Generator().manual_seed(3)
    for a, b in zip(kept, gone, strict=True):
        assert b.streamed
        assert not a.streamed
        assert torch.equal(a.pixels, b.pixels)
        assert torch.equal(a.labels, b.labels)
        assert (a.paths, a.names, a.mean, a.std, a.shape) == (b.paths, b.names, b.mean, b.std, b.shape)
        rows = torch.randint(0, len(a), (9,), generator=g)  # with repetitions, in any order
        assert torch.equal(a.take(rows)[0], b.take(rows)[0])
        part = b.select(torch.tensor([5, 2, 7]))
        assert torch.equal(part.take(torch.tensor([2, 0]))[0], a.take(torch.tensor([7, 5]))[0])
        found = [x for x, _ in b.stream([rows, rows[:2]])]
        assert torch.equal(found[1], found[0][:2])


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
        nn.Linear(24, 4),
    )  # fmt: skip


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([t.detach().flatten().double() for t in model.state_dict().values()])


@pytest.mark.parametrize("request_", [{"classes": [1]}, {"indices": [3, 4, 17]}], ids=["class", "rows"])
def test_a_run_on_streamed_images_gives_the_same_bits(written, request_):
    found = []
    for stream in (False, True):
        train, test = load(written["tar"], stream=stream, mean=(0.5,), std=(0.25,))
        model = purge.train(net(), train, epochs=2, batch_size=16, seed=0, progress=False).model
        forget, retain = purge.split(train, **request_)
        result = purge.unlearn(
            model, forget, retain, test=test, steps=3, augment="crop-flip", progress=False, check=False
        )
        assert result.info["forget_rows"] == request_.get("indices", [])
        found.append((weights(model), weights(result.model)))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_what_is_too_large_is_streamed_without_being_asked(written, monkeypatch):
    monkeypatch.setattr(decode, "LARGE", 1000)
    assert load(written["folder"])[0].streamed
    assert not load(written["folder"], stream=False)[0].streamed
    assert not load(written["folder"], skip_bad=True)[0].streamed
    with pytest.raises(DataError, match="either stream or skip_bad"):
        load(written["folder"], stream=True, skip_bad=True)
    npz = written["folder"].parent / "x.npz"
    np.savez(npz, x=np.zeros((10, 8, 8), np.uint8), y=np.arange(10) % 2)
    with pytest.raises(DataError, match="read one by one"):
        load(npz, stream=True)


def test_a_pattern_names_shards(written):
    train, _ = load(written["tar"] / "train-*.tar", stream=True)
    assert len(train) == 96  # a fifth of 120 is held out
    with pytest.raises(DataError, match="the name of a data set, or a path"):
        load(written["tar"] / "absent-*.tar")


def test_row_groups_are_read_once_for_rows_beside_each_other(written, monkeypatch):
    train, _ = load(written["parquet"], stream=True, mean=(0.5,), std=(1.0,))
    _row_group.cache_clear()
    train.take(torch.tensor([13, 7, 12, 8, 61]))  # two groups of seven
    assert _row_group.cache_info().misses == 2


# -- how much is read ---------------------------------------------------------------------------


class Counted(Dataset):
    """Small images made by their number, whose reads are counted."""

    def __init__(self, n: int, *, start: int = 0, listed: str = "targets", classes: int = 4) -> None:
        self.n, self.start, self.reads, self.classes = n, start, 0, classes
        if listed:
            setattr(self, listed, [(start + i) % classes for i in range(n)])

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int):
        self.reads += 1
        label = (self.start + i) % self.classes
        noise = torch.Generator().manual_seed(self.start + i)
        return label + 0.3 * torch.randn(3, 4, 4, generator=noise), label


@pytest.fixture(scope="module")
def known() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 16), nn.ReLU(), nn.Linear(16, 4))
    return purge.train(model, Counted(400), epochs=8, lr=0.05, seed=0, progress=False).model


def reads_of(model: nn.Module, n: int, listed: str, monkeypatch, *, apart: bool = False) -> int:
    monkeypatch.setattr(backends, "RESIDENT_BYTES", 1000)
    data = Counted(n, listed=listed)
    forget, retain = Subset(data, range(40)), Subset(data, range(40, n))
    if apart:
        forget = Counted(40, start=10**6, listed=listed)
    result = purge.unlearn(model, forget, retain, steps=20, batch_size=16, progress=False)
    _ = result.info
    return data.reads


@pytest.mark.parametrize("listed", ["targets", "labels"])
def test_reads_do_not_grow_with_the_retained_data(known, listed, monkeypatch):
    few, many = (reads_of(known, n, listed, monkeypatch) for n in (3_000, 30_000))
    assert many <= 1.1 * few
    assert few < 6_000


def test_sets_of_two_sources_are_compared_by_a_sample(known, monkeypatch, caplog):
    monkeypatch.setattr(overlap, "LOOKED", 300)
    few, many = (reads_of(known, n, "targets", monkeypatch, apart=True) for n in (3_000, 30_000))
    assert many <= 1.1 * few


def test_labels_that_nothing_lists_cost_a_pass(known, monkeypatch):
    assert reads_of(known, 3_000, "", monkeypatch) > 3_000


def test_labels_that_disagree_with_the_items_are_not_believed(monkeypatch):
    monkeypatch.setattr(backends, "RESIDENT_BYTES", 10)
    data = Counted(40, listed="labels")
    data.labels = [0] * 40
    assert as_samples(data, torch.device("cpu"), "x").labels.tolist() == [i % 4 for i in range(40)]


def test_copies_between_large_sets_are_found_where_they_are_looked_for(monkeypatch):
    monkeypatch.setattr(backends, "RESIDENT_BYTES", 10)
    monkeypatch.setattr(overlap, "LOOKED", 100)

    def found(forget, retain):
        sets = accepted({"forget": forget, "retain": retain})
        return overlap.overlap({what: samples.to("cpu") for what, samples in sets.items()})

    part = found(Counted(400, start=10**6), Counted(400))
    assert part["exact"] is None
    assert part["sampled"] == 100
    whole = found(Counted(40, start=10**6), Counted(60))
    assert whole["exact"] == 0
    assert "sampled" not in whole
    with pytest.raises(DataError, match="in both"):
        found(Counted(400), Counted(400))
    other = Counted(400, classes=1)  # labels 0 alone
    other.targets = [7] * 400
    before = other.reads
    assert found(Counted(40), other)["exact"] == 0, "no label in common: no sample either"
    assert other.reads - before < 300


# -- damaged shards -----------------------------------------------------------------------------


def test_an_index_is_kept_and_made_again_if_it_or_the_shard_changes(tmp_path):
    images, labels = jpegs(6)
    shard = write_tar(tmp_path / "a.tar", images, labels, as_json=True)
    clear(["index"])
    first = tar.index_of(shard)
    (entry,) = entries(["index"])
    assert tar.index_of(shard) == first
    assert first.label == labels
    at = next((cache_folder() / "index").glob("*.parquet"))
    at.write_bytes(b"PAR1 nonsense")
    assert tar.index_of(shard) == first
    write_tar(shard, images[:4], labels[:4])
    assert len(tar.index_of(shard).label) == 4
    assert entry.bytes > 0
    assert len(entries(["index"])) == 2
    assert clear(["index"])
    assert not entries(["index"])


LABELS: dict[str, bytes | None] = {  # of the last image, where it is another than its class
    "no label": None,
    "word": b"cat",
    "float": b"1.5",
    "huge": b"9" * 5000,
    "negative": b"-1",
    "endless": b"1" + b" " * (1 << 17),
}
CONTENTS: dict[str, Callable[[bytes], bytes]] = {  # of the file
    "cut short": lambda content: content[: len(content) // 3],
    "nonsense": lambda _: b"\xff" * 4096,
    "empty": lambda _: b"",
    "compressed": gzip.compress,
}


@pytest.mark.parametrize(
    ("kind", "error", "says"),
    [
        ("cut short", FileError, "cut short.tar"),
        ("nonsense", FileError, "nonsense.tar"),
        ("empty", PurgeError, "empty.tar"),
        ("compressed", FileError, "without compression"),
        ("two images", DataError, "23.jpg and 23.png"),
        ("no label", DataError, "none for 23.jpg"),
        ("endless", DataError, "none for 23.jpg"),  # it is not read
        ("word", DataError, "label of 23.jpg in word.tar, got 'cat'"),
        ("float", DataError, "label of 23.jpg"),
        ("huge", DataError, "label of 23.jpg"),
        ("negative", DataError, "labels from 0"),
        ("truncated image", DataError, "truncated image.tar/23.jpg, which cannot be read"),
    ],
)
def test_a_damaged_shard_is_refused_by_name(tmp_path, kind, error, says):
    images, labels = jpegs(24)
    texts: list[bytes | None] = [str(label).encode() for label in labels]
    texts[-1] = LABELS.get(kind, texts[-1])
    if kind == "truncated image":
        images[-1] = images[-1][:200]
    path = tmp_path / f"{kind}.tar"
    with tarfile.open(path, "w") as file:
        for i, (image, text) in enumerate(zip(images, texts, strict=True)):
            add(file, f"{i}.jpg", image)
            if text is not None:
                add(file, f"{i}.cls", text)
        if kind == "two images":
            add(file, "23.png", images[-1])
    path.write_bytes(CONTENTS.get(kind, bytes)(path.read_bytes()))
    with pytest.raises(error, match=says):
        _ = [part.pixels for part in load(path, stream=True, mean=(0.5,), std=(0.2,))]


def test_an_image_that_goes_away_is_named(written, tmp_path):
    root = tmp_path / "copy"
    shutil.copytree(written["folder"], root)
    train, _ = load(root, stream=True)
    (root / train.paths[7]).unlink()
    with pytest.raises(DataError, match=f"{train.paths[7]}, which cannot be read"):
        train.take(torch.tensor([7]))


@pytest.mark.slow
def test_shards_from_the_shell(tmp_path):
    """Train on a pattern of shards, forget a class and images by name, audit: nothing is decoded ahead."""
    write_all(tmp_path)
    at, few = tmp_path / "tar" / "t*.tar", ("--set", "epochs=3", "--set", "batch_size=16")
    clear(["decoded"])
    good(command("train", "--data", at, "--model", "small-resnet", "--stream", "--out", tmp_path / "m", *few))
    (tmp_path / "ids").write_text("train-0.tar/s/000004.jpg\n7\n")
    for name, what in (("c", ("--forget-class", "2")), ("i", ("--forget-ids", tmp_path / "ids"))):
        good(command("unlearn", tmp_path / "m", *what, "--out", tmp_path / name, *FEW_STEPS))
        facts = read(tmp_path / name / "run.json")
        assert facts["stream"] is True
        assert facts["retain_content"] is None
        good(command("audit", tmp_path / name, "--metrics", "quick"))
    assert facts["request"] == {"forget_ids": [4, 7]}
    assert not entries(["decoded"])
    more = ("--data", "digits:load", "--model", "small-resnet", "--stream")
    assert "--stream" in refusal(command("train", *more, "--out", tmp_path / "x"))
