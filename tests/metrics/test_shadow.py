"""Shadow models: the attacks against independent computations, the design, the cache, planted truths."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
from collections import Counter

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scipy import stats
from scipy.special import expit, log_softmax
from sklearn.metrics import roc_auc_score
from torch import nn

import purge
from purge.core.errors import FileError, MethodError, MetricError, ModelError, PurgeError
from purge.data.images import Images
from purge.data.joined import joined
from purge.data.samples import Lazy, as_samples
from purge.data.split import Split
from purge.engine.optimizer import Optim
from purge.engine.trainer import Recipe, fit
from purge.methods import Amnesiac, FineTune, GradientAscent, Retrain, Sisa
from purge.metrics import ensemble
from purge.metrics.bootstrap import auroc
from purge.metrics.ensemble import Ensemble, Shadows
from purge.metrics.likelihood import (
    epsilons,
    forgetting_scores,
    gaussians,
    klom,
    likelihood_ratio,
    margins,
    rmia,
    typical_probability,
)
from purge.metrics.registry import METRICS, PANELS
from purge.metrics.subject import Subject
from purge.models.checkpoint import digest
from tests.nets import blobs, small_mlp

CPU = torch.device("cpu")
NAMES = [name for name, metric in METRICS.items() if metric.cost == "shadow"]

# -- signals and attacks, on arrays ------------------------------------------------------------


def halves(models: int, samples: int, rng: np.random.Generator) -> np.ndarray:
    """Every sample in exactly half of the models."""
    return rng.permuted(np.arange(models)[:, None] % 2 == np.zeros(samples), axis=0)


def test_margins_are_scaled_logits_of_the_probability():
    z, y = np.random.default_rng(0).normal(0, 3, (50, 5)), np.arange(50) % 5
    p = np.exp(log_softmax(z, 1))[np.arange(50), y]
    assert margins(z, y) == pytest.approx(np.log(p) - np.log(1 - p))
    assert margins(log_softmax(z, 1), y) == pytest.approx(margins(z, y))
    sure = margins(np.array([[200.0, 0.0, 0.0], [0.0, 200.0, 200.0]]), np.array([0, 0]))
    assert sure == pytest.approx([200 - np.log(2), -200 - np.log(2)])  # where p and 1 − p are lost


@pytest.mark.parametrize("models", [8, 64])
def test_the_likelihood_ratio_is_that_of_gaussians(models):
    rng = np.random.default_rng(models)
    inside = halves(models, 12, rng)
    phi = rng.normal(0, 1, 12)
    shadows = rng.normal(rng.normal(0, 2, 12), rng.uniform(0.2, 3, 12), (models, 12)) + 2 * inside
    found, slow = likelihood_ratio(phi, shadows, inside), []
    own = {
        flag: [[shadows[i, j] for i in range(models) if inside[i, j] == flag] for j in range(12)]
        for flag in (True, False)
    }
    shared = {flag: math.sqrt(np.mean([np.var(g, ddof=1) for g in groups])) for flag, groups in own.items()}
    for j in range(12):
        log = {}
        for flag in (True, False):
            spread = shared[flag] if models < 64 else np.std(own[flag][j], ddof=1)
            log[flag] = stats.norm.logpdf(phi[j], np.mean(own[flag][j]), spread)
        slow.append(log[True] - log[False])
    assert found == pytest.approx(np.array(slow))
    p_f, p_n = (stats.norm.pdf(phi, *gaussians(shadows, chosen)) for chosen in (inside, ~inside))
    assert expit(found) == pytest.approx(p_f / (p_f + p_n))  # the score of U-LiRA


def test_shadow_models_that_all_agree_give_finite_scores():
    inside = halves(8, 5, np.random.default_rng(0))
    scores = likelihood_ratio(np.zeros(5), np.ones((8, 5)), inside)
    assert np.isfinite(scores).all()
    assert scores == pytest.approx(0)


def test_confidence_tells_what_correctness_cannot():
    # every sample is classified correctly by every model: whoever feeds 0 or 1 into the attack sees nothing
    rng = np.random.default_rng(0)
    inside = halves(16, 400, rng)
    shadows = rng.normal(np.where(inside, 9, 5), 1)
    member = np.arange(400) < 200
    phi = rng.normal(np.where(member, 9, 5), 1)
    assert (shadows > 0).all()
    assert (phi > 0).all()
    right, wrong = (
        likelihood_ratio(f(phi), f(shadows), inside) for f in (np.asarray, lambda a: (a > 0) * 1.0)
    )
    assert auroc(right[member], right[~member]) > 0.95
    assert auroc(wrong[member], wrong[~member]) == 0.5


def test_rmia_is_the_share_of_the_population_that_is_beaten():
    rng = np.random.default_rng(0)
    inside = halves(6, 30, rng)
    inside[:, 20:] = False  # a population that no model has seen
    shadows, phi = rng.normal(0, 2, (6, 30)), rng.normal(0, 2, 30)
    typical = typical_probability(shadows, inside)
    slow_typical, slow = [], []
    for j in range(30):
        out = [1 / (1 + math.exp(-shadows[i, j])) for i in range(6) if not inside[i, j]]
        slow_typical.append(sum(out) / len(out))
    ratio = [
        1 / (1 + math.exp(-phi[j])) / (0.5 * ((1 + 0.3) * slow_typical[j] + (1 - 0.3))) for j in range(30)
    ]
    for j in range(20):
        slow.append(sum(ratio[j] / ratio[k] > 1 for k in range(20, 30)) / 10)
    assert typical == pytest.approx(np.array(slow_typical))
    assert rmia(phi[:20], phi[20:], typical[:20], typical[20:]).tolist() == pytest.approx(slow)
    assert len(set(slow)) > 4


# -- ensembles ---------------------------------------------------------------------------------


def epsilon_of(fpr: float, fnr: float) -> float | None:
    if fpr == 0 and fnr == 0:
        return math.inf
    if fpr == 0 or fnr == 0:
        return None
    found = [math.log(1 - 1e-5 - a) - math.log(b) for a, b in ((fpr, fnr), (fnr, fpr)) if 1 - 1e-5 - a > 0]
    return max(0.0, *found) if found else None


def literal_epsilon(unlearned: np.ndarray, retrained: np.ndarray) -> float:
    """The definition of the challenge, threshold by threshold, 100 of them per unit."""
    ranges = np.ptp(unlearned), np.ptp(retrained)
    if min(ranges) / max(ranges) < 0.01:
        return 50.0
    pos, neg = (
        (retrained, unlearned) if np.median(retrained) > np.median(unlearned) else (unlearned, retrained)
    )
    low, high = min(pos.min(), neg.min()), max(pos.max(), neg.max())
    found = [
        epsilon_of((neg >= t).mean(), (pos < t).mean())
        for t in np.linspace(low, high, math.ceil((high - low) * 100))
    ]
    narrow, wide = (unlearned, retrained) if ranges[0] < ranges[1] else (retrained, unlearned)
    width = np.ptp(narrow)
    for right in np.linspace(narrow.max() - 2, narrow.max() + 2, 400):
        left = np.linspace(right - width - 2, right - width + 2, 400)[:, None]
        called = [((left <= kind) & (kind <= right)).mean(1) for kind in (narrow, wide)]
        found += [epsilon_of(fpr, 1 - tpr) for tpr, fpr in set(zip(*called, strict=True))]
    return min(50.0, max(e for e in found if e is not None))


def spaced(
    rng: np.random.Generator, a: float, b: float, shift: float, n: int
) -> tuple[np.ndarray, np.ndarray]:
    """Two samples without values so close that a grid of 100 thresholds per unit does not part them."""
    while True:
        both = np.concatenate([rng.normal(0, a, n), rng.normal(shift, b, n)])
        if np.diff(np.sort(both)).min() > 0.02:
            return both[:n], both[n:]


CASES = [  # spreads of the unlearned and the retrained models, and how far apart they are
    (1, 1, 0), (1, 1, 1), (1, 1, 3), (1, 1, 12), (0.4, 3, 0), (3, 0.5, 0.3), (0.6, 2, 1.5),
    (6, 6, 8), (8, 9, 5), (8, 9, 5), (10, 11, -6), (10, 11, -6),
]  # fmt: skip


@pytest.mark.parametrize("n", [4, 9])
def test_epsilon_is_that_of_the_challenge(n):
    rng = np.random.default_rng(n)
    pairs = [spaced(rng, *case, n) for case in CASES]
    unlearned, retrained = (np.stack(side, 1) for side in zip(*pairs, strict=True))
    slow = [literal_epsilon(*pair) for pair in pairs]
    assert epsilons(unlearned, retrained) == pytest.approx(np.array(slow))
    assert 50 in slow
    assert len(set(slow)) > (3 if n > 4 else 1)
    most = math.ceil(math.log(n - 1))
    grades = [0.0 if e >= most else 2.0 ** -math.floor(e / 0.5) for e in slow]
    assert forgetting_scores(unlearned, retrained).tolist() == grades


def test_an_attack_may_look_between_two_thresholds():
    wide, narrow = np.array([-4, -3, 0.1, 3, 4, 5.0]), np.array([-0.5, -0.4, -0.2, 0, 0.2, 4.5])
    single = [epsilon_of((narrow >= t).mean(), (wide < t).mean()) or 0 for t in [*wide, *narrow]]
    found = epsilons(wide[:, None], narrow[:, None])
    assert found[0] > max(single)
    assert found == pytest.approx(epsilons(narrow[:, None], wide[:, None]))  # whichever is the unlearned one


def test_epsilon_where_values_are_equal():
    same, other = np.full((6, 1), 2.0), np.full((6, 1), 3.0)
    assert epsilons(same, same) == 0  # nothing to be told
    assert epsilons(same, other) == 50
    assert epsilons(same, np.arange(6.0)[:, None]) == 50  # one range is below 1 % of the other
    assert forgetting_scores(same, same) == 1
    assert forgetting_scores(same, other) == 0


def test_more_models_know_more_grades():
    rng = np.random.default_rng(0)
    few, many = (
        set(forgetting_scores(rng.normal(0, 1, (n, 300)), rng.normal(rng.uniform(0, 3, 300), 1, (n, 300))))
        for n in (8, 40)
    )
    assert few == {0, 1 / 8, 1 / 4, 1 / 2, 1} or few < {0, 1 / 8, 1 / 4, 1 / 2, 1}
    assert min(many - {0}) < 1 / 8


def test_klom_is_the_entropy_of_two_histograms():
    rng = np.random.default_rng(0)
    unlearned, retrained = rng.normal(1, 2, (30, 40)), rng.normal(0, 1, (30, 40))
    unlearned[0, 0], retrained[1, 1], retrained[2, 2] = 1e6, -1e6, np.inf
    slow = []
    for a, b in zip(unlearned.T.clip(-100, 100), retrained.T.clip(-100, 100), strict=True):
        edges = np.linspace(min(a.min(), b.min()), max(a.max(), b.max()), 21)
        p, q = (np.histogram(side, edges)[0] / 30 for side in (a, b))
        slow.append(stats.entropy(p, np.where(p > 0, np.maximum(q, 1e-5), q)))
    assert klom(unlearned, retrained) == pytest.approx(np.array(slow))
    assert klom(unlearned, unlearned) == pytest.approx(0)
    assert klom(np.ones((3, 1)), np.ones((3, 1))) == pytest.approx(0)  # a range of nothing
    apart = klom(np.zeros((3, 1)), np.ones((3, 1)))  # the largest value is in the last bin, not in none
    assert apart == pytest.approx(math.log(1 / 1e-5), rel=1e-3)


# -- many models trained at once ---------------------------------------------------------------


def conv(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 6, 3, stride=2),
        nn.BatchNorm2d(6, momentum=0.3), nn.ReLU(), nn.Flatten(), nn.Linear(54, 10),
    )  # fmt: skip


def plain(seed: int, width: int = 16) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, 3))


SETTINGS = {
    "one-cycle": Recipe(epochs=2, batch_size=16, lr=0.05),
    "cosine, smoothed": Recipe(epochs=2, batch_size=20, lr=0.02, schedule="cosine", label_smoothing=0.2),
    "no momentum": Recipe(epochs=2, batch_size=500, lr=0.1, momentum=0.0, weight_decay=0.1),
    "moving average": Recipe(epochs=2, batch_size=16, lr=0.05, ema=0.5),
}


def same_as_alone(make, sets, recipe, atol=2e-5) -> None:
    seeds = [5, 6, 7]
    alone, together = ([make(seed) for seed in range(3)] for _ in range(2))
    told = [
        fit([model], [own], recipe, seeds=[seed])[0][0]
        for model, own, seed in zip(alone, sets, seeds, strict=True)
    ]
    found, _ = fit(together, sets, recipe, seeds=seeds)
    for a, b, c, d in zip(alone, together, told, found, strict=True):
        assert not b.training
        for name, value in a.state_dict().items():
            assert torch.allclose(value.double(), b.state_dict()[name].double(), atol=atol), name
        assert [row["epoch"] for row in c] == [row["epoch"] for row in d]
        assert [row["loss"] for row in c] == pytest.approx([row["loss"] for row in d], abs=atol)
    assert digest(together[0]) != digest(make(0))
    assert any(not torch.allclose(p, q) for p, q in zip(*(m.parameters() for m in together[:2]), strict=True))


@pytest.mark.parametrize("name", SETTINGS)
def test_models_trained_together_are_those_trained_alone(name):
    sets = [as_samples(blobs(50, seed=i), CPU, "data") for i in range(3)]
    same_as_alone(plain, sets, SETTINGS[name])
    same_as_alone(small_mlp, sets, SETTINGS[name])  # with the statistics of BatchNorm


@pytest.mark.parametrize("changes", [{}, {"augment": "crop-flip"}, {"augment": "flip", "colour": 0.3}])
def test_convolutions_and_augmented_images_together(digits, changes):
    sets = [digits.train.select(torch.arange(40) + 40 * i) for i in range(3)]
    same_as_alone(conv, sets, Recipe(epochs=2, batch_size=16, lr=0.02, **changes))


def test_half_precision_together(digits):
    sets = [digits.train.select(torch.arange(40) + 40 * i) for i in range(3)]
    recipe = Recipe(epochs=1, batch_size=20, lr=0.01, precision="bf16")
    same_as_alone(conv, sets, recipe, atol=0.01)
    float32, half = ([conv(0), conv(1)] for _ in range(2))
    for models, precision in ((float32, "float32"), (half, "bf16")):
        fit(models, sets[:2], dataclasses.replace(recipe, precision=precision), seeds=[0, 1])
    assert digest(float32[0]) != digest(half[0])
    assert all(p.dtype == torch.float32 for p in half[0].parameters())


@pytest.mark.gpu
def test_half_precision_together_on_a_gpu(digits):
    # where BatchNorm of many models at once refuses inputs of another type than its statistics
    images = digits.train.to("cuda")
    sets = [images.select(torch.arange(40) + 40 * i) for i in range(3)]
    same_as_alone(lambda seed: conv(seed).cuda(), sets, Recipe(epochs=1, batch_size=20, lr=0.01), atol=0.02)


def test_layers_that_are_not_trained_stay_as_they_are():
    models = [small_mlp(i) for i in range(2)]
    for model in models:
        model[0].requires_grad_(False)
    before = [copy.deepcopy(m[0].weight) for m in models]
    fit(models, [as_samples(blobs(), CPU, "data")] * 2, SETTINGS["one-cycle"], seeds=[0, 1])
    assert all(torch.equal(m[0].weight, was) for m, was in zip(models, before, strict=True))


# -- sets of several sets ----------------------------------------------------------------------


class Read(torch.utils.data.Dataset):
    """A dataset that is read item by item."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        return self.x[i], int(self.y[i])


