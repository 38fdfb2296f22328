"""Carrying requests out: what is taken, what is measured, what is refused."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from purge.core.errors import BusyError, DataError, FileError, LedgerError, MetricError, PurgeError
from purge.data.samples import Samples
from purge.data.sources import DataSource
from purge.ledger import version as making
from purge.ledger import worker
from purge.ledger.data import OwnedData, deliver
from purge.ledger.ledger import Ledger
from purge.ledger.plan import BatchPlan, HookFailed, Outcome
from purge.ledger.policy import Policy, Spent
from purge.ledger.version import NextVersion
from purge.ledger.version_audits import Group, measure
from purge.ledger.worker import init
from purge.ledger.working import Watched
from purge.runs.folder import facts_of, read_data, read_model
from purge.runs.make import fresh_model
from tests.cli.commands import command, good
from tests.ledger import people
from tests.ledger.conftest import DATA, LAX
from tests.ledger.killing import killed_at
from tests.ledger.people import person
from tests.verdict.rewording import reword

STEPS = {"steps": 4}
TODAY = datetime.now(UTC).date()


def run(ledger: Ledger, **more: Any) -> Outcome:
    asked: dict[str, Any] = {"settings": STEPS, "policy": LAX, "trust": True, "everything": True}
    return worker.run(ledger, **{**asked, **more})


def ask(ledger: Ledger, *persons: int, days_ago: int = 0) -> int:
    came = TODAY - timedelta(days=days_ago)
    return ledger.add(ids=[person(i) for i in persons], received=came).number


class Handed:
    """Which rows of the data each unlearning and each training was handed, seen from outside."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.forget, self.taught = set[int](), set[int]()
        for name in ("unlearn_run", "train_run"):
            patch.setattr(making, name, partial(self._seen, getattr(making, name)))

    def _seen(self, real: Any, *args: Any, **more: Any) -> Any:
        *before, taught = (one for one in args if isinstance(one, Samples))
        self.forget = set(before[0].ids.tolist()) if before else set()
        self.taught = set(taught.ids.tolist())
        return real(*args, **more)


@pytest.fixture
def handed(monkeypatch: pytest.MonkeyPatch) -> Handed:
    return Handed(monkeypatch)


# -- what a run takes --------------------------------------------------------------------------


def test_a_run_takes_what_is_due(ledger: Ledger):
    days = ((0, "later"), (27, "soon"), (60, "late"), (60, "held"), (1, "sooner"))
    number = {name: ask(ledger, i, days_ago=ago) for i, (ago, name) in enumerate(days, 1)}
    ledger.hold(number["held"], "legal hold")
    outcome = run(ledger, everything=False, due=7)
    assert (outcome.state, outcome.requests, outcome.code) == ("done", (number["soon"], number["late"]), 0)
    states = {name: ledger.request(n).state for name, n in number.items()}
    assert states == {"later": "open", "soon": "done", "late": "done", "held": "held", "sooner": "open"}
    assert run(ledger, everything=False, due=7) == Outcome("nothing")
    assert run(ledger, every=3) == Outcome("nothing")  # the last batch was today
    in_days = TODAY + timedelta(days=3)
    assert run(ledger, every=3, today=in_days, at_most=1).requests == (number["sooner"],)  # the nearest first


# -- denominators ------------------------------------------------------------------------------


def test_each_version_stands_on_the_data_without_all_that_was_forgotten(ledger: Ledger, handed: Handed):
    ask(ledger, 1, 2)
    run(ledger)
    forgotten = handed.forget
    ledger.add(classes=["3"], received=TODAY)
    second = run(ledger)
    ask(ledger, 5)
    third = run(ledger)
    data, _ = people.data()
    threes = set((data.labels == 3).nonzero()[:, 0].tolist())
    of = {i: set(range(3 * i, 3 * i + 3)) for i in (1, 2, 5)}
    assert forgotten == of[1] | of[2]
    facts = facts_of(Path(str(third.folder)))
    gone = of[1] | of[2] | of[5] | threes
    assert third.found["n"]["forgotten"] == len(gone)
    assert (handed.forget, handed.taught) == (of[5] - threes, {*range(people.ROWS)} - gone)
    assert facts["retain_samples"] == third.found["n"]["retained"] == people.ROWS - len(gone)
    _, test = people.data()
    stays = int((test.labels != 3).sum())
    assert third.found["stays"]["now"]["n"] == third.found["values"]["ta_retain"]["n"] == stays
    assert third.found["classes"] == {"gone": [3], "stay": [0, 1, 2, 4, 5, 6, 7, 8, 9]}
    assert second.found["held_out"]["3"]["n"] == int((test.labels == 3).sum())
    tested = {(g["batch"], g["kind"]): g["n"] for g in third.found["groups"]}
    assert tested == {(1, "samples"): len((of[1] | of[2]) - threes), (2, "classes"): len(threes),
                      (3, "samples"): len(of[5] - threes)}  # fmt: skip


