"""After the newest ledger or its versions were lost: what is told, what is opened again, what goes on."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from purge.core.errors import FileError
from purge.ledger.certificate import certificate_of
from purge.ledger.ledger import Ledger
from purge.ledger.records import Recovery
from tests.cli.commands import command, good
from tests.ledger.killing import killed_at
from tests.ledger.test_worker import MOMENTS, ask, run


def states(ledger: Ledger) -> list[str]:
    return [request.state for request in ledger.requests()]


@pytest.fixture
def restored(ledger: Ledger, tmp_path: Path) -> Ledger:
    """Request 1 is done, and 2 was; the backup that was put back does not know it, nor that 3 was there."""
    ask(ledger, 1)
    run(ledger)
    ask(ledger, 2)
    shutil.copy(ledger.name, tmp_path / "night.db")
    ask(ledger, 3)
    run(ledger)
    shutil.copy(tmp_path / "night.db", ledger.name)
    return ledger


def test_a_run_says_which_entries_are_lacking_and_recover_goes_on(restored: Ledger, tmp_path: Path):
    end, others = restored.head(), tmp_path / "versions" / "version-0003"
    lost = f"version-0003, ordered by entry {end.entries + 2}: this ledger lacks entries {end.entries + 1} to"
    for _ in range(2):
        done = command("request", "run", "--all", "--trust", "--ledger", restored.name)
        assert (done.code, done.out) == (2, "")
        assert lost in done.err
        assert "purge request recover" in done.err
        assert restored.head() == end
    before = (others / "run.json").read_bytes()
    told = good(command("request", "recover", "--ledger", restored.name)).out
    assert told.splitlines() == [
        "Not of this ledger, left where it is: version-0003.",
        "Open: request 2. A certificate of it is no longer right.",
        "Add again what was asked in request 3 of the lost ledger.",
    ]
    assert states(restored) == ["done", "open"]
    assert "another copy of the ledger" in str(restored.request(2).why)
    assert [entry.kind for entry in restored.history(2)] == ["request", "recovery"]
    assert "Nothing to recover" in good(command("request", "recover", "--ledger", restored.name)).out
    number = ask(restored, 4)
    assert number == 3  # the number of another person in the lost ledger
    outcome = run(restored)
    assert (outcome.state, outcome.version, Path(str(outcome.folder)).name) == ("done", 4, "version-0004")
    assert (others / "run.json").read_bytes() == before
    assert restored.verify().ok
    ask(restored, 5)
    assert run(restored).version == 5
    shutil.copytree(tmp_path / "versions" / "version-0004", others, dirs_exist_ok=True)
    with pytest.raises(FileError, match="version-0003"):  # it is not what was set aside
        run(restored)


def test_two_copies_that_went_on_do_not_take_the_work_of_each_other(ledger: Ledger, tmp_path: Path):
    ask(ledger, 1)
    shutil.copy(ledger.name, tmp_path / "copy.db")
    shutil.copy(f"{ledger.name}.key", tmp_path / "copy.db.key")
    copy = Ledger(tmp_path / "copy.db")
    run(ledger)
    ask(copy, 2)
    ask(copy, 3)
    with pytest.raises(FileError, match="ordered by another entry 5 than its own: two copies"):
        run(copy)
    assert copy.recover() == Recovery((1,), (), (), ("version-0002",))
    assert run(copy).version == 3
    with pytest.raises(FileError, match="version-0003"):
        run(ledger)
    recovery = ledger.recover()
    assert recovery.folders == ("version-0003",)
    assert recovery.requests == (), "request 1 is done in a version of its own chain, too"
    assert set(recovery.lacking) == {2, 3}
    assert states(ledger) == ["done"]
    assert states(copy) == ["done"] * 3


def test_a_hidden_folder_of_another_chain_is_seen(ledger: Ledger, tmp_path: Path):
    place = tmp_path / "versions" / f".batch-{'ab' * 8}"
    place.mkdir(parents=True)
    ask(ledger, 1)
    with pytest.raises(FileError, match=r"\.batch-abab"):
        run(ledger)
    assert ledger.recover().folders == (place.name,)
    assert run(ledger).state == "done"
    assert place.exists()


@pytest.mark.parametrize("how", ["gone", "others", "weights"])
def test_versions_that_are_lost_no_longer_count(ledger: Ledger, tmp_path: Path, how: str):
    """A backup of the versions was put back that is older than the ledger."""
    for i in (1, 2):
        ask(ledger, i)
        run(ledger)
    ask(ledger, 2)  # who has no row left, since version 3 has forgotten them
    assert run(ledger).version is None
    place = tmp_path / "versions" / "version-0003"
    if how == "weights":
        shutil.copy(tmp_path / "base" / "model.safetensors", place)
    else:
        shutil.rmtree(place)
    if how == "others":
        shutil.copytree(tmp_path / "versions" / "version-0002", place)
    ask(ledger, 3)
    before = ledger.head()
    with pytest.raises(FileError, match="purge request recover"):
        run(ledger)
    assert ledger.head() == before
    recovery = ledger.recover()
    assert (recovery.requests, recovery.versions) == ((2, 3), (3,))
    assert recovery.folders == (("version-0003",) if how == "others" else ())
    assert states(ledger) == ["done", "open", "open", "open"]
    assert [version.kind for version in ledger.versions()] == ["base", "unlearned", "lost"]
    paper = certificate_of(ledger, 2)
    assert (paper["request"]["done"], paper["versions"]["after"]) == (None, None)
    assert paper["versions"]["now"]["number"] == 2
    assert ledger.verify().ok
    outcome = run(ledger)
    assert (outcome.version, outcome.requests) == (4, (2, 3, 4))
    assert ledger.versions()[-1].parent == ledger.versions()[1].digest
    assert set(states(ledger)) == {"done"}
    assert ledger.recover() == Recovery()


def test_an_older_version_may_be_removed(ledger: Ledger, tmp_path: Path):
    """Only the newest is needed to go on."""
    for i in (1, 2):
        ask(ledger, i)
        run(ledger)
    shutil.rmtree(tmp_path / "versions" / "version-0002")
    assert ledger.recover() == Recovery()
    ask(ledger, 3)
    assert run(ledger).version == 4


def test_without_the_first_version_there_is_nothing_to_recover_from(ledger: Ledger, tmp_path: Path):
    shutil.move(tmp_path / "base", tmp_path / "moved")
    with pytest.raises(FileError, match="restore the folder of the model"):
        ledger.recover()


def test_half_made_work_in_its_place_is_not_certified(ledger: Ledger, tmp_path: Path):
    """A power cut has taken what the ledger would keep of the version; the requests are not stuck in it."""
    number = ask(ledger, 1)
    killed_at(MOMENTS["it is in its place"], lambda: run(Ledger(ledger.name)))
    (tmp_path / "versions" / "version-0002" / "batch.json").write_bytes(b"")
    for words in ("batch.json", "version-0002, made for batch 1, which was given up"):
        with pytest.raises(FileError, match=words):
            run(ledger)
        assert ledger.request(number).state == "open"
    ledger.recover()
    assert run(ledger).version == 3
