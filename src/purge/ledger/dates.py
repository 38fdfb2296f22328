"""Deadlines: days without a time, so that no time zone can move one."""

from __future__ import annotations

import calendar
from datetime import UTC, date, datetime, timedelta
from typing import Any

from purge.core.errors import DataError, brief


def day(value: Any, name: str) -> date:
    """A date from a date or from text in the form of ISO 8601; of a time, the date where it was written.

    >>> day("2026-11-01", "received"), day("2026-11-01T23:30:00-08:00", "received")
    (datetime.date(2026, 11, 1), datetime.date(2026, 11, 1))
    """
    if isinstance(value, datetime):
        return value.date()
    if isinstance(value, date):
        return value
    try:
        return datetime.fromisoformat(value).date()
    except (TypeError, ValueError):
        what = f"a date in the form of ISO 8601 as {name}"
        raise DataError(what, brief(value), "write 2026-11-01, say") from None


def month_after(start: date) -> date:
    """The same day of the next month, or its last day if it is shorter.

    >>> str(month_after(date(2028, 1, 31))), str(month_after(date(2026, 12, 5)))
    ('2028-02-29', '2027-01-05')
    """
    year, month = start.year + start.month // 12, start.month % 12 + 1
    try:
        return date(year, month, min(start.day, calendar.monthrange(year, month)[1]))
    except (ValueError, IndexError):
        raise DataError("a year before 9999", str(start), "check the date") from None


def period(received: Any, due: Any) -> tuple[date, date]:
    """When a request came and when it is due: a month later, if nothing else is said."""
    came = day(received, "received")
    tomorrow = datetime.now(UTC).date() + timedelta(days=1)  # it may be tomorrow already, further east
    if came > tomorrow:
        raise DataError("a request that was received by now", f"received {came}", "check the date")
    end = month_after(came) if due is None else day(due, "due")
    if end < came:
        raise DataError(f"a request of {came} to be due later", f"due {end}", "check both dates")
    return came, end


def now() -> str:
    """The time in UTC, as entries carry it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
