"""RUM: how it divides the forget set, what each part sees, and how inner methods are named."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch

import purge
from purge.core.errors import MethodError
from purge.core.settings import as_dict
from purge.methods import FineTune, Rum, SalUn
from purge.methods.registry import resolve_method, source_digest
from purge.models.checkpoint import digest
from tests.nets import blobs

QUIET = {"progress": False}


@pytest.fixture
def splits(monkeypatch):
    """The requests that fine-tuning is given, one after the other."""
    found, run = [], FineTune.run

    def watched(self, model, split, part):
        found.append(split)
        run(self, model, split, part)

    monkeypatch.setattr(FineTune, "run", watched)
    return found


def log_odds(model, x, y):
    with torch.no_grad():
        p = copy.deepcopy(model).eval().double()(x.double()).softmax(1)[torch.arange(len(y)), y]
    return (p / (1 - p)).log()


def test_one_part_is_the_method_itself(toy):
    model, _, _, _ = toy
    parts = purge.split(blobs(), fraction=0.3)
    alone = purge.unlearn(model, *parts, method="salun", epochs=2, batch_size=16, lr=0.05, seed=4, **QUIET)
    words = "salun epochs=2 batch_size=16 lr=0.05"
    inside = purge.unlearn(model, *parts, method="rum", methods=(words,), seed=4, **QUIET)
    assert digest(inside.model) == digest(alone.model)
    assert inside.history == alone.history
    assert inside.steps == alone.steps


def test_parts_go_from_the_least_to_the_most_memorised(toy, splits):
    model, _, _, _ = toy
    forget, retain = purge.split(blobs(), fraction=0.5)
    words = "finetune epochs=1 batch_size=500 lr=1e-9"
    result = purge.unlearn(model, forget, retain, method="rum", methods=(words,) * 3, **QUIET)
    assert [len(s.forget) for s in splits] == [16, 16, 16]
    assert [len(s.retain) for s in splits] == [48 + 32, 48 + 16, 48]  # what waits is retained meanwhile
    known = [log_odds(model, *s.forget.take(torch.arange(16))) for s in splits]
    for surer, other in itertools.pairwise(known):
        assert float(surer.min()) >= float(other.max()) - 1e-4, "the model is surest of what is not memorised"
    seen = torch.cat([s.forget.take(torch.arange(16))[0] for s in splits])
    assert torch.equal(seen.sort(0).values, forget[0].sort(0).values), "each sample in one part"
    late = splits[0].retain.take(torch.arange(48, 80))[0]
    assert torch.equal(late.sort(0).values, seen[16:].sort(0).values)
    assert "48 samples in 3 parts" in result.info["took"]


def test_samples_of_a_class_that_goes_are_never_retained(toy, splits):
    model, forget, retain, _ = toy
    purge.unlearn(model, forget, retain, method="rum", methods=("finetune epochs=1",) * 2, **QUIET)
    assert all(len(s.retain) == len(retain[1]) and s.forget_classes == {0} for s in splits)


def test_steps_and_checks_of_all_parts_are_one_history(toy):
    model, _, _, _ = toy
    parts = purge.split(blobs(), fraction=0.5)
    words = "finetune epochs=2 batch_size=16", "scrub epochs=1 max_steps=1 batch_size=16"
    result = purge.unlearn(model, *parts, method="rum", methods=words, **QUIET)
    assert [row["step"] for row in result.history] == list(range(result.steps + 1))
    first = 2 * -(-72 // 16)
    assert result.steps == first + 1 + 3
    assert result.history[first]["check_forget_accuracy"] is not None
    assert [row["forget_loss"] is not None for row in result.history[first : first + 3]] == [
        False,
        True,
        False,
    ]
    assert result.history[-1]["check_retain_loss"] is not None


def test_views_rank_by_the_mean_over_random_changes(toy, splits):
    model, _, _, _ = toy
    forget, retain = purge.split(blobs(), fraction=0.5)

    def upside_down(x):  # every view of a sample says the opposite of the sample
        return -x

    for proxy in ("confidence", "views"):
        method = Rum(
            methods=("none", "finetune epochs=1", "salun epochs=1"), proxy=proxy
        )  # these augment, so rum may
        purge.unlearn(model, forget, retain, method=method, augment=upside_down, **QUIET)
    plain, views = (s.forget.take(torch.arange(16))[0] for s in splits)
    assert not torch.equal(plain, views)


# -- names and settings -----------------------------------------------------------------------------


def test_settings_are_the_same_from_python_text_and_files():
    words = ("none", "finetune lr=0.05 epochs=3", "salun share=0.3")
    method = resolve_method("rum", {"methods": words})
    assert method == resolve_method("rum", {"methods": ", ".join(words)})  # --set methods=…
    assert method == resolve_method("rum", {"methods": list(words)})  # YAML
    assert method == resolve_method("rum", as_dict(method))  # run.json
    none, tuned, salun = method.inner
    assert none is None
    assert isinstance(tuned, FineTune)
    assert (tuned.optim.lr, tuned.epochs) == (0.05, 3)
    assert isinstance(salun, SalUn)
    assert salun.share == 0.3


@pytest.mark.parametrize(
    ("methods", "said"),
    [
        ("salum", r"name of a method.*salun"),
        ("salun lr", r"settings as key=value.*'lr' in 'salun lr'.*by spaces"),
        ("salun lr=-1", r"lr > 0"),
        ("salun shares=0.2", r"a setting of SalUn.*share"),
        ("none, none", r"a method for at least one part"),
        ("", r"a method for at least one part"),
        ("salun, sisa", r"part of the samples at a time.*sisa"),
    ],
)
def test_what_cannot_be_run_is_refused_at_once(methods, said):
    with pytest.raises(MethodError, match=said):
        resolve_method("rum", {"methods": methods})


def test_an_edited_method_inside_counts_as_another_one():
    one, other = (resolve_method("rum", {"methods": words}) for words in ("salun", "finetune"))
    assert source_digest(one) != source_digest(other)


def test_fewer_samples_than_parts_are_refused(toy):
    model, _, _, _ = toy
    forget, retain = purge.split(blobs(), indices=[0, 1])
    with pytest.raises(MethodError, match="at least 3 samples, one for each part of rum, got 2"):
        purge.unlearn(model, forget, retain, method="rum", **QUIET)
