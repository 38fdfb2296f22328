"""purge cache."""

from __future__ import annotations

from typing import Annotated, cast

from typer import Argument

from purge.cli import options as opt
from purge.cli.printing import say, show
from purge.core.errors import PurgeError, did_you_mean

AGES = {"days": 86400, "hours": 3600, "minutes": 60}


def cache(
    action: Annotated[str, Argument(help="list or clear.")],
    kind: Annotated[
        str | None, Argument(help="To clear: decoded, index, shadows, models, data or all.")
    ] = None,
    json_: opt.Json = False,
    debug: opt.Debug = False,
) -> None:
    """List or remove what is kept between runs.

    The cache keeps decoded images and the shadow models of audits, also of data that was forgotten since:
    purge cache clear removes them. They are made again when they are needed.

    Downloaded data sets stay unless they are named: purge cache clear data, or all.
    """
    from purge.data.cache import KINDS, Kind, clear, entries, user_folder
    from purge.report.tables import listing

    if action not in ("list", "clear"):
        raise PurgeError("list or clear", repr(action), did_you_mean(action, ("list", "clear")))
    if kind is not None and action == "list":
        raise PurgeError("a kind after clear alone", f"list {kind}", "purge cache list")
    if kind not in (None, "all", *KINDS):
        raise PurgeError("something that is kept", repr(kind), did_you_mean(kind or "", ("all", *KINDS)))
    chosen: list[Kind] = ["decoded", "shadows"] if kind is None else [cast(Kind, kind)]
    found = entries() if action == "list" else clear([*KINDS] if kind == "all" else chosen)
    rows = [[e.kind, e.about, _size(e.bytes), _age(e.age_seconds), e.path] for e in found]
    total, folder = _size(sum(e.bytes for e in found)), user_folder()
    if action == "list":
        text = f"{total} in {folder}." if found else f"The cache, {folder}, is empty."
    else:
        text = f"{total} removed from {folder}."
        if kind is None and entries(["data"]):
            text += " Downloaded data sets stay: purge cache clear data removes them."
    table = listing(["kind", "about", "size", "age", "path"], rows)
    shown = {"folder": str(folder), "entries": [e._asdict() for e in found]}
    show(shown, table if found else text, json_)
    if found and not json_:
        say(text)


def _size(n: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if n < 1000 or unit == "GB":
            break
        n /= 1000
    return f"{n:.0f} {unit}" if unit == "bytes" else f"{n:.1f} {unit}"


def _age(seconds: float) -> str:
    """How long ago, in the largest unit that there are two of."""
    unit = next((name for name, size in AGES.items() if seconds >= 2 * size), None)
    return f"{seconds // AGES[unit]:.0f} {unit}" if unit else f"{seconds:.0f} seconds"
