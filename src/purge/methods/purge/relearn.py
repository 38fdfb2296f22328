"""Where would a forgotten sample go? Ask a network that has to learn the rest again.

A retrained model does not answer with the second choice of the old one: it grew without the forgotten
class. So the weights of a copy are mixed with fresh ones, which blurs what it knew, and the copy is trained
on retain samples for a few hundred steps: it learns them again much faster than an untrained network would,
and of the forgotten class little is left. The mean of its logits and the old model's, the forgotten classes
left out, is the target: two opinions that are wrong in different ways come nearer to a retrained model than
either.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from purge.core.errors import DataError
from purge.core.progress import progress_line
from purge.data.samples import Samples
from purge.engine.cuda_graph import Scalars
from purge.engine.projection import Descent, Weights
from purge.engine.run import Run
from purge.models.checks import check_same_shapes
from purge.models.copies import frozen_copy
from purge.models.forward import logits_of

BATCH = 512
LR, MOMENTUM, WEIGHT_DECAY = 0.2, 0.9, 5e-4  # the rate is that of a full batch


def relearned(teacher: nn.Module, retain: Samples, run: Run, *, share: float, steps: int) -> nn.Module:
    """A copy of ``teacher`` with a ``share`` of fresh weights in each of its own, trained on ``retain``."""
    student = frozen_copy(teacher).requires_grad_(True)
    fresh = run.fresh(teacher)
    check_same_shapes(teacher, fresh)
    if len(retain) < 2:
        fix = "pass more, or choose another objective"
        raise DataError("at least 2 retained samples to relearn with", "1", fix)
    with torch.no_grad():
        for own, drawn in zip(student.parameters(), fresh.parameters(), strict=True):
            own.lerp_(drawn.to(own), share)
    for layer in student.modules():
        layer.training = isinstance(layer, _BatchNorm)
    size = min(BATCH, len(retain))
    top = LR * size / BATCH
    weights = Weights(list(student.parameters()))
    descent = Descent(
        "sgd", weights.read(), lr=top, momentum=MOMENTUM, nesterov=True, weight_decay=WEIGHT_DECAY
    )

    def step_of(x: Tensor, y: Tensor) -> Scalars:
        loss = F.cross_entropy(logits_of(student(x)).float(), y)
        g, theta = weights.grad(loss), weights.read()
        weights.store(theta - descent.displacement(theta, g))
        return {"loss": loss}

    one_step = run.recorded(step_of)
    batches = retain.stream(run.order(retain, steps=steps, batch_size=size))
    with progress_line("relearn", steps, run.progress) as advance:
        for i, (x, y) in enumerate(batches):
            descent.rate.fill_(top * min(1.0, 4 * (i + 1) / steps, 4 / 3 * (1 - i / steps)))
            one_step(x, y)
            advance(1, "")
    return student.eval().requires_grad_(False)
