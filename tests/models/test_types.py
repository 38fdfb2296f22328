"""Models in float64, float16 and bf16: computed in float32 or wider, delivered in the type that came in."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

import purge
from purge.metrics.registry import PANELS
from purge.models.checkpoint import digest
from purge.models.copies import copied, narrowed
from purge.models.forward import forward
from tests.nets import blobs, small_mlp
from tests.sequences import bert, sentences

CPU = torch.device("cpu")
HALF = [torch.float16, torch.bfloat16]
LONG = [pytest.param(torch.float16, marks=pytest.mark.slow), torch.bfloat16]
RECIPE = {"epochs": 10, "lr": 0.05, "batch_size": 32, "progress": False}
NUMBERS = ["fa_train", "fa_test", "ra", "ta", "mia_loss", "feature_l2_original", "ece", "zrf", "head_refit"]


def of_type(data, dtype):
    return data[0].to(dtype), data[1]


def audited(model, forget, retain, test, **more):
    return purge.audit(model, forget, retain, test, progress=False, check=False, **more)


@pytest.fixture(scope="module")
def plain():
    return purge.train(small_mlp(), blobs(), **RECIPE).model


def types(model):
    return [t.dtype for t in [*model.parameters(), *model.buffers()]]


@pytest.mark.parametrize("dtype", [*LONG, torch.float64])
def test_a_model_of_another_type_is_trained_unlearned_and_audited(dtype, plain):
    data, test = of_type(blobs(), dtype), of_type(blobs(seed=1), dtype)
    forget, retain = purge.split(data, classes=[0])
    start = small_mlp().to(dtype)
    model = purge.train(start, data, test=test, **RECIPE)
    assert model.info["test_accuracy"] >= 0.95
    result = purge.unlearn(model.model, forget, retain, progress=False)
    retrained = purge.unlearn(model.model, forget, retain, method="retrain", **RECIPE)
    for one in (model.model, result.model, retrained.model):
        assert types(one) == types(start)
    report = audited(result, forget, retain, test, original=model, retrained=retrained)
    assert {name.partition(".")[0] for name in report.values} == set(PANELS["standard"])
    assert all(value.why or math.isfinite(value.value) for value in report.values.values())
    assert report["fa_test"].value == 0
    assert report["ra"].value >= 0.95


@pytest.mark.parametrize("dtype", HALF)
def test_a_half_model_is_computed_with_in_float32(dtype, plain):
    """The result is that of the same weights in float32, rounded once at the end."""
    half = copy.deepcopy(plain).to(dtype)
    wide = copy.deepcopy(half).float()
    (x, y), settings = blobs(), {"method": "purge", "steps": 12, "progress": False}
    x = x.to(dtype)
    ours = purge.unlearn(half, *purge.split((x, y), classes=[0]), **settings)
    theirs = purge.unlearn(wide, *purge.split((x.float(), y), classes=[0]), **settings)
    assert digest(ours.model) == digest(theirs.model.to(dtype))
    assert ours.history == theirs.history
    assert {t.dtype for t in half.parameters()} == {dtype}, "the caller's stays"


def test_inputs_and_weights_may_be_of_different_types(plain):
    for given in (torch.float32, torch.bfloat16):
        forget, retain = purge.split(of_type(blobs(), given), classes=[0])
        result = purge.unlearn(copy.deepcopy(plain).bfloat16(), forget, retain, steps=4, progress=False)
        assert set(types(result.model)) == {torch.bfloat16, torch.int64}
    x, _ = of_type(blobs(), torch.float16)
    assert torch.equal(forward(plain.eval(), x), forward(plain, x.float()))


@pytest.mark.parametrize("dtype", [torch.float64, *HALF])
def test_an_audit_finds_nearly_the_same_numbers_in_each_type(dtype, plain):
    data = (*purge.split(blobs(), classes=[0]), blobs(seed=1))
    one = audited(plain, *data, original=small_mlp(5), metrics=NUMBERS)
    wide = dtype == torch.float64
    other = [of_type(part, dtype) for part in data] if wide else data
    original = small_mlp(5).double() if wide else small_mlp(5)
    two = audited(copy.deepcopy(plain).to(dtype), *other, original=original, metrics=NUMBERS)
    near = {"rel": 1e-4, "abs": 1e-5} if wide else {"rel": 0.05, "abs": 0.03}
    for name in set(one.values) - ({"zrf"} if wide else set()):  # an untrained copy draws others in float64
        assert two[name].value == pytest.approx(one[name].value, **near), name


def test_shards_and_logs_of_a_half_model_are_kept_and_undone(tmp_path):
    data = of_type(blobs(), torch.bfloat16)
    forget, retain = purge.split(data, indices=range(6))
    model = purge.train_sharded(small_mlp().bfloat16(), data, shards=2, **RECIPE).model
    assert torch.bfloat16 not in types(model), "shards are trained and kept in float32"
    result = purge.unlearn(model, forget, retain, method="sisa", progress=False)
    report = audited(result, forget, retain, of_type(blobs(seed=1), torch.bfloat16), metrics=["ta"])
    assert report["ta"].value >= 0.9
    log = tmp_path / "log"
    model = purge.train(small_mlp().bfloat16(), data, log_updates=log, **RECIPE).model
    result = purge.unlearn(
        model, forget, retain, method="amnesiac", log=str(log), check=False, progress=False
    )
    assert digest(result.model) != digest(model)


class Mixed(nn.Module):
    """A body in bf16 and a head in float32, as large models are often stored."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(6, 16).bfloat16(), nn.Linear(16, 3)
        self.body.register_buffer("scale", torch.ones(16, dtype=torch.float16))

    def forward(self, x):
        return self.head(
            (self.body(x.to(self.body.weight.dtype)).relu() * self.body.scale).to(self.head.weight)
        )


def test_each_tensor_gets_its_own_type_back():
    forget, retain = purge.split(blobs(), classes=[0])
    model = Mixed()
    result = purge.unlearn(model, forget, retain, check=False, steps=4, progress=False)
    assert types(result.model) == types(model)
    wide = copied(model, CPU)
    assert set(types(wide)) == {torch.float32}
    assert digest(narrowed(wide, model)) == digest(model), "there and back is exact"


@pytest.mark.parametrize("dtype", LONG)
def test_a_text_classifier_in_half_precision(dtype):
    data = sentences(120)
    model = bert().to(dtype)
    model = purge.train(model, data, epochs=20, lr=0.1, batch_size=32, progress=False).model
    forget, retain = purge.split(data, classes=[0])
    result = purge.unlearn(model, forget, retain, rate=0.01, progress=False)
    assert {p.dtype for p in result.model.parameters()} == {dtype}
    report = audited(result, forget, retain, sentences(60, seed=1), original=model, metrics=NUMBERS)
    assert report["fa_test"].value == 0
    assert report["ra"].value >= 0.9
