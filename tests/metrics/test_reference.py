"""The numbers of an audit, each against scikit-learn, SciPy or a computation by hand, for two requests."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable

import numpy as np
import pytest
import torch
from scipy.spatial.distance import jensenshannon
from scipy.special import log_softmax, rel_entr
from scipy.stats import pearsonr, percentileofscore
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import accuracy_score, recall_score, roc_auc_score, roc_curve, silhouette_score
from sklearn.metrics.pairwise import paired_cosine_distances, paired_euclidean_distances
from sklearn.model_selection import (
    StratifiedKFold,
    StratifiedShuffleSplit,
    cross_val_predict,
    cross_val_score,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from torch import nn

import purge
from tests.metrics.numbers import (
    CLASSES,
    Case,
    Data,
    audit,
    clouds,
    features,
    guesses,
    log_probs,
    made,
    pick,
    probs,
    raw,
    right,
)

Reference = Callable[[Case], float]

# -- pieces ------------------------------------------------------------------------------------


def accuracy(c: Case, part: str) -> float:
    return accuracy_score(getattr(c, part)[1], guesses(c.model, getattr(c, part)))


def weights(c: Case) -> np.ndarray:
    """Of unseen samples, so that their classes are as frequent as among the forgotten ones."""
    ours, theirs = (np.bincount(d[1], minlength=CLASSES) / len(d[1]) for d in (c.forget, c.same))
    return (ours / np.where(theirs > 0, theirs, np.inf))[c.same[1]]


def unseen_accuracy(c: Case) -> float:
    return accuracy_score(c.same[1], guesses(c.model, c.same), sample_weight=weights(c))


def js(a: nn.Module, b: nn.Module, data: Data, base: float | None = None) -> float:
    return float(np.mean(jensenshannon(probs(a, data), probs(b, data), base=base, axis=1) ** 2))


def signals(lp: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    """The formulas as they stand in the papers; larger is more like a member."""
    p, own = np.exp(lp), np.arange(lp.shape[1]) == y[:, None]
    mine, others = p[own], np.where(own, 0, p)
    return {
        "loss": np.log(mine),
        "confidence": lp.max(1),
        "entropy": (p * lp).sum(1),
        "m_entropy": (1 - mine) * np.log(mine) + (others * np.log1p(-others)).sum(1),
        "margin": np.log(mine) - np.log1p(-mine),
    }


def seen(c: Case, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Which samples are members, a signal, and weights."""
    scores = [signals(log_probs(c.model, d), d[1].numpy())[name] for d in (c.forget, c.same)]
    every = np.r_[np.ones(len(scores[0])), weights(c)]
    return np.repeat([1, 0], [len(s) for s in scores]), np.concatenate(scores), every


def attack(c: Case, name: str) -> float:
    truth, scores, every = seen(c, name)
    return roc_auc_score(truth, scores, sample_weight=every)


def tpr(c: Case, name: str) -> float:
    truth, scores, every = seen(c, name)
    false, true, _ = roc_curve(truth, scores, sample_weight=every, drop_intermediate=False)
    return float(true[false <= 0.01 + 1e-12].max())


def svc(c: Case, feature: str) -> float:
    """The SVC of SalUn, on as many test samples as retained ones."""

    def looked_at(data: Data) -> np.ndarray:
        lp, y = log_probs(c.model, data), data[1].numpy()
        own = signals(lp, y)
        columns = {
            "confidence": np.exp(own["loss"]),
            "correctness": (lp.argmax(1) == y).astype(float),
            "entropy": -own["entropy"],
            "m_entropy": -own["m_entropy"],
        }
        return np.exp(lp) if feature == "prob" else columns[feature][:, None]

    n = len(c.retain[1])
    drawn = np.random.default_rng(0).choice(len(c.kept[1]), n, replace=False)
    x = np.concatenate([looked_at(c.retain), looked_at(pick(c.kept, torch.from_numpy(drawn)))])
    model = SVC(C=3, gamma="auto", kernel="rbf").fit(x, np.repeat([1, 0], n))
    return 1 - model.predict(looked_at(c.forget)).mean()


