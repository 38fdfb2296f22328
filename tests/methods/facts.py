"""What a method must leave as it is in the caller's model."""

from __future__ import annotations

from purge.models.checkpoint import digest


def facts(model):
    """Weights, training flags, requires_grad, gradients, hooks and replaced forwards."""
    modules = list(model.modules())
    return (
        digest(model),
        [m.training for m in modules],
        [p.requires_grad for p in model.parameters()],
        [p.grad is None for p in model.parameters()],
        [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in modules],
        ["forward" in m.__dict__ for m in modules],
    )
