"""Distances to the retrained model, and what is known without one, against direct computations."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.spatial.distance import jensenshannon
from scipy.special import softmax
from sklearn.decomposition import PCA
from sklearn.metrics import silhouette_score
from torch import nn

import purge
from purge.metrics.distance import js, linear_cka
from purge.metrics.probing import plane
from tests.metrics.numbers import Data, accuracy, audit, features, noise, pick, raw

NAMES = ["js_retrain", "agreement_test", "cka", "tow", "zrf", "rf_jsd", "aus", "silhouette"]


def network(seed: int, width: int = 16) -> nn.Module:
    """An MLP of nested modules whose BatchNorm has seen other data, and whose features are far from 0."""
    torch.manual_seed(seed)
    first = nn.Sequential(nn.Linear(6, width), nn.BatchNorm1d(width), nn.ReLU())
    model = nn.Sequential(first, nn.Sequential(nn.Linear(width, width), nn.ReLU()), nn.Linear(width, 3))
    model[0][1].running_mean.copy_(2 * torch.randn(width))
    model[0][1].running_var.copy_(0.2 + torch.rand(width))
    with torch.no_grad():
        model[1][0].bias.add_(1)
        model[-1].weight.mul_(6)
        model[-1].bias.sub_(model.eval()(noise(300, 9)[0]).mean(0))
    return model


@pytest.fixture(scope="module")
def case() -> SimpleNamespace:
    c = SimpleNamespace(model=network(1), retrained=network(2), original=network(0), metrics=NAMES)
    c.data, c.test = noise(240, 0), noise(150, 1)
    c.forget, c.retain = purge.split(c.data, classes=[0])
    c.same, c.kept = pick(c.test, c.test[1] == 0), pick(c.test, c.test[1] != 0)
    c.report = audit(c)
    c.some = purge.split(c.data, indices=[3, 10, 11, 50, 51, 52, 99, 120])
    c.singles = audit(c, forget=c.some[0], retain=c.some[1])
    return c


# -- Jensen-Shannon ----------------------------------------------------------------------------


def js_by_scipy(p: np.ndarray, q: np.ndarray, base: float | None = None) -> np.ndarray:
    with np.errstate(invalid="ignore"):  # the root of a rounding error below 0
        return np.nan_to_num(jensenshannon(p, q, base=base, axis=1)) ** 2


def test_js_to_the_retrained_model_is_that_of_scipy(case):
    p, q = (softmax(raw(m, case.forget[0]), axis=1) for m in (case.model, case.retrained))
    found = case.report["js_retrain"]
    assert found.value == pytest.approx(js_by_scipy(p, q).mean(), rel=1e-9)
    assert found.n == len(case.forget[1])
    assert 0.01 < found.low < found.value < found.high < np.log(2)


logits = arrays(np.float64, (4, 3), elements=st.floats(-40, 40))


@given(logits, logits)
def test_js_is_symmetric_bounded_and_that_of_scipy(a, b):
    p, q = softmax(a, axis=1), softmax(b, axis=1)
    found = js(p, q)
    assert found == pytest.approx(js(q, p), abs=1e-12)
    assert (found >= 0).all()
    assert (found <= np.log(2) + 1e-12).all()
    assert found == pytest.approx(js_by_scipy(p, q), abs=1e-9)
    assert js(p, p) == pytest.approx(np.zeros(4), abs=1e-12)


# -- agreement and accuracies ------------------------------------------------------------------


def test_agreement_on_test_data(case):
    same = raw(case.model, case.test[0]).argmax(1) == raw(case.retrained, case.test[0]).argmax(1)
    assert case.report["agreement_test"].value == pytest.approx(same.mean())
    assert case.report["agreement_test"].n == 150
    assert 0.05 < same.mean() < 0.95


def test_tug_of_war_by_hand(case):
    gaps = [
        accuracy(case.model, d) - accuracy(case.retrained, d) for d in (case.forget, case.retain, case.test)
    ]
    assert min(map(abs, gaps)) > 0.005
    assert min(gaps) < 0 < max(gaps)  # so that absolute values matter
    found = case.report["tow"]
    assert found.value == pytest.approx(np.prod([1 - abs(g) for g in gaps]))
    assert found.low < found.value < found.high <= 1
    same = audit(case, model=case.retrained)["tow"]
    assert (same.value, same.high, same.n) == (1, 1, 390)
    assert 0.9 < same.low < 1  # on other samples the two might still differ


def test_the_interval_of_the_tug_of_war_holds_the_truth():
    # both models are right in 60 % of any data: the truth is 1, the value never
    g = torch.Generator().manual_seed(0)

    class Given(nn.Module):
        """Right where its column of the input says so."""

        def __init__(self, column: int) -> None:
            super().__init__()
            self.column, self.layer = column, nn.Linear(1, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.one_hot(x[:, self.column].long(), 2).float() + 0 * self.layer(x[:, :1])

    def made(n: int, k: int) -> Data:
        y = torch.full((n,), k)
        return torch.where(torch.rand(n, 2, generator=g) < 0.6, y[:, None], 1 - y[:, None]).float(), y

    held = []
    for i in range(15):
        parts = [made(80, 0), made(80, 1), made(80, 1)]
        found = purge.audit(Given(0), *parts, retrained=Given(1), metrics="tow", seed=i, progress=False)[
            "tow"
        ]
        held.append(found.low <= 1 <= found.high + 1e-9)
        assert found.value < 1
    assert sum(held) >= 13


# -- CKA ---------------------------------------------------------------------------------------


def cka_by_hsic(a: np.ndarray, b: np.ndarray) -> float:
    """The definition: HSIC of centred Gram matrices."""
    n = len(a)
    h = np.eye(n) - np.ones((n, n)) / n
    k, l_ = h @ (a @ a.T) @ h, h @ (b @ b.T) @ h
    return float(np.trace(k @ l_) / np.sqrt(np.trace(k @ k) * np.trace(l_ @ l_)))


def layer(model: nn.Module, x: torch.Tensor, depth: int) -> np.ndarray:
    return raw(model[:depth], x)


def test_cka_of_layers_and_features_is_that_of_gram_matrices(case):
    found = case.report["cka"]
    assert found["penultimate"].value == pytest.approx(
        cka_by_hsic(*(features(m, case.forget[0]) for m in (case.model, case.retrained))), rel=1e-6
    )
    assert len(found) >= 2
    for name, value in found.items():
        assert "." not in name
        assert value.n == len(case.forget[1])
        assert 0 < value.value < 0.99
    for name in set(found) - {"penultimate"}:
        at = name.replace("/", ".")
        seen = [captured(m, at, case.forget[0]) for m in (case.model, case.retrained)]
        assert found[name].value == pytest.approx(cka_by_hsic(*seen), rel=1e-6)
    a, b = (features(m, case.forget[0]) for m in (case.model, case.retrained))
    uncentred = ((a.T @ b) ** 2).sum() / (np.linalg.norm(a.T @ a) * np.linalg.norm(b.T @ b))
    assert abs(uncentred - found["penultimate"].value) > 0.05  # a version that forgets to centre is seen


def captured(model: nn.Module, name: str, x: torch.Tensor) -> np.ndarray:
    seen = []
    handle = model.get_submodule(name).register_forward_hook(lambda m, a, out: seen.append(out))
    raw(model, x)
    handle.remove()
    return seen[0].double().numpy()


def test_names_of_layers_have_no_dots(case):
    nested = [nn.Sequential(nn.Sequential(*m[0], *m[1]), m[2]) for m in (network(1), network(2))]
    found = audit(case, model=nested[0], retrained=nested[1], metrics="cka")["cka"]
    assert any("/" in name for name in found)
    assert found["penultimate"] == case.report["cka.penultimate"]


matrix = st.tuples(st.integers(3, 12), st.integers(1, 6), st.integers(0, 10_000))


def cloud(n: int, d: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, d)) @ rng.normal(size=(d, d)) + 3 * rng.normal(size=d)


@settings(max_examples=60)
@given(matrix, st.integers(1, 8), st.floats(1e-3, 1e3))
def test_cka_knows_no_rotation_shift_or_scale(shape, other, scale):
    n, d, seed = shape
    a, b = cloud(n, d, seed), cloud(n, other, seed + 1)
    turned = np.linalg.qr(np.random.default_rng(seed).normal(size=(d, d)))[0]
    found = linear_cka(a, b)
    assert found == pytest.approx(cka_by_hsic(a, b), rel=1e-6)
    assert 0 <= found <= 1
    assert found == pytest.approx(linear_cka(b, a))
    assert found == pytest.approx(linear_cka(scale * a @ turned + 5, b), rel=1e-6)
    assert linear_cka(a, scale * a @ turned) == pytest.approx(1)


def test_an_invertible_map_that_is_no_rotation_is_seen():
    a = cloud(50, 5, 0)
    assert linear_cka(a, a * np.array([1, 30, 1, 1, 1])) < 0.95


@pytest.mark.parametrize("level", [0.0, 0.1, 1e6])
def test_cka_of_something_constant_is_none(level):
    a, flat = cloud(31, 4, 0), np.full((31, 4), level)
    assert linear_cka(a, flat) is None
    assert linear_cka(flat, a) is None
    assert linear_cka(flat, flat) is None  # equal, but nothing was compared


def test_a_dead_layer_is_missing_and_the_others_are_not(case):
    dead = copy.deepcopy(case.model)
    with torch.no_grad():
        dead[1][0].weight.zero_()
    found = audit(case, model=dead, metrics="cka")["cka"]
    assert found["penultimate"].value is None
    assert "same for all samples" in found["penultimate"].why
    assert any(v.value is not None for v in found.values())


def test_models_of_different_widths_and_names_compare(case):
    wide = audit(case, model=network(3, width=24), metrics="cka")["cka"]
    a, b = features(network(3, width=24), case.forget[0]), features(case.retrained, case.forget[0])
    assert wide["penultimate"].value == pytest.approx(cka_by_hsic(a, b), rel=1e-6)
    assert set(wide) == set(case.report["cka"])
    torch.manual_seed(0)
    other = nn.Sequential()
    other.add_module("body", nn.Linear(6, 9))
    other.add_module("head", nn.Linear(9, 3))
    assert list(audit(case, model=other, metrics="cka")["cka"]) == ["penultimate"]


class Headless(nn.Module):
    """A classifier whose logits are made without a layer, after a body of any name."""

    def __init__(self, name: str, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.name = name
        self.add_module(name, nn.Linear(6, 16))
        self.weight = nn.Parameter(torch.randn(16, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.get_submodule(self.name)(x) @ self.weight


def test_nothing_in_common_is_a_reason(case):
    report = audit(case, model=Headless("one", 0), retrained=Headless("two", 1))
    assert report["cka"].value is None
    assert "same name" in report["cka"].why
    same = audit(case, model=Headless("one", 0), retrained=Headless("one", 1), metrics="cka")["cka"]
    assert list(same) == ["one"]
    assert report["silhouette"].value is None
    assert "features" in report["silhouette"].why
    assert "features" not in report.curves["audited"]


class Wrapped(nn.Module):
    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.module = body

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.module(x)


@pytest.mark.parametrize("who", ["model", "retrained"])
def test_a_wrapper_is_seen_through(case, who):
    models = {k: nn.Sequential(*(m := getattr(case, k))[0], *m[1], m[2]) for k in ("model", "retrained")}
    plain = audit(case, metrics="cka", **models)["cka"]
    found = audit(case, metrics="cka", **{**models, who: Wrapped(models[who])})["cka"]
    assert len(plain) > 2  # layers, beside the penultimate features
    assert list(found.values()) == list(plain.values())


# -- an untrained copy -------------------------------------------------------------------------


def untrained(model: nn.Module, seed: int) -> nn.Module:
    twin = copy.deepcopy(model)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        for module in twin.modules():
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()
    return twin


@pytest.mark.parametrize("seed", [0, 5])
def test_zrf_is_one_minus_the_divergence_from_an_untrained_copy(case, seed):
    found = audit(case, metrics="zrf", seed=seed)["zrf"]
    z = [raw(m, case.forget[0]) for m in (case.model, untrained(case.model, seed))]
    p, q = (softmax(part, axis=1) for part in z)
    assert found.value == pytest.approx(1 - js_by_scipy(p, q, base=2).mean(), rel=1e-9)
    assert found.low < found.value < found.high < 1
    # versions that are about: cosine similarities, and a divergence averaged over classes too
    for a, b in ((p, q), tuple(z)):
        cosine = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
        assert abs(found.value - cosine.mean()) > 0.01
    assert abs(found.value - (1 - js_by_scipy(p, q).mean() / 3)) > 0.01


class Odd(nn.Linear):
    """A layer that draws weights of no use."""

    def reset_parameters(self) -> None:
        nn.init.constant_(self.weight, torch.inf)
        nn.init.zeros_(self.bias)


def test_what_cannot_be_drawn_anew_has_no_zrf(case):
    found = audit(case, model=Headless("one", 0), metrics="zrf")["zrf"]
    assert found.value is None
    assert "anew" in found.why
    odd = Odd(6, 3)
    with torch.no_grad():
        odd.weight.normal_()
    found = audit(case, model=nn.Sequential(nn.Identity(), odd), metrics="zrf")["zrf"]
    assert found.value is None
    assert "finite" in found.why


# -- the original model ------------------------------------------------------------------------


def rf_jsd_by_hand(model: nn.Module, original: nn.Module, forget: Data, test: Data) -> float:
    found = []
    for k in np.unique(forget[1]):
        p = softmax(raw(model, forget[0][forget[1] == k]), axis=1).mean(0)
        q = softmax(raw(original, test[0][test[1] == k]), axis=1).mean(0)
        found.append(jensenshannon(p, q) ** 2)
    return float(np.mean(found))


def test_retrain_free_divergence_by_hand(case):
    expected = rf_jsd_by_hand(case.model, case.original, case.forget, case.test)
    found = case.report["rf_jsd"]
    assert found.value == pytest.approx(expected, rel=1e-5)
    assert found.n == len(case.forget[1]) + len(case.same[1])
    assert 0 <= found.low < found.value < found.high
    # of single samples' classes it is the mean, not the divergence of one mean over all of them
    forget = case.some[0]
    assert len(forget[1].unique()) == 3
    expected = rf_jsd_by_hand(case.model, case.original, forget, case.test)
    assert case.singles["rf_jsd"].value == pytest.approx(expected, rel=1e-5)
    means = [softmax(raw(m, x), axis=1).mean(0)
             for m, x in ((case.model, forget[0]), (case.original, case.test[0]))]  # fmt: skip
    assert abs(jensenshannon(*means) ** 2 - expected) > 1e-3


def test_retrain_free_divergence_looks_at_classes_that_the_test_data_has(case):
    forget, retain = case.some
    test = pick(case.test, case.test[1] != 2)
    found = audit(case, forget=forget, retain=retain, test=test, metrics="rf_jsd")["rf_jsd"]
    expected = rf_jsd_by_hand(case.model, case.original, pick(forget, forget[1] != 2), test)
    assert found.value == pytest.approx(expected, rel=1e-5)


def test_the_interval_of_the_retrain_free_divergence_reaches_zero_where_it_is_zero(case):
    # the same model, and data of one distribution: any value above 0 is chance
    data = noise(600, 21)
    forget, retain = purge.split(data, indices=range(100))
    found = purge.audit(
        case.model,
        forget,
        retain,
        noise(300, 22),
        original=copy.deepcopy(case.model),
        metrics="rf_jsd",
        check=False,
    )["rf_jsd"]
    assert found.low == pytest.approx(0, abs=1e-6) != found.value
    assert case.report["rf_jsd"].low > 1e-4


def test_adaptive_score_of_a_class(case):
    kept = accuracy(case.model, case.kept) - accuracy(case.original, case.kept)
    known = accuracy(case.model, case.same)
    assert known > 0.05 < abs(kept)
    found = case.report["aus"]
    assert found.value == pytest.approx((1 + kept) / (1 + known))
    assert found.low < found.value < found.high
    assert found.n == 150
    # neither with test data of all classes, nor with the forget set
    all_of_it = accuracy(case.model, case.test) - accuracy(case.original, case.test)
    assert abs(all_of_it - kept) > 1e-3
    assert abs(accuracy(case.model, case.forget) - known) > 1e-3


def test_adaptive_score_of_single_samples(case):
    gained = accuracy(case.model, case.test) - accuracy(case.original, case.test)
    shares = np.bincount(case.some[0][1]) / len(case.some[0][1])  # of classes among the forgotten samples
    of_class = [
        accuracy(case.model, [part[case.test[1] == k] for part in case.test]) for k in range(len(shares))
    ]
    apart = abs(accuracy(case.model, case.some[0]) - shares @ of_class)
    assert apart > 0.01
    found = case.singles["aus"]
    assert found.value == pytest.approx((1 + gained) / (1 + apart))
    assert found.low <= found.value <= found.high


def test_adaptive_score_of_a_class_and_single_samples_of_another(case):
    y = case.data[1]
    chosen = torch.cat([(y == 0).nonzero()[:, 0], (y == 1).nonzero()[:9, 0]])
    forget, retain = purge.split(case.data, indices=chosen)
    report = audit(case, forget=forget, retain=retain, metrics="aus")
    assert report.info["forget_classes"] == [0]
    assert report["aus"] == case.report["aus"]  # class 1 stays, so it is not among the forgotten
    no_zero = audit(case, forget=forget, retain=retain, test=case.kept, metrics="aus")["aus"]
    assert no_zero.value is None
    assert "forgotten" in no_zero.why


# -- features ----------------------------------------------------------------------------------


def test_silhouette_is_that_of_scikit_learn(case):
    x, side = features(case.model, case.test[0]), case.test[1].numpy() == 0
    found = case.report["silhouette"]
    assert found.value == pytest.approx(silhouette_score(x, side), abs=1e-9)
    assert found.n == 150
    assert abs(found.value - silhouette_score(x, case.test[1])) > 0.01  # two groups, not all classes


def test_silhouette_of_single_samples_is_against_unseen_data_of_their_classes(case):
    y = case.data[1]
    forget, retain = purge.split(case.data, indices=(y == 1).nonzero()[:20, 0])
    report = audit(case, forget=forget, retain=retain, metrics="silhouette")
    same = pick(case.test, case.test[1] == 1)
    x = np.concatenate([features(case.model, d[0]) for d in (forget, same)])
    side = np.repeat([1, 0], [20, len(same[1])])
    assert report["silhouette"].value == pytest.approx(silhouette_score(x, side), abs=1e-9)
    assert report["silhouette"].n == len(side)
    view = report.curves["audited"]["features"]
    assert view["forgotten"] == [1] * 20 + [0] * 150  # all classes are shown
    assert view["label"] == [1] * 20 + case.test[1].tolist()


def passing(x: torch.Tensor, y: torch.Tensor, other: torch.Tensor) -> purge.Report:
    """The audit of a model whose features are its inputs."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Identity(), nn.Linear(x.shape[1], 2))
    train = torch.randn(40, x.shape[1]), torch.arange(40) % 2
    forget, retain = purge.split(train, classes=[0])
    test = torch.cat([x, other]), torch.cat([y, torch.ones(len(other)).long()])
    return purge.audit(model, forget, retain, test, metrics="silhouette", progress=False)


