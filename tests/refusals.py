"""Requests that must be refused: how the one sentence looks, and values of settings that are wrong."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

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


# Values that a setting must refuse, in methods that have it: each end of its range, other types, typos.
OF_PURGE: dict[str, tuple[Any, ...]] = {
    "budget": ("fst", 3), "rate": (-1, 0, 1.5, "abc", "", NAN, INF, True), "steps": (1, 2.5, "1e400"),
    "plain": (1.5, -0.1), "push": (-1, None), "fresh_share": (1.5,), "average": (-0.1,), "step": (3,),
}  # fmt: skip
OF_PAPER: dict[str, tuple[Any, ...]] = {
    "lr": (-1, 0), "epochs": (2.5, 0, "two", None), "erasure": (-0.1,), "gate": (-1,), "clip": (-1,),
    "objective": ("masked", 3), "space": ("updates",), "norm": ("shard",), "optimizer": ("adam",),
}  # fmt: skip
OF_BOTH: dict[str, tuple[Any, ...]] = {
    "batch_size": (0,), "momentum": (1.5, -0.1), "weight_decay": (-1,), "temperature": (0,), "kd": (-1,),
    "stop": ("x",), "forget_target": (2, -0.1, "half"), "retain_budget": (0,), "retain_floor": (-1,),
    "check_every": (-1, 1.5), "check_samples": (0,), "epoch_ends": ("often",), "forget_tagret": (0.1,),
}  # fmt: skip
MEANT = {"fst": "fast", "step": "steps", "masked": "masked_teacher", "updates": "update", "shard": "shared",
         "adam": "adamw", "forget_tagret": "forget_target"}  # fmt: skip
SETTINGS = [
    (method, key, value)
    for method, own in (("purge", OF_PURGE), ("purge-paper", OF_PAPER))
    for key, values in {**own, **OF_BOTH}.items()
    for value in values
]


def words_for(key: str, value: Any) -> str:
    """What the refusal of a setting says, among other things."""
    meant = MEANT.get(value if isinstance(value, str) else key)
    return f"did you mean '{meant}'" if meant else str(value)
