"""Callbacks: what they are told and when, what their exceptions do, and what trackers write, read back."""

from __future__ import annotations

import json
import logging
import random
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import purge
from purge.callbacks import Callback, TensorBoard, WeightsAndBiases, values_of
from purge.core.errors import DataError, FileError, RunError
from purge.metrics.value import Value
from purge.models.checkpoint import digest
from tests.nets import blobs, plain_mlp

X, Y = blobs(90)
FORGET, RETAIN = purge.split((X, Y), classes=[0])
HOW: dict[str, Any] = {"progress": False, "check": False}


class Diary(Callback):
    """Writes down everything."""

    def __init__(self) -> None:
        self.pages: list[tuple[str, Any]] = []

    def on_start(self, info: Any) -> None:
        self.pages.append(("start", dict(info)))

    def on_check(self, step: int, values: Any) -> None:
        self.pages.append(("check", (step, dict(values))))

    def on_end(self, result: Any) -> None:
        self.pages.append(("end", result))

    def on_report(self, report: Any) -> None:
        self.pages.append(("report", report))

    def of(self, kind: str) -> list[Any]:
        return [page for what, page in self.pages if what == kind]


# -- what is told ---------------------------------------------------------------------------------


def test_an_unlearning_tells_its_start_its_checks_and_its_end() -> None:
    diary = Diary()
    result = purge.unlearn(
        plain_mlp(), FORGET, RETAIN, steps=6, check_every=2, seed=3, callbacks=diary, **HOW
    )
    assert [what for what, _ in diary.pages] == ["start", *["check"] * 4, "end"]
    (info,) = diary.of("start")
    assert info["kind"] == "unlearn"
    assert info["method"] == "purge"
    assert info["seed"] == 3
    assert info["settings"]["steps"] == 6
    assert info["forget_samples"] == len(FORGET[1])
    rows = [row for row in result.history if row["check_forget_accuracy"] is not None]
    assert diary.of("check") == [
        (row["step"], {k: row[k] for k in ("check_forget_accuracy", "check_retain_loss")}) for row in rows
    ]
    assert diary.of("end") == [result]


def test_a_training_tells_each_epoch() -> None:
    diary = Diary()
    result = purge.train(plain_mlp(), (X, Y), epochs=3, progress=False, callbacks=[diary])
    assert diary.of("start")[0]["kind"] == "train"
    assert diary.of("check") == [(row["epoch"], {"loss": row["loss"]}) for row in result.history]
    assert diary.of("end") == [result]


def test_an_audit_tells_its_report() -> None:
    diary = Diary()
    report = purge.audit(plain_mlp(), FORGET, RETAIN, None, metrics=["ra"], callbacks=diary, **HOW)
    assert diary.pages == [("report", report)]


def test_the_parts_of_a_method_count_their_steps_on() -> None:
    diary = Diary()
    parts = {"method": "rum", "methods": ("finetune epochs=2", "finetune epochs=1")}
    result = purge.unlearn(plain_mlp(), FORGET, RETAIN, callbacks=diary, **parts, **HOW)
    told = [step for step, _ in diary.of("check")]
    assert told == sorted(told)
    checked = [row["step"] for row in result.history if row["check_retain_loss"] is not None]
    assert sorted(set(told)) == checked


def test_a_result_is_written_before_its_end_is_told(tmp_path: Path) -> None:
    class Look:
        def on_end(self, result: Any) -> None:
            assert (tmp_path / "run" / "run.json").exists()
            looked.append(True)

    looked: list[bool] = []
    purge.unlearn(plain_mlp(), FORGET, RETAIN, steps=2, out=tmp_path / "run", callbacks=Look(), **HOW)
    assert looked == [True]


