"""Files are written completely or not at all, with the permissions that the user's umask asks for."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from purge.core.errors import FileError
from purge.core.files import atomically, read_json, read_yaml, write_json, write_text


@pytest.mark.parametrize(("mask", "mode"), [(0o077, 0o600), (0o022, 0o644), (0o002, 0o664)])
def test_the_umask_of_the_user_is_kept(tmp_path: Path, mask: int, mode: int) -> None:
    before = os.umask(mask)
    try:
        write_text(tmp_path / "a.txt", "text")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a.txt").stat().st_mode) == mode


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"a": 1})

    def fail(temporary: Path) -> None:
        temporary.write_text("{")
        assert temporary.parent == tmp_path  # beside it, and not in its place
        assert read_json(path) == {"a": 1}
        raise KeyboardInterrupt  # the user's Ctrl-C is as bad as a full disk

    with pytest.raises(KeyboardInterrupt):
        atomically(path, fail)
    assert read_json(path) == {"a": 1}
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_something_that_is_not_a_file_is_left_alone(tmp_path: Path, make: Callable[[Path], None]) -> None:
    path = tmp_path / "there"  # a pipe stands for every device
    make(path)
    before = path.stat().st_mode
    with pytest.raises(FileError, match=r"Expected a file or nothing at .+ Fix: choose another name"):
        atomically(path, lambda p: pytest.fail("nothing is to be written"))
    assert path.stat().st_mode == before
    assert list(tmp_path.iterdir()) == [path]


KILLED = """
import os, signal, sys
from pathlib import Path
from purge.core.files import atomically

def die(temporary):
    temporary.write_text("{")
    os.kill(os.getpid(), signal.SIGKILL)

atomically(Path(sys.argv[1]), die)
"""


def test_what_a_killed_process_left_is_swept_by_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    subprocess.run([sys.executable, "-c", KILLED, str(path)])
    (left,) = tmp_path.iterdir()
    host, _, token = left.name.removeprefix(".a.json.").split("-")
    others = [
        f".a.json.{host}-{os.getpid()}-{token}",
        f".a.json.0{host[1:]}x-{2**22}-{token}",
        ".a.json.mine",
    ]
    for name in others:  # of a living process, of another machine, of the user
        (tmp_path / name).touch()
    write_json(path, {"a": 1})
    assert {p.name for p in tmp_path.iterdir()} == {"a.json", *others}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(FileError, match="a folder that can be written"):
        write_text(tmp_path / "a.txt", "text")


def test_numbers_of_yaml_are_numbers(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("a: 5e-4\nb: 1E3\nc: -2.5e+1\nd: 2e\ne: 12\n")
    assert read_yaml(tmp_path / "a.yaml") == {"a": 5e-4, "b": 1e3, "c": -25.0, "d": "2e", "e": 12}


def test_keys_of_yaml_can_be_merged_and_changed_but_not_repeated(tmp_path: Path) -> None:
    path = tmp_path / "merged.yaml"
    path.write_text("a: &a {lr: 5e-2, epochs: 1}\nb: {<<: *a, epochs: 2}\nc: {<<: [*a, {kd: 3}]}\n")
    assert read_yaml(path) == {
        "a": {"lr": 0.05, "epochs": 1},
        "b": {"lr": 0.05, "epochs": 2},
        "c": {"lr": 0.05, "epochs": 1, "kd": 3},
    }
    path.write_text("a: &a {lr: 1}\nb: {<<: *a, epochs: 2, epochs: 3}\n")
    with pytest.raises(FileError, match="'epochs' appears twice in line 2"):
        read_yaml(path)
