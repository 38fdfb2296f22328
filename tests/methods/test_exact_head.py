"""exact-head: the head of the retained samples, and claims no larger than what was verified."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from torch import nn

import purge
from purge.core.errors import MethodError, ModelError
from purge.report.record import record_of
from purge.report.sentences import exact_words
from purge.runs.evidence import audited, record
from tests.nets import blobs, plain_mlp, small_mlp

KINDS = ("ridge", "logistic")


def scene(kind="ridge", dtype=torch.float64, **how):
    """A model whose backbone never learned anything and whose head was fitted to blobs; (forget, retain)."""
    x, y = blobs()
    data = x.to(dtype), y
    model = purge.heads.of(small_mlp().to(dtype), data, kind=kind, **how).model
    return model, *purge.split(data, indices=range(0, 30, 3))


def forgot(model, forget, retain, **settings):
    return purge.unlearn(model, forget, retain, method="exact-head", progress=False, **settings)


def features(model, data):
    """The inputs of the head in a way of our own."""
    model.eval()
    with torch.no_grad():
        return model[:5](data[0])


@pytest.mark.parametrize("kind", KINDS)
def test_the_head_is_scikit_learns_on_the_retained_samples(kind):
    model, forget, retain = scene(kind)
    result = forgot(model, forget, retain, kind=kind, lam=1.0)
    h = features(model, retain).numpy()
    layer = result.model[5]
    if kind == "ridge":
        theirs = RidgeClassifier(alpha=1.0, solver="cholesky").fit(h, retain[1])
        coef, bias = theirs.coef_, theirs.intercept_
    else:
        ones = np.c_[h, np.ones(len(h))]
        solver = LogisticRegression(C=1.0, fit_intercept=False, tol=1e-12, solver="newton-cholesky")
        both = solver.fit(ones, retain[1]).coef_
        coef, bias = both[:, :-1], both[:, -1]
    assert np.allclose(layer.weight.detach(), coef, rtol=0, atol=1e-9)
    assert np.allclose(layer.bias.detach(), bias, rtol=0, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("kind", KINDS)
def test_it_is_the_model_that_training_without_the_samples_gives(kind, dtype):
    model, forget, retain = scene(kind, dtype)
    result = forgot(model, forget, retain, kind=kind)
    again = purge.heads.of(small_mlp().to(dtype), retain, kind=kind).model
    close = {torch.float64: 1e-8, torch.float32: 1e-5}[dtype]
    for name, t in again.state_dict().items():
        mine = result.model.state_dict()[name]
        if name.startswith("5."):
            assert torch.allclose(mine, t, rtol=close, atol=close)
        else:
            assert torch.equal(mine, t), "everything but the head is bit-identical"
    claim = result.info["exact"]
    assert claim["same_before"]
    assert claim["rest_kept"]
    assert claim["head"] == "5"
    assert claim["off"] <= close


def test_the_words_claim_no_more_than_was_verified(toy):
    model, forget, retain = scene()
    took = forgot(model, forget, retain).info["took"]
    assert (
        "exact if no other weight has learned from the forgotten ones, which cannot be seen from here" in took
    )
    took = forgot(model, forget, retain, frozen=True).info["took"]
    assert "as you declare" in took
    for other in ({"lam": 1.1}, {"kind": "logistic"}):  # the head before was not trained like this
        result = forgot(model, forget, retain, frozen=True, **other)
        assert "not an exact deletion" in result.info["took"]
        assert not result.info["exact"]["same_before"]
    trained, *data, _ = toy
    result = forgot(trained, *data, frozen=True)
    assert "not an exact deletion" in result.info["took"]
    assert "other weights may know the forgotten ones too" in result.info["took"]


def test_a_head_that_lacks_one_sample_is_not_that_of_all():
    model, forget, retain = scene()
    less = retain[0][:-1], retain[1][:-1]
    assert not forgot(model, forget, less).info["exact"]["same_before"]


def test_half_precision_is_never_called_exact():
    model, forget, retain = scene(dtype=torch.float32)
    half = model.to(torch.bfloat16)
    result = forgot(half, *((x.bfloat16(), y) for x, y in (forget, retain)))
    assert not result.info["exact"]["same_before"]


# -- what the audit says ---------------------------------------------------------------------------


def told(result, forget, retain, model=None):
    report = purge.audit(model or result, forget, retain, None, metrics=["ra", "fa_train"], progress=False)
    return report, [f for f in report.verdict.findings if f.rule.name == "exact"]


def test_the_audit_says_exact_and_why_it_may(tmp_path):
    model, forget, retain = scene()
    report, (finding,) = told(forgot(model, forget, retain, frozen=True), forget, retain)
    assert finding.level == "shown"
    (text,) = report.sentences([finding])
    assert "The deletion is exact, on features that were declared frozen" in text
    assert "was the ridge head of all 96 samples" in text
    assert "that of the 86 retained ones alone" in text
    assert "if the features were never trained on the forgotten samples" in text
    assert "no audit can verify it" in text
    report.save(tmp_path)
    assert "on features that were declared frozen" in (tmp_path / "report.html").read_text()


def test_without_a_declaration_it_stays_open():
    model, forget, retain = scene()
    report, (finding,) = told(forgot(model, forget, retain), forget, retain)
    assert finding.level == "unknown"
    assert "That is not known, and no audit can verify it" in report.sentences([finding])[0]


def test_no_such_finding_about_other_weights_or_claims(toy):
    model, forget, retain = scene()
    result = forgot(model, forget, retain, frozen=True)
    assert told(result, forget, retain, model=result.model)[1] == [], "a bare model has no history"
    with torch.no_grad():
        result.model[0].weight.mul_(1.01)
    assert told(result, forget, retain)[1] == [], "edited after the run"
    changed = told(forgot(model, forget, retain, frozen=True), forget, retain)[0]
    changed.info["digests"]["audited"] = "another"
    assert "exact" not in {f.rule.name for f in changed.verdict.findings}
    trained, *data, _ = toy
    assert told(forgot(trained, *data, frozen=True), *data)[1] == []


def test_the_record_of_the_deletion_has_a_row(tmp_path, toy):
    model, forget, retain = scene(dtype=torch.float32)
    result = forgot(model, forget, retain, frozen=True, out=tmp_path / "run")
    purge.audit(result, forget, retain, None, metrics=["ra"], progress=False, out=tmp_path / "run")
    row = record(tmp_path / "run", audited(tmp_path / "run"))["Exact deletion"]
    assert row.startswith("Verified in the run: its head '5' was the ridge head of all 96 samples")
    assert "The user declares that they were not" in row
    trained, *data, _ = toy
    other = forgot(trained, *data).to_dict()
    assert record_of(other, {})["Exact deletion"].startswith("no: the head before was not that of all")
    plain = purge.unlearn(trained, *data, method="finetune", epochs=1, progress=False).to_dict()
    assert "Exact deletion" not in record_of(plain, {})


@pytest.mark.parametrize(
    "claim",
    [{"off": "0"}, {"same_before": "yes"}, {"rest_kept": 1}, {"off": None}, {"same_before": False}],
    ids=str,
)
def test_a_claim_that_somebody_wrote_into_a_file_is_not_believed_by_its_form(claim):
    good = {"head": "5", "kind": "ridge", "off": 0.0, "same_before": True, "rest_kept": True, "frozen": True}
    good["weights"] = "d1"
    run = {"exact": good, "digest": "d1", "retain_samples": 5, "forget_samples": 3}
    assert exact_words(run)
    assert exact_words({**run, "exact": {**good, **claim}}) == ""
    assert exact_words({**run, "retain_samples": "5"}) == ""
    assert exact_words({**run, "digest": "d2"}) == ""


# -- refusals --------------------------------------------------------------------------------------


class Doubled(nn.Module):
    """Logits that are not what the head puts out."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x).mul(2)


def test_models_that_it_cannot_serve_are_refused_in_one_line(toy):
    model, forget, retain, _ = toy
    with pytest.raises(ModelError, match="as a Linear head puts them out"):
        forgot(Doubled(model), forget, retain)
    still = purge.heads.of(model, retain).model
    still[5].weight.requires_grad_(False)
    with pytest.raises(MethodError, match=r"a head that may change, got 5\.weight"):
        forgot(still, forget, retain)
    wide = plain_mlp(width=200)
    wide = purge.train(wide, retain, epochs=3, progress=False).model
    with pytest.raises(MethodError, match="features that determine the head"):
        forgot(wide, forget, retain, lam=0)
