"""Every method on a text classifier: it works, or it says by name why it cannot."""

from __future__ import annotations

import pytest

import purge
from purge.core.errors import PurgeError
from purge.models.checkpoint import digest
from tests.methods.test_contract import NAMES, OWN, QUICK
from tests.properties import facts
from tests.sequences import bert, sentences

REFUSED = {  # method → why, where a class is to be forgotten
    "boundary-shrink": "one tensor of floats as inputs",
    "unsir": "one tensor of floats as inputs",
    "amun": "one tensor of floats as inputs",
    "mu-mis": "one tensor of floats as inputs",
    "convolution-transpose": "a convolution with a square kernel",
}
ONLY_CLASSES = {"fisher": "fisher", "fisher-large": "fisher", "trw": "trw", "unsir": "unsir"}
SETTINGS = {**QUICK, "fisher": {"samples": 12}, "fisher-large": {"samples": 12}}
AT_ONCE = {"purge", "purge-paper", "influence", "trw", *REFUSED}  # others are slow tests


@pytest.fixture(scope="module")
def text():
    data = sentences(160)
    model = purge.train(bert(), data, epochs=25, lr=0.1, batch_size=32, progress=False).model
    return model, data, sentences(60, seed=1)


def unlearned(text, name, **asked):
    model, data, test = text
    forget, retain = purge.split(data, **asked)
    settings = SETTINGS.get(name, {})
    return purge.unlearn(model, forget, retain, test=test, method=name, progress=False, **settings)


@pytest.mark.parametrize(
    "name", [name if name in AT_ONCE else pytest.param(name, marks=pytest.mark.slow) for name in NAMES]
)
@pytest.mark.parametrize("asked", [{"classes": [0]}, {"indices": range(12)}], ids=["class", "rows"])
def test_a_method_works_on_text_or_says_why_not(name, asked, text):
    before = facts(text[0])
    why = REFUSED.get(name, "")
    if "indices" in asked and name in ONLY_CLASSES:
        why = "whole classes to forget"
    if not why:
        result = unlearned(text, name, **asked)
        assert digest(result.model) != before[0]
        assert facts(result.model)[1:] == before[1:]
    else:
        with pytest.raises(
            PurgeError, match=rf"^Expected {why}.* {ONLY_CLASSES.get(name, name)}\b.*\.$"
        ) as e:
            unlearned(text, name, **asked)
        assert "\n" not in str(e.value)
    assert facts(text[0]) == before


@pytest.mark.parametrize("name", sorted(OWN))
def test_methods_with_a_training_of_their_own_say_so(name, text):
    with pytest.raises(PurgeError, match=r"^Expected (log=|a model that SISA has trained).*\.$"):
        unlearned(text, name, classes=[0])


def test_sharded_and_logged_trainings_of_text_can_be_undone(tmp_path):
    data, few = sentences(60), {"epochs": 1, "batch_size": 16, "lr": 0.05, "progress": False}
    forget, retain = purge.split(data, indices=range(6))
    sharded = purge.train_sharded(bert, data, shards=2, **few).model
    assert digest(purge.unlearn(sharded, forget, retain, method="sisa", check=False, progress=False).model)
    logged = purge.train(bert(), data, log_updates=tmp_path / "log", **few).model
    result = purge.unlearn(
        logged, forget, retain, method="amnesiac", log=str(tmp_path / "log"), check=False, progress=False
    )
    assert digest(result.model) != digest(logged)
