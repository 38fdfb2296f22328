"""Models with several inputs, in any wrapper: unlearned and audited alike."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import purge
from purge.metrics.registry import PANELS
from purge.models.checkpoint import digest
from tests.sequences import bert, sentences

N = 160


class Table(nn.Module):
    """Numbers and categories, in two tensors."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.kinds = nn.Embedding(8, 4)
        self.body, self.head = nn.Sequential(nn.Linear(8, 16), nn.ReLU()), nn.Linear(16, 3)

    def forward(self, numbers, kind):
        return self.head(self.body(torch.cat([numbers, self.kinds(kind)], 1)))


def table(seed=0):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(3, (N,), generator=g)
    kind = torch.where(y == 2, 5, torch.randint(4, (N,), generator=g))
    numbers = torch.randn(N, 4, generator=g) + 3 * (y == 1)[:, None]
    return numbers, kind, y


FORMS = {
    "tuple": lambda numbers, kind, y: ((numbers, kind), y),
    "dict": lambda numbers, kind, y: ({"kind": kind, "numbers": numbers}, y),
}
RECIPE = {"epochs": 15, "lr": 0.05, "batch_size": 32, "progress": False}


@pytest.mark.parametrize("form", FORMS)
def test_several_tensors_are_unlearned_and_audited_with_every_metric(form):
    data, test = FORMS[form](*table()), FORMS[form](*table(1))
    model = purge.train(Table(), data, **RECIPE).model
    forget, retain = purge.split(data, classes=[1])
    result = purge.unlearn(model, forget, retain, progress=False)
    retrained = purge.train(Table(), retain, seed=1, **RECIPE)
    report = purge.audit(result, forget, retain, test, original=model, retrained=retrained, progress=False)
    assert {name.partition(".")[0] for name in report.values} == set(PANELS["standard"])
    missing = {name for name, value in report.values.items() if value.value is None}
    assert missing <= {*report.values} & {
        "tpr_1pct", "tpr_01pct", "mia_quantile.tpr_1pct", "mia_quantile.tpr_01pct", "bn_recal",
    }  # fmt: skip
    assert all(math.isfinite(v.value) for v in report.values.values() if v.value is not None)
    assert report["fa_test"].value <= 0.1
    assert report["ra"].value >= 0.9


@pytest.mark.parametrize("method", ["finetune", "scrub", "salun", "influence", "ssd", "bad-teacher"])
def test_methods_take_several_tensors(method):
    model, quick = Table(), {"samples": 20} if method == "influence" else {}
    quick |= {"alpha": 1.5} if method == "ssd" else {}
    for form in FORMS.values():
        forget, retain = purge.split(form(*table()), classes=[1])
        result = purge.unlearn(model, forget, retain, method=method, check=False, progress=False, **quick)
        assert digest(result.model) != digest(model)


def compiled(model):
    return torch.compile(model, backend="eager")


@pytest.mark.parametrize("wrap", [nn.DataParallel, compiled])
def test_wrapped_text_models_take_dicts(wrap):
    data, plain = sentences(80), bert()
    forget, retain = purge.split(data, classes=[0])
    settings = {"steps": 4, "check": False, "progress": False}
    ours = purge.unlearn(wrap(plain), forget, retain, **settings)
    assert type(ours.model) is type(plain)
    assert digest(ours.model) == digest(purge.unlearn(plain, forget, retain, **settings).model)
    taught = purge.train(wrap(plain), data, epochs=1, progress=False).model
    assert digest(taught) == digest(purge.train(plain, data, epochs=1, progress=False).model)
    report = purge.audit(
        wrap(ours.model), forget, retain, sentences(40, seed=1), original=wrap(plain), check=False,
        progress=False, metrics=["ra", "feature_cosine_original"],
    )  # fmt: skip
    assert all(value.value is not None for value in report.values.values())
