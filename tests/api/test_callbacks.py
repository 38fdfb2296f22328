"""Callbacks: what they are told and when, and what their exceptions do."""

from __future__ import annotations

import logging
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import purge
from purge.callbacks import Callback
from purge.core.errors import DataError
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


def test_an_unlearning_tells_its_start_its_checks_and_its_end(tmp_path: Path) -> None:
    class Look(Diary):
        def on_end(self, result: Any) -> None:
            assert (tmp_path / "run" / "run.json").exists(), "it is written before"
            super().on_end(result)

    diary, out = Look(), tmp_path / "run"
    result = purge.unlearn(
        plain_mlp(), FORGET, RETAIN, steps=6, check_every=2, seed=3, callbacks=diary, out=out, **HOW
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


def test_the_parts_of_a_method_count_their_steps_on() -> None:
    diary = Diary()
    parts = {"method": "rum", "methods": ("finetune epochs=2", "finetune epochs=1")}
    result = purge.unlearn(plain_mlp(), FORGET, RETAIN, callbacks=diary, **parts, **HOW)
    told = [step for step, _ in diary.of("check")]
    assert told == sorted(told)
    checked = [row["step"] for row in result.history if row["check_retain_loss"] is not None]
    assert sorted(set(told)) == checked


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


@pytest.mark.parametrize("given", [print, Diary, 3, None, [Diary(), "tensorboard"]])
def test_what_is_no_callback_is_refused_at_once(given: Any, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^Expected objects with on_start .* as callbacks, got \w+\. Fix: "):
        purge.unlearn(plain_mlp(), FORGET, RETAIN, out=tmp_path / "run", callbacks=given, **HOW)
    assert not (tmp_path / "run").exists()