@pytest.mark.parametrize("door", ["unlearn", "train"])
def test_a_callback_that_draws_random_numbers_changes_nothing(door: str) -> None:
    class Dice:
        def on_check(self, step: int, values: Any) -> None:
            torch.rand(step + 1), random.random(), np.random.rand()

    def made(callbacks: Any) -> str:
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(X.shape[1], 8), torch.nn.Dropout(), torch.nn.Linear(8, 3))
        if door == "train":
            return digest(purge.train(net, (X, Y), epochs=3, progress=False, callbacks=callbacks).model)
        how = {"method": "finetune", "epochs": 3, "callbacks": callbacks}
        return digest(purge.unlearn(net, FORGET, RETAIN, **how, **HOW).model)

    assert made([]) == made(Dice())


# -- what may go wrong ------------------------------------------------------------------------------


def test_an_exception_ends_the_run_untouched_and_names_the_callback() -> None:
    class Enough(Exception):
        pass

    class Stop:
        def on_check(self, step: int, values: Any) -> None:
            if step == 4:
                raise Enough("that will do")

    diary = Diary()
    with pytest.raises(Enough, match="that will do") as found:
        purge.unlearn(plain_mlp(), FORGET, RETAIN, steps=6, check_every=2, callbacks=[diary, Stop()], **HOW)
    assert str(found.value) == "that will do"
    assert found.value.__notes__ == ["Raised by Stop.on_check, a callback of this run, which ends here."]
    assert [step for step, _ in diary.of("check")] == [0, 2, 4]
    assert not diary.of("end")


def test_an_exception_after_the_end_does_not_lose_the_result(caplog: pytest.LogCaptureFixture) -> None:
    class Late:
        def on_end(self, result: Any) -> None:
            raise OSError("the disk is full")

        def on_report(self, report: Any) -> None:
            raise OSError("still full")

    diary = Diary()
    with caplog.at_level(logging.WARNING, "purge"):
        result = purge.unlearn(plain_mlp(), FORGET, RETAIN, steps=2, callbacks=[Late(), diary], **HOW)
        purge.audit(result, FORGET, RETAIN, None, metrics=["ra"], callbacks=[Late(), diary], **HOW)
    assert diary.of("end") == [result]
    assert len(diary.of("report")) == 1
    told = [record.getMessage() for record in caplog.records]
    assert "The callback Late.on_end raised OSError: the disk is full" in told
    assert "The callback Late.on_report raised OSError: still full" in told