def regression(c: Case) -> float:
    entropy = [signals(log_probs(c.model, d), d[1].numpy())["entropy"] for d in (c.retain, c.kept, c.forget)]
    x, kinds = np.r_[entropy[0], entropy[1]][:, None], np.repeat([1, 0], [len(e) for e in entropy[:2]])
    return float(
        LogisticRegression(class_weight="balanced").fit(x, kinds).predict(entropy[2][:, None]).mean()
    )


def split_attack(c: Case) -> float:
    rng, both = np.random.default_rng(0), (c.forget, c.same)
    losses = []
    for data in both:
        scores, y = -signals(log_probs(c.model, data), data[1].numpy())["loss"], data[1].numpy()
        for k in np.unique(c.forget[1]):
            rows, most = np.flatnonzero(y == k), min(int((d[1] == k).sum()) for d in both)
            losses.append(
                scores[rows if len(rows) <= most else rows[rng.choice(len(rows), most, replace=False)]]
            )
    x = np.concatenate(losses)[:, None]
    folds = StratifiedShuffleSplit(10, test_size=0.1, random_state=0)
    return cross_val_score(LogisticRegression(), x, np.repeat([1, 0], len(x) // 2), cv=folds).mean()


def leaks(c: Case, name: str) -> float:
    """Of the change since the original, ranked among the unseen samples of each class."""

    def moved(data: Data) -> np.ndarray:
        (p, q), y = (probs(m, data) for m in (c.model, c.original)), data[1].numpy()
        phi = [signals(np.log(r), y)["margin"] for r in (p, q)]
        return {
            "loss": phi[0] - phi[1],
            "confidence": np.log(p.max(1) / q.max(1)),
            "distance": -np.maximum(p - q, 0).sum(1),
            "after": phi[0],
        }[name]

    reference, labels = moved(c.kept), c.kept[1].numpy()
    ranks = [
        percentileofscore(reference[labels == k], s, kind="mean")
        for data in (c.retain, c.kept)
        for s, k in zip(moved(data), data[1].numpy(), strict=True)
    ]
    return roc_auc_score(np.repeat([1, 0], [len(c.retain[1]), len(labels)]), ranks)


def nearest_class(c: Case, part: str) -> float:
    """Class 0 and what retrained models take it for, among the other classes."""

    def among_kept(model: nn.Module, data: Data) -> np.ndarray:
        return log_softmax(raw(model, data[0])[:, 1:], axis=1)

    near = np.exp(among_kept(c.retrained, c.forget)).mean(0).argmax()
    like, found = c.kept[1].numpy() - 1 == near, []
    for model in (c.model, c.retrained):
        unseen, forgotten = among_kept(model, c.kept), among_kept(model, c.forget)
        if part == "taken":
            svm = make_pipeline(StandardScaler(), SVC(class_weight="balanced")).fit(unseen, like)
            found.append(svm.predict(forgotten).mean())
        else:
            scores = np.r_[unseen[like, near], forgotten[:, near]]
            found.append(roc_auc_score(np.repeat([1, 0], [like.sum(), len(forgotten)]), scores))
    return found[0] - found[1]


def pair(c: Case, role: str = "retrained") -> list[np.ndarray]:
    return [features(m, c.forget) for m in (c.model, getattr(c, role))]


def frechet(a: np.ndarray, b: np.ndarray) -> float:
    """The trace of the root is the sum of the roots of the eigenvalues, also of a singular product."""
    sa, sb = np.cov(a.T), np.cov(b.T)
    roots = np.sqrt(np.maximum(np.real(np.linalg.eigvals(sa @ sb)), 0))
    return float(((a.mean(0) - b.mean(0)) ** 2).sum() + np.trace(sa + sb) - 2 * roots.sum())


def cka(a: np.ndarray, b: np.ndarray) -> float:
    """The definition: HSIC of centred Gram matrices."""
    h = np.eye(len(a)) - np.ones((len(a), len(a))) / len(a)
    k, l_ = h @ (a @ a.T) @ h, h @ (b @ b.T) @ h
    return float(np.trace(k @ l_) / np.sqrt(np.trace(k @ k) * np.trace(l_ @ l_)))


def hidden_change(c: Case) -> float:
    """How far ridge regressions from one model's features lie from the other's, both ways."""
    both = []
    for model in (c.model, c.original):
        learn, ask = features(model, c.retain), features(model, c.forget)
        std = np.concatenate([learn, ask]).std(0)
        live = std > 0
        both.append([(x[:, live] - learn[:, live].mean(0)) / std[live] for x in (learn, ask)])

    def untold(a: list[np.ndarray], b: list[np.ndarray]) -> float:
        ridge = Ridge(1e-3 * len(c.retain[1]), fit_intercept=False)
        from_a, from_b = (ridge.fit(learn, b[0]).predict(ask) for learn, ask in (a, b))
        return ((from_a - from_b) ** 2).sum() / (from_b**2).sum()

    return (untold(*both) + untold(*both[::-1])) / 2


def untrained(model: nn.Module) -> nn.Module:
    twin = copy.deepcopy(model)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for module in twin.modules():
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()
    return twin


def rf_jsd(c: Case) -> float:
    each = []
    for k in np.unique(c.forget[1]):
        p = probs(c.model, pick(c.forget, c.forget[1] == k)).mean(0)
        q = probs(c.original, pick(c.same, c.same[1] == k)).mean(0)
        each.append(jensenshannon(p, q) ** 2)
    return float(np.mean(each))


def aus(c: Case) -> float:
    gained = accuracy(c, "kept") - accuracy(c.of("original"), "kept")
    whole = not np.isin(c.forget[1], c.retain[1]).any()
    known = accuracy(c, "same") if whole else abs(accuracy(c, "forget") - unseen_accuracy(c))
    return (1 + gained) / (1 + known)


def silhouette(c: Case) -> float:
    whole = not np.isin(c.forget[1], c.retain[1]).any()
    groups = (c.same, c.kept) if whole else (c.forget, c.same)
    x = [features(c.model, d) for d in groups]
    return silhouette_score(np.concatenate(x), np.repeat([1, 0], [len(g) for g in x]))


def recalls(model: nn.Module, data: Data) -> np.ndarray:
    return recall_score(data[1], guesses(model, data), labels=range(CLASSES), average=None)


def kept_recalls(c: Case, role: str = "model") -> dict[int, float]:
    all_of = recalls(getattr(c, role), c.test)
    return {k: all_of[k] for k in np.unique(c.kept[1])}


def class_change(c: Case, k: str) -> float:
    return (recalls(c.model, c.test) - recalls(c.original, c.test))[int(k)]


def largest_drop(c: Case) -> float:
    before = kept_recalls(c, "original")
    return min(after - before[k] for k, after in kept_recalls(c).items())


def ece(c: Case) -> float:
    p, total = probs(c.model, c.kept), 0.0
    sure, hits = p.max(1), right(c.model, c.kept)
    for i in range(15):
        here = (sure > i / 15) & (sure <= (i + 1) / 15)
        if here.any():
            total += here.mean() * abs(hits[here].mean() - sure[here].mean())
    return total


def near(c: Case) -> Data:
    """Test data of the three classes that the original takes forgotten samples for, beside their own."""
    p = probs(c.original, c.forget)
    p[np.arange(len(p)), c.forget[1]] = 0
    order = [k for k in np.argsort(-p.mean(0)) if k in c.kept[1]][:3]
    return pick(c.test, torch.isin(c.test[1], torch.tensor(order)))


def destinations(model: nn.Module, c: Case) -> np.ndarray:
    return np.bincount(guesses(model, c.forget), minlength=CLASSES) / len(c.forget[1])


def recalibrated(c: Case) -> Case:
    """The attack by hand: reset, cumulative average, one pass."""
    model = copy.deepcopy(c.model)
    model[0][1].reset_running_stats()
    model[0][1].momentum = None
    with torch.no_grad():
        model.train()(c.retain[0])
    return Case(**{**vars(c), "model": model.eval()})


def probe(c: Case) -> float:
    rng, sides = np.random.default_rng(0), (c.same, c.kept)
    rows = [rng.permutation(len(d[1])) for d in sides]
    n = min(map(len, rows))
    x = np.concatenate([features(c.model, d)[at[:n]] for d, at in zip(sides, rows, strict=True)])
    y = np.repeat([1, 0], n)
    x = StandardScaler().fit_transform(x)
    return np.mean(cross_val_predict(LogisticRegression(max_iter=1000), x, y, cv=StratifiedKFold(5)) == y)


def refitted(c: Case, part: str) -> float:
    x = np.concatenate([features(c.model, d) for d in (c.retain, c.forget)])
    head = make_pipeline(StandardScaler(), LogisticRegression(tol=1e-8, max_iter=10_000))
    head.fit(x, np.r_[c.retain[1], c.forget[1]])
    data = c.same if part == "fa" else c.retain
    return head.score(features(c.model, data), data[1])


def tug_of_war(c: Case) -> float:
    parts, other = ("forget", "retain", "test"), c.of("retrained")
    return float(np.prod([1 - abs(accuracy(c, part) - accuracy(other, part)) for part in parts]))


def gap(c: Case, *names: str) -> float:
    return float(np.mean([abs(REFERENCES[n](c) - REFERENCES[n](c.of("retrained"))) for n in names]))


def each(metric: str, parts: Iterable[str], reference: Callable[..., float]) -> dict[str, Reference]:
    """The same reference for each part of a metric, which it takes as its second argument."""
    return {f"{metric}.{part}": lambda c, part=part: reference(c, part) for part in parts}


# -- the table ---------------------------------------------------------------------------------

BY_CLASS = [str(k) for k in range(CLASSES)]
SIGNALS = ("loss", "confidence", "entropy", "m_entropy", "margin")
FEATURES = ("confidence", "correctness", "entropy", "m_entropy", "prob")

REFERENCES: dict[str, Reference] = {
    "ta": lambda c: accuracy(c, "test"),
    "ta_retain": lambda c: accuracy(c, "kept"),
    "fa_train": lambda c: accuracy(c, "forget"),
    "fa_test": unseen_accuracy,
    "ra": lambda c: accuracy(c, "retain"),
    "ua": lambda c: 1 - accuracy(c, "forget"),
    "clean_label": lambda c: accuracy_score(c.truth, guesses(c.model, c.forget)),
    "attack_success": lambda c: accuracy(c, "triggered"),
    **each("destinations", BY_CLASS, lambda c, k: destinations(c.model, c)[int(k)]),
    **{f"mia_{name}": lambda c, name=name: attack(c, name) for name in SIGNALS},
    "mia": lambda c: (attack(c, "loss") + attack(c, "confidence")) / 2,
    **each("tpr_1pct", SIGNALS, tpr),
    **each("mia_svc", FEATURES, svc),
    "mia_lr": regression,
    "mia_split": split_attack,
    **each("leak_retained", ("loss", "confidence", "distance", "after"), leaks),
    **each("nearest_class", ("taken", "auroc"), nearest_class),
    "agreement": lambda c: np.mean(guesses(c.model, c.forget) == guesses(c.retrained, c.forget)),
    "agreement_test": lambda c: np.mean(guesses(c.model, c.test) == guesses(c.retrained, c.test)),
    "kl_retrain": lambda c: rel_entr(*(probs(m, c.forget) for m in (c.retrained, c.model))).sum(1).mean(),
    "js_retrain": lambda c: js(c.model, c.retrained, c.forget),
    "output_change": lambda c: js(c.model, c.original, c.forget),
    "odds_correlation": lambda c: pearsonr(
        *(signals(log_probs(m, c.forget), c.forget[1].numpy())["margin"] for m in (c.model, c.retrained))
    ).statistic,
    "feature_cosine": lambda c: 1 - paired_cosine_distances(*pair(c)).mean(),
    "feature_cosine_original": lambda c: 1 - paired_cosine_distances(*pair(c, "original")).mean(),
    "feature_l2": lambda c: paired_euclidean_distances(*pair(c)).mean(),
    "feature_l2_original": lambda c: paired_euclidean_distances(*pair(c, "original")).mean(),
    "fid_feat": lambda c: frechet(*pair(c)),
    "cka.penultimate": lambda c: cka(*pair(c)),
    "cka.0/2": lambda c: cka(*(raw(m[0], c.forget[0]) for m in (c.model, c.retrained))),
    "hidden_change": hidden_change,
    "tow": tug_of_war,
    "retrain_gap": lambda c: gap(c, "fa_test", "ra", "ta_retain", "mia"),
    "field_gap": lambda c: gap(c, "ua", "ra", "ta_retain", "mia_svc.confidence"),
    "zrf": lambda c: 1 - js(c.model, untrained(c.model), c.forget, base=2),
    "rf_jsd": rf_jsd,
    "aus": aus,
    "silhouette": silhouette,
    **each("class_accuracy", BY_CLASS, lambda c, k: recalls(c.model, c.test)[int(k)]),
    **each("class_change", BY_CLASS, class_change),
    "worst_class.accuracy": lambda c: min(kept_recalls(c).values()),
    "worst_class.class": lambda c: min(kept_recalls(c), key=kept_recalls(c).get),
    "largest_drop": largest_drop,
    "ece": ece,
    "neighbours.accuracy": lambda c: right(c.model, near(c)).mean(),
    "neighbours.change": lambda c: right(c.model, near(c)).mean() - right(c.original, near(c)).mean(),
    "destinations_tv": lambda c: np.abs(destinations(c.model, c) - destinations(c.retrained, c)).sum() / 2,
    "bn_recal.before": lambda c: accuracy(c, "same"),
    "bn_recal.after": lambda c: accuracy(recalibrated(c), "same"),
    "bn_recal.delta": lambda c: accuracy(recalibrated(c), "same") - accuracy(c, "same"),
    "probe": probe,
    **each("head_refit", ("fa", "ra"), refitted),
}  # fmt: skip

WHOLE_CLASSES = {"nearest_class.taken", "nearest_class.auroc", "probe"}  # of other samples for single ones
SOLVED = {"head_refit.fa": 0.02, "head_refit.ra": 0.02}  # by other solvers
SIZES = {
    "ta": "test", "ta_retain": "kept", "fa_train": "forget", "fa_test": "same", "ra": "retain",
    "kl_retrain": "forget", "agreement_test": "test", "attack_success": "triggered", "ece": "kept",
    "bn_recal.delta": "same", "mia_svc.prob": "forget", "mia_lr": "forget", "cka.0/2": "forget",
}  # fmt: skip


@pytest.fixture(scope="module", params=["class", "samples"])
def case(request) -> tuple[str, Case, purge.Report]:
    """A whole class, or sixty samples of three classes."""
    some = torch.isin(clouds(300, 0)[1], torch.arange(3)).nonzero()[:60, 0]
    c = made(classes=[0]) if request.param == "class" else made(indices=some)
    return request.param, c, audit(c)


@pytest.mark.parametrize("name", REFERENCES)
def test_a_number_is_that_of_its_reference(case, name):
    kind, c, report = case
    if kind == "samples" and name in WHOLE_CLASSES:
        return
    expected, found = float(REFERENCES[name](c)), report[name]
    assert found.value == pytest.approx(expected, rel=1e-5, abs=SOLVED.get(name, 1e-6))
    assert found.low is None or found.low <= found.value <= found.high
    if name in SIZES:
        assert found.n == len(getattr(c, SIZES[name])[1])
    others = [float(REFERENCES[name](c.of(role))) for role in ("retrained", "original")]
    assert any(abs(expected - other) > 1e-3 for other in others)  # of other models it is another
