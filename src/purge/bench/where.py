"""Where the jobs of a bench run: in processes of this machine, or on a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from torch import nn

from purge.bench.pool import Crew, processes
from purge.bench.schema import Resources
from purge.bench.store import Place
from purge.core.errors import DeviceError
from purge.engine.precision import choose_device

PROCESSES, RAY = "processes", "ray"

Form = Callable[[str, int | None, int, Resources, Place], AbstractContextManager[Crew]]


@contextmanager
def _here(address: str, n: int | None, items: int, resources: Resources, place: Place) -> Iterator[Crew]:
    choose_device(place.device, nn.Identity())
    with processes(n or 1, resources.cpus) as crew:
        yield crew


@contextmanager
def _on_ray(address: str, n: int | None, items: int, resources: Resources, place: Place) -> Iterator[Crew]:
    from purge.bench.cluster import ray_workers  # the extra may be missing

    with ray_workers(address, n, items, resources, place) as crew:
        yield crew


FORMS: dict[str, Form] = {PROCESSES: _here, RAY: _on_ray}


def crew_on(
    on: str, n: int | None, items: int, resources: Resources, place: Place
) -> AbstractContextManager[Crew]:
    """``n`` workers for so many items, by default as many as there is room for.

    ``on``: processes; ray, a cluster of this machine alone that is started and stopped; ray:ADDRESS or
    ray://HOST:PORT, a cluster that is there.
    """
    kind, colon, address = on.partition(":")
    if kind not in FORMS or (colon and (kind != RAY or not address)):
        fix = "write ray, ray:HOST:PORT or ray://HOST:PORT"
        raise DeviceError("a place to run jobs on", repr(on), fix)
    return FORMS[kind](on if address.startswith("//") else address, n, items, resources, place)
