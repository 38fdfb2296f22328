"""purge cache."""

from __future__ import annotations

from typing import Annotated, cast

from rich.filesize import decimal
from typer import Argument

from purge.cli import options as opt
from purge.cli.printing import say, show
from purge.core.errors import PurgeError, did_you_mean
from purge.data import CACHE_KINDS, CacheKind, cache_entries, clear_cache, user_cache
from purge.report import listing


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
    _check(action, kind)
    folder = user_cache()
    if action == "list":
        entries = cache_entries()
    else:
        several: dict[str | None, list[CacheKind]] = {None: ["decoded", "shadows"], "all": [*CACHE_KINDS]}
        entries = clear_cache(several.get(kind) or [cast(CacheKind, kind)])
    rows = [[e.kind, e.about, decimal(e.bytes), _age(e.age_seconds), e.path] for e in entries]
    total = decimal(sum(entry.bytes for entry in entries))
    text = f"{total} in {folder}." if action == "list" else f"{total} removed from {folder}."
    if action == "list" and not entries:
        text = f"The cache, {folder}, is empty."
    elif action == "clear" and kind is None and cache_entries(["data"]):
        text += " Downloaded data sets stay: purge cache clear data removes them."
    table = listing(["kind", "about", "size", "age", "path"], rows)
    shown = {"folder": str(folder), "entries": [entry._asdict() for entry in entries]}
    show(shown, table if entries else text, json_)
    if entries and not json_:
        say(text)


def _check(action: str, kind: str | None) -> None:
    if action not in ("list", "clear"):
        raise PurgeError("list or clear", repr(action), did_you_mean(action, ("list", "clear")))
    if kind is not None and action == "list":
        raise PurgeError("a kind after clear alone", f"list {kind}", "purge cache list")
    if kind is not None and kind not in (kinds := ("all", *CACHE_KINDS)):
        raise PurgeError("something that is kept", repr(kind), did_you_mean(kind, kinds))


def _age(seconds: float) -> str:
    """How long ago, in the largest unit that there are two of."""
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size:.0f} {unit}"
    return f"{seconds:.0f} seconds"
