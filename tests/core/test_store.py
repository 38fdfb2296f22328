"""What is made once and found again: whole, by one process, whoever asks first."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from filelock import FileLock

from purge.core.errors import FileError
from purge.core.store import Store, digest_of


class Shelf:
    """A store with one file, whole if it has the right content, and a count of how often it was made."""

    def __init__(self, root: Path, text: str = "whole") -> None:
        self.store, self.text, self.made = Store(root), text, 0
        self.path = self.store.path("model")

    def read(self, path: Path) -> str | None:
        return "model" if path.is_file() and path.read_text() == "whole" else None

    def make(self, path: Path) -> None:
        self.made += 1
        path.write_text(self.text)

    def ask(self) -> str:
        return self.store.get("model", self.read, self.make)


def test_a_model_is_made_once_and_again_if_it_is_damaged(tmp_path):
    shelf = Shelf(tmp_path / "new")
    assert [shelf.ask(), shelf.ask(), shelf.made] == ["model", "model", 1]
    shelf.path.write_text("who")
    assert [shelf.ask(), shelf.made] == ["model", 2]
    shelf.path.unlink()

    def killed(path: Path) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        shelf.store.get("model", shelf.read, killed)
    assert shelf.ask() == "model"  # the next who asks is not kept waiting


def test_of_two_processes_one_makes_it_and_the_other_waits(tmp_path):
    shelf = Shelf(tmp_path)
    (tmp_path / ".locks").mkdir()
    with ThreadPoolExecutor(1) as pool:
        with FileLock(tmp_path / ".locks" / "model"):
            waiting = pool.submit(shelf.ask)
            with pytest.raises(TimeoutError):
                waiting.result(timeout=0.2)
            shelf.path.write_text("whole")
        assert waiting.result(timeout=30) == "model"
    assert shelf.made == 0


def test_what_cannot_be_written_is_said_in_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match=r"file, got .* Fix: choose another folder"):
        Shelf(tmp_path / "file").ask()
    with pytest.raises(FileError, match="a damaged one"):
        Shelf(tmp_path, text="half").ask()


def test_keys_depend_on_every_fact_and_on_no_address():
    assert digest_of(object()) == digest_of(object())
    assert len({digest_of(), digest_of(1), digest_of("1"), digest_of([1, 2]), digest_of(1, 2)}) == 5
