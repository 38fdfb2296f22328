"""Less memory, the same result: batches in parts, activations computed again, fewer vectors."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import purge
from purge.core.errors import MethodError
from purge.engine.optimizer import FlatOptimizer, FlatParameters
from purge.engine.projection import step
from purge.models.recompute import recomputed
from purge.models.small_resnet import SmallResNet
from tests.benchmark import benchmark
from tests.nets import SmallViT, group_norm_resnet, plain_mlp

LiveBytes = benchmark("live_memory").LiveBytes


NETS = {
    "groupnorm": group_norm_resnet,
    "vit": lambda: SmallViT(16, 2),
    "batchnorm": lambda: SmallResNet(width=4),
}


def images(n: int = 80, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    y = torch.arange(n) % 4
    return (y[:, None, None, None] + 0.4 * torch.randn(n, 1, 8, 8, generator=g)).to(dtype), y


def model_of(kind: str, dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(1)
    return NETS[kind]().to(dtype).eval()


def unlearned(kind: str, dtype: torch.dtype, what: str, **settings) -> purge.Result:
    forget, retain = purge.split(
        TensorDataset(*images(dtype=dtype)),
        **({"classes": [2]} if what == "class" else {"indices": [1, 5, 8]}),
    )
    return purge.unlearn(
        model_of(kind, dtype), forget, retain, steps=5, batch_size=12, kd=1.0, check=False, progress=False,
        **settings,
    )  # fmt: skip


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([t.detach().flatten().double() for t in model.state_dict().values()])


@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 1e-5), (torch.float64, 1e-10)], ids=["32", "64"])
@pytest.mark.parametrize(
    ("kind", "what", "micro"), [("groupnorm", "class", 5), ("vit", "rows", 1), ("vit", "class", 4)]
)
def test_batches_in_parts_give_the_undivided_step(kind, what, micro, dtype, most):
    whole, parts = (unlearned(kind, dtype, what, micro_batch=m) for m in (None, micro))
    assert (weights(whole.model) - weights(parts.model)).abs().max() <= most
    for a, b in zip(whole.history, parts.history, strict=True):
        for key in ("retain_loss", "forget_loss"):
            assert (a[key] is None) == (b[key] is None)
            assert a[key] is None or a[key] == pytest.approx(b[key], rel=most)
    assert unlearned(kind, dtype, what, micro_batch=12).history == whole.history, (
        "a whole batch is not divided"
    )


@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 1e-5), (torch.float64, 1e-10)], ids=["32", "64"])
def test_training_in_parts_gives_the_same_model(dtype, most):
    data = images(40, dtype)
    runs = [
        purge.train(
            model_of("groupnorm", dtype),
            data,
            epochs=2,
            batch_size=10,
            lr=0.05,
            micro_batch=m,
            progress=False,
        )
        for m in (None, 3)
    ]
    assert (weights(runs[0].model) - weights(runs[1].model)).abs().max() <= most
    assert runs[1].history[-1]["loss"] == pytest.approx(runs[0].history[-1]["loss"], rel=1e-4)


def test_batchnorm_is_not_divided():
    with pytest.raises(MethodError, match=r"without BatchNorm for micro_batch.*checkpoint_activations"):
        unlearned("batchnorm", torch.float32, "class", micro_batch=4)
    with pytest.raises(MethodError, match="without BatchNorm for micro_batch"):
        purge.train(model_of("batchnorm"), images(), epochs=1, micro_batch=4, progress=False)


# -- activations computed again -----------------------------------------------------------------


@pytest.mark.parametrize("what", ["class", "rows"])
@pytest.mark.parametrize("kind", NETS)
def test_activations_computed_again_change_no_bit(kind, what):
    plain, again = (unlearned(kind, torch.float32, what, checkpoint_activations=c) for c in (False, True))
    assert torch.equal(weights(plain.model), weights(again.model))
    assert plain.history == again.history
    assert not any("forward" in m.__dict__ for m in again.model.modules())


@pytest.mark.parametrize("kind", NETS)
def test_training_again_draws_the_same_dropout_and_counts_batches_once(kind):
    """The ViT has dropout, the ResNet running statistics."""
    plain, again = (
        purge.train(
            model_of(kind), images(), epochs=2, batch_size=16, checkpoint_activations=c, progress=False
        ).model
        for c in (False, True)
    )
    assert torch.equal(weights(plain), weights(again))


def test_single_layers_have_nothing_to_checkpoint():
    with pytest.raises(MethodError, match="repeated blocks"), recomputed(plain_mlp(), torch.zeros(2, 6)):
        pass
    with pytest.raises(MethodError, match="compile or checkpoint"):
        purge.train(model_of("vit"), images(), checkpoint_activations=True, compile=True, progress=False)


# -- how much memory ----------------------------------------------------------------------------


def test_a_step_holds_few_vectors_of_all_weights():
    """Beside weights, momentum and the gradient: the weights before, the step, and a product in float64."""
    n = 100_000
    params = FlatParameters([nn.Parameter(torch.randn(n))])
    optimizer = FlatOptimizer("sgd", params.read(), lr=0.01, momentum=0.9, nesterov=True, relative=True)
    g = torch.randn(n)
    with LiveBytes() as live:
        step(params, optimizer, g, g, space="update")
    assert live.peak <= 6.2 * 4 * n
    assert live.now <= 100