@pytest.mark.parametrize("form", ["tensors", "read", "mixed"])
def test_rows_of_several_sets_are_one_set(form):
    raw = [blobs(20, seed=0), blobs(9, seed=1), blobs(14, seed=2)]
    sets = [as_samples(pair, CPU, "data") for pair in raw]
    if form != "tensors":
        lazy = [Lazy(Read(*pair), pair[1], CPU) for pair in raw]
        sets = lazy if form == "read" else [lazy[0], sets[1], lazy[2]]
    rows = [torch.tensor([3, 1, 19]), torch.arange(9), torch.tensor([13, 0])]
    x, y = (torch.cat([pair[k][at] for pair, at in zip(raw, rows, strict=True)]) for k in (0, 1))
    whole = joined(list(zip(sets, rows, strict=True)), CPU)
    assert len(whole) == 14
    assert torch.equal(whole.labels, y)
    index = torch.tensor([13, 0, 5, 5, 2, 12])
    assert torch.equal(whole.take(index)[0], x[index])
    orders = [index, torch.tensor([4]), torch.tensor([0, 13])]
    for (a, b), order in zip(whole.stream(orders), orders, strict=True):
        assert torch.equal(a, x[order])
        assert torch.equal(b, y[order])
    (a, _), (b, _) = whole.stream(torch.tensor([[1, 13], [4, 3]]))
    assert torch.equal(torch.cat([a, b]), x[[1, 13, 4, 3]])


