"""Downloads: checksums, what a failure leaves, what the message says."""

from __future__ import annotations

import hashlib
import re
import shutil
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import purge
from purge.core.errors import FileError
from purge.data.catalog import DATASETS
from tests.data.image_files import sentence
from tests.data.published_files import (
    IDX,
    LAYOUTS,
    Layout,
    Parts,
    check,
)


@pytest.fixture
def offered(tmp_path, monkeypatch):
    """A function that publishes a data set at file:// addresses."""

    def publish(layout: Layout, md5: Callable[[Path], str], url: str = "") -> Parts:
        parts = layout.make(tmp_path / "there")
        files = DATASETS[layout.name].layouts[0]
        at = {p.name: p for p in (tmp_path / "there").rglob("*")}
        downloads = {url or at[f].as_uri(): md5(at[f]) for f in files}
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
    check(purge.load(layout.name, progress=False), parts)  # found there the second time


def test_a_wrong_checksum_or_a_file_in_the_way_is_reported_and_leaves_nothing(offered, tmp_path):
    offered(LAYOUTS["pathmnist"], lambda _: "0" * 32)
    (tmp_path / "file").write_text("in the way")
    for folder, words in (("here", "checksum"), ("file", str(tmp_path / "file"))):
        with pytest.raises(FileError, match=re.escape(words)) as error:
            purge.load("pathmnist", data_dir=tmp_path / folder, progress=False)
        assert "pathmnist.npz" in sentence(error)
    assert [p for p in (tmp_path / "here").rglob("*") if p.is_file()] == []


def test_only_missing_files_are_downloaded(offered, tmp_path):
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
    shutil.copy(there, tmp_path / "here" / "cifar10")  # what the message asks for
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
def test_a_broken_server_is_reported_and_leaves_nothing(answer, offered, tmp_path, monkeypatch):
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
