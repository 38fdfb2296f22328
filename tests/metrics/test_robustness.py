"""Attacks on the forgetting: each against a computation of its own, and against planted truths."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score
from sklearn.preprocessing import StandardScaler
from torch import nn
from torch.nn.utils import prune as torch_prune

import purge
from purge.metrics import audited as base
from purge.metrics import probing, robustness
from purge.metrics.probing import fit_head
from purge.metrics.registry import METRICS
from purge.metrics.robustness import (
    BATCH,
    FEW,
    LR,
    MOMENTUM,
    NOISE,
    STEPS,
    add_noise,
    drop_smallest,
    layer_weights,
    relearn,
    steps_to,
    to_bf16,
    to_int8,
)
from tests.metrics.numbers import pick
from tests.metrics.overfit import Pair, audited
from tests.nets import NETWORKS, small_mlp

CPU = torch.device("cpu")
GONE = 1  # the class that a narrow network must spend a direction on


def right(model: nn.Module, data: Pair) -> np.ndarray:
    with torch.no_grad():
        return (copy.deepcopy(model).eval()(data[0]).argmax(1) == data[1]).numpy()


# -- planted truths ----------------------------------------------------------------------------


def narrow(seed: int) -> nn.Module:
    """Five features for ten digits: no room for a class that was never seen."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 5), nn.BatchNorm1d(5), nn.ReLU(),
        nn.Linear(5, 10),
    )  # fmt: skip


@pytest.fixture(scope="module")
def task() -> SimpleNamespace:
    """A trained network, two retrained ones, one that hides the class, one that hides it by BatchNorm."""
    x, y = (torch.from_numpy(a) for a in load_digits(return_X_y=True))
    x, y = x.float() / 16, y.long()
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    t = SimpleNamespace(train=pick((x, y), order[:900]), test=pick((x, y), order[900:]))
    t.forget, t.retain = purge.split(t.train, classes=[GONE])
    t.same, t.kept = pick(t.test, t.test[1] == GONE), pick(t.test, t.test[1] != GONE)
    recipe = {"epochs": 15, "batch_size": 64, "progress": False}
    t.original = purge.train(narrow(0), t.train, seed=0, **recipe).model
    t.retrained, t.again = (purge.train(narrow(i), t.retain, seed=i, **recipe).model for i in (1, 2))
    t.suppressed = copy.deepcopy(t.original)
    with torch.no_grad():
        t.suppressed[-1].bias[GONE] -= 15
    t.stale = purge.unlearn(
        t.original, t.forget, t.retain, method="purge-paper", epochs=200, forget_target=0.02, progress=False
    ).model
    names = [name for name, m in METRICS.items() if m.section == "robustness"]
    t.report = {
        name: purge.audit(
            getattr(t, name), t.forget, t.retain, t.test, retrained=t.retrained, progress=False,
            metrics=["fa_test", "ta_retain", *names],
        )
        for name in ("original", "suppressed", "stale", "again")
    }  # fmt: skip
    return t


def flags(report: purge.Report) -> set[str]:
    """The audits that call a forgetting fake: far from the retrained model, or undone."""
    found = {
        "relearn_ratio": report["relearn_ratio"].high < 0.6,
        "probe_gap": report["probe_gap"].low > 0.2,
        "head_refit_gap": report["head_refit_gap"].low > 0.1,
    }
    for name in ("bn_recal.delta", "relearn_retain.recovered", "quantise.int8_delta", "quantise.bf16_delta",
                 "prune.delta", "noise.delta"):  # fmt: skip
        found[name] = report[name].low > 0.05
    return {name for name, flagged in found.items() if flagged}


