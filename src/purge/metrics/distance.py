"""Distances on the forget set: to the retrained model, and to the original one."""

from __future__ import annotations

import numpy as np

from purge.metrics.accuracy import change_draws, hits
from purge.metrics.bootstrap import Array, mean_value
from purge.metrics.registry import METRICS
from purge.metrics.subject import Part, Subject
from purge.metrics.value import Value

RETRAINED = frozenset({"retrained"})
ORIGINAL = frozenset({"original"})


def agreement(subject: Subject, part: Part = "forget") -> Value:
    """Share of a part on which the model and the retrained one predict the same class.

    1 is never reached: two retrained models agree less on the forget set than on test data.
    """
    assert subject.retrained is not None
    return mean_value(subject.guesses(part) == subject.retrained.guesses(part), subject.seed)


def kl_retrain(subject: Subject) -> Value:
    """Mean over the forget set of KL(retrained ‖ model), in nats."""
    assert subject.retrained is not None
    p, q = subject.retrained.log_probs("forget"), subject.log_probs("forget")
    return mean_value((np.exp(p) * (p - q)).sum(1), subject.seed)


def js(p: Array, q: Array) -> Array:
    """Jensen-Shannon divergence (N,) of rows of log-probabilities (N, K), in nats: 0 to ln 2.

    JS = ½ KL(p ‖ m) + ½ KL(q ‖ m) with m = (p + q) / 2.
    """
    m = np.logaddexp(p, q) - np.log(2)
    found: Array = ((np.exp(p) * (p - m) + np.exp(q) * (q - m)) / 2).sum(-1)
    return np.maximum(found, 0.0)


def js_retrain(subject: Subject) -> Value:
    """Mean over the forget set of JS(model, retrained), in nats: 0 to ln 2.

    Unlike KL it is symmetric and bounded, so that a few sure and wrong answers do not decide it.
    """
    assert subject.retrained is not None
    found = js(subject.log_probs("forget"), subject.retrained.log_probs("forget"))
    return mean_value(found, subject.seed)


def cka(subject: Subject) -> Value | dict[str, Value]:
    """Linear CKA with the retrained model on the forget set, by layer and for the penultimate features.

    1: equal but for a rotation and a scale. Layers are those that erasure looks at, pooled, matched by
    name (a wrapper around one of the models is seen through) and named as in the retrained model, with
    / for each dot. Few samples in many dimensions look alike whatever they are (biased towards 1), and
    alike in CKA does not mean that the same can be read out: see probe.
    """
    assert subject.retrained is not None
    n = len(subject.featured("forget"))
    if n < 2:
        return Value.missing("similarity of representations needs at least two forget samples")
    ours, theirs = subject.blocks("forget"), subject.retrained.blocks("forget")
    pairs = {name: (ours[other], theirs[name]) for name, other in _same_layers([*ours], [*theirs]).items()}
    a, b = subject.features("forget"), subject.retrained.features("forget")
    if a is not None and b is not None:
        pairs["penultimate"] = a, b
    if not pairs:
        return Value.missing("the two models have no layer of the same name, and there are no features")
    found = {name.replace(".", "/"): linear_cka(*pair) for name, pair in pairs.items()}
    constant = Value.missing("the outputs of this layer are the same for all samples")
    return {name: constant if v is None else Value(v, n=n) for name, v in found.items()}


def linear_cka(a: Array, b: Array) -> float | None:
    """‖AᵀB‖² / (‖AᵀA‖ ‖BᵀB‖) of centred A (N, D) and B (N, E); None where one is constant."""
    centred = [x - x.mean(0) for x in (a, b)]
    rounding = float(np.finfo(np.float32).eps)  # features were computed in float32
    if any(np.linalg.norm(c) <= rounding * np.linalg.norm(x) for c, x in zip(centred, (a, b), strict=True)):
        return None
    a, b = centred
    if len(a) < max(a.shape[1], b.shape[1]):  # the same in sample space: (N, N) is smaller
        x, y = a @ a.T, b @ b.T
        cross = (x * y).sum()
    else:
        x, y = a.T @ a, b.T @ b
        cross = ((a.T @ b) ** 2).sum()
    return min(float(cross / (np.linalg.norm(x) * np.linalg.norm(y))), 1.0)


def _same_layers(ours: list[str], theirs: list[str]) -> dict[str, str]:
    """Their layers → ours of the same name, or of the same name inside a wrapper."""
    if same := {name: name for name in theirs if name in ours}:
        return same
    inside, found = _inside(ours), _inside(theirs)
    return {name: inside[short] for short, name in found.items() if short in inside}


def _inside(names: list[str]) -> dict[str, str]:
    """Names without the modules that they all lie in → names."""
    around = [name.split(".")[:-1] for name in names]
    levels = enumerate(zip(*around, strict=False))
    shared = next((i for i, level in levels if len(set(level)) > 1), min(map(len, around), default=0))
    return {".".join(name.split(".")[shared:]): name for name in names}


