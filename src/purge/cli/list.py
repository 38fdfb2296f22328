"""purge list."""

from __future__ import annotations

from typing import Annotated, Any

from typer import Argument

import purge.runs
from purge.cli import options as opt
from purge.cli.printing import show
from purge.core.errors import DataError, MethodError, PurgeError, did_you_mean
from purge.core.settings import flat_fields, replace
from purge.data.catalog import DATASETS
from purge.methods.registry import all_methods, resolve_method
from purge.metrics import all_metrics, find_metric
from purge.report.tables import listing

SHELVES = ("methods", "metrics", "datasets", "models", "recipe")


def list_(
    shelf: Annotated[str, Argument(help="methods, metrics, datasets, models or recipe.")],
    name: Annotated[str | None, Argument(help="A method, a metric, or after recipe a data set.")] = None,
    json_: opt.Json = False,
    debug: opt.Debug = False,
) -> None:
    """List methods, metrics, data sets, models, or the training recipe.

    For example: purge list methods, or for the settings of one: purge list methods purge

    What a metric measures and what it cannot tell: purge list metrics mia
    """
    if shelf not in SHELVES:
        raise PurgeError("something to list", repr(shelf), did_you_mean(shelf, SHELVES))
    if name is not None and shelf in ("datasets", "models"):
        raise MethodError(f"no name after {shelf!r}", repr(name), f"purge list {shelf}")
    if shelf == "metrics" and name:
        columns, rows = _metric(name)
    else:
        columns, rows = _settings(shelf, name) if name or shelf == "recipe" else _shelf(shelf)
    show([dict(zip(columns, row, strict=True)) for row in rows], listing(columns, rows), json_)


def _shelf(shelf: str) -> tuple[list[str], list[list[str]]]:
    """What there is, without importing torch."""
    if shelf == "methods":
        return ["method", "about", "cite"], [[n, e.about, e.cite] for n, e in all_methods().items()]
    if shelf == "metrics":
        rows = [[m.name, m.symbol, m.about, ", ".join(sorted(m.needs))] for m in all_metrics().values()]
        return ["metric", "symbol", "about", "needs"], rows
    entries = purge.list_datasets() if shelf == "datasets" else purge.list_models()
    return [shelf[:-1], "about"], [[name, about] for name, about in entries.items()]


def _metric(name: str) -> tuple[list[str], list[list[str]]]:
    """All that a metric says about itself, without importing torch."""
    metric = find_metric(name)
    about = metric.describe() | {
        "values": ", ".join(metric.names()),
        "needs": ", ".join(sorted(metric.needs)),
    }
    shown = ("symbol", "about", "values", "unit", "section", "ideal", "cost", "needs")
    return ["metric", name], [*([key, str(about[key])] for key in shown), ["what it tells", metric.explain()]]


def _settings(shelf: str, name: str | None) -> tuple[list[str], list[list[str]]]:
    """The settings of a method, or of the recipe for a data set."""
    if shelf == "methods":
        config: Any = resolve_method(name or "", {})
    else:
        if name is not None and name not in DATASETS:
            raise DataError("the name of a data set", repr(name), did_you_mean(name, DATASETS))
        config = replace(purge.runs.Recipe(), dict(DATASETS[name].recipe) if name else {})
    rows = [[f.name, str(value), f.metadata["help"]] for f, value in flat_fields(config)]
    return ["setting", "value", "meaning"], rows