@pytest.mark.parametrize("given", [print, TensorBoard, 3, None, [Diary(), "tensorboard"]])
def test_what_is_no_callback_is_refused_at_once(given: Any, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^Expected objects with on_start .* as callbacks, got \w+\. Fix: "):
        purge.unlearn(plain_mlp(), FORGET, RETAIN, out=tmp_path / "run", callbacks=given, **HOW)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("made", "package"),
    [("TensorBoard('x')", "tensorboard"), ("WeightsAndBiases(project='x')", "wandb")],
)
def test_a_package_that_is_missing_is_named_with_its_extra(made: str, package: str, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(RunError, match=rf"purge-unlearning\[{package}\]"):
        eval(f"purge.callbacks.{made}")


def test_a_folder_that_cannot_be_written_is_told_in_one_line_before_the_first_step(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    diary = Diary()
    with pytest.raises(FileError, match=r"^Expected .*file"):
        purge.unlearn(plain_mlp(), FORGET, RETAIN, callbacks=[TensorBoard(tmp_path / "file"), diary], **HOW)
    assert diary.pages == []
    with pytest.raises(DataError, match="a folder for TensorBoard"):
        TensorBoard("")


@pytest.mark.parametrize("given", [{}, {"project": "x", "run": object()}])
def test_wandb_needs_a_project_or_a_run(given: dict[str, Any]) -> None:
    with pytest.raises(DataError, match="either project= or run="):
        WeightsAndBiases(**given)


# -- what trackers write ----------------------------------------------------------------------------


def test_values_that_are_missing_are_not_written() -> None:
    report = purge.Report({"ra": Value(0.5), "mia": Value.missing("no test")}, {"ra": Value(0.6)}, {})
    assert values_of(report) == {"audit/ra": 0.5, "audit_retrained/ra": 0.6}


def test_tensorboard_reads_every_step_check_and_value(tmp_path: Path) -> None:
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with TensorBoard(tmp_path / "logs") as log:
        assert not (tmp_path / "logs").exists(), "nothing is written before there is something to write"
        trained = purge.train(plain_mlp(), (X, Y), epochs=3, progress=False, callbacks=log)
        result = purge.unlearn(trained, FORGET, RETAIN, steps=6, check_every=2, callbacks=log, **HOW)
        report = purge.audit(result, FORGET, RETAIN, None, metrics=["ra", "mia"], callbacks=log, **HOW)
    found = events.EventAccumulator(str(tmp_path / "logs"))
    found.Reload()
    scalars = {tag: [(e.step, e.value) for e in found.Scalars(tag)] for tag in found.Tags()["scalars"]}
    for kind, made, count in (("train", trained, "epoch"), ("unlearn", result, "step")):
        for name in {k for row in made.history for k in row} - {count}:
            rows = [(row[count], float(row[name])) for row in made.history if row[name] is not None]
            assert [step for step, _ in scalars[f"{kind}/{name}"]] == [step for step, _ in rows]
            assert [v for _, v in scalars[f"{kind}/{name}"]] == pytest.approx([v for _, v in rows])
    assert scalars["audit/ra"] == [(0, pytest.approx(report["ra"].value))]
    assert "audit/mia" not in scalars
    assert {f"{kind}/settings/text_summary" for kind in ("train", "unlearn")} <= set(found.Tags()["tensors"])


OFFLINE = """
import json, sys
import purge
from tests.nets import blobs, plain_mlp

data = blobs(90)
forget, retain = purge.split(data, classes=[0])
with purge.callbacks.WeightsAndBiases(project="deletions", mode="offline", folder=sys.argv[1]) as log:
    how = {"progress": False, "check": False, "callbacks": log}
    result = purge.unlearn(plain_mlp(), forget, retain, steps=6, check_every=2, **how)
    report = purge.audit(result, forget, retain, None, metrics=["ra"], **how)
print(json.dumps([result.history, report["ra"].value]))
"""


@pytest.mark.slow
def test_wandb_keeps_every_step_check_and_value_offline(tmp_path: Path) -> None:
    """In a process of its own: wandb starts a service, and leaves it to the end of the process."""
    pytest.importorskip("wandb")
    command = [sys.executable, "-c", OFFLINE, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr[-2000:]
    history, ra = json.loads(done.stdout.strip().splitlines()[-1])
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    found: dict[str, list[dict[str, Any]]] = {"history": [], "summary": [], "config": []}
    for record in records(file.read_bytes()):
        kind = record.WhichOneof("record_type")
        if kind in found:
            items = record.history.item if kind == "history" else getattr(record, kind).update
            found[kind].append({i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in items})
    for name in {k for row in history for k in row} - {"step"}:
        told = {r["unlearn/step"]: r[f"unlearn/{name}"] for r in found["history"] if f"unlearn/{name}" in r}
        assert told == pytest.approx({r["step"]: float(r[name]) for r in history if r[name] is not None})
    assert [row["audit/ra"] for row in found["summary"] if "audit/ra" in row] == [pytest.approx(ra)]
    assert [row["unlearn"]["settings"]["steps"] for row in found["config"] if "unlearn" in row] == [6]


def records(content: bytes) -> Iterator[Any]:
    """What the file of a run of wandb holds: a log as LevelDB writes it, in blocks of 32 KiB."""
    from wandb.proto.wandb_internal_pb2 import Record

    at, whole = 7, b""  # after its own header
    while at + 7 <= len(content):
        if (left := 32768 - at % 32768) < 7:  # too little for a header: the block is filled up
            at += left
            continue
        length, kind = struct.unpack_from("<HB", content, at + 4)
        whole += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole record, or the last piece of one
            yield Record.FromString(whole)
            whole = b""
