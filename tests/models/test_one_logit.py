"""Binary classifiers with one logit: (0, z) is what the rest of purge sees."""

from __future__ import annotations

import logging
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import purge
from purge.core.errors import ModelError, PurgeError
from purge.metrics.registry import PANELS
from purge.models.checkpoint import digest
from purge.models.copies import with_neutral_head
from purge.models.forward import as_classes, forward
from purge.models.inspect import anatomy
from tests.methods.test_contract import NAMES, QUICK
from tests.nets import blobs

DATA, TEST = blobs(classes=2), blobs(60, classes=2, seed=1)
RECIPE = {"epochs": 10, "lr": 0.05, "batch_size": 32, "progress": False}


class Binary(nn.Module):
    """One logit per sample, (B, 1) or (B,)."""

    def __init__(self, flat: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = (
            nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU()),
            nn.Linear(16, 1),
        )
        self.flat = flat

    def forward(self, x):
        z = self.head(self.body(x))
        return z.squeeze() if self.flat else z


class Pair(nn.Module):
    """The same network with two logits, the first of them 0."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return as_classes(self.inner(x))


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("n", [1, 2, 7])
def test_losses_and_gradients_are_those_of_binary_cross_entropy(flat, n):
    model = Binary(flat).double().eval()
    x, y = torch.randn(n, 6, dtype=torch.float64), torch.arange(n) % 2
    z = forward(model, x)
    assert z.shape == (n, 2)
    own = model(x).reshape(-1)
    torch.testing.assert_close(z.softmax(1)[:, 1], own.sigmoid())
    ours, theirs = F.cross_entropy(z, y), F.binary_cross_entropy_with_logits(own, y.double())
    torch.testing.assert_close(ours, theirs)
    grads = [torch.autograd.grad(loss, [*model.parameters()], retain_graph=True) for loss in (ours, theirs)]
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b)


def test_training_is_that_of_binary_cross_entropy_by_hand():
    x, y = DATA
    model = nn.Linear(6, 1)
    got = purge.train(
        model, DATA, epochs=1, batch_size=len(y), lr=0.1, momentum=0, weight_decay=0, schedule="cosine",
        progress=False,
    ).model  # fmt: skip
    loss = F.binary_cross_entropy_with_logits(model(x)[:, 0], y.float())
    g = torch.autograd.grad(loss, [*model.parameters()])
    for after, before, step in zip(got.parameters(), model.parameters(), g, strict=True):
        torch.testing.assert_close(after, before - 0.1 * step)


@pytest.mark.parametrize("flat", [False, True])
def test_head_and_blocks_are_found_and_a_neutral_head_is_zero(flat):
    model, x = Binary(flat), DATA[0]
    parts = anatomy(model, x[:2])
    assert parts.head == "head"
    assert parts.blocks
    assert anatomy(Pair(model), x[:2]).head is None, "which two logits alone do not give"
    assert torch.equal(forward(with_neutral_head(model, "head", {1}), x), torch.zeros(len(x), 2))


@pytest.fixture(scope="module")
def binary():
    """One that answers (B,), the harder form."""
    return purge.train(Binary(flat=True), DATA, **RECIPE).model


def test_both_forms_are_trained_and_unlearned_alike(binary):
    forget, retain = purge.split(DATA, classes=[1])
    both = [binary, purge.train(Binary(), DATA, **RECIPE).model]
    assert digest(both[0]) == digest(both[1])
    assert len({digest(purge.unlearn(m, forget, retain, steps=8, progress=False).model) for m in both}) == 1


@pytest.mark.slow
@pytest.mark.parametrize("rows", [{"classes": [1]}, {"indices": range(12)}], ids=["class", "rows"])
def test_it_forgets_with_every_metric_of_the_standard_audit(binary, rows):
    forget, retain = purge.split(DATA, **rows)
    retrained = purge.train(Binary(flat=True), retain, seed=1, **RECIPE).model
    result = purge.unlearn(binary, forget, retain, test=TEST, progress=False)
    report = purge.audit(
        result, forget, retain, TEST, original=binary, retrained=retrained, check=False, progress=False
    )
    assert {name.partition(".")[0] for name in report.values} == set(PANELS["standard"])
    assert all(value.why or math.isfinite(value.value) for value in report.values.values())
    assert report["feature_cosine"].value is not None
    assert report["relearn_few.after"].value is not None
    assert report["ra"].value >= 0.95
    if "classes" in rows:
        assert report["fa_test"].value == 0


def test_an_audit_has_the_numbers_of_the_same_network_with_two_logits(binary):
    forget, retain = purge.split(DATA, classes=[1])
    metrics = [name for name in PANELS["quick"] if "retrained" not in name]
    one, two = (
        purge.audit(model, forget, retain, TEST, original=model, metrics=metrics, check=False, progress=False)
        for model in (binary, Pair(binary))
    )
    for name, value in two.values.items():
        if value.value is not None:
            assert one[name].value == pytest.approx(value.value, abs=1e-6), name


REFUSED = {  # there is no row for each class
    "boundary-expand": "3 logits for boundary-expand",
    "fisher": "rows of weights for fisher",
    "fisher-large": "rows of weights for fisher",
    "trw": "rows of weights for trw",
    "convolution-transpose": "a convolution",
    "exact-head": "one logit for each class",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_method_works_or_says_why_not(name, binary):
    forget, retain = purge.split(DATA, classes=[1])
    settings = {"test": TEST, "method": name, "progress": False, **QUICK.get(name, {})}
    settings |= {"alpha": 1.2} if name == "ssd" else {}
    if name in REFUSED:
        with pytest.raises(PurgeError, match=rf"^Expected .*{REFUSED[name]}.*\.$"):
            purge.unlearn(binary, forget, retain, **settings)
    else:
        assert digest(purge.unlearn(binary, forget, retain, **settings).model) != digest(binary)


def test_other_meanings_of_one_logit_are_told(caplog):
    x, y = blobs()  # three classes
    with pytest.raises(ModelError, match=r"^Expected a model with one output per class.*label 2\. Fix"):
        purge.train(Binary(), (x, y), epochs=1, progress=False)
    zeros = torch.zeros_like(y)
    with pytest.raises(ModelError, match=r"^Expected labels 0 and 1 for one logit.*label 0 alone\. Fix"):
        purge.unlearn(Binary(), (x[:9], zeros[:9]), (x[9:], zeros[9:]), check=False, progress=False)
    with caplog.at_level(logging.WARNING, "purge"):
        purge.train(Binary(), (x, zeros), epochs=1, progress=False)
    assert "every label is 0" in caplog.text
