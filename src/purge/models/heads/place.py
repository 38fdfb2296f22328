"""Heads in models: find the linear head, compute what it is fed, put another in its place."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from purge.core.errors import DataError, ModelError
from purge.data.augmented import plain
from purge.data.samples import Data, Samples, batches, few
from purge.models.checks import check_classifier, training_data
from purge.models.copies import copied
from purge.models.forward import EVAL_BATCH, evaluating, forward
from purge.models.heads.head import Head, HeadSettings, Kind, fitted
from purge.models.hooks import capture_features
from purge.models.inspect import anatomy, device_of

FIX = "end the model in a plain Linear layer, or choose another method"


class Placed(NamedTuple):
    """A copy of a model with a new head, and the head, which learns and forgets rows."""

    model: nn.Module
    head: Head


def linear_head(model: nn.Module, samples: Samples) -> tuple[str, nn.Linear]:
    """The linear layer that makes the logits, and its name; models without one are refused."""
    x = few(samples)
    name = "" if isinstance(model, nn.Linear) else anatomy(model, x).head
    layer = None if name is None else model.get_submodule(name)
    if name is None or not isinstance(layer, nn.Linear):
        got = "none" if layer is None else f"{name!r}, a {type(layer).__name__}"
        raise ModelError("a model whose logits come from a Linear layer", got, FIX)
    _check_own(model, name, layer)
    with evaluating(model), capture_features(model, layer) as seen:
        z = forward(model, x)
    fed, wrong = seen[0], ""
    if fed.shape != (len(z), layer.in_features):
        wrong = f"{name!r}, which is fed {tuple(fed.shape)}"
    elif z.shape[1] != layer.out_features:
        wrong = f"{layer.out_features} from {name!r} for {z.shape[1]} classes"
    elif not torch.allclose(F.linear(fed, layer.weight, layer.bias), z, 1e-4):
        wrong = f"others, made of those of {name!r}"
    if wrong:
        raise ModelError("one logit for each class, as a Linear head puts them out", wrong, FIX)
    return name, layer


def _check_own(model: nn.Module, name: str, layer: nn.Linear) -> None:
    """Refuse a head that computes its weights, or shares them with another layer."""
    own = {*layer.parameters()}
    weights = model.named_parameters(remove_duplicate=False)
    shared = [n for n, p in weights if p in own and n.rpartition(".")[0] != name]
    computed = is_parametrized(layer) or "weight" not in layer._parameters
    if computed or shared:
        got = f"{name!r}, which " + ("computes them" if computed else f"shares them with {shared[0]}")
        raise ModelError("a Linear head with weights of its own", got, FIX)


def features_of(
    model: nn.Module, layer: nn.Linear, samples: Samples, batch_size: int = EVAL_BATCH
) -> tuple[Tensor, Tensor]:
    """What a head is fed for each sample, (N, D) on the CPU, and the labels (N,)."""
    samples = plain(samples)
    if not samples.steady:
        got, fix = "items that change whenever they are read", "pass the data without random transforms"
        raise DataError("data with fixed features", got, fix)
    rows = []
    with evaluating(model), capture_features(model, layer) as seen:
        for x, _ in batches(samples, batch_size):
            forward(model, x)
            rows.append(seen.pop().cpu())
    return torch.cat(rows), samples.labels


def features(model: nn.Module, dataset: Data) -> tuple[Tensor, Tensor]:
    """The features (N, D) that a model's linear head is fed, in evaluation mode, and the labels (N,).

    >>> net = nn.Sequential(nn.Linear(2, 5), nn.ReLU(), nn.Linear(5, 3))
    >>> features(net, (torch.zeros(4, 2), torch.tensor([0, 1, 2, 0])))[0].shape
    torch.Size([4, 5])
    """
    own = copied(check_classifier(model), device_of(model))
    samples = training_data(own, dataset, device_of(own))
    return features_of(own, linear_head(own, samples)[1], samples)


def of(
    model: nn.Module,
    dataset: Data,
    *,
    kind: Kind = "ridge",
    lam: float = 1.0,
) -> Placed:
    """A copy of a model whose linear head was fitted to a data set, and the head; yours is not touched.

    The features are what the model's own head is fed, in evaluation mode; nothing else in the model changes.
    The other arguments are those of :func:`fit`. The model holds the head in its own precision, the returned
    head is in float64.
    """
    own = copied(check_classifier(model), device_of(model))
    samples = training_data(own, dataset, device_of(own))
    _, layer = linear_head(own, samples)
    settings = HeadSettings(kind, lam, layer.bias is not None)
    x, y = features_of(own, layer, samples)
    head = fitted(x, y, settings, classes=layer.out_features)
    head.copy_to(layer)
    return Placed(own, head)
