"""Deadlines, compared with a day-by-day count and with python-dateutil, which pandas brings along."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone

import pytest
from dateutil.relativedelta import relativedelta
from hypothesis import given
from hypothesis import strategies as st

from purge.core.errors import DataError
from purge.ledger.intake import day, month_after, period
from purge.ledger.records import Request


@given(st.dates(max_value=date(9998, 12, 31)))
def test_a_month_is_that_of_dateutil(start):
    assert month_after(start) == start + relativedelta(months=1)


def test_the_date_is_that_of_the_place_where_it_was_written():
    east, west = timezone(timedelta(hours=14)), timezone(timedelta(hours=-11))
    assert day(datetime(2026, 3, 1, 0, 30, tzinfo=east), "received") == date(2026, 3, 1)
    assert day(datetime(2026, 2, 28, 23, 30, tzinfo=west), "received") == date(2026, 2, 28)
    assert day("2026-03-01T00:30:00+14:00", "received") == date(2026, 3, 1)
    assert day("2026-03-01 00:30", "received") == date(2026, 3, 1)


def test_tomorrow_may_have_come_elsewhere_but_no_later_day():
    today = datetime.now(UTC).date()
    period(today + timedelta(days=1), None)
    with pytest.raises(DataError, match="received by now"):
        period(today + timedelta(days=2), None)


def test_the_last_days_of_the_calendar():
    with pytest.raises(DataError):
        month_after(date(9999, 12, 15))


def test_days_left():
    request = Request(1, date(2026, 1, 31), date(2026, 2, 28), "x", "open", 1, ())
    assert [request.days_left(date(2026, 2, d)) for d in (27, 28)] == [1, 0]
    assert request.days_left(date(2026, 3, 1)) == -1
