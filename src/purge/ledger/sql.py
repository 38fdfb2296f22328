"""The tables of a ledger, in SQLite and PostgreSQL alike: their columns, their triggers, and their check.

``purge_entries`` is the chain, which triggers keep from being changed. The other tables follow from it; they
are there to be searched, and `verify` derives them anew and compares. ``purge_head`` says how long the chain
is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

from sqlalchemy import (
    Column,
    Connection,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    bindparam,
    func,
    inspect,
    select,
    text,
)

from purge.ledger.chain import TABLES, Change, Link, Walk
from purge.ledger.records import ChainHead, Verification

VERSION = 2  # of the tables

metadata = MetaData()


def _table(name: str, *columns: Any) -> Table:
    return Table(f"purge_{name}", metadata, *columns)


def _number(name: str = "number") -> Column[int]:
    return Column(name, Integer, primary_key=True, autoincrement=False)


def _text(name: str, *, empty: bool = False) -> Column[str]:
    return Column(name, Text, nullable=empty)


head = _table(
    "head", _number("one"), Column("version", Integer, nullable=False),
    Column("entries", Integer, nullable=False), _text("hash"), _text("signer", empty=True),
)  # fmt: skip
entries = _table(
    "entries", _number("seq"), _text("at"), _text("kind"), _text("payload"), _text("previous"), _text("hash"),
    _text("signature", empty=True),
)  # fmt: skip
requests = _table(
    "requests", _number(), _text("added"), _text("received"), _text("due"), _text("basis"), _text("state"),
    Column("subjects", Integer, nullable=False), _text("classes"), _text("hold", empty=True),
    _text("note", empty=True), _text("why", empty=True), Column("batch", Integer), _text("done", empty=True),
)  # fmt: skip
subjects = _table("subjects", Column("hash", Text, primary_key=True), _number("request"))
batches = _table(
    "batches", _number(), _text("requests"), _text("state"), _text("started"), _text("ended", empty=True),
    _text("why", empty=True), _text("version", empty=True), _text("about"),
)  # fmt: skip
versions = _table(
    "versions", _number(), _text("folder"), _text("digest"), _text("parent", empty=True), _text("kind"),
    Column("batch", Integer), _text("added"), _text("about"),
)  # fmt: skip
audits = _table(
    "audits", _number(), _text("version"), Column("passed", Integer), _text("requests"),
    Column("batch", Integer), _text("folder", empty=True), _text("added"), _text("found"),
)  # fmt: skip
by_request = Index("purge_subjects_by_request", subjects.c.request)
by_deadline = Index("purge_requests_by_deadline", requests.c.state, requests.c.due)
worker = _table("worker", _number("one"), _text("who"), _text("since"))  # not of the chain: who works now

DERIVED = {name: metadata.tables[f"purge_{name}"] for name in TABLES}

# -- the chain only grows ---------------------------------------------------------------------

REFUSAL = "entries of a ledger are never changed"
TRIGGERS = {
    "sqlite": {
        f"purge_entries_no_{word}": f"CREATE TRIGGER purge_entries_no_{word} BEFORE {event} ON purge_entries "
        f"{when}BEGIN SELECT RAISE(ABORT, '{REFUSAL}'); END"
        for word, event, when in (
            ("update", "UPDATE", ""),
            ("delete", "DELETE", ""),
            # INSERT OR REPLACE deletes without a word to the trigger above.
            ("gap", "INSERT", "WHEN NEW.seq <> (SELECT COALESCE(MAX(seq), 0) + 1 FROM purge_entries) "),
        )
    },
    "postgresql": {
        "purge_entries_no_change": "CREATE TRIGGER purge_entries_no_change BEFORE UPDATE OR DELETE "
        "ON purge_entries FOR EACH ROW EXECUTE FUNCTION purge_refuse()",
        "purge_entries_no_truncate": "CREATE TRIGGER purge_entries_no_truncate BEFORE TRUNCATE "
        "ON purge_entries FOR EACH STATEMENT EXECUTE FUNCTION purge_refuse()",
    },
}
BODY = f" BEGIN RAISE EXCEPTION '{REFUSAL}'; END "
FUNCTION = f"CREATE OR REPLACE FUNCTION purge_refuse() RETURNS trigger LANGUAGE plpgsql AS $${BODY}$$"


def create(connection: Connection) -> None:
    """Make the tables of a new ledger, and the triggers that refuse to change or remove an entry."""
    metadata.create_all(connection)
    dialect = connection.dialect.name
    if dialect == "postgresql":
        connection.execute(text(FUNCTION))
    for statement in TRIGGERS[dialect].values():
        connection.execute(text(statement))


def version_of(connection: Connection) -> int | None:
    """The version of the tables in a database; None if it has no ledger."""
    if not inspect(connection).has_table(head.name):
        return None
    # Only these two columns are sure to be there in a ledger of any version.
    version = connection.execute(text("SELECT version FROM purge_head WHERE one = 1")).scalar_one()
    return version if isinstance(version, int) else 0


def next_number(connection: Connection, table: Table) -> int:
    """The number of the next row."""
    return int(connection.execute(select(func.coalesce(func.max(table.c.number), 0) + 1)).scalar_one())


def apply(connection: Connection, rows: list[Change]) -> None:
    """Write what follows from entries: new rows first, since others may change them."""
    for name, table in DERIVED.items():
        if new := [row.values for row in rows if row.new and row.table == name]:
            connection.execute(table.insert(), new)
    changed = [row for row in rows if not row.new]
    for (name, columns), some in groupby(changed, key=lambda row: (row.table, tuple(row.values))):
        table = DERIVED[name]
        update = table.update().where(table.c.number == bindparam("of"))
        update = update.values({column: bindparam(f"to_{column}") for column in columns})
        connection.execute(
            update, [{"of": row.key[0], **{f"to_{c}": row.values[c] for c in columns}} for row in some]
        )


def links(connection: Connection) -> Iterator[Link]:
    """The chain, entry by entry."""
    return (Link(*row) for row in connection.execute(select(*entries.c).order_by(entries.c.seq)))


# -- is all as the chain says? ----------------------------------------------------------------


def verify_database(connection: Connection, public: str | None, kept: Iterable[ChainHead]) -> Verification:
    """Check the chain in a database, its head, the tables that follow from it, and how they are made."""
    walk = Walk(public, kept)
    walk.along(links(connection))
    if walk.bad:
        return walk.verdict()
    row = connection.execute(select(*head.c)).first()
    if row is None:
        return walk.verdict("the record of the end of the chain is missing")
    if isinstance(row.entries, int) and row.entries > walk.count:
        walk.bad = walk.count + 1, f"the chain ends after {walk.count} of {row.entries} entries"
        return walk.verdict()
    if (row.entries, row.hash, row.signer) != (walk.count, walk.last, walk.signer):
        return walk.verdict("the record of the end of the chain tells of another end")
    return walk.verdict(_differs(connection, walk) or _unsafe(connection))


def _differs(connection: Connection, walk: Walk) -> str | None:
    """The first row of a table that does not follow from the chain."""
    for name, table in DERIVED.items():
        keys = [column.name for column in table.primary_key]
        derived = walk.tables[name]
        seen = 0
        for row in connection.execute(select(*table.c)).mappings():
            key = tuple(row[part] for part in keys)
            if derived.get(key) != dict(row):
                got = "is not in the chain" if key not in derived else "differs from the chain"
                which = f"a subject of request {key[1]}" if name == "subjects" else f"row {key[0]}"
                return f"the table of {name}: {which} {got}"
            seen += 1
        if seen != len(derived):
            return f"the table of {name}: {len(derived) - seen} of {len(derived)} rows are missing"
    return None


def _unsafe(connection: Connection) -> str | None:
    """A table, index or trigger that is missing, added, switched off or made otherwise; a damaged file."""
    dialect = connection.dialect.name
    made = {**_relations(connection), **_triggers(connection)}
    kept = {(t.name, "table"): str([(c.name, str(c.type), c.nullable) for c in t.columns]) for t in OURS}
    kept |= {(str(i.name), "index"): str([c.name for c in i.columns]) for t in OURS for i in t.indexes}
    kept |= {(name, "trigger"): sql for name, sql in TRIGGERS[dialect].items()}
    for (name, kind), how in kept.items():
        if made.get((name, kind)) != how:
            return f"the {kind} {name} is missing, or not as the ledger made it"
    if more := sorted(made.keys() - kept.keys()):
        return f"the {more[0][1]} {more[0][0]} is not of the ledger"
    if dialect == "sqlite" and connection.execute(text("PRAGMA integrity_check(1)")).scalar() != "ok":
        return "the file is damaged: SQLite finds its pages or indexes wrong"
    return None


OURS = metadata.tables.values()
Relations = dict[tuple[str, str], str]  # name and kind → how it was made


def _relations(connection: Connection) -> Relations:
    """The tables, views and indexes of our names, with their columns."""
    there = inspect(connection)
    made: Relations = {}
    for kind, names in (("table", there.get_table_names()), ("view", there.get_view_names())):
        for name in (name for name in names if name.startswith("purge_")):
            columns = there.get_columns(name)
            made[name, kind] = str([(c["name"], str(c["type"]), c["nullable"]) for c in columns])
            if kind == "table":
                made |= {(str(i["name"]), "index"): str(i["column_names"]) for i in there.get_indexes(name)}
    return made


def _triggers(connection: Connection) -> Relations:
    """The triggers of our tables; of one on a server that does something else, or nothing, what is empty."""
    if connection.dialect.name == "sqlite":
        query = (
            "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND substr(tbl_name, 1, 6) = 'purge_'"
        )
        return {(row.name, "trigger"): row.sql for row in connection.execute(text(query))}
    query = (
        "SELECT tgname, prosrc = :body AND tgenabled IN ('O', 'A') AS sound "
        "FROM pg_trigger JOIN pg_proc ON pg_proc.oid = tgfoid JOIN pg_class ON pg_class.oid = tgrelid "
        "WHERE NOT tgisinternal AND relnamespace = current_schema()::regnamespace "
        "AND starts_with(relname, 'purge_')"
    )
    known = TRIGGERS["postgresql"]
    rows = connection.execute(text(query), {"body": BODY})
    made = {(row.tgname, "trigger"): known.get(row.tgname, "") if row.sound else "" for row in rows}
    for kind, name in (("rule", "rulename"), ("policy", "policyname")):  # they may swallow what is written
        more = text(
            f"SELECT {name} FROM pg_{'rules' if kind == 'rule' else 'policies'} "
            "WHERE schemaname = current_schema() AND starts_with(tablename, 'purge_') AND "
            f"{name} <> '_RETURN'"
        )
        made |= {(str(one), kind): "" for one in connection.execute(more).scalars()}
    return made
