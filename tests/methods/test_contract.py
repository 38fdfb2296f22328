"""What every registered method must do, whatever it is."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import re
import sys

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import purge
from purge.core.errors import RunError
from purge.core.settings import flat_fields
from purge.demo import ASCENT_ON_DIGITS
from purge.methods.registry import METHODS
from tests.nets import blobs, folded_conv
from tests.properties import (
    assert_caller_untouched,
    assert_flags_kept,
    assert_forgets,
    assert_keeps,
    assert_nothing_left_when_it_raises,
    assert_same_seed_same_model,
    facts,
)

QUICK = {
    "purge": {"steps": 12},
    "purge-close": {"steps": 12},
    "purge-paper": {"epochs": 6},
    "gradient-ascent": {"lr": 1e-3},
    "retrain": {"epochs": 3, "batch_size": 16},
    "finetune": {"epochs": 2, "batch_size": 16},
    "l1-sparse": {"epochs": 2, "batch_size": 16},
    "not": {"epochs": 2, "batch_size": 16},
    "neggrad-plus": {"epochs": 2, "batch_size": 16},
    "neggrad-plus-small": {"epochs": 2, "batch_size": 16},
    "random-label": {"epochs": 2, "batch_size": 16},
    "salun": {"epochs": 2, "batch_size": 16},
    "salun-soft": {"epochs": 2, "batch_size": 16},
    "amnesiac-relabel": {"epochs": 2, "batch_size": 16},
    "scrub": {"epochs": 2, "max_steps": 1, "batch_size": 16},
    "scrub-small": {"epochs": 2, "max_steps": 1, "batch_size": 16},
    "scrub-r": {"epochs": 2, "max_steps": 1, "batch_size": 16},
    "bad-teacher": {"batch_size": 16},
    "delete": {"epochs": 4, "batch_size": 16},
    "boundary-expand": {"lr": 1e-3},
    "boundary-shrink": {"lr": 1e-3, "step": 0.22},
    "influence": {"samples": 40, "batch_size": 8},
    "fisher": {"batch_size": 16},
    "fisher-large": {"batch_size": 16},
    "ssd": {"alpha": 2.0, "batch_size": 8},
    "unsir": {"noise_repeats": 3, "per_class": 20, "min_steps": 1, "batch_size": 16},
    "iewp": {"epochs": 3, "batch_size": 16},
    "munba": {"epochs": 3, "batch_size": 16},
    "sfron": {"steps": 8, "batch_size": 16},
    "msg": {"batch_size": 16, "lr": 1e-2},
    "convolution-transpose": {"batch_size": 16},
    "lotus": {"epochs": 4, "batch_size": 16, "lr": 1e-3},
    "coun": {"epochs": 2, "batch_size": 16},
    "amun": {"epochs": 2, "batch_size": 16},
    "mu-mis": {"epochs": 6, "batch_size": 16, "recovery": 9.0},
    "trw": {"epochs": 2, "batch_size": 16},
    "scissorhands": {"epochs": 2, "batch_size": 16},
    "rum": {"methods": "none, finetune epochs=2 batch_size=16, salun epochs=2 batch_size=16"},
    "exact-head": {"batch_size": 16},
}
OWN = {"sisa", "amnesiac"}  # need a training of their own: test_sisa.py, test_amnesiac.py
NAMES = sorted(set(METHODS) - OWN)


@pytest.fixture(scope="module")
def folded():
    """A network with convolutions that learnt the blobs, and (forget, retain, test) as in ``toy``."""
    data = blobs()
    model = purge.train(folded_conv(), data, epochs=20, lr=0.05, batch_size=32, progress=False).model
    return model, *purge.split(data, classes=[0]), blobs(seed=1)


@pytest.fixture
def toy(request, toy):
    """The network of all tests, or one with convolutions for a method that must have them."""
    name = getattr(request.node, "callspec", None) and request.node.callspec.params.get("name")
    return request.getfixturevalue("folded") if name == "convolution-transpose" else toy


def run(name, toy, seed=0, **changes):
    model, forget, retain, test = toy
    settings = {**QUICK.get(name, {}), **changes}
    return purge.unlearn(model, forget, retain, test=test, method=name, seed=seed, progress=False, **settings)


@pytest.mark.parametrize("name", NAMES)
def test_the_callers_model_is_untouched(name, toy):
    assert_caller_untouched(toy[0], lambda: run(name, toy))


@pytest.mark.parametrize("name", NAMES)
def test_the_result_is_clean(name, toy):
    model = copy.deepcopy(toy[0])
    assert_flags_kept(model, lambda: run(name, (model, *toy[1:])))


class Raises(nn.Module):
    """A classifier that fails after a number of forward passes."""

    def __init__(self, inner: nn.Module, after: int) -> None:
        super().__init__()
        self.inner, self.left = inner, [after]

    def __deepcopy__(self, memo):
        twin = Raises(copy.deepcopy(self.inner, memo), 0)
        twin.left = self.left  # shared, so that copies count too
        seen.append(twin)
        return twin

    def forward(self, x):
        self.left[0] -= 1
        if self.left[0] < 0:
            raise RuntimeError("boom")
        return self.inner(x)


seen: list[nn.Module] = []


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("after", [4, 9])
def test_nothing_is_left_behind_when_the_model_raises(name, after, toy):
    seen.clear()
    model = Raises(copy.deepcopy(toy[0]), after)
    assert_nothing_left_when_it_raises(model, lambda: run(name, (model, *toy[1:])))
    for twin in seen:  # copies and teachers that the run made
        assert not any(flag for flags in facts(twin)[4:] for flag in flags), (
            "no hook and no patched forward survives"
        )


class Spiky(nn.Module):
    """A classifier whose outputs are finite and whose gradient is not, for inputs that begin with zero."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.height = inner, nn.Parameter(torch.ones(()))

    def reset_parameters(self) -> None:
        nn.init.ones_(self.height)

    def forward(self, x):
        return self.inner(x) + (self.height * x[:, :1]).abs().sqrt()  # the same for all classes


