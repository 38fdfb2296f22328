"""The work of a run in floating-point operations, as papers state it beside seconds.

FLOPs per row × (rows without gradients + 3 × rows with gradients): a backward pass costs about two forward
passes, one for the inputs of each layer and one for its weights. A multiply-add is two operations, and only
products and convolutions are counted. It is too low for a method that takes two gradients through one pass,
as `purge` does, and it leaves out arithmetic on weights alone.

A teacher, a copy and a fresh network count like the model itself; of an ensemble, each member counts.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from purge.core.errors import first_line
from purge.data.inputs import Inputs
from purge.models.forward import Rows, counting, evaluating, forward

BACKWARD = 3  # forward passes that a forward and a backward pass cost


def flop_per_row(model: nn.Module, inputs: Inputs) -> tuple[int | None, str]:
    """The operations that a forward pass takes for each row, or None and the reason.

    >>> flop_per_row(nn.Linear(7, 5), torch.zeros(2, 7))  # 2 · 7 · 5
    (70, '')
    """
    from torch.utils.flop_counter import FlopCounterMode  # takes a quarter of a second to import

    counter = FlopCounterMode(display=False)
    # Attention and recurrent layers by products that the counter knows, not by kernels of their own.
    fast = torch.backends.mha.get_fastpath_enabled()
    recurrent = any(isinstance(m, nn.RNNBase) for m in model.modules())
    fused: tuple[Any, ...] = (torch.backends.mkldnn, torch.backends.cudnn) if recurrent else ()
    before = [backend.enabled for backend in fused]
    try:
        torch.backends.mha.set_fastpath_enabled(False)
        for backend in fused:
            backend.enabled = False
        with evaluating(model), counting(model) as rows, counter:
            forward(model, inputs)
    except Exception as error:  # whatever a layer may raise when it meets the counter
        return None, f"the operations of this model cannot be counted: {first_line(error)}"
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for backend, enabled in zip(fused, before, strict=True):
            backend.enabled = enabled
    flop = counter.get_total_flops() // rows.total
    return (flop, "") if flop else (None, "the counter finds no product or convolution in this model")


def flop_of(rows: Rows, per_row: tuple[int | None, str]) -> dict[str, Any]:
    """The work of some rows for the record of a run: ``flop``, what it is the product of, why it is None."""
    each, why = per_row
    flop = None if each is None else each * (rows.plain + BACKWARD * rows.graded)
    counts = {"flop_per_row": each, "rows_with_gradients": rows.graded, "rows_without": rows.plain}
    return {"flop": flop, **counts, **({"flop_missing": why} if why else {})}
