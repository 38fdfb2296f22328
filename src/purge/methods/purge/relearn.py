"""A copy of the model that relearns the retained data: a second opinion on where forgotten samples go.

A retrained model does not answer with the second choice of the old one, since it grew without the forgotten
class. So the weights of a copy are mixed with fresh ones, which blurs what it knew, and the copy is trained
on retained samples for a few hundred steps. It relearns them much faster than an untrained network would,
and little is left of the forgotten class. The target is the mean of its logits and the old model's, without
the forgotten classes: the two err in different ways, and their mean is nearer to a retrained model than
either.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from purge.core.errors import DataError
from purge.core.progress import progress_line
from purge.data.inputs import Inputs
from purge.data.samples import Samples
from purge.engine.cuda_graph import Scalars
from purge.engine.optimizer import FlatOptimizer, FlatParameters
from purge.engine.run import Run
from purge.models.checks import check_same_shapes, parameters_to_train
from purge.models.copies import frozen_copy
from purge.models.forward import forward

BATCH = 512
LR, MOMENTUM, WEIGHT_DECAY = 0.2, 0.9, 5e-4  # the rate is that of a full batch


def relearned(teacher: nn.Module, retain: Samples, run: Run, *, share: float, steps: int) -> nn.Module:
    """A copy of ``teacher`` with a ``share`` of fresh weights mixed into its own, trained on ``retain``.

    What takes no gradient in the model of the run stays as it is.
    """
    student = run.thawed(frozen_copy(teacher))
    fresh = run.fresh(student)
    check_same_shapes(teacher, fresh)
    if len(retain) < 2:
        fix = "pass more, or choose another target"
        raise DataError("at least 2 retained samples to relearn with", "1", fix)
    with torch.no_grad():
        for own, drawn in zip(student.parameters(), fresh.parameters(), strict=True):
            if own.requires_grad:
                own.lerp_(drawn.to(own), share)
    for layer in student.modules():
        layer.training = isinstance(layer, _BatchNorm)
    size = min(BATCH, len(retain))
    top = LR * size / BATCH
    params = FlatParameters(parameters_to_train(student))
    optimizer = FlatOptimizer(
        "sgd", params.read(), lr=top, momentum=MOMENTUM, nesterov=True, weight_decay=WEIGHT_DECAY
    )

    def step(x: Inputs, y: Tensor) -> Scalars:
        loss = F.cross_entropy(forward(student, x).float(), y)
        g, theta = params.grad(loss), params.read()
        params.store(theta - optimizer.displacement(theta, g))
        return {"loss": loss}

    one_step = run.recorded(step)
    batches = retain.stream(run.batch_indices(retain, steps=steps, batch_size=size))
    with progress_line("relearn", steps, run.progress) as advance:
        for i, (x, y) in enumerate(batches):
            optimizer.rate.fill_(top * min(1.0, 4 * (i + 1) / steps, 4 / 3 * (1 - i / steps)))
            one_step(x, y)
            advance(1, "")
    return student.eval().requires_grad_(False)
