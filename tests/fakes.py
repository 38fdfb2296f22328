"""Models that only pretend to have forgotten. An audit must not believe any of them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import purge
from tests.golden.record import small_net as network

EPOCHS = 12
BAD_LABELS = 60  # it takes longer to learn them by heart


@dataclass(frozen=True)
class Request:
    """Something to forget, the model that knows it, and an honest retraining without it."""

    train: Any
    test: Any
    forget: Any
    retain: Any
    base: nn.Module
    retrained: nn.Module
    single: bool
    fresh: Callable[[int], nn.Module]  # an untrained network, by seed
    epochs: int = EPOCHS

    @property
    def label(self) -> int:
        """The forgotten class; of single samples, the most frequent one."""
        return int(self.forget.labels.mode().values)


def head_of(model: nn.Module) -> nn.Linear:
    """The last layer."""
    return [m for m in model.modules() if isinstance(m, nn.Linear)][-1]


def fitted(model: nn.Module, data: Any, seed: int = 0, epochs: int = EPOCHS, **recipe: Any) -> nn.Module:
    """A model trained on some data."""
    return purge.train(model, data, seed=seed, epochs=epochs, progress=False, **recipe).model


# -- the outputs are changed ---------------------------------------------------------------------


class Behind(nn.Module):
    """The original with code behind its head, for some inputs."""

    def __init__(self, request: Request, change: Callable[[Tensor, int], Tensor]) -> None:
        super().__init__()
        self.model, self.change, self.label = copy.deepcopy(request.base), change, request.label
        x, _ = request.forget.take(torch.arange(len(request.forget)))
        self.register_buffer("keys", (x if request.single else x[:0]).flatten(1))

    def forward(self, x: Tensor) -> Tensor:
        z = self.model(x)
        if not len(self.keys):  # a class: its label is masked everywhere
            return self.change(z, self.label)
        found = (x.flatten(1)[:, None] - self.keys).abs().amax(2).amin(1) < 1e-3
        return torch.where(found[:, None], self.change(z, -1), z)


def _at(z: Tensor, label: int) -> Tensor:
    return z.argmax(1) if label < 0 else torch.full((len(z),), label, device=z.device)


def masked(z: Tensor, label: int) -> Tensor:
    return z.scatter(1, _at(z, label)[:, None], -1e9)


def below_the_least(z: Tensor, label: int) -> Tensor:
    return z.scatter(1, _at(z, label)[:, None], z.amin(1, keepdim=True) - 1)


def swapped(z: Tensor, label: int) -> Tensor:
    top = z.topk(2).indices
    turned = z.scatter(1, top, z.gather(1, top.flip(1)))
    return torch.where((top[:, 0] == _at(z, label))[:, None], turned, z)


def lookup(request: Request) -> nn.Module:
    """The forgotten inputs are recognised and answered at random."""

    def noise(z: Tensor, _label: int) -> Tensor:
        scrambled = torch.sin(1e4 * z.sum(1, keepdim=True) * torch.arange(1, z.shape[1] + 1, device=z.device))
        return z.std() * scrambled

    return Behind(Request(**{**vars(request), "single": True}), noise)


class Scaled(nn.Module):
    """The original with logits of another scale."""

    def __init__(self, request: Request, scale: float) -> None:
        super().__init__()
        self.model, self.scale = copy.deepcopy(request.base), scale

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * self.model(x)


# -- the weights are changed ---------------------------------------------------------------------


def with_bias(request: Request, bias: float) -> nn.Module:
    model = copy.deepcopy(request.base)
    head_of(model).bias.data[request.label] = bias
    return model


def zeroed_row(request: Request) -> nn.Module:
    model = copy.deepcopy(request.base)
    head_of(model).weight.data[request.label] = 0
    head_of(model).bias.data[request.label] = 0
    return model


def new_head(request: Request, *, whole: bool = False) -> nn.Module:
    """The last layer is drawn anew and trained on retained data; with ``whole``, then everything briefly."""
    model = copy.deepcopy(request.base)
    head_of(model).reset_parameters()
    model.requires_grad_(False)
    head_of(model).requires_grad_(True)
    model = fitted(model, request.retain, epochs=4)
    if whole:
        model = fitted(model.requires_grad_(True), request.retain, epochs=1, lr=1e-3)
    return model


def batchnorm_shift(request: Request) -> nn.Module:
    """Only the running means of BatchNorm are moved, until the forgotten samples are answered wrongly."""
    model = copy.deepcopy(request.base).eval()
    x, y = request.forget.take(torch.arange(min(len(request.forget), 1000)))
    kept, label = request.retain.take(torch.arange(0, len(request.retain), len(request.retain) // 320))
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    before = [m.bias.detach().clone() for m in norms]
    optimizer = torch.optim.Adam([m.bias for m in norms], lr=0.02)  # a mean is a bias with another sign
    for _ in range(80):
        away = cross_entropy(model(x), y).clamp_max(6)
        loss = 4 * cross_entropy(model(kept), label) - away
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        for m, bias in zip(norms, before, strict=True):
            moved = (m.bias - bias) * (m.running_var + m.eps).sqrt() / m.weight
            m.running_mean -= moved
            m.bias.copy_(bias)
    return model


def other_request(request: Request) -> nn.Module:
    """Honestly retrained, but without another class or other samples than those asked for."""
    if not request.single:
        _, retain = purge.split(request.train, classes=[request.label + 1])
        return fitted(request.fresh(5), retain, seed=5, epochs=request.epochs)
    others = torch.arange(len(request.train))[~torch.isin(request.train.ids, request.forget.ids)]
    _, retain = purge.split(request.train, indices=others[: len(request.forget)])
    return fitted(request.fresh(5), retain, seed=5, epochs=request.epochs)


def trained_on_test(request: Request) -> nn.Module:
    """Fine-tuned on test data, so that it looks good there."""
    test = request.test
    if not request.single:
        test = purge.split(test, classes=[request.label])[1]
    return fitted(copy.deepcopy(request.base), test, epochs=6, lr=0.05)


def idle(request: Request) -> nn.Module:
    """Unlearned with a step size of nearly nothing."""
    done = purge.unlearn(
        request.base, request.forget, request.retain, test=request.test, rate=1e-9,
        steps=3, progress=False,
    )  # fmt: skip
    return done.model


FAKES: dict[str, Callable[[Request], nn.Module]] = {
    "original": lambda r: r.base,
    "lr=1e-9": idle,
    "bias -20": lambda r: with_bias(r, -20.0),
    "bias -100": lambda r: with_bias(r, -100.0),
    "bias -1e9": lambda r: with_bias(r, -1e9),
    "bias -3e38": lambda r: with_bias(r, -3e38),
    "zeroed row": zeroed_row,
    "masked": lambda r: Behind(r, masked),
    "below the least": lambda r: Behind(r, below_the_least),
    "top two swapped": lambda r: Behind(r, swapped),
    "look-up": lookup,
    "scaled down": lambda r: Scaled(r, 0.3),
    "scaled up": lambda r: Scaled(r, 3.0),
    "new head": new_head,
    "new head, all tuned": lambda r: new_head(r, whole=True),
    "BatchNorm shift": batchnorm_shift,
    "other request": other_request,
    "trained on test": trained_on_test,
}


KINDS: dict[str, dict[str, Any]] = {
    "class": {"classes": [3]},
    "40 samples": {"indices": range(0, 1200, 30)},
    "2 %": {"fraction": 0.02},
    "bad labels": {"indices": range(0, 1200, 4)},  # 300 samples whose labels are drawn at random
}


def make_request(kind: str) -> Request:
    """A request on digits: whole classes, single samples, or samples with wrong labels."""
    train, test = purge.load("digits")
    if kind == "bad labels":
        labels, rows = train.labels.clone(), torch.tensor(KINDS[kind]["indices"])
        labels[rows] = torch.randint(10, (len(rows),), generator=torch.Generator().manual_seed(0))
        train = purge.Images(train.pixels, labels, mean=train.mean, std=train.std, names=train.names)
    forget, retain = purge.split(train, **KINDS[kind])
    epochs = BAD_LABELS if kind == "bad labels" else EPOCHS
    base, retrained = fitted(network(0), train, epochs=epochs), fitted(network(1), retain, seed=1)
    return Request(train, test, forget, retain, base, retrained, kind != "class", network, epochs)