def test_silhouette_of_a_class_apart_and_of_one_among_the_others():
    g = torch.Generator().manual_seed(0)
    x, other = torch.randn(900, 4, generator=g), torch.randn(1000, 4, generator=g)
    zeros = torch.zeros(900).long()
    apart, among = (passing(x + shift, zeros, other) for shift in (20, 0))
    assert apart["silhouette"].value > 0.8
    assert abs(among["silhouette"].value) < 0.05
    assert apart["silhouette"].n == 1200  # 600 of each
    everything = silhouette_score(torch.cat([x + 20, other]), np.repeat([0, 1], [900, 1000]))
    assert apart["silhouette"].value == pytest.approx(everything, abs=0.01)
    view = apart.curves["audited"]["features"]
    assert len(view["x"]) == len(view["y"]) == len(view["label"]) == 600
    assert sum(view["forgotten"]) == 150
    sides = [np.array(view["x"])[np.array(view["forgotten"]) == k] for k in (0, 1)]
    assert sides[0].max() < sides[1].min() or sides[1].max() < sides[0].min()  # apart in the picture too


def test_the_view_is_a_principal_plane(case):
    view = case.report.curves["audited"]["features"]
    order = np.argsort(case.test[1].numpy() != 0, kind="stable")  # the forgotten first
    x = features(case.model, case.test[0])[order]
    expected = PCA(2, svd_solver="full").fit_transform(x)
    for i, axis in enumerate("xy"):
        found = np.array(view[axis])
        sign = np.sign(found @ expected[:, i])
        assert found == pytest.approx(sign * expected[:, i], abs=2e-3 * np.abs(expected).max())
        assert found[np.abs(found).argmax()] > 0
    assert view["label"] == case.test[1].numpy()[order].tolist()
    assert view["forgotten"] == [int(k == 0) for k in view["label"]]
    assert audit(case, metrics="silhouette").curves == case.report.curves | {
        name: {"features": curves["features"]} for name, curves in case.report.curves.items()
    }


@pytest.mark.parametrize("x", [np.ones((5, 3)), np.arange(5.0)[:, None], np.zeros((2, 1))])
def test_a_plane_of_fewer_than_two_dimensions(x):
    found = plane(x)
    assert found.shape == (len(x), 2)
    assert np.abs(found[:, 1]).max() < 1e-6
    assert np.abs(found[:, 0]).max() == pytest.approx(np.abs(x - x.mean(0)).max(), abs=1e-6)
