"""The cache of decoded images: what is kept, when it is decoded again, what a failure leaves."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import purge
import purge.data.decode
from purge.core.errors import FileError
from tests.data.image_files import (
    check,
    entries,
    load,
    noise,
    paths_of,
    save,
    sentence,
    tree,
)


def no_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> None:
        raise AssertionError("an image was decoded")

    for name in ("decode", "header"):
        monkeypatch.setattr(purge.data.decode, name, never)


def test_the_second_load_decodes_nothing(tmp_path, cache, monkeypatch):
    tree(tmp_path / "own", {"a": 5, "b": 5})
    first = load(tmp_path / "own")
    kept = {p: (p.stat().st_mtime_ns, p.stat().st_ino) for p in cache.rglob("*")}
    no_decoding(monkeypatch)
    monkeypatch.setattr(purge.data.decode, "_content", lambda *_: pytest.fail("read again"))
    second = load(tmp_path / "own")
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a.pixels, b.pixels)
        assert torch.equal(a.labels, b.labels)
        assert (a.names, a.mean, a.std, a.source) == (b.names, b.mean, b.std, b.source)
        assert paths_of(a) == paths_of(b)
    assert load(tmp_path / "own", size=32)[0].shape == (3, 32, 32)  # resized from the cached images
    assert load(tmp_path / "own", split_seed=3)
    assert {p: (p.stat().st_mtime_ns, p.stat().st_ino) for p in cache.rglob("*")} == kept


def test_cached_images_are_mapped_into_memory_and_not_read(tmp_path, cache):
    pixels, labels = noise(2000, 64, 64), [0, 1] * 1000
    np.savez(
        tmp_path / "x.npz", train_images=pixels, train_labels=labels, test_images=pixels, test_labels=labels
    )
    train, _ = load(tmp_path / "x.npz")
    at = train.pixels.data_ptr()
    assert train.pixels.data_ptr() == at  # looking at them copies nothing
    lines = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    mapped = [
        line[-1] for line in lines if int(line[0].split("-")[0], 16) <= at < int(line[0].split("-")[1], 16)
    ]
    assert len(mapped) == 1
    assert mapped[0].startswith(str(cache))
    assert mapped[0].endswith("train.bin")
    train.backend.store.fill_(7)  # writing to them does not change the cache
    assert np.array_equal(load(tmp_path / "x.npz")[0].pixels[:, 0].numpy(), pixels)


def test_a_changed_file_is_decoded_again(tmp_path, cache):
    made = tree(tmp_path / "own", {"a": 5, "b": 5})
    load(tmp_path / "own")
    changed = noise(8, 8, 3, seed=99)
    save(tmp_path / "own" / "a" / "002.png", changed)
    made["a/002.png"] = changed.transpose(2, 0, 1)
    for part in load(tmp_path / "own"):
        check(part, made)
    extra = noise(8, 8, 3, seed=98)
    save(tmp_path / "own" / "b" / "new.png", extra)
    made["b/new.png"] = extra.transpose(2, 0, 1)
    found = load(tmp_path / "own")
    assert sum(map(len, found)) == 11
    (tmp_path / "own" / "b" / "new.png").unlink()
    assert sum(map(len, load(tmp_path / "own"))) == 10
    np.savez(tmp_path / "x.npz", images=noise(10, 8, 8), labels=[0, 1] * 5)
    load(tmp_path / "x.npz")
    np.savez(tmp_path / "x.npz", images=noise(10, 8, 8, seed=1), labels=[0, 1] * 5)  # of the same size
    os.utime(tmp_path / "x.npz", ns=(1, 1))
    train, _ = load(tmp_path / "x.npz")
    assert np.array_equal(train.pixels[:, 0].numpy(), noise(10, 8, 8, seed=1)[train.ids.numpy()])


def edited(change: Callable[[dict[str, Any]], Any]) -> Callable[[bytes], bytes]:
    def edit(content: bytes) -> bytes:
        facts = json.loads(content)
        change(facts)
        return json.dumps(facts).encode()

    return edit


FACTS, PIXELS = "facts.json", "all.bin"
DAMAGES: dict[str, tuple[str, Callable[[bytes], bytes]]] = {  # the file and what happens to it
    "truncated pixels": (PIXELS, lambda content: content[:-1]),
    "other pixels": (PIXELS, lambda content: content[:-1] + bytes([content[-1] ^ 1])),
    "truncated facts": (FACTS, lambda content: content[:40]),
    "empty facts": (FACTS, lambda _: b""),
    "other facts": (FACTS, lambda _: b'{"parts": {"all": []}, "form": [1]}'),
    "binary facts": (FACTS, lambda _: b"\xff\xfe\0"),
    "other labels": (FACTS, edited(lambda facts: facts["parts"]["all"]["labels"].reverse())),
    "other paths": (FACTS, edited(lambda facts: facts["parts"]["all"]["paths"].reverse())),
    "another mean": (FACTS, edited(lambda facts: facts["mean"].reverse())),
}


def damage(entry: Path, how: str) -> None:
    if how in DAMAGES:
        name, change = DAMAGES[how]
        (entry / name).write_bytes(change((entry / name).read_bytes()))
    else:  # "no …"
        (entry / how.removeprefix("no ")).unlink()


@pytest.mark.parametrize("how", [*DAMAGES, f"no {FACTS}", f"no {PIXELS}"])
@pytest.mark.parametrize("size", [None, 16])
def test_a_damaged_entry_is_replaced_which_is_said_once(how, size, tmp_path, cache, caplog):
    made = tree(tmp_path / "own", {"a": 5, "b": 5}, side=16 if size else 8)
    if size:  # of two sizes, so that they are stored resized
        save(tmp_path / "own" / "b" / "x.png", noise(20, 20, 3))
        made["b/x.png"] = None
    before = [(part.pixels.clone(), part.mean) for part in load(tmp_path / "own", size=size)]
    (entry,) = cache.glob("*-*")
    assert entry.name.endswith("-16" if size else "-native")
    load(tmp_path / "own", size=size)
    assert not caplog.messages
    damage(entry, how)
    for part, (pixels, mean) in zip(load(tmp_path / "own", size=size), before, strict=True):
        assert torch.equal(part.pixels, pixels)
        assert part.mean == mean
        keep = [i for i, path in enumerate(paths_of(part)) if path != "b/x.png"]
        check(part.select(torch.tensor(keep)), made)
    assert entries(cache) == [entry.name]
    load(tmp_path / "own", size=size)
    said = f"The images in {entry} are not those that were decoded: they are decoded again."
    assert caplog.messages == [said]


class Killed(BaseException):
    """Like a signal: not an Exception."""


@pytest.mark.parametrize("kind", [RuntimeError, KeyboardInterrupt, Killed])
def test_interrupted_decoding_leaves_nothing(kind, tmp_path, cache, monkeypatch):
    made = tree(tmp_path / "own", {"a": 100, "b": 100})
    real, lock, seen = purge.data.decode.decode, threading.Lock(), []

    def failing(*args: Any) -> Any:
        with lock:
            seen.append(1)
        if len(seen) > 150:
            raise kind
        return real(*args)

    monkeypatch.setattr(purge.data.decode, "decode", failing)
    with pytest.raises(kind):
        load(tmp_path / "own")
    assert entries(cache) == []
    monkeypatch.setattr(purge.data.decode, "decode", real)
    check(load(tmp_path / "own")[0], made)


def test_two_threads_that_want_the_same_entry_decode_it_once(tmp_path, cache, monkeypatch):
    made = tree(tmp_path / "own", {"a": 50, "b": 50})
    both, real = threading.Barrier(2, timeout=20), purge.data.decode.form_from
    decoded: list[Any] = []
    decode = purge.data.decode.decode

    def meet(*args: Any) -> Any:
        both.wait()
        return real(*args)

    monkeypatch.setattr(purge.data.decode, "form_from", meet)
    monkeypatch.setattr(purge.data.decode, "decode", lambda *args: decoded.append(1) or decode(*args))
    with ThreadPoolExecutor(2) as pool:
        for train, _ in pool.map(load, [tmp_path / "own"] * 2):
            check(train, made)
    assert len(decoded) == 100
    assert len(entries(cache)) == 1


def test_a_cache_that_cannot_be_written_is_reported_in_one_sentence(tmp_path, monkeypatch):
    tree(tmp_path / "own", {"a": 5, "b": 5})
    (tmp_path / "file").write_text("in the way")
    for cache in (tmp_path / "file", tmp_path / "file" / "below"):
        monkeypatch.setenv("PURGE_CACHE", str(cache))
        with pytest.raises(FileError) as error:
            load(tmp_path / "own")
        assert "PURGE_CACHE" in sentence(error)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_reported_in_one_sentence_and_leaves_nothing(tmp_path, cache, monkeypatch):
    tree(tmp_path / "own", {"a": 5, "b": 5})
    real = Path.open

    def full(path: Path, *options: Any) -> Any:
        return real(Path("/dev/full") if path.name == "all.bin" else path, *options)

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(FileError) as error:
        load(tmp_path / "own")
    assert "No space left" in sentence(error)
    assert entries(cache) == []


def test_other_users_can_read_the_cache(tmp_path, cache):
    tree(tmp_path / "own", {"a": 5, "b": 5})
    load(tmp_path / "own")
    (entry,) = cache.glob("*-*")
    assert entry.stat().st_mode & 0o055 == 0o055
    assert all(path.stat().st_mode & 0o044 == 0o044 for path in entry.iterdir())


def test_an_entry_is_of_one_folder_and_one_size(tmp_path, cache):
    one = tree(tmp_path / "1" / "own", {"a": 5, "b": 5})
    two = tree(tmp_path / "2" / "own", {"a": 5, "b": 5}, seed=1)
    check(load(tmp_path / "1" / "own")[0], one)
    check(load(tmp_path / "2" / "own")[0], two)
    save(tmp_path / "1" / "own" / "a" / "x.png", noise(20, 12, 3))
    for size in (16, 24, 16, None):
        load(tmp_path / "1" / "own", size=size)
    names = sorted(name.rsplit("-")[-1] for name in entries(cache))
    assert names == ["16", "224", "24", "native", "native"]
