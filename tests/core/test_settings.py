"""Settings: cast by type, checked by range, answered with the nearest name."""

from __future__ import annotations

import json

import pytest

from purge.core.errors import MethodError
from purge.core.settings import as_dict, replace
from purge.engine.stopping import Stopping
from purge.methods import PurgePaper
from purge.methods.registry import METHODS, resolve_method


@pytest.mark.parametrize(
    ("key", "value", "stored"),
    [("lr", "5e-4", 5e-4), ("epochs", 7.0, 7), ("layers", "none", None), ("epoch_ends", "off", False),
     ("freeze", "", ()), ("space", "none", "none")],
)  # fmt: skip
def test_values_are_cast_by_type(key, value, stored):
    method = replace(PurgePaper(), {key: value})
    got = getattr(method if hasattr(method, key) else method.stop, key)
    assert (got, type(got)) == (stored, type(stored))


@pytest.mark.parametrize(
    ("key", "accepted", "rejected"),
    [
        ("lr", 1e-9, 0.0), ("epochs", 1, 0), ("batch_size", 1, 0), ("erasure", 0.0, -0.1), ("kd", 0.0, -1),
        ("temperature", 0.1, 0), ("gate", 0.0, -0.1), ("clip", 0.0, -1), ("momentum", 0.999, 1.0),
        ("weight_decay", 0.0, -1e-9), ("forget_target", 0.0, -0.1), ("forget_target", 1.0, 1.1),
        ("retain_budget", 0.1, 0.0), ("retain_floor", 0.0, -1.0), ("check_every", 0, -1),
        ("check_samples", 1, 0), ("optimizer", "adamw", "adam"), ("objective", "ga", "gaa"),
        ("norm", "train", "frozn"), ("space", "update", "updates"), ("lr", 0.5, float("nan")),
        ("epochs", 3, 2.5), ("epochs", 3, True), ("early", True, "maybe"), ("layers", ("a",), 3),
    ],
)  # fmt: skip
def test_one_value_is_accepted_and_one_rejected(key, accepted, rejected):
    replace(PurgePaper(), {key: accepted})
    with pytest.raises(MethodError, match=r"^Expected .*, got .*\. Fix: "):
        replace(PurgePaper(), {key: rejected})


def test_stopping_may_be_given_flat_or_whole():
    flat = resolve_method("purge", {"forget_target": 0.3})
    assert flat.stop.forget_target == 0.3
    assert flat.stop.check_every == METHODS["purge"].method.stop.check_every
    both = resolve_method("purge", {"stop": Stopping(check_every=7), "retain_budget": None})
    assert (both.stop.check_every, both.stop.retain_budget) == (7, None)


@pytest.mark.parametrize("name", METHODS)
def test_settings_as_they_are_written_can_be_read_again(name):
    method = resolve_method(name, {"forget_target": 0.25})
    written = json.loads(json.dumps(as_dict(method)))
    assert resolve_method(name, written) == method