def test_images_stay_images_if_they_are_prepared_alike(digits):
    sets = [digits.retain, digits.test]
    rows = [torch.tensor([5, 2]), torch.tensor([0, 100, 7])]
    whole = joined(list(zip(sets, rows, strict=True)), CPU)
    assert isinstance(whole, Images)
    x = torch.cat([s.take(at)[0] for s, at in zip(sets, rows, strict=True)])
    assert torch.equal(whole.take(torch.arange(5))[0], x)
    brighter = Images(digits.test.pixels, digits.test.labels, mean=(0.1,), std=(0.5,))
    other = joined([(digits.retain, rows[0]), (brighter, rows[1])], CPU)
    assert not isinstance(other, Images)
    assert torch.equal(other.take(torch.tensor([3]))[0], brighter.take(torch.tensor([100]))[0])


# -- the design --------------------------------------------------------------------------------

QUICK = Recipe(epochs=2, batch_size=16, lr=0.05)
FINE = FineTune(epochs=1, batch_size=32)


def noise(n: int, seed: int, classes: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    """Labels that can only be learnt by heart."""
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, 6, generator=g), torch.randint(classes, (n,), generator=g)


def request(forget=None, retain=None, test="new") -> Split:
    forget, retain = forget or noise(11, 0), retain or noise(40, 1)
    test = noise(30, 2) if test == "new" else test
    forget, retain, test = (None if s is None else as_samples(s, CPU, "s") for s in (forget, retain, test))
    gone = frozenset(forget.labels.tolist()) - frozenset(retain.labels.tolist())
    return Split(forget, retain, test, 3, gone)


