"""Work that the ranks of torch.distributed share: what must be the same on all of them, and is checked.

There is no wrapper around a model. Weights come from rank 0 once, each rank sends its rows of every batch
through the model, gradients are averaged as flat vectors, and every rank takes the same step.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

from torch import nn

from purge.core import ranks
from purge.core.errors import MethodError
from purge.data.samples import Samples
from purge.models.checkpoint import digest, tensors_of
from purge.models.forward import Rows


def begin(models: Iterable[nn.Module | None], *samples: Samples | None, settings: Any) -> None:
    """Give these models the weights of rank 0; refuse ranks that were given other data or settings."""
    if not ranks.several():
        return
    here = [model for model in models if model is not None]
    shapes = [[(name, tuple(t.shape), t.dtype) for name, t in tensors_of(m).items()] for m in here]
    ranks.check_same("the same kind of model on every rank", shapes)
    ranks.check_same("the same method, settings and seed on every rank", settings)
    fix = "pass all of the data on every rank: it is shared out among them here"
    ranks.check_same("the same data on every rank", [_labels(part) for part in samples], fix=fix)
    for model in here:
        ranks.from_first(tensors_of(model).values())


def end(model: nn.Module, rows: Rows) -> None:
    """Refuse a model that is not the same, bit for bit, on all ranks; count the rows of all of them."""
    if ranks.several():
        rows.graded, rows.plain = ranks.total(rows.graded, rows.plain)
        fix = "look for a layer that remembers what it sees, or run on one rank"
        ranks.check_same("the same weights on every rank at the end", digest(model), fix=fix)


def one_rank(what: str, *, instead: str = "") -> None:
    """Refuse what several ranks cannot share."""
    if ranks.several():
        raise MethodError(
            "a method that several ranks can share", f"{what}, which runs on one",
            f"run it without torchrun, or within `with purge.alone():`{instead}",
        )  # fmt: skip


def _labels(samples: Samples | None) -> str:
    return "" if samples is None else hashlib.sha256(samples.labels.numpy().tobytes()).hexdigest()
