"""A ledger that was put back or copied: no work of another chain is taken for its own."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import signal
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.commands import Done
from tests.doors.asking import Company

SLOW = pytest.mark.slow
OTHERS = pytest.param("a version of others", marks=SLOW)
METRIC = """
import os, pathlib, signal
import purge

def fn(subject):
    if pathlib.Path({mark!r}).exists():
        os.kill(os.getpid(), signal.SIGKILL)
    return subject.mean((subject.log_probs("forget").max(1) > -1.0))

SURE = purge.Metric(
    name="sure", symbol="sure", about="how sure it is", fn=fn, unit="share", section="forgetting"
)
"""
METHOD = '''
from dataclasses import dataclass
from purge.methods.base import Method, Stopping

@dataclass(frozen=True)
class Nothing(Method):
    """Give the model back as it came."""

    stop: Stopping = Stopping(early=False)

    def run(self, model, split, run):
        """Leave everything as it is."""
'''


def refused(company: Company, number: int, place: Path) -> Done:
    """A run stops with one line about a folder, and nothing is certified, now or the next time."""
    done = company.run()
    assert done.code == 2, done
    lines = [line for line in done.err.splitlines() if line.strip()]
    assert len(lines) == 1, done.err
    assert str(place) in lines[0]
    assert "Fix: " in lines[0]
    assert_open(company, number)
    head = company.head()
    assert company.run().code == 2
    assert company.head() == head, "what is refused again is not written again"
    return done


def assert_open(company: Company, number: int) -> None:
    assert company.state(number) == "open"
    content, page = company.certificate(number)
    assert content["request"]["done"] is None
    assert content["versions"]["after"] is None
    assert "has not been changed for this request" in page


def weights(folder: Path) -> str:
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


# -- backups and copies ------------------------------------------------------------------------


def test_the_version_of_others_is_not_taken_after_a_restore(company: Company, tmp_path: Path) -> None:
    company.ask("c-17")
    assert company.run().code == 0
    backup = company.backup(tmp_path / "night" / "requests.db")
    company.ask("c-40")
    assert company.run().code == 0
    others = company.versions / "version-0003"
    made = weights(others)
    company.restore(backup)
    number = company.ask("c-3")  # which gets the number of the one that was lost
    done = refused(company, number, others)
    assert "backup" in done.err
    assert weights(others) == made, "what is refused is left alone"
    shutil.move(others, tmp_path / "away")
    assert company.run().code == 0
    assert company.state(number) == "done"
    assert weights(others) != made
    company.head()


@SLOW
def test_the_version_of_the_same_people_is_not_taken_either(company: Company, tmp_path: Path) -> None:
    """Their request is open again, and this chain has not ordered what lies there."""
    company.ask("c-17")
    assert company.run().code == 0
    number = company.ask("c-40")
    backup = company.backup(tmp_path / "night" / "requests.db")
    assert company.run().code == 0
    company.restore(backup)
    refused(company, number, company.versions / "version-0003")


def test_a_copy_of_the_ledger_takes_no_work_of_the_first(company: Company, tmp_path: Path) -> None:
    book = company.backup(tmp_path / "branch" / "requests.db")
    branch = Company(company.base, book, begin=False)
    company.ask("c-17")
    number = branch.ask("c-40")
    assert company.run().code == 0
    made = weights(company.versions / "version-0002")
    refused(branch, number, company.versions / "version-0002")
    assert weights(company.versions / "version-0002") == made
    company.head()


@SLOW
def test_a_backup_that_has_missed_nothing_goes_on(company: Company, tmp_path: Path) -> None:
    company.ask("c-17")
    assert company.run().code == 0
    company.restore(company.backup(tmp_path / "night" / "requests.db"))
    number = company.ask("c-40")
    assert company.run().code == 0
    assert company.state(number) == "done"


# -- folders that somebody put there -----------------------------------------------------------


@pytest.mark.parametrize("what", ["the version before", OTHERS, "an empty folder"])
def test_a_folder_where_a_version_would_be(company: Company, tmp_path: Path, what: str) -> None:
    other = Company(company.base, tmp_path / "other" / "requests.db")
    other.ask("c-40")
    place = company.versions / "version-0002"
    company.versions.mkdir()
    if what == "the version before":
        shutil.copytree(company.base, place)
    elif what == "a version of others":
        assert other.run().code == 0
        shutil.copytree(other.versions / "version-0002", place)
    else:
        place.mkdir()
    before = sorted(place.iterdir())
    number = company.ask("c-17")
    refused(company, number, place)
    assert sorted(place.iterdir()) == before


def killed(work: Callable[[], object]) -> None:
    """Do some work in a fork, which is killed in it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer Pythons warn of threads; there is none that matters
        child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(99)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


