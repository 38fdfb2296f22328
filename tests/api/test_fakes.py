"""An audit cannot be fooled: every planted fake fails, or the page says that it cannot tell."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import nn

import purge
from purge.auditor import Auditor
from purge.verdict.findings import Finding, Headline, Verdict
from tests.fakes import FAKES, KINDS, Request, fitted, make_request, network

# The quick numbers that rules look at; with more of them a fake has only more to fail.
ASKED = [
    "fa_train", "fa_test", "ta_retain", "ra", "class_accuracy", "mia_loss", "mia_confidence", "hidden_change",
    "output_change", "bn_recal", "relearn_ratio",
]  # fmt: skip

# 40 samples, and 2 % of the samples (29), are too few for these: they leave weights that were truly trained
# otherwise, and the attacks find nothing in the original either.
TOO_FEW = {"BatchNorm shift", "other request", "trained on test"}


# Samples with wrong labels are learned by heart, so that 300 of them are enough to tell; it takes long.
EVERY_KIND = [pytest.param(k, marks=pytest.mark.slow) if k == "bad labels" else k for k in KINDS]


@cache
def auditor(kind: str) -> tuple[Request, Auditor]:
    request = make_request(kind)
    data = request.forget, request.retain, request.test
    return request, Auditor(*data, original=request.base, retrained=request.retrained)


def judged(kind: str, model: nn.Module) -> Verdict:
    return auditor(kind)[1].audit(model, metrics=ASKED, progress=False).verdict


@pytest.mark.parametrize("fake", FAKES)
@pytest.mark.parametrize("kind", EVERY_KIND)
def test_no_fake_is_believed(kind, fake):
    found = judged(kind, FAKES[fake](auditor(kind)[0]))
    assert found.level != "shown"
    if kind in ("class", "bad labels") or fake not in TOO_FEW:
        assert found.level == "failed", [(f.rule.name, f.level) for f in found.findings]


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_an_honest_retraining_does_not_fail_and_is_believed_where_the_sample_can_tell(kind):
    request, _ = auditor(kind)
    found = judged(kind, fitted(network(11), request.retain, seed=11))
    assert [f.rule.name for f in found.failed] == []
    assert found.level == ("shown" if kind in ("class", "bad labels") else "unknown")


def test_purge_is_ranked_above_the_masks():
    request, _ = auditor("class")
    done = purge.unlearn(request.base, request.forget, request.retain, test=request.test, progress=False)
    assert judged("class", done.model).level == "shown"


def test_too_few_samples_are_said_to_be_too_few():
    request, _ = auditor("40 samples")
    found = judged("40 samples", FAKES["trained on test"](request))
    open_ = [f for f in found.open if f.topic in ("forgetting", "membership") and f.evidence.compared]
    assert any(not c.tells and c.ours.n == 40 for f in open_ for c in f.evidence.compared)
    assert found.kind is Headline.OPEN


@pytest.mark.slow
def test_relearning_alone_finds_a_mask_where_it_can_tell_the_original():
    from purge.models.small_resnet import SmallResNet

    def resnet(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return SmallResNet(width=8)

    data, test = purge.load("digits")
    forget, retain = purge.split(data, classes=[3])
    base, retrained, honest = (
        fitted(resnet(i), part, seed=i) for i, part in enumerate((data, retain, retain))
    )
    beside = Auditor(forget, retain, test, original=base, retrained=retrained)

    def relearned(model: nn.Module) -> Finding:
        found = beside.audit(model, metrics=["fa_train", "relearn_ratio"], progress=False).verdict
        return next(f for f in found.findings if f.rule.name in ("relearned", "blocked"))

    masked = fitted(resnet(0), data, seed=0)
    masked.fc.bias.data[3] = -1e9
    assert relearned(masked).level == "failed"
    assert relearned(honest).level == "shown"
