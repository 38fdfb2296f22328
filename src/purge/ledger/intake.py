"""What comes in: checks of a request, its dates, lists of ids, and a folder of request files."""

from __future__ import annotations

import calendar
import csv
import hashlib
import io
import os
import re
import time
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from numbers import Integral
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any

from purge.core.errors import DataError, FileError, PurgeError, brief, did_you_mean
from purge.core.files import file_errors, read_yaml
from purge.ledger.chain import Kind

if TYPE_CHECKING:
    from purge.ledger.ledger import Ledger

LONGEST = 1000  # characters of a basis, note or reason
FIELDS = ("ids", "classes", "received", "due", "basis", "note", "label")  # of a request that is added
SURROGATE = re.compile("[\ud800-\udfff]")  # half of a character, which no database can keep
ENDINGS = (".json", ".yaml", ".yml")
SETTLE = 2.0  # seconds: a file that changed since then may still be written
LARGEST = 64 << 20  # bytes
MARKS = ",;\t"  # between the columns of a table
# What heads a column of ids, and hardly is one.
HEADER = re.compile(
    r"(?i:ids?|(first |last |full |user)?name|e-?mail( address)?|(account|customer|person|subject|user)s?)"
    r"|(?i:\w+[ _-](id|number|name|e-?mail))|[A-Za-z]+[a-z]I[Dd]"
)


def checked_request(request: Mapping[str, Any], hashes: Callable[[Any], list[str]]) -> dict[str, Any]:
    """What the chain keeps of a new request, but for its number; ``hashes`` makes keyed hashes of ids."""
    for name in request:
        if name not in FIELDS:
            raise DataError("a field of a request", brief(name), did_you_mean(str(name), FIELDS))
    ids, classes = request.get("ids"), request.get("classes")
    if (ids is None) == (classes is None):
        got = "neither" if ids is None else "both"
        raise DataError("ids or classes of a request", got, "pass one of the two")
    if isinstance(classes, (str, bytes)) or not isinstance(classes, (Iterable, NoneType)):
        raise DataError("a list of classes", brief(classes), "pass a list")
    texts = id_texts(ids) if ids is not None else []
    keyed, alike = hashes(texts), hashes([folded(one) for one in texts])
    subjects = sorted(set(keyed))  # their order tells nothing
    names = [text(str(one) if type(one) is int else one, "a class") for one in classes or ()]
    if not subjects and not names:
        raise DataError("at least one id or class in a request", "none", "leave the request out")
    received, due = period(request.get("received"), request.get("due"))
    kept: dict[str, Any] = {"received": received.isoformat(), "due": due.isoformat(), "subjects": subjects}
    kept |= {
        "classes": list(dict.fromkeys(names)),
        "basis": text(request.get("basis", "erasure request"), "basis"),
    }
    if other := {one: like for one, like in zip(keyed, alike, strict=True) if one != like}:
        kept["alike"] = other
    if request.get("note") is not None:
        kept["note"] = text(request["note"], "note")
    if request.get("label") is not None:
        if not subjects:
            fix = "name whose label was wrong, or leave label out"
            raise DataError("ids of the rows whose label was wrong", "a class", fix)
        kept["label"] = text(request["label"], "label")
    return kept


def text(value: Any, name: str) -> str:
    """Text that any database can keep."""
    good = isinstance(value, str) and value.strip() and len(value) <= LONGEST and "\0" not in value
    if not good or SURROGATE.search(value):
        raise DataError(f"text as {name}, of at most {LONGEST} characters", brief(value), "write a sentence")
    return str(value)


# -- ids: no message shows one ----------------------------------------------------------------


def id_texts(ids: Any, *, blank: bool = False) -> list[str]:
    """Ids as text, where ``blank`` allows for rows that are nobody's. No message here shows an id."""
    if isinstance(ids, (str, bytes)) or not isinstance(ids, Iterable):
        raise DataError("a list of ids", f"one {type(ids).__name__}", "pass a list")
    texts = []
    for position, one in enumerate(ids):
        one = str(one) if isinstance(one, Integral) and not isinstance(one, bool) else one  # NumPy's, too
        if not isinstance(one, str) or not (blank or one.strip()) or SURROGATE.search(one):
            got = f"a {type(one).__name__} that is empty, unreadable or no text at position {position}"
            raise DataError("ids as text", got, "write each as text, as the data has it, or leave it out")
        texts.append(one)
    return texts


def folded(one: str) -> str:
    """An id as people may mean it: without spaces, upper case and the many forms of the same characters.

    >>> folded("Ａda @x.org") == folded("ada@X.org") == "ada@x.org"
    True
    """
    plain, before = one, ""
    while plain != before:  # a space that goes may let two characters become one
        before, plain = plain, "".join(unicodedata.normalize("NFKC", plain).casefold().split())
    return plain or one


def ids_from(raw: bytes, place: str) -> list[str]:
    """The ids in a file, one a line. What is wrong with it is said without showing any."""
    ids = [line.strip() for line in _text(raw, place).split("\n") if line.strip()]
    fix = "write one id a line, or name the column of a table: --id-column NAME"
    if marked := sum(any(mark in one for mark in MARKS) for one in ids):
        raise DataError(f"one id a line in {place}", f"{marked} with a comma, semicolon or tab", fix)
    if len(ids) > 1 and HEADER.fullmatch(ids[0]):
        raise DataError(f"nothing but ids in {place}", "a first line that heads a column", fix)
    return ids