def made(tmp_path, split=None, *, model=None, seed=0, **changes) -> Ensemble:
    shadows = Shadows(**{"number": 6, "recipe": QUICK, "cache": tmp_path, **changes})
    split, model = split or request(), model or plain(0)
    return Ensemble(shadows, model, split, device=CPU, seed=seed, progress=False)


def test_every_target_is_in_half_of_the_models(tmp_path):
    small, large, other = made(tmp_path), made(tmp_path, number=10), made(tmp_path, seed=1)
    assert small.inside.shape == (6, small.targets)
    assert (small.inside.sum(0) == 3).all()
    sizes = set(small.inside.sum(1))
    assert sizes == {small.targets // 2, small.targets - small.targets // 2}
    assert (large.inside[:6] == small.inside).all()  # so that models already made can be used
    assert (other.inside != small.inside).any()
    assert len(np.unique(large.inside, axis=0)) == 10


def test_targets_are_the_forget_set_and_as_many_unseen_samples_of_its_classes(tmp_path, monkeypatch):
    x, y = noise(12, 0)
    split = request(forget=(x, y.clamp(max=1)), test=noise(90, 2))
    all_of_it = made(tmp_path, split)
    assert all_of_it.forget.tolist() == list(range(12))
    assert len(all_of_it.unseen) == len(set(all_of_it.unseen.tolist())) == 12
    assert (split.test.labels[all_of_it.unseen] < 2).all()
    assert len(all_of_it.population) == 90
    assert made(tmp_path, request(test=None)).targets == 11
    monkeypatch.setattr(ensemble, "MOST", 5)
    some = made(tmp_path, split)
    assert len(some.forget) == len(some.unseen) == len(some.population) == 5
    assert made(tmp_path, split, seed=1).forget.tolist() != some.forget.tolist()


@pytest.mark.parametrize("together", [True, False])
def test_a_shadow_model_has_seen_the_retain_set_and_its_half(tmp_path, together):
    """The cached weights are those of a training on exactly these samples, φ is that of these weights."""
    split = request()
    shadows = made(tmp_path, split, together=together)
    found = shadows.signals("original")
    x = torch.cat([s.take(at)[0] for s, at in ((split.forget, shadows.forget), (split.test, shadows.unseen))])
    y = torch.cat([split.forget.labels[shadows.forget], split.test.labels[shadows.unseen]])
    files = sorted(tmp_path.glob("*/original-*.safetensors"))
    assert len(files) == 6
    for i, file in enumerate(files):
        weights = {k[2:]: v for k, v in load_file(file).items() if k.startswith("w.")}
        model = plain(0)
        model.load_state_dict(weights)
        with torch.no_grad():
            z = model.eval()(x).double().numpy()
        assert found[i, : shadows.targets] == pytest.approx(margins(z, y.numpy()))
        own = torch.from_numpy(shadows.inside[i])
        pair = (
            torch.cat([split.retain.take(torch.arange(40))[0], x[own]]),
            torch.cat([split.retain.labels, y[own]]),
        )
        again = shadows._drawn("original", i)
        fit([again], [as_samples(pair, CPU, "d")], QUICK, seeds=[shadows._seed("original", i)])
        for name, value in again.state_dict().items():
            assert torch.allclose(value, weights[name], atol=1e-5), name
    retrained = shadows._drawn("retrained", 2)
    fit([retrained], [split.retain], QUICK, seeds=[shadows._seed("retrained", 2)])
    with torch.no_grad():
        z = retrained(x).double().numpy()
    assert shadows.signals("retrained")[2, : shadows.targets] == pytest.approx(
        margins(z, y.numpy()), abs=1e-4
    )


def test_models_begin_from_weights_of_their_own(tmp_path):
    shadows = made(tmp_path, model=plain(3))
    first, again, second = (shadows._drawn("original", i) for i in (0, 0, 1))
    assert digest(first) == digest(again) != digest(second)
    assert digest(first) != digest(shadows._drawn("retrained", 0))
    assert digest(first) == digest(made(tmp_path, model=plain(4))._drawn("original", 0))  # whoever is audited
    partly = plain(3)
    partly[0].requires_grad_(False)
    kept = made(tmp_path, model=partly)._drawn("original", 0)
    assert torch.equal(kept[0].weight, partly[0].weight)
    assert not torch.equal(kept[2].weight, partly[2].weight)
    assert [p.requires_grad for p in kept.parameters()] == [False, False, True, True]
    deployed = made(tmp_path, model=plain(3).requires_grad_(False))._drawn("original", 0)
    assert digest(deployed) == digest(first)  # frozen for use, not for training
    assert all(p.requires_grad for p in deployed.parameters())


class Free(nn.Module):
    """A network with a weight that no layer can draw."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.body, self.weight = nn.Linear(6, 8), nn.Parameter(torch.randn(8, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x).relu() @ self.weight


def test_an_untrained_model_gives_what_cannot_be_drawn(tmp_path):
    with pytest.raises(ModelError, match="fresh"):
        made(tmp_path, model=Free(0))
    drawn = [made(tmp_path, model=Free(0), fresh=Free(1))._drawn("original", i) for i in (0, 1)]
    assert all(torch.equal(m.weight, Free(1).weight) for m in drawn)
    assert not torch.equal(drawn[0].body.weight, drawn[1].body.weight)
    assert made(tmp_path, model=Free(0), fresh=Free(1)).signals("original").shape[0] == 6


@dataclasses.dataclass(frozen=True)
class Watched(FineTune):
    """Fine-tuning that remembers what it was asked to forget."""

    def run(self, model, split, run) -> None:
        asked.append((split, digest(model), run.seed, model.training, run.fresh(model)))
        super().run(model, split, run)


asked: list[tuple] = []


def test_shadow_models_unlearn_their_own_half(tmp_path):
    asked.clear()
    x, y = noise(40, 1)
    split = request(forget=(noise(11, 0)[0], torch.zeros(11, dtype=torch.long)), retain=(x, y.clamp(min=1)))
    shadows = made(tmp_path, split, method=Watched(epochs=1, batch_size=32))
    unlearned = shadows.signals("unlearned")
    rows = {
        tuple(v.tolist()): ("forget", i) for i, v in enumerate(split.forget.take(torch.arange(11))[0])
    } | {tuple(v.tolist()): ("test", i) for i, v in enumerate(split.test.take(torch.arange(30))[0])}
    targets = [("forget", i) for i in shadows.forget.tolist()] + [
        ("test", i) for i in shadows.unseen.tolist()
    ]
    for i, (own, weights, _, training, _) in enumerate(asked):
        given = [rows[tuple(v.tolist())] for v in own.forget.take(torch.arange(len(own.forget)))[0]]
        assert given == [t for t, inside in zip(targets, shadows.inside[i], strict=True) if inside]
        assert own.retain is split.retain
        left = [rows[tuple(v.tolist())] for v in own.test.take(torch.arange(len(own.test)))[0]]
        assert left == [("test", k) for k in range(30) if ("test", k) not in given]  # unseen by this one
        assert own.forget_classes == {0}
        original = plain(0)
        kept = load_file(next(tmp_path.glob(f"*/original-{i:03}.safetensors")))
        original.load_state_dict({k[2:]: v for k, v in kept.items() if k.startswith("w.")})
        assert weights == digest(original)
        assert not training
    assert len(asked) == len({seed for *_, seed, _, _ in asked}) == 6
    assert len({digest(fresh) for *_, fresh in asked}) == 6
    assert not np.allclose(unlearned, shadows.signals("original"))


# -- the cache ---------------------------------------------------------------------------------


@pytest.fixture
def trainings(monkeypatch) -> Counter:
    """How many models were trained and unlearned so far; the work itself is done as always."""
    done: Counter = Counter()

    train, run = ensemble.fit, ensemble.Run

    def trained(models, *args, **kwargs):
        done["together" if len(models) > 1 else "alone"] += len(models)
        return train(models, *args, **kwargs)

    def unlearned(*args, **kwargs):
        done["unlearned"] += 1
        return run(*args, **kwargs)

    monkeypatch.setattr(ensemble, "fit", trained)
    monkeypatch.setattr(ensemble, "Run", unlearned)
    return done


def test_what_was_made_is_not_made_again(tmp_path, trainings):
    first = made(tmp_path, method=FINE)
    found = {kind: first.signals(kind) for kind in ("original", "unlearned", "retrained")}
    assert trainings == {"together": 12, "unlearned": 6}
    files = {f: f.stat().st_mtime_ns for f in tmp_path.rglob("*.safetensors")}
    assert len(files) == 18
    again = made(tmp_path, model=plain(9), method=FINE)  # the audit of another model
    for kind, phi in found.items():
        assert np.array_equal(again.signals(kind), phi)
    assert trainings == {"together": 12, "unlearned": 6}
    assert {f: f.stat().st_mtime_ns for f in tmp_path.rglob("*.safetensors")} == files

    made(tmp_path, method=FineTune(epochs=2, batch_size=32)).signals("unlearned")  # another method
    assert trainings == {"together": 12, "unlearned": 12}
    more = made(tmp_path, method=FINE, number=8).signals("unlearned")
    assert np.array_equal(more[:6], found["unlearned"])
    assert trainings == {"together": 14, "unlearned": 14}


CHANGES = {
    "recipe": {"recipe": dataclasses.replace(QUICK, lr=0.04)},
    "seed": {"seed": 1},
    "architecture": {"model": plain(0, width=17)},
    "layers of the same weights": {"model": nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))},
    "a retained sample": {
        "split": request(retain=(noise(40, 1)[0] + 1e-3 * torch.eye(40, 6), noise(40, 1)[1]))
    },
    "a label": {"split": request(forget=(noise(11, 0)[0], noise(11, 3)[1]))},
    "test data": {"split": request(test=noise(29, 2))},
}


@pytest.mark.parametrize("what", CHANGES)
def test_another_training_has_models_of_its_own(tmp_path, trainings, what):
    made(tmp_path).signals("original")
    made(tmp_path, **CHANGES[what]).signals("original")
    assert trainings["together"] + trainings["alone"] == 12
    assert len(list(tmp_path.iterdir())) == 2


def test_another_way_of_starting_has_models_of_its_own(tmp_path, trainings):
    for fresh in (Free(1), Free(2), Free(1)):
        made(tmp_path, model=Free(0), fresh=fresh).signals("original")
    assert trainings == {"together": 12}


def test_a_kill_loses_no_more_than_what_was_in_the_making(tmp_path, trainings, monkeypatch):
    whole = made(tmp_path / "whole", together=False).signals("original")
    trainings.clear()
    real = ensemble.fit

    def killed(*args, **kwargs):
        if trainings["alone"] == 4:
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(ensemble, "fit", killed)
        with pytest.raises(KeyboardInterrupt):
            made(tmp_path / "cut", together=False).signals("original")
    assert len(list((tmp_path / "cut").rglob("original-*.safetensors"))) == 4
    assert np.array_equal(made(tmp_path / "cut", together=False).signals("original"), whole)
    assert trainings["alone"] == 4 + 2


def test_a_damaged_file_is_made_anew(tmp_path, trainings):
    found = made(tmp_path).signals("original")
    file = next(tmp_path.rglob("original-003.safetensors"))
    file.write_bytes(file.read_bytes()[:-50])
    assert made(tmp_path).signals("original") == pytest.approx(found, abs=1e-4)
    assert trainings == {"together": 6, "alone": 1}


def test_the_cache_of_the_user_is_the_default(tmp_path, monkeypatch):
    monkeypatch.setenv("PURGE_CACHE", str(tmp_path))
    made(None).signals("original")
    assert len(list(tmp_path.glob("shadows/*/original-*.safetensors"))) == 6


# -- how they are trained ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "calls"),
    [
        ({}, {"together": 6}),
        ({"together": False}, {"alone": 6}),
        ({"recipe": dataclasses.replace(QUICK, ema=0.9)}, {"together": 6}),
        ({"recipe": dataclasses.replace(QUICK, compile=True), "together": True}, {"alone": 6}),
    ],
)
def test_small_models_are_trained_together(tmp_path, trainings, changes, calls, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda model: model)
    made(tmp_path, **changes).signals("original")
    assert trainings == calls


def test_large_models_are_trained_one_by_one(tmp_path, trainings, monkeypatch):
    monkeypatch.setattr(ensemble, "SMALL", 100)
    made(tmp_path).signals("retrained")
    assert trainings == {"alone": 6}


class Stubborn(nn.Linear):
    """A network that looks at its numbers, which cannot be done for many at once."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * (1 if x.sum().item() > 0 else 2)


def test_a_network_that_cannot_be_run_as_many_is_trained_one_by_one(tmp_path, trainings):
    made(tmp_path, model=Stubborn(6, 3)).signals("original")
    assert trainings == {"together": 6, "alone": 6}
    with pytest.raises(ModelError, match="together"):
        made(tmp_path / "asked", model=Stubborn(6, 3), together=True).signals("original")


def test_images_are_augmented(tmp_path, digits):
    forget, retain = purge.split(digits.train.select(torch.arange(60)), fraction=0.2)
    images = Split(forget, retain, digits.test, 10, frozenset())
    found = [
        made(tmp_path, images, model=conv(0), recipe=dataclasses.replace(QUICK, augment=a)).signals(
            "original"
        )
        for a in ("none", "flip")
    ]
    assert not np.allclose(*found)
    with pytest.raises(MethodError, match="Images"):
        made(tmp_path, recipe=dataclasses.replace(QUICK, augment="flip"))


# -- planted truths ----------------------------------------------------------------------------


def by_heart(width: int = 128) -> nn.Module:
    torch.manual_seed(width)
    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))