@pytest.fixture
def shed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with code of one's own: a metric that kills its process while a file is there, a method."""
    (tmp_path / "ours_here.py").write_text(METRIC.format(mark=str(tmp_path / "kill")) + METHOD)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "ours_here", raising=False)  # that of another test
    return tmp_path


def half_made(place: Path) -> list[Path]:
    """The models that a killed worker has left: wherever they are, they are no version yet."""
    return [
        file.parent
        for file in place.rglob("model.safetensors")
        if not file.parent.name.startswith("version-")
    ]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a worker is killed in a fork")
@pytest.mark.parametrize("what", ["the version before", OTHERS])
@pytest.mark.parametrize("retrain", [False, pytest.param(True, marks=SLOW)])
def test_a_model_put_in_the_place_of_half_made_work(
    company: Company, tmp_path: Path, shed: Path, what: str, retrain: bool
) -> None:
    """Whatever the next worker does, it certifies no model that somebody has put there."""
    how = ["--metrics", "ours_here:SURE", *["--retrain"] * retrain]
    planted = company.base
    if what == "a version of others":
        other = Company(company.base, tmp_path / "other" / "requests.db")
        other.ask("c-40")
        assert other.run(*how).code == 0
        planted = other.versions / "version-0002"
    number = company.ask("c-17")
    (shed / "kill").touch()
    killed(lambda: company.run(*how))
    (shed / "kill").unlink()
    assert company.state(number) == "running"
    left = half_made(company.versions)
    assert left, "it was killed when the model was made"
    for place in left:
        shutil.rmtree(place)
        shutil.copytree(planted, place)
    done = company.run(*how)
    if done.code:
        assert done.code == 2
        assert_open(company, number)
        for place in left:
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(place)
        assert company.run(*how).code == 0
    assert company.state(number) == "done"
    assert weights(company.versions / "version-0002") != weights(planted)
    company.head()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a worker is killed in a fork")
def test_own_work_is_still_taken_up(company: Company, shed: Path) -> None:
    """The batch of a killed worker is finished and not begun anew, also from a backup of that moment."""
    how = ["--metrics", "ours_here:SURE"]
    number = company.ask("c-17")
    (shed / "kill").touch()
    killed(lambda: company.run(*how))
    (shed / "kill").unlink()
    (place,) = half_made(company.versions)
    made = weights(place)
    backup = company.backup(shed / "night" / "requests.db")
    done = company.run(*how)
    assert (done.code, done.json["batch"]) == (0, 1)
    assert weights(company.versions / "version-0002") == made
    company.restore(backup)
    assert company.state(number) == "running"
    assert company.run(*how).json["version"] == 2  # the very batch that had made it
    assert company.state(number) == "done"
    assert weights(company.versions / "version-0002") == made


def test_a_model_that_has_not_changed_is_not_certified(company: Company, shed: Path) -> None:
    number = company.ask("c-17")
    policy = company.book.with_name("policy.yaml")
    argv = ("run", "--all", "--policy", policy, "--quiet", "--method", "ours_here:Nothing")
    done = company.request(*argv)
    assert done.code in (1, 2), done
    assert "same weights" in done.err
    assert_open(company, number)
    assert not (company.versions / "version-0002").exists()
    assert company.run().code == 0
