"""``--log``: a training and an unlearning in the shell, read back from TensorBoard's file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.commands import FEW_STEPS, command, good

TRAIN = ("train", "--data", "digits", "--model", "small-resnet", "--set", "epochs=1", "--quiet")


@pytest.mark.slow
def test_both_commands_log_for_tensorboard(tmp_path: Path) -> None:
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    base, logs = tmp_path / "base", tmp_path / "logs"
    good(command(*TRAIN, "--out", base, "--log", f"tensorboard:{logs / 'base'}"))
    gone = ("unlearn", base, "--forget-class", 3, "--out", tmp_path / "gone", *FEW_STEPS, "--quiet")
    good(command(*gone, "--log", f"tensorboard:{logs / 'gone'}"))
    for name, tag, steps in (("base", "train/loss", [1]), ("gone", "unlearn/check_retain_loss", [0, 2])):
        found = events.EventAccumulator(str(logs / name))
        found.Reload()
        assert [event.step for event in found.Scalars(tag)] == steps


@pytest.mark.parametrize("words", ["tensorboard", "tensorboard:", "mlflow:x"])
def test_an_unknown_log_is_refused_and_nothing_is_written(words: str, tmp_path: Path) -> None:
    done = command(*TRAIN, "--out", tmp_path / "run", "--log", words)
    assert done.code == 2
    assert "Expected tensorboard:FOLDER or wandb:PROJECT" in done.err
    assert not list(tmp_path.iterdir())


def test_shards_are_not_logged(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    done = command(*TRAIN, "--out", tmp_path / "run", "--shards", 2, "--log", f"tensorboard:{logs}")
    assert done.code == 2
    assert "--log without shards" in done.err
    assert not (tmp_path / "run").exists()
    assert not logs.exists()