def test_lira_finds_what_a_model_learnt_by_heart_and_nothing_in_one_that_never_saw_it(digits, tmp_path):
    # Half of all labels, also of unseen samples, are random: those of training can only be learnt by heart.
    x = torch.cat([s.take(torch.arange(len(s)))[0] for s in (digits.train, digits.test)]).flatten(1)
    y = torch.cat([digits.train.labels, digits.test.labels])
    g = torch.Generator().manual_seed(0)
    y = torch.where(torch.rand(len(y), generator=g) < 0.5, torch.randint(10, y.shape, generator=g), y)
    order = torch.randperm(len(y), generator=g)
    retain, forget, test = ((x[at], y[at]) for at in order[:1000].split([400, 200, 400]))
    everything = torch.cat([retain[0], forget[0]]), torch.cat([retain[1], forget[1]])
    recipe = Recipe(epochs=30, lr=0.1, batch_size=50, weight_decay=0.0)
    settings = {**dataclasses.asdict(recipe), "progress": False}
    over = purge.train(by_heart(), everything, seed=5, **settings).model
    never = purge.train(by_heart(), retain, seed=6, **settings).model
    report = purge.audit(
        over, forget, retain, test, retrained=never, metrics=["lira", "rmia"], progress=False,
        shadows=purge.Shadows(number=16, recipe=recipe, cache=tmp_path),
    )  # fmt: skip
    for attack in ("lira", "rmia"):
        assert report[f"{attack}.auroc"].low > 0.8
        assert report[f"{attack}.tpr_1pct"].value > 0.2
        blind = report.retrained[f"{attack}.auroc"]
        assert blind.low < 0.5 < blind.high
        curve = report.curves["audited"]["roc"][attack]
        assert curve["fpr"][-1] == curve["tpr"][-1] == 1
        assert curve != report.curves["retrained"]["roc"][attack]
    assert report["lira.auroc"].n == 400
    assert "1000" in report["lira.tpr_01pct"].why