@pytest.mark.parametrize(
    ("name", "found", "missed"),
    [
        ("suppressed", {"probe_gap", "head_refit_gap"}, {"bn_recal.delta"}),
        ("stale", {"bn_recal.delta", "relearn_retain.recovered"}, set()),
        ("again", set(), {"probe_gap", "head_refit_gap", "bn_recal.delta", "relearn_ratio"}),
    ],
)
def test_who_hides_a_class_is_found_and_another_retrained_model_is_not(task, name, found, missed):
    report = task.report[name]
    assert report["fa_test"].value < 0.1  # as good as a retrained one, by what it answers
    assert report["ta_retain"].value > 0.95
    assert flags(report) >= found
    assert not flags(report) & missed
    if name == "stale":
        assert report["relearn_retain.steps"].value < report.retrained["relearn_retain.steps"].value
    if name == "again":
        assert not flags(report)
        assert 0.6 < report["relearn_ratio"].value < 1.6


class Silenced(nn.Module):
    """A model with code behind its head that never answers with a class."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x).index_fill(1, torch.tensor([GONE]), -1e9).detach()


def masked(model: nn.Module, strength: float) -> nn.Module:
    with torch.no_grad():
        model[-1].bias[GONE] -= strength
    return model


@pytest.mark.parametrize(
    "disguise",
    [lambda m: masked(m, 20), lambda m: masked(m, 3e38), Silenced, lambda m: m.requires_grad_(False)],
    ids=["mask", "huge mask", "code", "frozen"],
)
def test_nothing_in_or_behind_the_head_blocks_or_hides_relearning(task, disguise):
    given = disguise(copy.deepcopy(task.original)), task.forget, task.retain, task.test
    with torch.no_grad():  # of the caller
        report = purge.audit(*given, retrained=task.retrained, metrics=["relearn_few", "relearn_ratio"],
                             progress=False)  # fmt: skip
    for name in ("relearn_few.after", "relearn_few.area", "relearn_few.steps", "relearn_ratio"):
        # the aim differs a little: half of the accuracy on other classes, which a mask raises
        assert report[name].value == pytest.approx(task.report["original"][name].value, rel=0.01)


def neutral(model: nn.Module) -> nn.Module:
    """A copy whose row for the forgotten class is the mean of the other rows of the head."""
    model = copy.deepcopy(model)
    head, others = model[-1], [k for k in range(10) if k != GONE]
    with torch.no_grad():
        head.weight[GONE], head.bias[GONE] = head.weight[others].mean(0), head.bias[others].mean()
    return model


# -- relearning --------------------------------------------------------------------------------


def watched(model: nn.Module, seen: list[torch.Tensor]) -> nn.Module:
    """A copy that keeps what it is given while BatchNorm trains; the attack's copy does so too."""
    model = copy.deepcopy(model)

    def keep(module: nn.Module, args: tuple) -> None:
        if module[1].training:
            seen.append(args[0].clone())

    model.register_forward_pre_hook(keep)
    return model


def sizes_by_hand(model: nn.Sequential, task: SimpleNamespace) -> list[torch.Tensor]:
    """For each parameter: the deviation of what its layer puts out, over the size of what comes in."""

    def moments(layers: nn.Sequential) -> tuple[torch.Tensor, torch.Tensor]:
        """Of what comes out of them: retained samples count a hundred times as much as the others."""
        both = [layers(x) for x, _ in (task.retain, task.forget)]
        mean, square = ((a.mean(0) + 0.01 * b.mean(0)) / 1.01 for a, b in (both, [h**2 for h in both]))
        return square.sqrt(), (square - mean**2).sqrt()

    found, model = [], copy.deepcopy(model).eval()
    with torch.no_grad():
        for i, layer in enumerate(model):
            size, spread = moments(model[:i])[0], moments(model[: i + 1])[1]
            if i == len(model) - 1:
                spread = torch.ones(len(spread))  # logits have no scale of their own
            if isinstance(layer, nn.Linear):
                found += [torch.where(size > 0, spread[:, None] / size, 0), spread]
            elif isinstance(layer, nn.BatchNorm1d):
                found += [spread, spread]
    return found


