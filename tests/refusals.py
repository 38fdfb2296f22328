"""Requests that must be refused: how the one sentence looks, and values of settings that are wrong."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
from torch import nn

SENTENCE = re.compile(r"Expected .+, got .+\. Fix: .+\.")
NAN, INF = float("nan"), float("inf")
HUGE = 10**30


def assert_sentence(message: str, words: str) -> None:
    assert len(message.splitlines()) == 1
    assert SENTENCE.fullmatch(message), message
    assert words in message
    typo = re.search(r"got '(.+)'\. Fix: did you mean '(.+)'\?", message)
    assert typo is None or typo[1] != typo[2], message


def tree(folder: Path) -> dict[Path, tuple[int, int]]:
    """Every path below a folder with its size and time of change."""
    return {p: (p.stat().st_size, p.stat().st_mtime_ns) for p in folder.rglob("*")}


def spoiled(model: nn.Module, name: str, value: float) -> nn.Module:
    """A copy with one number of a weight or buffer replaced."""
    model = copy.deepcopy(model)
    model.state_dict()[name].view(-1)[0] = value
    return model


OF_PURGE: list[tuple[str, Any, str]] = [
    ("budget", "fst", "did you mean 'fast'"),
    ("budget", 3, "3"),
    ("rate", -1, "got -1"),
    ("rate", 0, "got 0"),
    ("rate", 1.5, "got 1.5"),
    ("rate", "abc", "'abc'"),
    ("rate", "", "''"),
    ("rate", NAN, "nan"),
    ("rate", INF, "inf"),
    ("rate", True, "True"),
    ("steps", 1, "got 1"),
    ("steps", 2.5, "2.5"),
    ("steps", "two", "'two'"),
    ("steps", "1e400", "1e400"),
    ("plain", 1.5, "got 1.5"),
    ("plain", -0.1, "got -0.1"),
    ("push", -1, "got -1"),
    ("push", None, "None"),
    ("fresh_share", 1.5, "got 1.5"),
    ("average", -0.1, "got -0.1"),
    ("step", 3, "did you mean 'steps'"),
    ("lr", 0.1, "'lr'"),
]
OF_PAPER: list[tuple[str, Any, str]] = [
    ("lr", -1, "got -1"),
    ("lr", 0, "got 0"),
    ("lr", "abc", "'abc'"),
    ("lr", "", "''"),
    ("lr", NAN, "nan"),
    ("lr", INF, "inf"),
    ("lr", True, "True"),
    ("epochs", 2.5, "2.5"),
    ("epochs", 0, "got 0"),
    ("epochs", "two", "'two'"),
    ("epochs", None, "None"),
    ("epochs", "1e400", "1e400"),
    ("erasure", -0.1, "got -0.1"),
    ("gate", -1, "got -1"),
    ("clip", -1, "got -1"),
    ("objective", "masked", "did you mean 'masked_teacher'"),
    ("objective", 3, "3"),
    ("space", "updates", "did you mean 'update'"),
    ("norm", "shard", "did you mean 'shared'"),
    ("optimizer", "adam", "did you mean 'adamw'"),
    ("epoch", 3, "did you mean 'epochs'"),
]
OF_BOTH: list[tuple[str, Any, str]] = [
    ("batch_size", 0, "got 0"),
    ("momentum", 1.5, "got 1.5"),
    ("momentum", -0.1, "got -0.1"),
    ("weight_decay", -1, "got -1"),
    ("temperature", 0, "got 0"),
    ("kd", -1, "got -1"),
    ("stop", "x", "'x'"),
    ("forget_target", 2, "got 2"),
    ("forget_target", -0.1, "got -0.1"),
    ("forget_target", "half", "'half'"),
    ("retain_budget", 0, "got 0"),
    ("retain_floor", -1, "got -1"),
    ("check_every", -1, "got -1"),
    ("check_every", 1.5, "1.5"),
    ("check_samples", 0, "got 0"),
    ("epoch_ends", "often", "'often'"),
    ("learning_rate", 0.1, "'learning_rate'"),
    ("forget_tagret", 0.1, "did you mean 'forget_target'"),
]
SETTINGS = [("purge", *row) for row in OF_PURGE + OF_BOTH] + [
    ("purge-paper", *row) for row in OF_PAPER + OF_BOTH
]
BY_SETTING = pytest.mark.parametrize(
    ("method", "key", "value", "words"), SETTINGS, ids=[f"{m} {k}={v}" for m, k, v, _ in SETTINGS]
)