@pytest.fixture(scope="module")
def learnt(tmp_path_factory) -> dict:
    """Noise learnt by heart: what models answer that unlearned it by nothing at all, and by retraining."""
    recipe = Recipe(epochs=25, lr=0.1, batch_size=32, weight_decay=0.0)
    settings = {**dataclasses.asdict(recipe), "progress": False}
    forget, retain, test = noise(60, 0), noise(64, 1), noise(80, 2)
    both = tuple(torch.cat(pair) for pair in zip(forget, retain, strict=True))
    original = purge.train(plain(0, 64), both, seed=0, **settings).model
    retrained = purge.train(plain(1, 64), retain, seed=1, **settings).model
    nothing, folder = (
        FineTune(epochs=1, batch_size=32, optim=Optim(lr=1e-9)),
        tmp_path_factory.mktemp("learnt"),
    )
    return {
        name: purge.audit(
            model, forget, retain, test, retrained=retrained, progress=False, metrics=NAMES,
            shadows=Shadows(number=16, recipe=recipe, method=method, cache=folder),
        )
        for name, model, method in (
            ("nothing", original, nothing), ("retrain", retrained, Retrain(recipe=recipe)),
        )
    }  # fmt: skip


def test_u_lira_finds_a_method_that_does_nothing(learnt):
    assert learnt["nothing"]["u_lira.auroc"].low > 0.65
    fair = learnt["retrain"]["u_lira.auroc"]
    assert fair.low < 0.5 < fair.high
    blind = learnt["nothing"].retrained["u_lira.auroc"]
    assert blind.low < 0.5 < blind.high


