"""Any kind of classifier and any form of data: it forgets, it keeps the rest, its layers are found."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import Dataset

import purge
from purge.data import backends
from purge.methods.purge import PUSH_EVERY
from purge.models.checkpoint import digest
from purge.models.inspect import anatomy
from purge.runs.make import fresh_model
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
def tensors(digits):
    """(x, y) pairs of forget, retain and test."""
    return [part.take(torch.arange(len(part))) for part in (digits.forget, digits.retain, digits.test)]


@pytest.fixture(scope="module")
def trained(digits):
    cache = {}

    def get(name):
        if name not in cache:
            torch.manual_seed(0)
            lr, epochs = {"vit": (0.05, 12), "mlp": (0.05, 8)}.get(name, (0.1, 8))
            cache[name] = purge.train(
                NETWORKS[name](), digits.train, epochs=epochs, lr=lr, progress=False
            ).model
        return cache[name]

    return get


SLOW = ("vit", "resnet-groupnorm", "object-with-logits")


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in NETWORKS],
)
def test_forgets_a_class(name, trained, tensors):
    forget, retain, test = tensors
    model = trained(name)
    result = purge.unlearn(model, forget, retain, progress=False)
    metrics = ["fa_test", "ra", "ta_retain", "feature_cosine_original", "bn_recal"]
    report = purge.audit(result.model, forget, retain, test, original=model, metrics=metrics, progress=False)
    before, after = report.original, report.values
    assert before["fa_test"].value >= 0.9
    assert after["fa_test"].value <= 0.05
    assert after["ra"].value >= before["ra"].value - 0.02
    assert after["ta_retain"].value >= before["ta_retain"].value - 0.04
    assert after["feature_cosine_original"].value is not None
    worst = min(row["displacement_cosine"] for row in result.history[1:])
    assert worst >= -1e-6
    has_batchnorm = name in BATCHNORM
    assert (report.values.get("bn_recal.delta") is not None) == has_batchnorm
    if has_batchnorm:
        assert abs(report["bn_recal.delta"].value) <= 0.05


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_every_part_of_purge_runs_on_every_network(name, trained, tensors):
    """Both budgets, for classes and single samples: pushes, distillation, fresh weights and their mean."""
    forget, retain, _ = tensors
    model = trained(name)
    before = model.state_dict()
    has_batchnorm = name in BATCHNORM
    requests = {"classes": (forget, retain), "samples": [(retain[0][s], retain[1][s]) for s in HALVES]}
    for kind, sets in requests.items():
        for budget in ("fast", "close"):
            result = purge.unlearn(model, *sets, budget=budget, steps=4, progress=False)
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


@pytest.mark.parametrize(
    "name", [n if n == "mlp" else pytest.param(n, marks=pytest.mark.slow) for n in NETWORKS]
)
def test_erasure_runs_on_every_network_in_each_batchnorm_mode(name, trained, tensors):
    """On the layers that were found; without BatchNorm the modes are the same."""
    forget, retain, _ = tensors
    runs = [
        purge.unlearn(
            trained(name), forget, retain, method="purge-paper", norm=norm, epochs=1, progress=False
        )
        for norm in ("frozen", "shared", "train")
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


class Plain(Dataset):
    """The simplest dataset: a length, and items (x, y) with int labels."""

    def __init__(self, part):
        self.x, self.y = part

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], int(self.y[i])


def test_every_form_of_data_gives_the_same_model(monkeypatch, digits, tensors, base):
    forget, retain, _ = tensors
    forms = {
        "images": (digits.forget, digits.retain),
        "tensors": (forget, retain),
        "numpy": tuple((x.numpy(), y.numpy()) for x, y in (forget, retain)),
        "dataset": (Plain(forget), Plain(retain)),
        "too large for memory": (Plain(forget), Plain(retain)),
    }
    digests = {}
    for form, sets in forms.items():
        if form == "too large for memory":
            monkeypatch.setattr(backends, "RESIDENT_BYTES", 1000)
        digests[form] = digest(purge.unlearn(base, *sets, steps=2, progress=False).model)
    assert len(set(digests.values())) == 1, digests


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 10])
def test_a_few_samples_are_forgotten_without_harm(n, digits):
    """Their labels are wrong, so that a model that knows them has learnt them by heart."""
    x, y = digits.train.take(torch.arange(len(digits.train)))
    wrong = torch.where(torch.arange(len(y)) < n, (y + 1) % 10, y)
    model = fresh_model("small-resnet", digits.train, seed=0)
    model = purge.train(model, (x, wrong), epochs=12, seed=0, progress=False).model
    forget, retain = purge.split((x, wrong), indices=range(n))
    result = purge.unlearn(model, forget, retain, progress=False)
    report = purge.audit(
        result.model, forget, retain, digits.test, original=model, progress=False,
        metrics=["fa_train", "ra", "ta"],
    )  # fmt: skip
    assert report.original["fa_train"].value >= 0.9
    assert report["fa_train"].value <= 0.1
    assert report["ra"].value >= report.original["ra"].value - 0.02
    assert report["ta"].value >= report.original["ta"].value - 0.03


def test_with_test_data_single_samples_are_treated_like_unseen_ones(digits, base):
    forget, retain = purge.split(digits.train, fraction=0.1, seed=1)
    result = purge.unlearn(base, forget, retain, test=digits.test, steps=50, progress=False)
    report = purge.audit(
        result.model, forget, retain, digits.test, original=base, progress=False,
        metrics=["fa_train", "ra", "ta", "mia"],
    )  # fmt: skip
    assert report["fa_train"].value >= 0.85, "a retrained model would still recognise most of them"
    assert report["ra"].value >= 0.98
    assert abs(report["mia"].value - 0.5) <= abs(report.original["mia"].value - 0.5) + 0.05


def test_a_class_and_single_samples_are_forgotten_at_once(digits, base):
    labels = digits.train.labels
    ids = torch.cat([(labels == 3).nonzero()[:, 0], (labels == 5).nonzero()[:5, 0]])
    forget, retain = purge.split(digits.train, indices=ids)
    result = purge.unlearn(base, forget, retain, test=digits.test, progress=False)
    assert result.info["forget_classes"] == [3]
    guesses = result.model(forget.take(torch.arange(len(forget)))[0]).argmax(1)
    assert (guesses[forget.labels == 3] == 3).float().mean() <= 0.05
