"""Where data lives: on the device if it fits, otherwise in host memory, copied ahead of use."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeAlias

import torch
from torch import Tensor

from purge.data.inputs import Inputs, apply, leaves

logger = logging.getLogger("purge")

DEVICE_FRACTION = 0.5  # data up to this share of the free device memory is held on the device
AHEAD = 3  # batches gathered and copied before they are asked for

Order: TypeAlias = "Tensor | Sequence[Tensor]"  # the index tensor of each batch


@cache
def say_once(message: str) -> None:
    """Log a warning once in the life of the process."""
    logger.warning(message)


def fits(size: int, device: torch.device, what: str) -> bool:
    """Do ``size`` bytes fit into a share of the free memory of the device? If not, it is said once."""
    if device.type != "cuda" or size <= DEVICE_FRACTION * torch.cuda.mem_get_info(device)[0]:
        return True
    say_once(
        f"The {what} ({size / 1e9:.1f} GB) do not fit into {DEVICE_FRACTION:.0%} of the free memory of "
        f"{device}: they stay in host memory and are copied ahead of use."
    )
    return False


def copied_ahead(gather: Callable[[Tensor], Inputs], order: Order, device: torch.device) -> Iterator[Inputs]:
    """``gather(index)`` of each batch, on the device.

    A thread gathers into pinned memory and copies on a stream of its own, a few batches ahead.
    """
    copying = torch.cuda.Stream(device)

    def fetch(index: Tensor) -> tuple[Inputs, torch.cuda.Event]:
        with torch.cuda.stream(copying):
            there = apply(lambda t: t.pin_memory().to(device, non_blocking=True), gather(index))
            return there, copying.record_event()

    parts = iter(order.cpu() if isinstance(order, Tensor) else [index.cpu() for index in order])
    with ThreadPoolExecutor(1) as thread:
        waiting = deque(thread.submit(fetch, index) for _, index in zip(range(AHEAD), parts, strict=False))
        try:
            while waiting:
                there, copied = waiting.popleft().result()
                waiting.extend(thread.submit(fetch, index) for _, index in zip(range(1), parts, strict=False))
                torch.cuda.current_stream(device).wait_event(copied)
                for t in leaves(there):
                    t.record_stream(torch.cuda.current_stream(device))
                yield there
        finally:
            for one in waiting:
                one.cancel()
