"""Where would a forgotten sample go? Ask a network whose late layers never saw it.

A retrained model does not answer with the second choice of the old one: its late layers grew without the
forgotten class. So the late layers of a copy are drawn anew and trained for a few dozen steps on retain
samples, over early layers that stay as they are, since those know edges and textures rather than classes.
The mean of its logits and the old model's, the forgotten classes left out, is the target: two opinions
that are wrong in different ways come nearer to a retrained model than either.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from purge.data import Samples
from purge.grads import Descent, Weights
from purge.graphs import Scalars
from purge.models import logits_of
from purge.runtime import Run, evaluating

LR, MOMENTUM, WEIGHT_DECAY = 0.1, 0.9, 5e-4  # as models are trained


def relearned(
    teacher: nn.Module, retain: Samples, run: Run, *, share: float, steps: int, batch_size: int
) -> nn.Module:
    """A copy of ``teacher``; its last layers, a ``share`` of all, were drawn anew and trained on ``retain``.

    A model without layers that can be drawn anew is returned as it is.
    """
    student = copy.deepcopy(teacher).eval().requires_grad_(False)
    late = late_layers(student, retain, share)
    if not late:
        return teacher
    for layer in late:
        layer.reset_parameters()  # type: ignore[operator]
        layer.requires_grad_(True)
        layer.train(isinstance(layer, _BatchNorm))
    weights = Weights([p for layer in late for p in layer.parameters(recurse=False)])
    descent = Descent(
        "sgd", weights.read(), lr=LR, momentum=MOMENTUM, nesterov=True, weight_decay=WEIGHT_DECAY
    )

    def step_of(x: Tensor, y: Tensor) -> Scalars:
        loss = F.cross_entropy(logits_of(student(x)).float(), y)
        g, theta = weights.grad(loss), weights.read()
        weights.store(theta - descent.displacement(theta, g))
        return {"loss": loss}

    one_step = run.recorded(step_of)
    order = run.order(retain, steps=steps, batch_size=batch_size)
    for i, (x, y) in enumerate(retain.stream(order)):
        descent.rate.fill_(LR * min(1.0, 4 * (i + 1) / steps, 4 / 3 * (1 - i / steps)))
        one_step(x, y)
    return student.eval()


def late_layers(model: nn.Module, samples: Samples, share: float) -> list[nn.Module]:
    """The layers with weights of their own that run last: a share of them, the head at least."""
    ran: dict[nn.Module, None] = {}

    def remember(layer: nn.Module, _args: Any, _output: Any) -> None:
        ran[layer] = None

    layers = [
        m
        for m in model.modules()
        if any(True for _ in m.parameters(recurse=False)) and callable(getattr(m, "reset_parameters", None))
    ]
    handles = [m.register_forward_hook(remember) for m in layers]
    try:
        with evaluating(model):
            model(samples.take(torch.arange(min(2, len(samples))))[0])
    finally:
        for handle in handles:
            handle.remove()
    return list(ran)[len(ran) - math.ceil(share * len(ran)) :]