def spiked(data):
    """Inputs that begin with zero."""
    x, y = data
    return torch.cat([torch.zeros(len(x), 1), x[:, 1:]], 1), y


@pytest.mark.parametrize("name", [name for name in NAMES if name != "exact-head"])  # takes no gradient
def test_gradients_that_are_not_finite_end_the_run(name, toy):
    """A method may not leave out what it cannot compute and hand back the weights that it was given."""
    model, forget, retain, test = toy
    with pytest.raises(RunError, match=r"NaN or infinity at step [12] .nothing was returned"):
        run(name, (Spiky(model), spiked(forget), spiked(retain), test))


@pytest.mark.parametrize(
    ("where", "space"),  # without a projection the retain gradient is not used
    [("forget", "update"), ("forget", "gradient"), ("forget", "none"), ("retain", "update"),
     ("retain", "gradient")],
)  # fmt: skip
def test_purge_needs_finite_gradients_of_both_sets(where, space, toy):
    model, forget, retain, test = toy
    parts = (spiked(forget), retain) if where == "forget" else (forget, spiked(retain))
    with pytest.raises(RunError, match="NaN or infinity"):
        run("purge-paper", (Spiky(model), *parts, test), space=space)


@pytest.mark.parametrize("name", NAMES)
def test_same_seed_same_weights(name, toy):
    small = {} if name == "rum" else {"batch_size": 16}  # smaller than the sets, so that the order matters
    draws = name not in ("ssd", "exact-head")
    assert_same_seed_same_model(lambda seed: run(name, toy, seed=seed, **small), draws=draws)