def people_from(raw: bytes, place: str, columns: Mapping[str, str]) -> list[dict[str, str]]:
    """The rows of a table of people: what stands in the columns that ``columns`` names.

    The first line holds the names of columns. No message shows anything of a row, nor of that line, which may
    be a row.
    """
    lines = io.StringIO(_text(raw, place), newline="")
    delimiter = max(MARKS, key=lines.readline().count)
    lines.seek(0)
    try:
        rows = [[cell.strip() for cell in row] for row in csv.reader(lines, delimiter=delimiter, strict=True)]
    except csv.Error:
        raise DataError(f"a table in {place}", "quotation marks that do not end", "mend the file") from None
    for column in columns.values():
        if rows[0].count(column) != 1:
            fix = "name a column of the first line"
            raise DataError(f"one column {column!r} in {place}", f"{rows[0].count(column)}", fix)
    at = {name: rows[0].index(column) for name, column in columns.items()}
    people = []
    for i, row in enumerate(rows[1:], 2):
        if not any(row):
            continue
        person = {name: row[c] if c < len(row) else "" for name, c in at.items()}
        for name, column in columns.items():
            if not person[name]:
                raise DataError(
                    f"something in column {column!r} of row {i}", "nothing", "fill it in, or leave it out"
                )
        if "received" in person:
            try:
                person["received"] = day(person["received"], "received").isoformat()
            except DataError:  # which quotes it
                what = f"a date as 2026-11-01 in column {columns['received']!r} of row {i}"
                raise DataError(what, "something else", "write it so") from None
        people.append(person)
    if not people:
        raise DataError(f"people in {place}", "none", "put in a row for each")
    return people


def _text(raw: bytes, place: str) -> str:
    """The text of a list of people, which is not empty."""
    try:
        text, got = raw.decode("utf-8-sig"), "none"
    except ValueError:
        text, got = "", "something else"
    if not text.strip():
        raise DataError(f"ids in {place}", got, "write one id a line, as UTF-8")
    return text


def requests_of(people: Iterable[Mapping[str, str]], rest: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One request for each id, the earliest if there are several; ``rest``: what is the same for all."""
    first: dict[str, dict[str, Any]] = {}
    for person in sorted(people, key=lambda one: one.get("received", "")):
        row = {name: value for name, value in person.items() if name != "id"}
        first.setdefault(person["id"], {**rest, **row, "ids": [person["id"]]})
    return list(first.values())


# -- dates: days without a time, so that no time zone can move one ----------------------------


def day(value: Any, name: str) -> date:
    """A date from a date or from text in the form of ISO 8601; of a time, the date where it was written.

    >>> day("2026-11-01", "received"), day("2026-11-01T23:30:00-08:00", "received")
    (datetime.date(2026, 11, 1), datetime.date(2026, 11, 1))
    """
    try:
        text = value.isoformat() if isinstance(value, date) else value  # a datetime is a date, too
        return datetime.fromisoformat(text).date()
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


# -- a folder into which request files are dropped --------------------------------------------


@dataclass(frozen=True)
class Taken:
    """What a folder held."""

    requests: list[int]  # that were added
    known: int  # files that had been taken in before
    refused: dict[str, str]  # file → why; it stays where it is


def take_in(
    ledger: Ledger, folder: str | os.PathLike[str], *, keep: bool = False, settle: float = SETTLE
) -> Taken:
    """Add the requests in the files of a folder, once each, and remove these files.

    A file is YAML or JSON with the keys ``ids`` or ``classes``, ``received``, and maybe ``due``, ``basis``
    and ``note``. It holds ids: unless ``keep`` is true it is removed once the ledger has it. Write it under
    another name and rename it, or it may be read half written; one that changed in the last ``settle``
    seconds waits.
    """
    from purge.ledger.journal import record

    place = Path(folder)
    if not place.is_dir():
        raise FileError(f"a folder at {place}", "none", "make it, or check the path")
    requests: list[int] = []
    refused: dict[str, str] = {}
    known, again = {entry.payload["file"] for entry in ledger.entries(Kind.TAKEN)}, 0
    for path in sorted(place.iterdir()):
        if path.suffix.lower() not in ENDINGS or path.name.startswith(".") or not path.is_file():
            continue
        if path.is_symlink() or time.time() - path.stat().st_mtime < settle:
            continue
        try:
            content = _read(path)
            # Its name and content, keyed: nobody can try out what was in it.
            mark = ledger.hashes([f"{path.name}:{hashlib.sha256(path.read_bytes()).hexdigest()}"])[0]
            if mark in known:
                again += 1
            else:
                with ledger.together():
                    added = ledger.add(**content)
                    record(ledger, Kind.TAKEN, {"file": mark, "requests": [added.number]})
                known.add(mark)
                requests.append(added.number)
        except PurgeError as error:
            refused[path.name] = str(error)
            continue
        if not keep:
            with file_errors(path):
                path.unlink()
    return Taken(requests, again, refused)


def _read(path: Path) -> dict[str, Any]:
    """The arguments of ``Ledger.add`` in a file; what is wrong is said without quoting it: it holds ids."""
    fix = "write ids or classes, received, and maybe due, basis and note"
    if path.stat().st_size > LARGEST:
        got = f"more than {LARGEST >> 20} MB"
    else:
        try:
            content = read_yaml(path)  # JSON is YAML
            if {"received"} <= content.keys() <= set(FIELDS):
                return content
            got = "other keys, or none for received"
        except PurgeError:
            got = "no keys and values of YAML or JSON"
    raise FileError("a request in the file", got, fix)
