"""Is this the right data? A model that knows nothing about it is refused, a weak or small one is not."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import Tensor, nn

import purge
from purge.core.errors import DataError
from purge.data.accept import as_samples
from purge.models.checks import check_knows
from tests.nets import blobs, small_mlp


class Answers(nn.Module):
    """Answers what its inputs say: each is the number of a class."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.classes = classes

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * nn.functional.one_hot(x[:, 0].long(), self.classes).float()


def check(answers: Tensor, labels: Tensor, classes: int) -> None:
    samples = as_samples((answers[:, None].float(), labels), torch.device("cpu"), "retain")
    check_knows(Answers(classes), samples, "an original")


def labels_of(n: int, classes: int, seed: int = 0) -> Tensor:
    return torch.randint(classes, (n,), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("n", "classes"), [(100, 2), (100, 10), (5000, 10), (5000, 100)])
def test_answers_that_have_nothing_to_do_with_the_labels_are_refused(n, classes):
    labels = labels_of(n, classes)
    for answers in (labels_of(n, classes, seed=1), torch.zeros_like(labels), (labels + 1) % classes):
        with pytest.raises(DataError, match=r"no better than chance .+normalisation.+labels.+checkpoint"):
            check(answers, labels, classes)
    check(labels, labels, classes)


def test_a_weak_model_is_let_through_and_so_is_one_of_which_nothing_can_be_said():
    labels = labels_of(2000, 10)
    sure = torch.rand(2000, generator=torch.Generator().manual_seed(3)) < 0.15
    check(torch.where(sure, labels, labels_of(2000, 10, seed=2)), labels, 10)  # 23 % right
    check(torch.zeros_like(labels[:99]), labels[:99], 10)  # too few
    one = torch.ones(500, dtype=torch.long)
    check(one, one, 2)  # all that is left of two classes is one of them
    rare = (torch.arange(2000) < 20).long()
    check(torch.zeros_like(rare), rare, 2)  # always the same answer, and right in 99 of 100 cases


def test_honest_chance_is_let_through_in_one_of_a_hundred_cases_at_most():
    passed = 0
    for seed in range(200):
        with contextlib.suppress(DataError):
            check(labels_of(100, 2, seed=1000 + seed), labels_of(100, 2, seed=seed), 2)
            passed += 1
    assert passed <= 6  # 2 are expected


@pytest.fixture(scope="module")
def trained():
    data = blobs(n=400)
    model = purge.train(small_mlp(), data, epochs=10, lr=0.05, batch_size=32, progress=False).model
    return model, *purge.split(data, indices=range(20))


@pytest.mark.parametrize("mistake", ["normalisation", "labels", "checkpoint"])
def test_each_of_the_usual_mistakes_is_refused_by_unlearn_and_audit(trained, mistake):
    model, (xf, yf), (xr, yr) = trained
    if mistake == "normalisation":
        xf, xr = xf + 100, xr + 100  # the mean was not taken off
    elif mistake == "labels":
        yf, yr = (yf + 1) % 3, (yr + 1) % 3
    else:
        model = small_mlp(seed=5)
    sets, audited = ((xf, yf), (xr, yr)), {"original": model, "metrics": "ra", "progress": False}
    with pytest.raises(DataError, match="a model that knows the retained data"):
        purge.unlearn(model, *sets, steps=2, progress=False)
    with pytest.raises(DataError, match="an original that knows the retained data"):
        purge.audit(model, *sets, None, **audited)
    result = purge.unlearn(model, *sets, steps=2, progress=False, check=False)
    assert purge.audit(result, *sets, None, check=False, **audited).original