def _features(subject: Subject, other: Subject | None) -> tuple[Array, Array] | Value:
    other = other or subject.retrained
    assert other is not None
    a, b = subject.features("forget"), other.features("forget")
    if a is None or b is None:
        return Value.missing("no layer that makes the logits was found, so there are no features")
    if a.shape[1] != b.shape[1]:
        return Value.missing(f"features of {a.shape[1]} and {b.shape[1]} dimensions do not compare")
    return a, b


def feature_cosine(subject: Subject, other: Subject | None = None) -> Value:
    """Mean cosine of the penultimate features of each forget sample in two models."""
    pair = _features(subject, other)
    if isinstance(pair, Value):
        return pair
    a, b = pair
    norms = _norms(a), _norms(b)
    zero = [norm == 0 for norm in norms]
    cosines = _dots(a, b) / np.where(zero[0], 1.0, norms[0]) / np.where(zero[1], 1.0, norms[1])
    both_zero = zero[0] & zero[1]  # equal, so as near as can be
    return mean_value(np.where(both_zero, 1.0, cosines), subject.seed)


def _dots(a: Array, b: Array) -> Array:
    """The inner product of each row (N, D) with its partner, without a product in between."""
    found: Array = np.einsum("nd,nd->n", a, b)
    return found


def _norms(x: Array) -> Array:
    found: Array = np.sqrt(_dots(x, x))
    return found


def feature_l2(subject: Subject, other: Subject | None = None) -> Value:
    """Mean Euclidean distance of the penultimate features of each forget sample in two models."""
    pair = _features(subject, other)
    if isinstance(pair, Value):
        return pair
    return mean_value(_norms(pair[0] - pair[1]), subject.seed)


def fid_feat(subject: Subject) -> Value:
    """Fréchet distance between the penultimate features of the model and of the retrained one."""
    pair = _features(subject, subject.retrained)
    if isinstance(pair, Value):
        return pair
    if len(pair[0]) < 2:
        return Value.missing("a covariance needs at least two forget samples")
    return Value(frechet(*pair), n=len(pair[0]))


def frechet(a: Array, b: Array) -> float:
    """‖μ_a − μ_b‖² + Tr(Σ_a + Σ_b − 2(Σ_a Σ_b)^½) of two sets of features (N, D).

    The trace of the root is that of (Σ_a^½ Σ_b Σ_a^½)^½, which is symmetric and so stays real.
    """
    sa, sb = (np.atleast_2d(np.cov(x, rowvar=False)) for x in (a, b))
    values, vectors = np.linalg.eigh(sa)
    root = (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T
    cross = np.sqrt(np.maximum(np.linalg.eigvalsh(root @ sb @ root), 0)).sum()
    gap = ((a.mean(0) - b.mean(0)) ** 2).sum()
    return float(max(gap + np.trace(sa) + np.trace(sb) - 2 * cross, 0.0))


def retrain_gap(subject: Subject) -> Value:
    """Mean absolute difference to the retrained model over FA, RA, TA_r and MIA."""
    assert subject.retrained is not None
    gaps = []
    for name in ("fa_test", "ra", "ta_retain", "mia"):
        ours, theirs = subject.value(METRICS[name]), subject.retrained.value(METRICS[name])
        assert isinstance(ours, Value)
        assert isinstance(theirs, Value)
        if ours.value is None or theirs.value is None:
            return Value.missing(f"{name} could not be computed: {ours.why or theirs.why}")
        gaps.append(abs(ours.value - theirs.value))
    return Value(float(np.mean(gaps)), n=len(gaps))


def tow(subject: Subject) -> Value:
    """Tug of war (1 − |ΔA_f|)(1 − |ΔA_r|)(1 − |ΔA_t|), Δ: accuracy − the retrained model's.

    A_f, A_r and A_t are the accuracies on forget, retain and all test data. 1: the same three numbers,
    which need not be the same predictions. The interval is wide rather than narrow, so that it holds
    where a Δ is truly 0: no factor moves by more than the bootstrap noise of its Δ, nor the product by
    more than the sum of these.
    """
    assert subject.retrained is not None
    value, noise, n = 1.0, np.zeros(1), 0
    parts: tuple[Part, ...] = ("forget", "retain", "test")
    for i, part in enumerate(parts):
        after, before = hits(subject, part), hits(subject.retrained, part)
        gap = float(after.mean() - before.mean())
        value *= 1 - abs(gap)
        noise = noise + np.abs(change_draws(after, before, subject.seed + i) - gap)
        n += len(after)
    reach = float(np.quantile(noise, 0.95))
    return Value(value, max(value - reach, 0.0), min(value + reach, 1.0), n)


def feature_cosine_original(subject: Subject) -> Value:
    """Mean cosine of penultimate features on the forget set with the original model's."""
    return feature_cosine(subject, subject.original)


def feature_l2_original(subject: Subject) -> Value:
    """Mean distance of penultimate features on the forget set from the original model's."""
    return feature_l2(subject, subject.original)


def agreement_test(subject: Subject) -> Value:
    """Share of the test data with the same prediction as the retrained model's."""
    return agreement(subject, "test")