def by_hand(
    model: nn.Module, xs: list[torch.Tensor], ys: list[torch.Tensor], same: Pair, sizes: list[torch.Tensor]
) -> np.ndarray:
    """SGD with momentum on weights over their sizes, written out; which samples are right at each step."""
    model = copy.deepcopy(model).train()
    params = list(model.parameters())
    speed = [torch.zeros_like(p) for p in params]
    found = [right(model, same)]
    for step, (x, y) in enumerate(zip(xs, ys, strict=True), 1):
        logp = model(x).log_softmax(1)
        gradients = torch.autograd.grad(-logp[torch.arange(len(y)), y].mean(), params)
        with torch.no_grad():
            for p, v, g, size in zip(params, speed, gradients, sizes, strict=True):
                v.mul_(MOMENTUM).add_(g * size)  # the gradient of w / size
                p.sub_(LR * v * size)
        if step in STEPS:
            found.append(right(model, same))
    return np.array(found)


def rows_of(x: torch.Tensor, among: torch.Tensor) -> torch.Tensor:
    """Which row of ``among`` each row of ``x`` is; −1 for none."""
    equal = (x[:, None] == among[None]).all(2)
    return torch.where(equal.any(1), equal.int().argmax(1), -1)


@pytest.mark.parametrize("few", [FEW, 0])
def test_relearning_is_sgd_on_half_forget_half_retain(task, few, monkeypatch):
    monkeypatch.setattr(robustness, "SIZED", 10_000)
    seen: list[torch.Tensor] = []
    case = audited(watched(task.suppressed, seen), task.forget, task.retain, task.test)
    hits = relearn(case, few)
    assert len(seen) == STEPS[-1]
    half = BATCH // 2 if few else BATCH
    retain, forget = rows_of(torch.cat([x[:half] for x in seen]), task.retain[0]), torch.empty(0)
    assert (retain >= 0).all()
    if few:
        forget = rows_of(torch.cat([x[half:] for x in seen]), task.forget[0])
        assert (forget >= 0).all()
        assert len(forget) == len(retain)
    assert len(forget.unique()) == few
    assert len(retain.unique()) > 500  # not the same few again and again
    ys = [
        torch.cat([task.retain[1][r], torch.full((BATCH - half,), GONE)])
        for r in retain.view(STEPS[-1], half)
    ]
    sizes = sizes_by_hand(task.suppressed, task)
    expected = by_hand(neutral(task.suppressed) if few else task.suppressed, seen, ys, task.same, sizes)
    assert (hits != expected).mean() < 0.005  # up to rounding
    assert expected[-1].mean() > 0.3 if few else expected[-1].mean() == 0
    assert task.suppressed[1].running_mean.equal(task.original[1].running_mean)


def test_what_relearning_reports(task):
    case = audited(task.suppressed, task.forget, task.retain, task.test)
    for name, few in (("few", FEW), ("retain", 0)):
        found, hits = case.value(METRICS[f"relearn_{name}"]), relearn(case, few)
        accuracy = hits.mean(1)
        curve = case.curves["relearn"][name]
        assert curve["step"] == list(STEPS)
        assert curve["forget_accuracy"] == pytest.approx(accuracy.tolist())
        assert curve["threshold"] == pytest.approx(right(task.suppressed, task.kept).mean() / 2)
        assert found["after"].value == pytest.approx(accuracy[-1])
        assert found["recovered"].value == pytest.approx(accuracy[-1] - accuracy[0])
        assert found["area"].value == pytest.approx(accuracy.mean())
        assert found["steps"].n == len(task.same[1])
        crossing = [i for i, a in enumerate(accuracy) if a >= curve["threshold"]]
        if crossing:
            i = crossing[0]
            expected = np.interp(curve["threshold"], accuracy[i - 1 : i + 1], STEPS[i - 1 : i + 1])
            assert found["steps"].value == pytest.approx(expected)
            assert found["steps"].low < expected < found["steps"].high
            assert found["steps"].why == ""
        else:  # cut off, and said so
            assert found["steps"].value == STEPS[-1]
            assert "not recovered" in found["steps"].why
    assert "few" in case.curves["relearn"]