def test_the_numbers_are_those_of_the_model_in_the_folder(ledger: Ledger):
    """Drift and distance, computed here from the weights of both versions."""
    ledger.add(classes=["8"], received=TODAY)
    outcome = run(ledger, settings={"steps": 30})
    data, test = people.data()
    stays = test.labels != 8
    x, y = test.take(torch.arange(len(test)))
    answers = []
    for version in ledger.versions():
        model = read_model(Path(version.folder), None, data, True).eval()
        with torch.no_grad():
            answers.append(model(x).argmax(1))
    before, after = ((a == y)[stays].double().mean().item() for a in answers)
    assert outcome.found["stays"]["drift"] == pytest.approx(before - after)
    differ = (answers[0] != answers[1])[stays].double().mean().item()
    assert outcome.found["stays"]["distance"] == pytest.approx(differ)
    held_out = (answers[1] == y)[y == 8].double().mean().item()
    assert outcome.found["held_out"]["8"]["value"] == pytest.approx(held_out)


def test_a_killed_batch_whose_ids_left_the_data_is_given_up(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """What was made of other data is not taken, and who is in it no more is not certified."""
    gone, there = ask(ledger, 1), ask(ledger, 6)
    killed_at(MOMENTS["it is in its place"], lambda: run(Ledger(ledger.name)))
    train, test = people.data()
    whose = tuple("" if one == person(1) else one for one in train.owners)
    train.owners = whose
    monkeypatch.setattr(people, "data", lambda: (train, test))
    outcome = run(ledger)
    assert (outcome.state, outcome.requests, outcome.not_found) == ("done", (there,), (gone,))
    assert [b.state for b in ledger.batches()] == ["failed", "done"]
    assert [ledger.request(n).state for n in (gone, there)] == ["open", "done"]
    assert [p.name for p in (tmp_path / "versions").iterdir()] == ["version-0002"]


# -- gates and policy --------------------------------------------------------------------------


def test_a_missed_gate_leaves_the_old_version_and_the_requests(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    reword(monkeypatch)  # whatever its words are
    number = ask(ledger, 1)
    outcome = run(ledger, fail_if=["ta_retain<101"])
    assert (outcome.state, outcome.code, outcome.version) == ("missed", 1, None)
    assert "ta_retain<101" in outcome.reasons[0]
    request = ledger.request(number)
    assert (request.state, request.why) == ("open", outcome.reasons[0])
    assert len(ledger.versions()) == 1
    assert not list((tmp_path / "versions").iterdir())
    assert [a.passed for a in ledger.audits()] == [False]
    assert run(ledger, fail_if=["ta_retain<1", "failed"]).state == "done"


@pytest.mark.parametrize(
    ("bound", "at", "beyond", "words"),
    [
        ("requests", 2, 3, "3 requests"), ("share", 0.1, 0.11, "11.0 %"), ("age", 30, 31, "31 days"),
        ("drift", 0.02, 0.021, "2.1 % of retained accuracy"), ("distance", 0.1, 0.2, "20.0 % of answers"),
    ],
)  # fmt: skip
def test_each_bound_of_a_policy(bound: str, at: float, beyond: float, words: str, tmp_path: Path):
    policy = replace(LAX, **{f"max_{bound}": at})
    (line,) = policy.reasons(Spent(**{bound: beyond}))
    assert words in line
    assert policy.reasons(Spent(**{bound: at})) == []
    (tmp_path / "policy.yaml").write_text(f"max_{bound}: {at}\naction: retrain\n")
    assert Policy.read(tmp_path / "policy.yaml") == Policy(**{f"max_{bound}": at}, action="retrain")


def test_a_policy_that_cannot_be(tmp_path: Path):
    (tmp_path / "odd.yaml").write_text("max_request: 3\n")
    with pytest.raises(FileError, match="max_requests"):
        Policy.read(tmp_path / "odd.yaml")
    with pytest.raises(Exception, match="max_share"):
        Policy(max_share=2.0)


def test_a_policy_that_is_used_up_says_so_or_retrains(ledger: Ledger, handed: Handed):
    ask(ledger, 1)
    run(ledger)
    number, once = ask(ledger, 2), replace(LAX, max_requests=1)
    outcome = run(ledger, policy=once)
    assert (outcome.state, outcome.code) == ("due", 1)
    assert "2 requests since the last training" in outcome.reasons[0]
    assert (ledger.request(number).state, len(ledger.versions())) == ("open", 2)
    outcome = run(ledger, policy=replace(once, action="retrain"))
    assert (outcome.state, outcome.kind, outcome.version) == ("done", "retrained", 3)
    facts = facts_of(Path(str(outcome.folder)))
    assert handed.taught == {*range(people.ROWS)} - {*range(3, 9)}  # without all that was ever forgotten
    assert facts["samples"] == people.ROWS - 6
    assert facts["settings"]["epochs"] == 12  # like the base
    ask(ledger, 3)
    assert run(ledger, policy=replace(once, action="retrain")).kind == "unlearned"  # the chain begins anew
    newest = ledger.current()
    assert newest is not None
    assert newest.about["spent"]["share"] == pytest.approx(3 / people.ROWS)  # and its share counts from there


def test_a_policy_counts_entries_and_not_what_clocks_say(ledger: Ledger, monkeypatch: pytest.MonkeyPatch):
    times = (f"2020-01-{31 - i // 60:02d}T00:{59 - i % 60:02d}:00.000Z" for i in range(600))
    monkeypatch.setattr("purge.ledger.chain.now", lambda: next(times))  # goes back with every entry
    ask(ledger, 1)
    run(ledger)
    ask(ledger, 2)
    assert "2 requests since the last training" in run(ledger, policy=replace(LAX, max_requests=1)).reasons[0]


def test_a_run_writes_a_witness_and_refuses_an_older_ledger(ledger: Ledger, tmp_path: Path):
    witness, backup = tmp_path / "elsewhere.txt", tmp_path / "backup.db"
    place = Path(ledger.name)
    ask(ledger, 1)
    shutil.copy(place, backup)
    run(ledger, witness=witness)
    assert witness.read_text().split() == [witness.read_text().split()[0], str(ledger.head())]
    shutil.copy(place, tmp_path / "newest.db")
    shutil.copy(backup, place)
    with Ledger(place) as older:
        before = older.head()
        with pytest.raises(LedgerError, match=r"the chain that elsewhere\.txt has seen in"):
            run(older, witness=witness)
        assert older.head() == before
        assert "the chain ends after" in str(older.verify(witness=witness).why)
    shutil.copy(tmp_path / "newest.db", place)
    assert run(Ledger(place), witness=witness).state == "nothing"


def test_each_run_writes_its_witness(ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Also one that had nothing to do, and one that broke."""
    witness = tmp_path / "elsewhere.txt"

    def last() -> str:
        return witness.read_text().splitlines()[-1].split()[1]

    assert run(ledger, witness=witness).state == "nothing"
    assert last() == str(ledger.head())
    ask(ledger, 1)
    monkeypatch.setattr("purge.ledger.version.audit_rows", lambda *_, **__: {}["this breaks"])
    with pytest.raises(KeyError):
        run(ledger, witness=witness)
    assert ledger.batches()[-1].state == "failed"
    assert last() == str(ledger.head())
    assert ledger.verify(witness=witness).ok


def test_a_clock_that_was_ahead_makes_nobody_wait(ledger: Ledger, monkeypatch: pytest.MonkeyPatch):
    ask(ledger, 1)
    with monkeypatch.context() as patch:
        patch.setattr("purge.ledger.chain.now", lambda: "2099-01-01T00:00:00.000Z")
        run(ledger)
    ask(ledger, 2)
    assert run(ledger, every=7).state == "done"
    assert run(ledger, every=7).state == "nothing"


def test_a_chain_grows_old_without_a_request(ledger: Ledger):
    later, policy = TODAY + timedelta(days=31), Policy(max_age=30)
    assert run(ledger, policy=policy, today=later).state == "nothing", "no deletion, no chain"
    ask(ledger, 1)
    assert run(ledger).state == "done"
    before = len(ledger.entries())
    outcome = run(ledger, policy=policy, today=later)
    assert (outcome.state, outcome.code, outcome.requests) == ("due", 1, ())
    assert "the policy allows 30" in outcome.reasons[0]
    assert len(ledger.entries()) == before
    assert run(ledger, policy=policy).state == "nothing"


def test_drift_is_counted_from_the_first_version(ledger: Ledger):
    """Two versions that each lose a little lose the sum of it since the first."""
    stays = []
    for i in (1, 2):
        ask(ledger, i)
        stays.append(run(ledger, settings={"steps": 12}).found["stays"])
    first, last = (one["first"]["value"] for one in stays)
    assert first == last  # the same model, the same samples
    drift = ledger.versions()[2].about["spent"]["drift"]
    assert drift == pytest.approx(first - stays[1]["now"]["value"])
    if drift > 0:
        ask(ledger, 3)
        assert run(ledger, policy=replace(LAX, max_drift=max(0.0, drift - 1e-6))).state == "due"


def test_the_retain_budget_is_counted_from_the_first_version(ledger: Ledger):
    ask(ledger, 1)
    run(ledger, settings={"steps": 40})
    number = ask(ledger, 2)
    plan = BatchPlan.make("purge", STEPS, ("fa_train",), [], LAX, False, 0, None, True, False)
    making = NextVersion.begin(ledger, plan, [ledger.request(number)], keep=True, today=TODAY)
    data = making.data.train.select(~making.all_forgotten)
    x, y = data.take(torch.arange(len(data)))
    models = [read_model(Path(v.folder), None, data, True).eval() for v in ledger.versions()]
    with torch.no_grad():
        losses = [max(torch.nn.functional.cross_entropy(model(x), y).item(), 0.02) for model in models]
    budget = making._budget(models[1])["stop"]["retain_budget"]
    assert budget * losses[1] == pytest.approx(5.0 * losses[0], rel=1e-4)


def returned(model: Any, rows: torch.Tensor, kind: str, kept: bool, then: Any) -> dict[str, Any]:
    """What is found of a group that was forgotten before."""
    classes = [3] if kind == "classes" else []
    group = Group(1, kind, (1,), rows, tuple(classes), kept, then)
    found = measure(
        model, OwnedData.load(DataSource(DATA)), [group], rows, classes, first=None, max_return=0.05, seed=0,
        device=None,
    )  # fmt: skip
    return found["groups"][0]


def test_what_came_back_is_not_accepted(ledger: Ledger):
    """A later version that knows an earlier request again is refused, and says which batch."""
    ledger.add(classes=["3"], received=TODAY)
    assert run(ledger, settings={"steps": 30}).found["held_out"]["3"]["value"] < 0.2
    data, _ = people.data()
    original = read_model(Path(ledger.versions()[0].folder), None, data, True)
    then = ledger.audits()[-1].found["groups"][0]["values"]
    assert returned(original, data.labels == 3, "classes", True, then)["returned"][0].startswith(
        "fa_test rose"
    )
    found = returned(original, data.labels == 3, "classes", False, then)  # held-out samples tell it as well
    assert found["values"].keys() == {"fa_test"}
    assert found["returned"]


def test_an_attack_on_few_samples_accuses_nobody():
    data, _ = people.data()
    model = fresh_model("tests.ledger.people:mlp", data, seed=0)
    for n, accused in ((9, False), (10, True)):
        found = returned(model, torch.arange(people.ROWS) < n, "samples", True, {"mia": {"value": -1.0}})
        assert bool(found["returned"]) is accused
        assert ("fewer than 10" in found["note"]) is not accused


def test_samples_that_may_not_be_kept_are_not_looked_at_later(base: Path, tmp_path: Path):
    ledger = Ledger(tmp_path / "requests.db")
    init(ledger, base, keep_for_audit=False)
    ask(ledger, 1)
    assert run(ledger).found["groups"][0]["tested"]  # while it is forgotten, they are at hand
    ask(ledger, 2)
    earlier = run(ledger).found["groups"][0]
    assert (earlier["tested"], earlier["why"]) == (False, "its samples may not be kept for audits")


# -- data that grows ---------------------------------------------------------------------------


def test_people_who_come_back_are_refused_or_left_out(ledger: Ledger, handed: Handed):
    ask(ledger, 1)
    run(ledger)
    with pytest.raises(DataError, match="2 rows of 1 who did") as error:
        deliver(ledger, "tests.ledger.people:grown", trust=True)
    assert "planted" not in str(error.value)
    found = deliver(ledger, "tests.ledger.people:grown", leave_out=True, trust=True)
    assert (found.rows, found.before, found.people, found.came_back) == (540, 480, 1, 2)
    ask(ledger, 2)
    outcome = run(ledger)
    gone = {3, 4, 5, people.ROWS + 5, people.ROWS + 6}
    facts = facts_of(Path(str(outcome.folder)))
    assert handed.taught == {*range(540)} - gone - {6, 7, 8}
    assert facts["retain_samples"] == 540 - len(gone) - 3
    assert facts["data"] == "tests.ledger.people:grown"
    deliver(ledger, "tests.ledger.people:cleaned", trust=True)  # nobody has more rows than before
    ask(ledger, 7)
    outcome = run(ledger)
    why = {g["batch"]: (g["tested"], g["n"]) for g in outcome.found["groups"]}
    assert why == {1: (False, 0), 2: (False, 0), 3: (True, 3)}


def test_data_that_does_not_know_its_people_any_more_is_refused(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
):
    """Otherwise those who were forgotten would be taught again, as nobody's rows."""
    ask(ledger, 1)
    before = ledger.head()
    with pytest.raises(DataError, match="ids of its own, got some with row numbers alone"):
        deliver(ledger, "tests.ledger.people:anonymous_grown", trust=True)
    assert ledger.head() == before
    run(ledger)
    ask(ledger, 2)
    monkeypatch.setattr(people, "data", people.anonymous)  # without a word
    with pytest.raises(DataError, match="carry the same ids"):
        run(ledger)


def test_row_numbers_mean_the_same_rows(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, handed: Handed
):
    base = Path(shutil.copytree(trained, tmp_path / "base"))
    facts = json.loads((base / "run.json").read_text())
    data = "tests.ledger.people:anonymous"
    source = read_data(DataSource(data), progress=False)[0].source
    (base / "run.json").write_text(json.dumps({**facts, "data": data, "source": source}))
    ledger = Ledger(tmp_path / "requests.db")
    init(ledger, base)
    ledger.add(ids=["3", "4"], received=TODAY)
    run(ledger)
    assert handed.forget == {3, 4}
    with pytest.raises(DataError, match="other rows in their places"):
        deliver(ledger, "tests.ledger.people:anonymous_turned", trust=True)
    found = deliver(ledger, "tests.ledger.people:anonymous_grown", trust=True)
    assert (found.rows, found.before, found.people) == (540, 480, 0)
    ledger.add(ids=["500"], received=TODAY)
    run(ledger)
    assert handed.forget == {500}
    ledger.add(ids=["501"], received=TODAY)
    monkeypatch.setattr(people, "anonymous_grown", people.anonymous_turned)
    with pytest.raises(DataError, match="purge request deliver"):
        run(ledger)


# -- refusals ----------------------------------------------------------------------------------


def test_refusals_write_nothing(ledger: Ledger, tmp_path: Path):
    ask(ledger, 1)
    before = ledger.head()
    cases: list[tuple[str, Any, type[Exception], str]] = [
        ("method", "purg", PurgeError, "did you mean 'purge'"), ("fail_if", ["x>1"], MetricError, "metric"),
        ("fail_if", "fa_test>1", DataError, "list of conditions"), ("policy", 7, DataError, "Policy"),
        ("fail_if", ["probe>1"], MetricError, "probe"), ("due", -1, DataError, "due"),
        ("at_most", 0, DataError, "at_most"), ("every", True, DataError, "every"),
        ("trust", False, FileError, "--trust"), ("before", "  ", DataError, "command or a function"),
        ("seed", -1, PurgeError, "seed"),
    ]  # fmt: skip
    for name, wrong, error, words in cases:
        with pytest.raises(error, match=words):
            run(ledger, **{name: wrong})
        assert ledger.head() == before, wrong
    assert not (tmp_path / "versions").exists()
    with pytest.raises(LedgerError, match="purge request init"):
        run(Ledger(tmp_path / "other.db"))
    with pytest.raises(LedgerError, match="without a version"):
        init(ledger, tmp_path / "base")
    with pytest.raises(FileError, match="a run folder"):
        init(Ledger(tmp_path / "third.db"), tmp_path / "nowhere")


def test_an_unknown_class_is_refused_by_its_request(ledger: Ledger):
    number = ledger.add(classes=["a cat"], received=TODAY).number
    with pytest.raises(DataError, match=f"withdraw request {number}"):
        run(ledger)
    assert ledger.request(number).state == "open"


def test_a_run_that_breaks_leaves_the_requests_open(ledger: Ledger, monkeypatch: pytest.MonkeyPatch):
    number = ask(ledger, 1)

    def breaks(*_: Any, **__: Any) -> None:
        raise RuntimeError(f"secret {person(1)}")

    with monkeypatch.context() as patch:
        patch.setattr("purge.ledger.version.audit_rows", breaks)
        with pytest.raises(RuntimeError):
            run(ledger)
    request = ledger.request(number)
    assert (request.state, request.why) == ("open", "something broke: RuntimeError")
    assert run(ledger).state == "done"


# -- hooks and workers -------------------------------------------------------------------------


def test_hooks_before_and_after(ledger: Ledger, tmp_path: Path):
    number, seen = ask(ledger, 1), []
    with pytest.raises(HookFailed, match="exit code 3"):
        run(ledger, before=f"{sys.executable} -c 'exit(3)'")
    assert ledger.request(number).state == "open"
    assert not ledger.batches()
    told = f"open({str(tmp_path / 'told')!r}, 'w').write(e['PURGE_STATE'] + e['PURGE_REQUESTS'])"
    run(ledger, before=seen.append, after=f'{sys.executable} -c "from os import environ as e; {told}"')
    assert seen == [{"requests": [number]}]
    assert (tmp_path / "told").read_text() == f"done{number}"
    assert run(ledger, before=seen.append, after=seen.append).state == "nothing"
    assert len(seen) == 1  # nothing was due


def test_a_second_worker_is_told_who_works(ledger: Ledger):
    ask(ledger, 1)
    with Ledger(ledger.name).working(), pytest.raises(BusyError, match="at work since"):
        run(ledger)
    assert run(ledger, wait=30).state == "done"


# -- killed ------------------------------------------------------------------------------------

MOMENTS = {
    "the batch is written down": "purge.ledger.version.unlearn_run",
    "the model is unlearned": "purge.ledger.version.audit_rows",
    "it is audited": "purge.ledger.worker.write_json",
    "it is in its place": "purge.ledger.worker.check_weights",
    "the ledger is told": "purge.ledger.worker.finish_batch",
}


@pytest.mark.parametrize(
    "moment", [pytest.param(m, marks=pytest.mark.slow if "ed" in m[-10:] else ()) for m in MOMENTS]
)
def test_a_killed_worker_leaves_nothing_half_done(ledger: Ledger, moment: str, tmp_path: Path):
    number = ask(ledger, 1)
    killed_at(MOMENTS[moment], lambda: run(Ledger(ledger.name)))
    assert (ledger.request(number).state, len(ledger.versions())) == ("running", 1)
    assert ledger.verify().ok
    outcome = run(ledger)
    assert (outcome.state, outcome.batch, outcome.version) == ("done", 1, 2)
    assert ledger.request(number).state == "done"
    assert ledger.verify().ok
    assert [p.name for p in (tmp_path / "versions").iterdir()] == ["version-0002"]
    (tmp_path / "whole.db.key").write_bytes((tmp_path / "requests.db.key").read_bytes())  # the same seeds
    again = Ledger(tmp_path / "whole.db")
    init(again, tmp_path / "base", versions=tmp_path / "whole")
    ask(again, 1)
    assert facts_of(Path(str(run(again).folder))).digest == facts_of(Path(str(outcome.folder))).digest


def test_who_goes_on_in_another_way_begins_anew(ledger: Ledger):
    number = ask(ledger, 1)
    killed_at(MOMENTS["it is in its place"], lambda: run(Ledger(ledger.name)))
    outcome = run(ledger, settings={"steps": 6})
    assert (outcome.state, outcome.batch, ledger.request(number).state) == ("done", 2, "done")
    assert [b.state for b in ledger.batches()] == ["failed", "done"]
    assert facts_of(Path(str(outcome.folder))).steps == 6


def test_who_cannot_go_on_opens_the_requests_again(ledger: Ledger):
    number = ask(ledger, 1)
    killed_at(MOMENTS["the model is unlearned"], lambda: run(Ledger(ledger.name)))
    with pytest.raises(FileError, match="--trust"):
        run(ledger, trust=False)
    assert ledger.request(number).state == "open"
    assert "--trust" in str(ledger.request(number).why)
    assert run(ledger).batch == 2


# -- models and folders that are not what they should be ---------------------------------------


def test_a_model_that_has_forgotten_before_cannot_be_the_first(ledger: Ledger, tmp_path: Path):
    """The ledger would not know what must not be taught again."""
    ask(ledger, 1)
    outcome = run(ledger)
    with pytest.raises(FileError, match="has forgotten some"):
        init(Ledger(tmp_path / "other.db"), str(outcome.folder))


def test_without_the_first_version_the_policy_cannot_be_checked(ledger: Ledger, tmp_path: Path):
    ask(ledger, 1)
    run(ledger)
    shutil.move(tmp_path / "base", tmp_path / "moved")
    ask(ledger, 2)
    outcome = run(ledger, policy=replace(LAX, max_drift=1.0))
    assert outcome.state == "missed"
    assert "no longer there" in outcome.reasons[0]
    assert run(ledger).state == "done"  # no bound on what cannot be measured


def test_another_model_in_the_folder_of_the_current_version_is_refused(ledger: Ledger, tmp_path: Path):
    ask(ledger, 1)
    folder = Path(str(run(ledger).folder))
    shutil.rmtree(folder)
    shutil.copytree(tmp_path / "base", folder)
    ask(ledger, 2)
    before = ledger.head()
    with pytest.raises(FileError, match="version-0002, which it does not know"):
        run(ledger)
    assert ledger.head() == before


# -- stopped -----------------------------------------------------------------------------------


@pytest.mark.parametrize("retrain", [False, True])
def test_a_worker_that_is_asked_to_stop_ends_at_the_next_step(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, retrain: bool
):
    monkeypatch.setattr("purge.ledger.working.PAUSE", 0.0)
    number, steps = ask(ledger, 1), list[tuple[int, int]]()
    with pytest.raises(LedgerError, match="nothing to stop"):
        ledger.stop()
    assert ledger.worker() is None
    real = Watched.on_step

    def asked_at_3(watched: Watched, step: int, of: int) -> None:
        real(watched, step, of)
        steps.append((step, of))
        if step == 3:
            with Ledger(ledger.name) as other:
                (listed,) = json.loads(command("request", "list", "--json", "--ledger", ledger.name).out)
                far = listed["progress"]
                assert (far["batch"], far["step"], far["steps"], far["stopping"]) == (1, 3, of, False)
                assert far["seconds_left"] >= 0
                assert f"step 3 of {of}" in good(command("request", "list", "--ledger", ledger.name)).out
                assert command("request", "stop", "--ledger", ledger.name).code == 0
                assert other.worker().stopping

    with monkeypatch.context() as patch:
        patch.setattr(Watched, "on_step", asked_at_3)
        outcome = run(ledger, retrain=retrain)
    assert [step for step, _ in steps] == [1, 2, 3]
    assert (outcome.state, outcome.code, outcome.requests) == ("stopped", 1, (number,))
    assert (ledger.request(number).state, ledger.request(number).why) == (
        "open",
        "stopped, as somebody asked",
    )
    assert [len(ledger.versions()), ledger.audits(), ledger.batches()[-1].state] == [1, [], "failed"]
    assert not list((tmp_path / "versions").iterdir())
    assert ledger.worker() is None
    ledger.hold(number, "a claim")
    ledger.release(number)
    assert run(ledger).state == "done"
    assert ledger.verify().ok


def test_a_worker_that_was_killed_is_not_told_to_be_at_work(ledger: Ledger):
    ask(ledger, 1)
    killed_at(MOMENTS["the model is unlearned"], lambda: run(Ledger(ledger.name)))
    assert ledger.worker() is None
    assert "At work" not in good(command("request", "list", "--ledger", ledger.name)).out
