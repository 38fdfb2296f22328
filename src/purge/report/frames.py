"""A report as a table of pandas, and in one line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from purge.core.errors import FileError
from purge.core.plugins import from_extra
from purge.report.tables import in_order, main_values, section_of, shown
from purge.verdict.numbers import Report, unit_of

if TYPE_CHECKING:
    from pandas import DataFrame

OTHERS = ("retrained", "original", "floor")
MOST = 4  # values in one line


def data_frame(rows: Sequence[Mapping[str, Any]], names: list[str] | None = None) -> DataFrame:
    """Rows as a DataFrame of pandas, which an extra brings."""
    return from_extra("pandas", "bench", "a DataFrame", FileError).DataFrame(rows, columns=names)


def as_frame(report: Report) -> DataFrame:
    """One row per value, in reading order, beside the same value of the other models."""
    rows = [
        {
            "name": name,
            "section": section_of(report, name),
            "unit": unit_of(report, name),
            **report["values"][name],
            **{part: (report[part].get(name) or {}).get("value") for part in OTHERS},
        }
        for name in in_order(report, report["values"])
    ]
    names = ["name", "section", "unit", "value", "low", "high", "n", "why", *OTHERS]
    numbers = dict.fromkeys(("value", "low", "high", *OTHERS), float)
    return data_frame(rows, names).astype({**numbers, "n": "Int64"})


def in_one_line(report: Report) -> str:
    """How much was forgotten, how many values there are, and the main ones."""
    values, forgotten = report["values"], report["info"].get("forget_samples")
    beside = [part for part in ("retrained", "original") if report[part]]
    main = [name for name in main_values(report) if name in values and values[name]["value"] is not None]
    parts = [] if forgotten is None else [f"{forgotten} samples forgotten"]
    parts.append(f"{len(values)} values" + (f" beside {' and '.join(beside)}" if beside else ""))
    parts += [f"{name} {shown(values[name]['value'], unit_of(report, name))}" for name in main[:MOST]]
    return f"Report({', '.join(parts)})"