@pytest.mark.parametrize(
    ("curve", "steps"),
    [
        ([0.5, 0.1], 0),
        ([0.0, 0.1, 0.4, 0.6], 2.5),
        ([0.0, 0.0, 0.0, 0.0, 0.5], 5),
        ([0.0, 0.0, 0.0, 0.25, 0.5, 0.0], 5),  # the first time counts
        ([0.0, 0.3, 0.6, 0.2, 0.9], 1 + 2 / 3),
        ([0.4], STEPS[-1]),
    ],
)
def test_steps_to_recover_in_a_straight_line_between_measurements(curve, steps):
    curve = np.array(curve + [curve[-1] if len(curve) == 1 else 0.0] * (len(STEPS) - len(curve)))
    assert steps_to(curve, 0.5) == pytest.approx(steps)
    several = np.stack([curve, np.zeros_like(curve), curve])
    assert steps_to(several, 0.5).tolist() == pytest.approx([steps, STEPS[-1], steps])


class FreeHead(nn.Module):
    """A model whose last layer is no module of its own, so that it cannot be found."""

    def __init__(self, model: nn.Sequential, bias: float = 0.0) -> None:
        super().__init__()
        head = copy.deepcopy(model[-1])
        self.body, self.weight, self.bias = copy.deepcopy(model[:-1]), head.weight, head.bias
        self.bias.data[GONE] += bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x) @ self.weight.T + self.bias


@pytest.mark.parametrize(
    ("ours", "theirs", "bound", "words"),
    [("out of reach", "out of reach", "none", "neither"), ("out of reach", "suppressed", "least", "at least"),
     ("suppressed", "out of reach", "most", "at most")],
)  # fmt: skip
def test_a_count_that_was_cut_off_makes_the_ratio_a_bound(task, ours, theirs, bound, words):
    models = {"out of reach": FreeHead(task.original, bias=-1e9), "suppressed": task.suppressed}
    found = purge.audit(
        models[ours], task.forget, task.retain, task.test, retrained=models[theirs], metrics="relearn_ratio",
        progress=False, check=False,
    )["relearn_ratio"]  # fmt: skip
    assert (found.bound, words in found.why) == (bound, True)
    assert np.sign(found.value - 1) == {"none": 0, "least": 1, "most": -1}[bound]


class NoGradient(FreeHead):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).detach()


class NoWeights(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, :10]


def test_what_cannot_be_relearned_or_changed_is_missing_with_a_reason(task, monkeypatch):
    def why(model: nn.Module, name: str) -> str:
        found = audited(model, task.forget, task.retain, task.test).value(METRICS[name])
        assert found.value is None
        return found.why

    assert "gradient" in why(NoGradient(task.suppressed), "relearn_few")
    for name in ("relearn_retain", "quantise", "prune", "noise"):
        assert "weights" in why(NoWeights(), name)
    monkeypatch.setattr(robustness, "LR", 1e30)
    assert "finite" in why(task.suppressed, "relearn_few")


# -- features ----------------------------------------------------------------------------------


