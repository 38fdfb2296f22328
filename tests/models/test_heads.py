"""Linear heads: any stream of additions and deletions gives the head of what is left."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from sklearn.linear_model import LogisticRegression, RidgeClassifier

import purge
from purge.core.errors import DataError, FileError, MethodError, ModelError, RunError
from purge.heads import fit, load
from tests.nets import blobs, small_mlp

KINDS = ("ridge", "logistic")


def rows(n=60, d=5, classes=3, seed=0, dtype=torch.float64):
    """Overlapping clusters that are not about zero."""
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(classes, (n,), generator=g)
    centres = torch.randn(classes, d, generator=torch.Generator().manual_seed(99))
    return (2 + centres[y] + torch.randn(n, d, generator=g, dtype=torch.float64)).to(dtype), y


def off(ours, theirs):
    """The relative distance of two heads, weights and biases together."""
    a, b = (torch.cat([h.weight, h.bias[:, None]], 1) for h in (ours, theirs))
    return float((a - b).norm() / b.norm())


@settings(max_examples=4, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**32 - 1),
    kind=st.sampled_from(KINDS),
    lam=st.floats(0.1, 10),
    intercept=st.booleans(),
    scale=st.sampled_from([0.01, 1.0, 30.0]),
)
def test_a_stream_of_200_changes_equals_training_on_what_is_left(seed, kind, lam, intercept, scale):
    rng = np.random.default_rng(seed)
    x, y = rows(200, seed=seed % 1000)
    x = scale * x
    inside = [True] * 20 + [False] * 180
    head = fit(x[:20], y[:20], kind=kind, lam=lam, intercept=intercept, classes=3)
    for _ in range(200):
        add = sum(inside) < 8 or rng.random() < 0.55
        choice = [i for i in range(200) if inside[i] != add]
        if not choice:
            continue
        at = rng.choice(choice, size=min(len(choice), int(rng.integers(1, 4))), replace=False)
        (head.add if add else head.remove)(x[at], y[at])
        for i in at:
            inside[i] = add
    left = np.flatnonzero(inside)
    again = fit(x[left], y[left], kind=kind, lam=lam, intercept=intercept, classes=3)
    assert head.rows == len(left)
    assert torch.equal(head.counts, again.counts)
    assert off(head, again) <= 1e-8
    assert head.error <= 1e-8
    assert sorted(head._ledger.digests) == sorted(head._ledger.of(x[left], y[left]))


X, Y = rows()
CASES = {  # rows, and which of them go
    "some": ((X, Y), range(10)),
    "the last of a repeated row": ((torch.cat([X, X[:3]]), torch.cat([Y, Y[:3]])), [60, 61, 62]),
    "both of a repeated row": ((torch.cat([X, X[:3]]), torch.cat([Y, Y[:3]])), [0, 1, 2, 60, 61, 62]),
    "a whole class": ((X, Y), (Y == 2).nonzero()[:, 0]),
    "more features than rows": (rows(20, 50), range(5)),
    "far from zero": ((X + 1e5, Y), range(30)),
    **{
        str(dtype): (((10 * X).to(dtype), Y), range(4))
        for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.int32)
    },
}


@pytest.mark.parametrize(  # the objective of a logistic head is not centred
    ("kind", "case"), [(k, c) for k in KINDS for c in CASES if (k, c) != ("logistic", "far from zero")]
)
def test_head_and_file_are_those_of_the_rows_that_stay(kind, case):
    (x, y), go = CASES[case]
    stays = torch.ones(len(y), dtype=torch.bool)
    stays[go] = False
    head, again = (fit(*part, kind=kind, classes=3) for part in ((x, y), (x[stays], y[stays])))
    head.remove(x[~stays].double(), y[~stays].int().numpy())
    most = 1e-8 if case == "far from zero" else 1e-9
    assert off(head, again) <= most
    assert torch.equal(head.counts, again.counts)
    mine, theirs = head._state(), again._state()
    for name in mine.keys() - {"rounding"}:
        assert torch.allclose(mine[name].double(), theirs[name].double(), rtol=1e-9, atol=most), name
    head.add(x[~stays], y[~stays])
    assert off(head, fit(x, y, kind=kind, classes=3)) <= most


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_a_head_is_that_of_scikit_learn_on_the_retained_rows(kind, intercept):
    x, y = rows(300, 8)
    head = fit(x, y, kind=kind, lam=0.7, intercept=intercept)
    head.remove(x[:100], y[:100])
    if kind == "ridge":
        theirs = RidgeClassifier(alpha=0.7, fit_intercept=intercept, solver="cholesky").fit(x[100:], y[100:])
        coef, bias = theirs.coef_, theirs.intercept_
    else:  # its bias is a feature that is 1, and penalised
        ones = np.c_[x[100:], np.ones(200)] if intercept else x[100:].numpy()
        theirs = LogisticRegression(C=1 / 0.7, fit_intercept=False, tol=1e-12, solver="newton-cholesky")
        both = theirs.fit(ones, y[100:]).coef_
        coef, bias = both[:, :8], both[:, 8] if intercept else 0
    assert np.allclose(head.weight, coef, rtol=0, atol=1e-9)
    assert np.allclose(head.bias, bias, rtol=0, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_wrong_rows_are_refused_and_nothing_changes(kind):
    x, y = X, Y
    head = fit(x, y, kind=kind)
    before = head.weight.clone()
    for wrong in ((x[:2] + 1e-9, y[:2]), (x[:2], (y[:2] + 1) % 3), (x[[0, 0]], y[[0, 0]])):
        with pytest.raises(DataError, match="Expected rows that the head has learned, got"):
            head.remove(*wrong)
    head.remove(x[:1], y[:1])
    with pytest.raises(DataError, match="1 that it has not"):
        head.remove(x[:1], y[:1])
    head.add(x[:1], y[:1])
    assert head.rows == len(x)
    assert torch.allclose(head.weight, before, rtol=1e-9)


def test_labels_may_have_gaps():
    head, plain = fit(X, 3 * Y, lam=2.0), fit(X, Y, lam=2.0)
    assert head.classes == 7
    assert torch.allclose(head.weight[[0, 3, 6]], plain.weight, rtol=1e-12)
    assert (head.weight[1].abs().max(), head.bias[1]) == (0, -1)


REFUSED = {
    "nan": (lambda _: fit([[1.0, math.nan], [0, 0]], [0, 1]), DataError, "finite features"),
    "infinity": (lambda _: fit([[1.0, math.inf], [0, 0]], [0, 1]), DataError, "finite features"),
    "one dimension": (lambda _: fit(torch.zeros(3), [0, 1, 0]), DataError, "features .N, D."),
    "three": (lambda _: fit(torch.zeros(2, 2, 2), [0, 1]), DataError, "features .N, D."),
    "no rows": (lambda _: fit(torch.zeros(0, 2), []), DataError, "features .N, D."),
    "text": (lambda _: fit("rows", [0]), DataError, "features .N, D."),
    "complex": (lambda _: fit(torch.zeros(2, 2).cfloat(), [0, 1]), DataError, "features .N, D."),
    "few labels": (lambda _: fit(torch.zeros(2, 2), [0]), DataError, "one label per sample"),
    "one class": (lambda _: fit(torch.zeros(2, 2), [0, 0]), DataError, "2 or more classes"),
    "text as classes": (lambda _: fit(X, Y, classes="3"), DataError, "2 or more classes"),
    "few classes": (lambda _: fit(X, Y, classes=2), DataError, "labels below 2"),
    "unknown kind": (lambda _: fit(X, Y, kind="svm"), MethodError, "ridge, logistic"),
    "negative": (lambda _: fit(X, Y, lam=-1), MethodError, "lam >= 0"),
    "logistic without": (lambda _: fit(X, Y, kind="logistic", lam=0), MethodError, "lam above 0"),
    "huge": (lambda _: fit(1e160 * X, Y), MethodError, "raise lam"),
    "huge, logistic": (
        lambda _: fit(1e160 * X, Y, kind="logistic"), RunError, "raise lam"),
    "wide": (lambda _: fit(*rows(20, 50), lam=0), MethodError, "got lam=0 with 20 rows of 50"),
    "too few left": (lambda _: fit(X, Y, lam=0).remove(X[:56], Y[:56]), MethodError, "raise lam"),
    "a number": (lambda head: head.scores(5), DataError, r"features .N, D."),
    "no folder": (lambda head: head.save("/nowhere/at/all/head"), FileError, "a folder at"),
    "narrow": (lambda head: head.add(torch.zeros(60, 4), Y), DataError, "with D = 5"),
    "a new class": (lambda head: head.add(X[:1], [3]), DataError, "classes of the head, got 3"),
    "all rows": (lambda head: head.remove(X, Y), DataError, "fewer than the 60 rows"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_makes_no_head_is_refused(case):
    call, error, words = REFUSED[case]
    head = fit(X, Y)
    with pytest.raises(error, match=words):
        call(head)
    assert off(head, fit(X, Y)) == 0


@pytest.mark.parametrize("size", [100, 1e5])
def test_rounding_that_a_huge_row_left_is_noticed(size):
    """A row of 1e5 takes the last digits of all others with it; one of 100 does not."""
    x, y = rows()
    head = fit(x, y, lam=1e-3)
    huge = size * torch.arange(1, 6, dtype=torch.float64)[None]
    head.add(huge, [0])
    if size == 100:
        head.remove(huge, [0])
        assert off(head, fit(x, y, lam=1e-3)) <= head.error <= 1e-8
    else:
        with pytest.raises(RunError, match="rounding has not moved by more than 1e-08, got about"):
            head.remove(huge, [0])
        assert head.rows == 61


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_goes_on_after_a_round_trip(kind, tmp_path):
    x, y = rows()
    head = fit(x, y, kind=kind)
    head.remove(x[:2], y[:2])
    head.save(tmp_path / "head.safetensors")
    again = load(tmp_path / "head.safetensors")
    assert repr(again) == repr(head)
    assert again.settings == head.settings
    assert torch.allclose(again.weight, head.weight, rtol=1e-12, atol=1e-14)
    for one in (head, again):
        one.remove(x[2:4], y[2:4])
    assert off(again, head) <= 1e-10
    with pytest.raises(DataError, match="that it has not"):
        again.remove(x[:1], y[:1])
    assert [p.name for p in tmp_path.iterdir()] == ["head.safetensors"]


def test_other_files_are_refused(tmp_path):
    x, y = rows()
    good, odd = tmp_path / "head.safetensors", tmp_path / "odd"
    fit(x, y).save(good)
    with pytest.raises(FileError, match="nothing there"):
        load(tmp_path / "none")
    for content in (good.read_bytes()[:200], b"\x80\x04cos\nsystem\n"):
        odd.write_bytes(content)
        with pytest.raises(FileError, match="a damaged or other file"):
            load(odd)
    save_file({"a": torch.zeros(2)}, odd)
    with pytest.raises(FileError, match="a damaged or other file"):
        load(odd)
    state = load_file(good)
    about = {"format": "purge head 1", "classes": "3", "settings": '{"kind": "ridge"}'}
    for change in (
        {"means": torch.zeros(3, 4, dtype=torch.float64)},
        {"counts": torch.tensor([-1, 50, 11])},
        {"scatter": torch.full((5, 5), math.nan, dtype=torch.float64)},
        {"scatter": -torch.eye(5, dtype=torch.float64)},
        {"classes": "many"},
        {"settings": "[]"},
        {"settings": '{"kind": "none"}'},
        {"settings": '{"kind": "logistic"}'},
    ):
        tensors = {k: v for k, v in change.items() if k in state}
        save_file(state | tensors, odd, about | {k: v for k, v in change.items() if k in about})
        with pytest.raises(FileError, match="Expected the file of a head"):
            load(odd)


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_gets_an_exact_head(kind):
    data = blobs()
    model = small_mlp()
    before = {name: t.clone() for name, t in model.state_dict().items()}
    placed, head = purge.heads.of(model, data, kind=kind)
    for name, t in placed.state_dict().items():
        assert torch.equal(model.state_dict()[name], before[name])
        assert torch.equal(t, before[name]) == (not name.startswith("5."))
    x, y = purge.heads.features(model, data)
    assert x.shape == (96, 16)
    assert off(head, fit(x, y, kind=kind)) <= 1e-12
    placed.eval()
    assert torch.allclose(placed(data[0]).double(), head.scores(x), atol=1e-4)
    layer = head.module(torch.float64)
    assert torch.equal(layer.weight.detach(), head.weight)
    assert torch.equal(layer.bias.detach(), head.bias)
    head.remove(x[:5], y[:5])
    assert off(head, purge.heads.of(model, (data[0][5:], data[1][5:]), kind=kind).head) <= 1e-6  # float32


def test_a_model_may_be_its_head_and_a_head_without_bias_has_no_intercept():
    data = blobs()
    placed, head = purge.heads.of(torch.nn.Linear(6, 3), data)
    assert off(head, fit(*data)) == 0
    forget, retain = purge.split(data, classes=[0])
    result = purge.unlearn(placed, forget, retain, method="exact-head", progress=False)
    assert result.info["exact"]["same_before"]
    assert torch.allclose(result.model.weight.double(), fit(*retain, classes=3).weight, atol=1e-6)
    placed, head = purge.heads.of(torch.nn.Linear(6, 3, bias=False), data)
    assert head.module().bias is None
    assert torch.equal(placed.weight, head.weight.float())


class Scaled(torch.nn.Module):
    """A model that changes what its head puts out."""

    def __init__(self):
        super().__init__()
        self.inner = small_mlp()

    def forward(self, x):
        return 2 * self.inner(x)


def tied():
    model = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.ReLU(), torch.nn.Linear(6, 6))
    model[2].weight = model[0].weight
    return model


def normed():
    model = small_mlp()
    torch.nn.utils.parametrizations.weight_norm(model[5])
    return model


def convolution():
    nn = torch.nn
    return nn.Sequential(nn.Unflatten(1, (6, 1, 1)), nn.Conv2d(6, 3, 1), nn.Flatten())


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (Scaled, "as a Linear head puts them out, got others"),
        (convolution, "logits come from a Linear layer"),
        (normed, "which computes them"),
        (tied, "which shares them with 0"),
    ],
)
def test_models_without_a_linear_head_are_refused_in_one_line(make, words):
    with pytest.raises(ModelError, match=words):
        purge.heads.of(make(), blobs())