def test_ensembles_tell_nothing_from_retraining(learnt):
    nothing, retrain = learnt["nothing"], learnt["retrain"]
    assert nothing["forgetting_score.score"].high < nothing["forgetting_score.retrain"].low
    assert nothing["klom.p95"].low > nothing["klom.retrain"].high
    assert retrain["klom.p95"].low < retrain["klom.retrain"].high
    assert retrain["forgetting_score.score"].value == pytest.approx(
        retrain["forgetting_score.retrain"].value, abs=0.05
    )
    assert nothing["forgetting_score.retrain"] == retrain["forgetting_score.retrain"]


# -- what every metric promises ----------------------------------------------------------------

PROCEDURE = {"forgetting_score", "klom"}  # of the method, not of a model
NEEDS = {
    "no test": {"test": None},
    "no test of the forgotten class": {"test": (torch.randn(9, 6), torch.ones(9, dtype=torch.long))},
    "no test of a retained class": {"test": (torch.randn(9, 6), torch.zeros(9, dtype=torch.long))},
}
LACK = {
    "no test": {"lira", "rmia", "u_lira"},
    "no test of the forgotten class": {"lira", "rmia", "u_lira"},
    "no test of a retained class": {"rmia"},
}


def net(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 3))


@pytest.fixture(scope="module")
def case(toy, tmp_path_factory) -> dict:
    _, forget, retain, test = toy
    shadows = Shadows(number=6, recipe=QUICK, method=FINE, cache=tmp_path_factory.mktemp("shadows"))
    models = {"model": net(0), "retrained": net(1), "original": net(2)}
    return {"forget": forget, "retain": retain, "test": test, "shadows": shadows, **models}


def audit(case: dict, **changes) -> purge.Report:
    return purge.audit(**{**case, "metrics": NAMES, "progress": False, **changes})


def of(held: dict, name: str) -> dict:
    return {k: v for k, v in held.items() if k.split(".")[0] == name}


def numbers(values: dict) -> dict:
    """Without the rates that so few samples cannot have."""
    return {k: v for k, v in values.items() if ".tpr_" not in k}


@pytest.fixture(scope="module")
def full(case) -> purge.Report:
    return audit(case)


def test_the_panels():
    assert NAMES == ["lira", "rmia", "u_lira", "forgetting_score", "klom"]
    assert set(NAMES) <= set(PANELS["full"])
    assert not set(NAMES) & {*PANELS["standard"], *PANELS["quick"]}


def test_with_everything_given_there_is_a_finite_number_with_its_interval(full):
    assert len(full.values) == 3 * 3 + 2 * 2
    for value in numbers(full.values).values():
        assert value.low - 1e-9 <= value.value <= value.high + 1e-9
        assert [type(v) for v in (value.value, value.low, value.high, value.n)] == [float, float, float, int]
        assert value.n >= 1
    assert all("non-members" in v.why for k, v in full.values.items() if ".tpr_" in k)
    plain_json = full.to_dict()
    assert json.loads(json.dumps(plain_json, allow_nan=False)) == plain_json
    assert set(full.curves["audited"]["roc"]) == {"lira", "rmia", "u_lira"}


def test_columns(case, full):
    for name in NAMES:
        assert of(full.original, name)[name].why == "no shadow models were asked for"
        if name in PROCEDURE:
            assert "method" in full.retrained[name].why
        else:
            assert of(full.retrained, name) != of(full.values, name)
    alone = audit(case, model=case["retrained"], retrained=None)
    for name in NAMES:
        if name in PROCEDURE:  # the same, whichever model is looked at
            assert of(alone.values, name) == of(full.values, name)
        else:
            assert of(alone.values, name) == of(full.retrained, name)


@pytest.mark.parametrize("lacking", NEEDS)
def test_a_missing_need_gives_none_and_a_reason_and_nothing_else_does(case, lacking):
    report = audit(case, **NEEDS[lacking])
    for name in NAMES:
        found = of(report.values, name)
        if name in LACK[lacking]:
            assert list(found) == [name]
            assert "test data" in found[name].why
        else:
            assert all(math.isfinite(v.value) for v in numbers(found).values())


def test_without_shadow_models_or_their_method(case, full):
    assert all("no shadow models" in v.why for v in audit(case, shadows=None).values.values())
    report = audit(case, shadows=dataclasses.replace(case["shadows"], method=None))
    for name in NAMES:
        if name in ("lira", "rmia"):
            assert of(report.values, name) == of(full.values, name)
        else:
            assert "no unlearning method was given" in report[name].why


def test_too_few_models(case):
    report = audit(case, shadows=dataclasses.replace(case["shadows"], number=4))
    assert "at least 6" in report["forgetting_score"].why
    assert all(math.isfinite(v.value) for v in numbers(report.values).values() if not v.why)
    assert math.isfinite(report["klom.p95"].value)


def test_a_training_that_fails_is_a_reason(case, tmp_path):
    broken = Shadows(number=6, recipe=dataclasses.replace(QUICK, lr=1e30), method=FINE, cache=tmp_path)
    report = audit(case, shadows=broken)
    assert all("NaN or infinity" in v.why for v in report.values.values())
    ascent = GradientAscent(epochs=30, batch_size=8, optim=Optim(lr=1e6))
    report = audit(case, shadows=dataclasses.replace(case["shadows"], method=ascent))
    assert "NaN or infinity" in report["u_lira"].why
    assert report["lira.auroc"].value is not None