class Reads(TorchDispatchMode):
    """Counts what would make the host wait for a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.name().split(".")[0]
        if name in ("aten::index", "aten::index_put", "aten::index_put_"):  # by a mask: its size is read
            self.count += any(t is not None and t.dtype == torch.bool for t in args[1])
        self.count += name in ("aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select")
        return func(*args, **(kwargs or {}))


WITHOUT_READS = {  # with SGD: on the CPU, Adam reads the number of its steps
    "random-label": {"mixed": False}, "amnesiac-relabel": {"optimizer": "sgd"}, "salun": {}, "salun-soft": {},
    "scrub": {"max_steps": 1, "forget_batch_size": None}, "bad-teacher": {"optimizer": "sgd"}, "delete": {},
    "finetune": {}, "gradient-ascent": {}, "neggrad-plus": {"forget_batch_size": None}, "boundary-shrink": {},
}  # fmt: skip


@pytest.mark.parametrize("name", WITHOUT_READS)
def test_no_step_reads_a_tensor(name, toy):
    counts = []
    for size in (24, 6):  # few or many steps in an epoch; checks come at its end
        changes = {"epochs": 2, "batch_size": size, **WITHOUT_READS[name]}
        changes |= {"forget_batch_size": size} if "forget_batch_size" in changes else {}
        with Reads() as reads:
            run(name, toy, **changes)
        counts.append(reads.count)
    assert 0 < counts[0] == counts[1]


# What each does to digits: the settings for so small a set, the accuracy left on the forget set at
# most, the accuracy kept on the retain set at least. Those that are known not to forget are marked.
ON_DIGITS = {
    "purge": ({}, 0.0, 0.99),
    "purge-close": ({"steps": 40}, 0.0, 0.98),
    "purge-paper": ({"epochs": 200}, 0.1, 0.99),
    "gradient-ascent": (ASCENT_ON_DIGITS, 0.1, 0.85),
    "retrain": ({"epochs": 8}, 0.0, 0.99),
    "finetune": ({"lr": 0.05, "epochs": 4}, 1.0, 0.99),  # catastrophic forgetting is slow, as published
    "l1-sparse": ({"lr": 0.05, "l1": 1e-3, "epochs": 5}, 1.0, 0.97),
    "not": ({"lr": 0.05, "epochs": 6}, 1.0, 0.97),
    "neggrad-plus": ({"epochs": 5, "alpha": 0.9}, 0.1, 0.99),
    "neggrad-plus-small": ({"epochs": 5, "alpha": 0.7, "clip": 1.0}, 0.1, 0.95),
    "random-label": ({"batch_size": 64, "epochs": 5}, 0.05, 0.99),
    "salun": ({"batch_size": 64, "epochs": 5, "lr": 0.03}, 0.05, 0.99),
    "salun-soft": ({"batch_size": 64, "epochs": 5, "lr": 0.03}, 0.1, 0.99),
    "amnesiac-relabel": ({"lr": 1e-3}, 0.05, 0.99),
    "scrub": ({}, 0.05, 0.99),
    "scrub-small": ({}, 0.05, 0.99),
    "scrub-r": ({}, 0.05, 0.99),
    "bad-teacher": ({"lr": 1e-3, "epochs": 3, "share": 1.0}, 0.1, 0.99),
    "delete": ({"lr": 1e-3}, 0.05, 0.99),
    "boundary-expand": ({}, 0.4, 0.97),
    "boundary-shrink": ({"lr": 1e-3, "step": 0.3}, 0.1, 0.95),
    "influence": ({"alpha": 20, "samples": 200}, 0.05, 0.97),
    "fisher": ({"samples": 100}, 0.05, 0.95),
    "fisher-large": ({"samples": 100}, 0.1, 0.99),
    "ssd": ({"alpha": 8}, 0.05, 0.97),
    "unsir": ({}, 0.05, 0.9),
    "iewp": ({"lr": 2e-2, "epochs": 20}, 0.15, 0.95),
    "munba": ({"lr": 0.05, "batch_size": 16, "epochs": 4}, 0.05, 0.98),
    "sfron": ({"steps": 60}, 0.05, 0.98),
    "msg": ({"lr": 3e-3, "share": 0.5}, 0.1, 0.97),
    "convolution-transpose": ({"lr": 1e-2}, 0.1, 0.97),
    "lotus": ({"lr": 2e-4}, 0.3, 0.98),
    "coun": ({"batch_size": 64, "epochs": 10}, 0.1, 0.99),
    "amun": ({"decay_every": 5}, 0.1, 0.99),
    "mu-mis": ({}, 0.15, 0.9),
    "trw": ({"epochs": 5}, 0.05, 0.99),
    "scissorhands": ({"batch_size": 64}, 0.05, 0.99),
    "rum": ({"methods": 2 * ("salun lr=0.03 batch_size=64 epochs=5",)}, 0.05, 0.98),
    "exact-head": ({}, 0.0, 0.99),
}


QUICKEST = {"purge", "gradient-ascent", "exact-head"}  # others are slow tests


@pytest.mark.parametrize(
    "name", [name if name in QUICKEST else pytest.param(name, marks=pytest.mark.slow) for name in NAMES]
)
def test_forgets_and_retains_on_digits(name, digits, base):
    changes, known, kept = ON_DIGITS[name]
    given = {"test": digits.test} if name == "scrub-r" else {}  # which goes by its errors
    result = purge.unlearn(
        base, digits.forget, digits.retain, method=name, progress=False, **given, **changes
    )
    data = digits.forget, digits.retain, digits.test
    metrics = ["fa_train", "ra", *(["fa_test", "bn_recal"] if name.startswith("purge") else [])]
    report = purge.audit(result.model, *data, metrics=metrics, progress=False)
    assert_forgets(report, known)
    assert_keeps(report, kept)
    if name in ("purge-paper", "gradient-ascent"):
        assert result.stopped_by == "forget_target"
    if name in ("purge", "purge-close"):
        assert report["fa_test"].value <= 0.02
        assert abs(report["bn_recal.delta"].value) <= 0.02
    if name == "purge-paper":
        assert report["bn_recal.delta"].value >= 0.3, "frozen statistics make forgetting reversible"


# -- settings -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_every_setting_is_read(name):
    """One that is stored and never read would promise what the method does not do."""
    method = METHODS[name].method
    source = inspect.getsource(sys.modules[type(method).__module__])
    for field in dataclasses.fields(method):
        if field.name not in ("stop", "recipe", "checkpoint_activations"):  # read by the run and the doors
            assert re.search(rf"\.{field.name}\b", source), field.name


def test_the_preset_of_the_paper_never_drifts():
    known = {f.name: value for f, value in flat_fields(METHODS["purge-paper"].method)}
    assert {k: known[k] for k in PAPER} == PAPER


PAPER = {
    "objective": "kl_retain", "lr": 5e-4, "epochs": 15, "batch_size": 128, "erasure": 0.05, "kd": 2.0,
    "temperature": 4.0, "gate": 0.0, "clip": 1.0, "momentum": 0.9, "weight_decay": 5e-4,
    "optimizer": "sgd", "space": "gradient", "norm": "frozen", "freeze": (), "layers": None,
    "forget_target": None, "retain_budget": 5.0, "check_every": 50,
}  # fmt: skip


# -- registry and own methods ---------------------------------------------------------------------


def test_the_list_has_a_line_for_each():
    assert set(purge.list_methods()) == set(METHODS)
    assert all(line and "\n" not in line for line in purge.list_methods().values())
