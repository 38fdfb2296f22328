"""Any kind of classifier: it forgets, it keeps the rest, its layers are found."""

from __future__ import annotations

from functools import cache

import pytest
import torch

import purge
from purge.methods.purge import PUSH_EVERY
from purge.models.checkpoint import digest
from purge.models.inspect import anatomy
from tests.nets import NETWORKS

EXPECTED = {  # (head, erasure layers)
    "resnet-batchnorm": ("fc", ("layer3", "layer4", "avgpool")),
    "resnet-groupnorm": ("fc", ("layer3", "layer4", "avgpool")),
    "vit": ("head", ("blocks.1", "blocks.2", "norm")),
    "mlp": ("5", ("2", "4")),
    "vgg": ("2.3", ("0.7", "2.2")),
    "object-with-logits": ("body.fc", ("body.layer3", "body.layer4", "body.avgpool")),
}
BATCHNORM = ("resnet-batchnorm", "vgg", "object-with-logits")
HALVES = slice(0, None, 2), slice(1, None, 2)


@pytest.fixture(scope="module")
def sets(digits):
    """(x, y) pairs of forget, retain and test."""
    return [part.take(torch.arange(len(part))) for part in (digits.forget, digits.retain, digits.test)]


@pytest.fixture(scope="module")
def trained(digits):
    @cache
    def get(name):
        torch.manual_seed(0)
        lr, epochs = {"vit": (0.05, 12), "mlp": (0.05, 8)}.get(name, (0.1, 8))
        return purge.train(NETWORKS[name](), digits.train, epochs=epochs, lr=lr, progress=False).model

    return get


def slow_but(*quick):
    return [n if n in quick else pytest.param(n, marks=pytest.mark.slow) for n in NETWORKS]


@pytest.mark.parametrize("name", slow_but("resnet-batchnorm", "mlp", "vgg"))
def test_forgets_a_class(name, trained, sets):
    model = trained(name)
    result = purge.unlearn(model, *sets[:2], progress=False)
    metrics = ["fa_test", "ra", "ta_retain", "feature_cosine_original", "bn_recal"]
    report = purge.audit(result, *sets, original=model, metrics=metrics, progress=False)
    before, after = report.original, report.values
    assert before["fa_test"].value >= 0.9
    assert after["fa_test"].value <= 0.05
    assert after["ra"].value >= before["ra"].value - 0.02
    assert after["ta_retain"].value >= before["ta_retain"].value - 0.04
    assert after["feature_cosine_original"].value is not None
    assert min(row["displacement_cosine"] for row in result.history[1:]) >= -1e-6
    assert ("bn_recal.delta" in after) == (name in BATCHNORM)
    assert name not in BATCHNORM or abs(after["bn_recal.delta"].value) <= 0.05


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_every_part_of_purge_runs_on_every_network(name, trained, sets):
    """Both budgets, for classes and single samples: pushes, distillation, fresh weights and their mean."""
    forget, retain, _ = sets
    model = trained(name)
    before = model.state_dict()
    has_batchnorm = name in BATCHNORM
    requests = {"classes": (forget, retain), "samples": [(retain[0][s], retain[1][s]) for s in HALVES]}
    for kind, pair in requests.items():
        for budget in ("fast", "close"):
            result = purge.unlearn(model, *pair, budget=budget, steps=4, progress=False)
            assert ("forgotten classes pushed away" in result.info["took"]) == (kind == "classes")
            mixed = has_batchnorm and (kind, budget) == ("samples", "close")
            assert ("fresh weights mixed in" in result.info["took"]) == mixed
            measured = [row["forget_loss"] is not None for row in result.history[1:]]
            pushes = [kind == "classes" and i % PUSH_EVERY == 0 for i in range(4)]
            assert measured == pushes
            after = result.model.state_dict()
            assert all(bool(v.isfinite().all()) for v in after.values())
            assert all(not torch.equal(before[k], after[k]) for k, _ in model.named_parameters())
            assert min(row["displacement_cosine"] for row in result.history[1:]) >= -1e-6


@pytest.mark.parametrize("name", slow_but("mlp"))
def test_erasure_runs_on_every_network_in_each_batchnorm_mode(name, trained, sets):
    """On the layers that were found; without BatchNorm the modes are the same."""
    settings = {"method": "purge-paper", "epochs": 1, "progress": False}
    runs = [
        purge.unlearn(trained(name), *sets[:2], norm=n, **settings) for n in ("frozen", "shared", "train")
    ]
    assert all(run.history[1]["erasure_loss"] > 0 for run in runs)
    assert (len({digest(run.model) for run in runs}) == 1) == (name not in BATCHNORM)


@pytest.mark.parametrize("name", NETWORKS)
def test_head_and_layers_are_found(name, digits):
    model = NETWORKS[name]()
    x, _ = digits.train.take(torch.arange(3))
    found = anatomy(model, x)
    assert (found.head, found.blocks) == EXPECTED[name]
    assert not any(m._forward_hooks for m in model.modules())