def test_the_order_of_metrics_does_not_matter(case, full):
    assert audit(case, metrics=NAMES[::-1]).values == full.values
    for name in NAMES:
        assert audit(case, metrics=name).values == of(full.values, name)


def state(model: nn.Module) -> tuple:
    grads = [p.grad is None for p in model.parameters()]
    return digest(model), [m.training for m in model.modules()], grads, list(model.state_dict())


def test_models_and_random_numbers_are_left_alone(case, tmp_path):
    models = {"model": net(0), "retrained": net(1), "original": net(2)}
    fresh = net(3)
    models["model"][1].eval()
    before, random = [state(m) for m in (*models.values(), fresh)], torch.get_rng_state()
    shadows = dataclasses.replace(case["shadows"], fresh=fresh, cache=tmp_path)
    report = audit(case, **models, shadows=shadows)
    assert [state(m) for m in (*models.values(), fresh)] == before
    assert torch.equal(torch.get_rng_state(), random)
    assert math.isfinite(report["lira.auroc"].value)


@pytest.mark.parametrize("count", [1, 5])
def test_single_samples(case, count):
    whole = tuple(torch.cat([case["forget"][k], case["retain"][k]]) for k in (0, 1))
    forget, retain = purge.split(whole, indices=range(count))
    report = audit(case, forget=forget, retain=retain)
    assert all(math.isfinite(v.value) for v in numbers(report.values).values())
    alone = audit(case, forget=forget, retain=retain, test=None)
    if count == 1:
        assert alone["klom"].why == "a single sample cannot be divided among shadow models"
    else:
        assert math.isfinite(alone["klom.p95"].value)


def test_numbers_of_the_report_are_those_of_the_attacks(case):
    """Of single samples: part of the population are then targets, which half of the models have seen."""
    whole = tuple(torch.cat([case["forget"][k], case["retain"][k]]) for k in (0, 1))
    forget, retain = purge.split(whole, indices=range(0, 60, 2))
    report = audit(case, forget=forget, retain=retain)
    split = request(forget, retain, case["test"])
    held = Ensemble(case["shadows"], net(0), split, device=CPU, seed=0, progress=False)
    phi, shadows, n = held.of(Subject(case["model"], split)), held.signals("original"), held.targets
    with torch.no_grad():
        z = case["model"].eval()(case["test"][0][held.population]).double().numpy()
    assert phi[n:] == pytest.approx(margins(z, case["test"][1][held.population].numpy()), abs=1e-5)
    member = np.arange(n) < len(held.forget)
    scores = likelihood_ratio(phi[:n], shadows[:, :n], held.inside)
    assert report["lira.auroc"].value == pytest.approx(roc_auc_score(member, scores))
    scores = likelihood_ratio(phi[:n], held.signals("unlearned")[:, :n], held.inside)
    assert report["u_lira.auroc"].value == pytest.approx(roc_auc_score(member, scores))
    slow, both = [], set(held.population.tolist()) & set(held.unseen.tolist())
    assert both

    def ratio(j: int, blind: list[int]) -> float:
        return expit(phi[j]) / (0.65 * np.mean([expit(shadows[i, j]) for i in blind]) + 0.35)

    beaten = []
    for k, row in enumerate(held.population.tolist()):
        target = [len(held.forget) + t for t, r in enumerate(held.unseen.tolist()) if r == row]
        beaten.append(ratio(n + k, [i for i in range(6) if not (target and held.inside[i, target[0]])]))
    for j in range(n):
        own = ratio(j, [i for i in range(6) if not held.inside[i, j]])
        slow.append(np.mean([own > other for other in beaten]))
    assert report["rmia.auroc"].value == pytest.approx(roc_auc_score(member, slow))
    saw = [[held.signals("unlearned")[i, j] for i in range(6) if held.inside[i, j]] for j in range(30)]
    retrained = held.signals("retrained")[:, :30]
    assert report["klom.p95"].value == pytest.approx(np.quantile(klom(np.array(saw).T, retrained[3:]), 0.95))
    assert report["klom.retrain"].value == pytest.approx(
        np.quantile(klom(retrained[:3], retrained[3:]), 0.95)
    )
    grades = forgetting_scores(np.array(saw).T, retrained[3:])
    assert report["forgetting_score.score"].value == pytest.approx(grades.mean())


# -- what is refused ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"number": 2}, "number >= 4"),
        ({"number": 7}, "even number"),
        ({"number": 4.5}, "whole number"),
        ({"recipe": {"epochs": 3}}, "Recipe for recipe"),
        ({"method": "purge"}, "Method for method"),
        ({"method": Sisa()}, "shards"),
        ({"method": Amnesiac()}, "updates"),
        ({"fresh": 3}, "Module for fresh"),
        ({"cache": 3}, "cache"),
        ({"together": "perhaps"}, "true or false"),
    ],
)
def test_settings_that_make_no_sense(given, words):
    with pytest.raises(PurgeError, match=rf"^Expected (?=.*{words}).*, got .*\. Fix: .*") as raised:
        Shadows(**given)
    assert "\n" not in str(raised.value)


def test_what_does_not_fit_is_refused_at_the_door(case, tmp_path):
    with pytest.raises(MetricError, match=r"purge\.Shadows.*got 16\. Fix: "):
        audit(case, shadows=16)
    with pytest.raises(ModelError, match="fresh"):
        audit(case, shadows=dataclasses.replace(case["shadows"], fresh=plain(0)))
    with pytest.raises(MethodError, match="BatchNorm"):
        audit(case, shadows=dataclasses.replace(case["shadows"], recipe=Recipe(batch_size=1)))
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(FileError, match="cache"):
        audit(case, shadows=dataclasses.replace(case["shadows"], cache=file))