class Bare(nn.Module):
    """Features that are the inputs."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(features, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x)


def numbered(y: torch.Tensor, first: int = 0) -> Pair:
    """Inputs that tell their own number and class."""
    return torch.stack([torch.arange(len(y)).float() + first, y.float()], 1), y


def test_single_samples_are_probed_against_unseen_ones_of_their_classes_in_the_same_shares():
    # mostly class 0 was forgotten; features tell classes, not members: the probe must find nothing
    g = torch.Generator().manual_seed(0)

    def data(y: torch.Tensor) -> Pair:
        return F.one_hot(y, 4).float() + 0.1 * torch.randn(len(y), 4, generator=g), y

    train = data(torch.tensor([0] * 200 + [1] * 200 + [2] * 100))
    forget, retain = purge.split(train, indices=[*range(150), *range(200, 220)])
    test = data(torch.arange(300) % 3)
    case = audited(Bare(4, 4), forget, retain, test)
    for side, among in zip(probing._sides(case), (forget, test), strict=True):
        assert np.bincount(side[:, :3].argmax(1)).tolist() == [100, 20]
        assert rows_of(torch.from_numpy(side).float(), among[0]).min() >= 0
    assert case.value(METRICS["probe"]).value == pytest.approx(0.5, abs=0.15)
    # where members lie elsewhere, it finds them
    moved = audited(Bare(4, 4), (forget[0] + 1, forget[1]), retain, test)
    assert moved.value(METRICS["probe"]).value == 1


def test_gaps_are_absolute_and_pair_the_samples(task):
    a, b = (audited(m, task.forget, task.retain, task.test) for m in (task.original, task.retrained))
    a.retrained, b.retrained = b, a
    for gap, draws in (("probe_gap", probing._probe), ("head_refit_gap", lambda s: probing._refit(s)["fa"])):
        change = draws(a).astype(float) - draws(b)
        forward, backward = a.value(METRICS[gap]), b.value(METRICS[gap])
        assert forward.value == pytest.approx(change.mean()) == pytest.approx(backward.value)
        assert 0 < forward.low < forward.value < forward.high
        reach = 2 * 1.96 * change.std() / np.sqrt(len(change))
        assert forward.high - forward.low == pytest.approx(reach, rel=0.2)
    ours, theirs = np.array([True, False] * 50), np.array([False, True] * 50)
    ours[:2] = True
    folded = probing.distance_between(theirs, ours, 0)  # an interval around 0
    assert 0 == folded.low < folded.value < folded.high


def test_the_refitted_head_is_that_of_scikit_learn():
    rng = np.random.default_rng(0)
    y = rng.integers(4, size=300)
    x = rng.normal(size=(4, 5))[y] * 2 + 3 * rng.normal(size=(300, 5)) * [1, 1, 1, 1, 50] + 10
    weight = rng.uniform(0.5, 4, size=300)
    scaler = StandardScaler().fit(x, sample_weight=weight)
    model = LogisticRegression(C=1, tol=1e-10, max_iter=10_000)
    model.fit(scaler.transform(x), y, sample_weight=weight)
    tensors = (torch.from_numpy(a) for a in (x, y, weight))
    w, b = (t.numpy() for t in fit_head(*tensors, 4))
    expected = model.predict_proba(scaler.transform(x))
    found = torch.from_numpy(x @ w.T + b).softmax(1).numpy()
    assert found == pytest.approx(expected, abs=0.01)
    assert 0.4 < accuracy_score(y, found.argmax(1)) < 0.95


@pytest.mark.parametrize("request_", [{"classes": [1]}, {"indices": [1, 4]}])
def test_without_kept_features_of_the_forgotten_class_there_is_a_reason(request_, monkeypatch):
    monkeypatch.setattr(base, "FEATURE_SAMPLES", 20)
    train, test = numbered(torch.arange(30) % 3, 1000), numbered(torch.tensor([1] + [2] * 400))
    case = audited(Bare(2, 3), *purge.split(train, **request_), test)
    assert len(case.featured("same_class_test")) == 0
    assert all(case.value(METRICS[name]).why for name in ("probe", "head_refit"))


# -- changed weights ---------------------------------------------------------------------------


LAYERS = (nn.Linear, nn.Conv2d, nn.MultiheadAttention)


@pytest.mark.parametrize("network", ["vgg", "resnet-batchnorm", "vit"])
def test_rounded_weights_are_those_of_numpy_and_of_torch(network):
    torch.manual_seed(0)
    net = NETWORKS[network]()
    for statistic in net.buffers():
        if statistic.is_floating_point():
            statistic.add_(1 / 3)
    int8, bf16 = changed(net, to_int8), changed(net, to_bf16)
    touched = {id(w) for w in layer_weights(int8)}
    assert len(touched) == sum(isinstance(m, LAYERS) for m in net.modules())
    for new, old in zip(int8.parameters(), net.parameters(), strict=True):
        if id(new) not in touched:
            assert new.equal(old)
            continue
        for new_row, row in zip(new.detach().numpy(), old.detach().numpy(), strict=True):
            step = np.abs(row).max() / 127
            assert new_row == pytest.approx(np.rint(row / step) * step, rel=1e-5, abs=1e-7)
            assert np.abs(np.rint(new_row / step)).max() == 127
    for a, b in zip(
        bf16.state_dict().values(), copy.deepcopy(net).bfloat16().state_dict().values(), strict=True
    ):
        assert a.equal(b.to(a.dtype))


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_pruning_is_that_of_torch(share):
    torch.manual_seed(0)
    net = NETWORKS["vgg"]()
    twin = copy.deepcopy(net)
    layers = [(m, "weight") for m in twin.modules() if isinstance(m, LAYERS)]
    torch_prune.global_unstructured(layers, torch_prune.L1Unstructured, amount=share)
    drop_smallest(net, share)
    ours = [m.weight for m in net.modules() if isinstance(m, LAYERS)]
    assert all(a.equal(m.weight) for a, (m, _) in zip(ours, layers, strict=True))
    shares = [float((w == 0).float().mean()) for w in ours]
    assert max(shares) - min(shares) > 0.05  # all layers together, not each for itself


def test_noise_is_a_share_of_each_layers_spread():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(100, 200), nn.BatchNorm1d(200), nn.Linear(200, 100))
    with torch.no_grad():
        net[2].weight.mul_(7)
    noisy, same, other = (changed(net, add_noise, 0.05, seed) for seed in (0, 0, 1))
    for i in (0, 2):
        old = net[i].weight.detach()
        added = noisy[i].weight.detach() - old
        assert float(added.std() / old.std()) == pytest.approx(0.05, rel=0.03)
        assert abs(float(added.mean())) < 0.01 * float(old.std())
        assert noisy[i].bias.equal(net[i].bias)
    assert noisy[1].weight.equal(net[1].weight)
    assert same[0].weight.equal(noisy[0].weight)
    assert not other[0].weight.equal(noisy[0].weight)


@pytest.fixture(scope="module")
def loose() -> SimpleNamespace:
    """An untrained network near a tie on every sample, so that each change of its weights is seen."""

    def data(seed: int) -> Pair:
        g = torch.Generator().manual_seed(seed)
        return torch.randn(3000, 6, generator=g), torch.randint(3, (3000,), generator=g)

    t = SimpleNamespace(model=small_mlp(), test=data(1))
    t.forget, t.retain = purge.split(data(0), classes=[0])
    t.same = pick(t.test, t.test[1] == 0)
    with torch.no_grad():
        t.model[-1].bias.sub_(t.model.eval()(t.test[0]).mean(0))
    t.case = audited(t.model, t.forget, t.retain, t.test, seed=5)
    with pytest.MonkeyPatch.context() as patch:  # of all samples, as sizes_by_hand
        patch.setattr(robustness, "SIZED", 10_000)
        robustness.scales_of(t.case)
    return t


def changed(model: nn.Module, change, *args) -> nn.Module:
    model = copy.deepcopy(model)
    change(model, *args)
    return model


def between_units_of_size_1(model: nn.Sequential, sizes: list[torch.Tensor], change, *args) -> nn.Module:
    """A copy whose weights of layers are divided by their sizes, changed, and multiplied again."""
    model = copy.deepcopy(model)
    of_layers = [(p, s) for p, s in zip(model.parameters(), sizes, strict=True) if p.ndim > 1]
    with torch.no_grad():
        before = [p.clone() for p, _ in of_layers]
        for p, size in of_layers:
            p.copy_(torch.where(size > 0, p / size, 0))
        change(model, *args)
        for (p, size), was in zip(of_layers, before, strict=True):
            p.copy_(torch.where(size > 0, p * size, was))  # silent units stay as they are
    return model


def test_values_after_a_change_are_those_of_the_changed_model(loose):
    sizes = sizes_by_hand(loose.model, loose)

    def fa(change, *args) -> float:
        if change is to_bf16:
            return right(changed(loose.model, change, *args), loose.same).mean()
        return right(between_units_of_size_1(loose.model, sizes, change, *args), loose.same).mean()

    before = right(loose.model, loose.same).mean()
    quantised = loose.case.value(METRICS["quantise"])
    for name, change in (("int8", to_int8), ("bf16", to_bf16)):
        assert quantised[name].value == pytest.approx(fa(change))
        assert quantised[f"{name}_delta"].value == pytest.approx(fa(change) - before)
        assert fa(change) != before
    pruned = loose.case.value(METRICS["prune"])
    expected = {str(p): fa(drop_smallest, p / 100) for p in (20, 50, 80)}
    assert {k: pruned[k].value for k in expected} == pytest.approx(expected)
    assert pruned["delta"].value == pytest.approx(max(expected.values()) - before)
    assert len(set(expected.values())) > 1
    noisy = loose.case.value(METRICS["noise"])
    expected = {k: np.mean([fa(add_noise, s, 5 + i) for i in range(3)]) for k, s in NOISE.items()}
    assert {k: noisy[k].value for k in ("1pct", "5pct")} == pytest.approx(expected)
    assert noisy["delta"].value == pytest.approx(max(expected.values()) - before)
    assert len({before, *expected.values()}) > 1  # the noise was seen


def test_of_very_many_unseen_samples_a_seeded_choice_is_looked_at(loose, monkeypatch):
    monkeypatch.setattr(robustness, "LOOKED_AT", 100)
    cases = [audited(loose.model, loose.forget, loose.retain, loose.test, seed=s) for s in (0, 0, 1)]
    found = [[case.value(METRICS[name]) for name in ("relearn_few", "quantise")] for case in cases]
    assert {v.n for values in found[0] for v in values.values()} == {100}
    assert found[0] == found[1] != found[2]
    rows = robustness.unseen_rows(cases[0])
    assert len(rows.unique()) == 100
    after = right(changed(loose.model, to_bf16), pick(loose.same, rows)).mean()
    assert found[0][1]["bf16"].value == pytest.approx(after)
    assert cases[0].value(METRICS["bn_recal"])["after"].n == len(loose.same[1])


class Cosine(nn.Module):
    """Has no finite logits once its first layer is all zero."""

    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(8, 4, bias=False), nn.Linear(4, 3)

    def forward(self, x):
        h = self.first(x)
        return self.head(h / h.norm(dim=1, keepdim=True))


def test_logits_that_are_not_finite_are_no_forgetting():
    """FA 0 would be the ideal value of a model that was only broken by the audit."""
    torch.manual_seed(0)
    model = Cosine()
    with torch.no_grad():
        model.head.weight.mul_(1e3)  # so that pruning takes all weights of the other layer
    x, y = torch.randn(90, 8), torch.arange(90) % 3
    parts = [pick((x, y), wanted) for wanted in (y == 0, y != 0)]
    report = purge.audit(model, *parts, (x + 0.01, y), metrics=["prune", "fa_test"], progress=False)
    assert report["fa_test"].value is not None
    for name in ("prune.80", "prune.delta"):
        assert report[name].value is None
        assert "not finite" in report[name].why
