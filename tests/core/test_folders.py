"""One process writes a folder at a time, and an old run goes only when the new one is whole."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from purge.core.errors import FileError
from purge.core.files import LOCK, out_folder
from purge.core.folders import SAVED, claimed, recover, replacing_run

posix = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork and no SIGKILL")


def inside(folder: Path) -> dict[str, str]:
    return {p.name: p.read_text() for p in sorted(folder.iterdir()) if p.is_file()}


@contextmanager
def another(statement: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that is within ``with statement:``, where ``at`` is the folder."""
    code = (
        "import sys, time; from pathlib import Path; at = Path(sys.argv[1])\n"
        "from purge.core.folders import claimed\n"
        f"with {statement}: print('there', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code, folder], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "there\n"
        try:
            yield other
        finally:
            other.kill()


def test_a_folder_that_another_process_writes_is_refused_until_that_ends(tmp_path: Path) -> None:
    out = tmp_path / "new" / "out"
    with another("claimed(at)", out) as other:
        with pytest.raises(FileError, match="for this process alone, got another that writes"), claimed(out):
            pytest.fail("there are two")
        other.kill()  # without a chance to clean up
        other.wait()
        assert out_folder(out) == out  # what it left behind does not count
        with claimed(out):
            (out / "mine").write_text("x")
    assert inside(out) == {"mine": "x"}


def test_a_claim_that_came_to_nothing_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError), claimed(tmp_path / "a" / "b"):
        (tmp_path / "a" / "b").read_text()
    assert list(tmp_path.iterdir()) == []
    with claimed(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_claim_can_be_repeated_in_its_thread_alone(tmp_path: Path) -> None:
    refused = []

    def other() -> None:
        try:
            with claimed(tmp_path):
                pass
        except FileError as error:
            refused.append(error)

    with claimed(tmp_path), claimed(tmp_path / "x" / ".."):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert len(refused) == 1
    other()
    assert len(refused) == 1


OLD = {
    "run.json": "old", "model.safetensors": "old", "history.parquet": "old", "audit.json": "old",
    "report.html": "old", "sisa.json": "old", "sisa-0.safetensors": "old",
}  # fmt: skip
NEW = {"run.json": "new", "model.safetensors": "new", "history.parquet": "new"}
OWN = {"notes.txt": "mine"}

# Replaces the run once for each number of operations after which the process is killed.
KILLED = """
import os, signal, sys
from pathlib import Path
from purge.core.folders import claimed, replacing_run

OLD, NEW, OWN, at = {OLD}, {NEW}, {OWN}, Path(sys.argv[1])
for k in range(100):
    folder = at / f"{{k:02d}}"
    folder.mkdir()
    for name, text in (OLD | OWN).items():
        (folder / name).write_text(text)
    child = os.fork()
    if not child:
        left = k

        def count(event, args):
            global left
            if event in ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "open"):
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)
        with claimed(folder), replacing_run(folder) as new:
            for name, text in NEW.items():
                (new / name).write_text(text)
        os._exit(0)
    if os.waitpid(child, 0)[1] == 0:
        break
"""


@posix
def test_a_kill_at_any_moment_leaves_the_old_run_or_the_new_one(tmp_path: Path) -> None:
    code = KILLED.format(OLD=OLD, NEW=NEW, OWN=OWN)
    subprocess.run([sys.executable, "-c", code, tmp_path], check=True, timeout=60)
    folders = sorted(tmp_path.iterdir())
    assert len(folders) > 20
    seen = []
    for folder in folders:
        at_the_kill = {k: v for k, v in inside(folder).items() if k != LOCK}
        if at_the_kill not in (OLD | OWN, NEW | OWN):  # while they are exchanged
            assert (folder / SAVED).is_dir()
        recover(folder)
        after = {k: v for k, v in inside(folder).items() if k != LOCK}
        assert after in (OLD | OWN, NEW | OWN)
        assert not (folder / SAVED).exists()
        seen.append(after == NEW | OWN)
        with claimed(folder), replacing_run(folder) as new:
            (new / "run.json").write_text("third")
        weights = "new" if seen[-1] else "old"
        assert inside(folder) == {"model.safetensors": weights, "run.json": "third", **OWN}
        assert {p.name for p in folder.iterdir()} == {"model.safetensors", "run.json", *OWN}
    assert seen == sorted(seen)  # once the new one is whole, it stays
    assert True in seen[:-1]
    assert False in seen


def test_a_run_that_is_being_exchanged_by_another_process_is_left_to_it(tmp_path: Path) -> None:
    (tmp_path / SAVED).mkdir()
    (tmp_path / SAVED / "run.json").write_text("new")
    with another("claimed(at)", tmp_path):
        recover(tmp_path)
        assert (tmp_path / SAVED / "run.json").is_file()
    recover(tmp_path)
    assert inside(tmp_path) == {"run.json": "new"}


def test_only_files_of_a_run_are_moved_into_its_folder_and_no_link_is_followed(tmp_path: Path) -> None:
    precious, folder, other = (tmp_path / name for name in ("precious", "run", "other"))
    for made in (precious, folder, other / SAVED):
        made.mkdir(parents=True)
    (precious / "run.json").write_text("mine")
    (folder / SAVED).symlink_to(precious, target_is_directory=True)
    (other / SAVED / ".bashrc").write_text("evil")
    (other / SAVED / "run.json").write_text("{}")
    for run in (folder, other):
        recover(run)
        assert [p.name for p in run.iterdir()] == [SAVED]
    assert (precious / "run.json").read_text() == "mine"
