"""Tables from the results of a bench, with the paper's numbers beside ours; layout.py makes text of them.

A bench leaves ``bench.json`` (its jobs, and the tables and figures that it makes) and one file per job.
The paper's numbers are in ``paper.json``, what its authors published later in ``paper_later.json``; none is
in code.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from purge.bench.schema import KEYS, NUMBERS, PARTS, By, Drawing, Part, Table, check_known, paper
from purge.core.errors import FileError, PurgeError
from purge.core.files import below, read_json
from purge.core.schema import build
from purge.metrics import METRICS, Unit
from purge.report import shown
from purge.verdict import missed_by


class Column(NamedTuple):
    """How the numbers of a column are called and written."""

    heading: str
    unit: str  # of a metric, or a format such as ".2f"

    def text(self, value: float | None) -> str:
        """A number as text; a dash if there is none."""
        if value is None:
            return "–"
        return f"{value:{self.unit}}" if self.unit.startswith(".") else shown(value, self.unit)


@dataclass(frozen=True)
class MetricColumn:
    """What a column needs of what a metric says about itself."""

    symbol: str
    unit: Unit = "number"
    units: dict[str, Unit] = field(default_factory=dict)


def column_of(name: str, described: Mapping[str, Any] | None = None) -> Column:
    """The column of a number or metric; ``described`` is about metrics that are not part of purge.

    >>> column_of("fa_test"), column_of("relearn_few.steps").unit, column_of("seconds").heading
    (Column(heading='FA', unit='share'), 'steps', 'seconds')
    """
    if name in NUMBERS:
        return Column(*NUMBERS[name])
    kind, _, part = name.partition(".")
    own = METRICS[kind].describe() if kind in METRICS else (described or {}).get(kind)
    known = [*NUMBERS, *METRICS, *(described or {})]
    check_known("a column that is a metric or a number of a job", [kind], known)
    about = build(MetricColumn, own, f"metrics of bench.json, {kind}", ignore_unknown=True)
    return Column(f"{about.symbol} {part}".strip(), about.units.get(part, about.unit))


def paper_rows(name: str) -> dict[str, dict[str, float]]:
    """A table of the paper: row → column → number, shares as fractions."""
    rows: dict[str, dict[str, float]] = paper()[name]["rows"]
    shares = {c for cells in rows.values() for c in cells if column_of(c).unit == "share"}
    return {row: {c: v / 100 if c in shares else v for c, v in cells.items()} for row, cells in rows.items()}


# -- what a bench has left ----------------------------------------------------------------------


@dataclass(frozen=True)
class Keys:
    """What tables find the result of a job by."""

    id: str
    data: str
    forget: str
    label: str
    seed: int


@dataclass(frozen=True)
class Manifest:
    """The keys of ``bench.json``."""

    jobs: list[Keys]
    tables: list[Table]
    figures: list[Drawing]
    metrics: dict[str, Any] = field(default_factory=dict)  # those that are not part of purge


@dataclass(frozen=True)
class JobResult(Keys):
    """What tables, searches and times need of the file of a job."""

    error: str = ""  # of a job that failed
    skipped: str = ""  # why a job did not begin
    values: dict[str, float | None] = field(default_factory=dict)
    original: dict[str, float | None] = field(default_factory=dict)
    retrained: dict[str, float | None] = field(default_factory=dict)
    floor: dict[str, float | None] = field(default_factory=dict)
    numbers: dict[str, float | None] = field(default_factory=dict)
    hardware: dict[str, Any] = field(default_factory=dict)
    commit: str = ""
    spent_seconds: float = 0.0  # of unlearning, also if it failed then
    wall_seconds: float | None = None


def manifest(out: Path) -> Manifest:
    """The content of ``bench.json``; names in it that would not stay in the folder are refused."""
    content = read_json(out / "bench.json")
    if not {"jobs", "tables", "figures"} <= content.keys():
        raise FileError(f"a bench in {out}", "another bench.json", "name the folder of a purge bench")
    about = build(Manifest, content, str(out / "bench.json"), ignore_unknown=True)
    for drawing in about.figures:
        drawing.check(about.tables)
    return about


def result_in(file: Path) -> JobResult | None:
    """The result of a job, which may have failed or not begun; None if the file is missing or unreadable."""
    try:
        content = read_json(file)
        there = {key: value for key, value in content.items() if value is not None}
        for part in ("values", *PARTS):
            there[part] = {name: value["value"] for name, value in there.get(part, {}).items()}
        result = build(JobResult, there, str(file), ignore_unknown=True)
    except (PurgeError, OSError, KeyError, TypeError, AttributeError):
        return None
    return result if result.error or result.skipped or content.get("values") is not None else None


def is_done(file: Path) -> bool:
    """Whether there is the result of a job that succeeded."""
    result = result_in(file)
    return result is not None and not (result.error or result.skipped)


# -- from results to cells ----------------------------------------------------------------------


class ModelNumbers(NamedTuple):
    """The numbers of one model: of a job, or of a model that jobs were compared with."""

    keys: Mapping[By, str]
    seed: int
    part: Part | None  # None: of a job
    values: Mapping[str, float | None]
    beside: Mapping[Part, Mapping[str, float | None]]  # of the models that the job was compared with


class Cell(NamedTuple):
    """What a table says in one place: None where nobody measured it."""

    mean: float | None
    low: float | None
    high: float | None
    n: int
    beside: Mapping[Part, float | None]  # the same of the other models, the mean over the jobs of the cell
    paper: float | None = None
    missed_by: float | None = None  # of a goal; 0 if it is met


class Row(NamedTuple):
    """A row of a table."""

    keys: Mapping[By, str]  # of all of By, though only those in ``rows`` of the table tell rows apart
    part: Part | None
    cells: dict[str, Cell]  # by column
    place: tuple[str, ...]  # the words of the row but for the label


class Sheet(NamedTuple):
    """A table with its numbers, before it is laid out."""

    table: Table
    columns: Mapping[str, Column]
    rows: list[Row]
    note: str
    aims: Mapping[str, float]  # of columns with a goal: the number to reach

    def key(self, row: Row) -> tuple[str, ...]:
        """The words that stand at the beginning of a row."""
        return tuple(row.keys[by] for by in self.table.rows)


def numbers_of(results: Iterable[JobResult]) -> list[ModelNumbers]:
    """The numbers of jobs and of the models that each was compared with; a job that failed has none."""
    entries = []
    for result in results:
        beside: dict[Part, dict[str, float | None]] = {part: dict(getattr(result, part)) for part in PARTS}
        for name in ("seconds", "pflop"):
            beside["retrained"][name] = result.numbers.get(f"retrain_{name}")
        keys = {by: str(getattr(result, by)) for by in KEYS}
        entries.append(ModelNumbers(keys, result.seed, None, result.values | result.numbers, beside))
    return entries


def sheet(
    table: Table, numbers: Sequence[ModelNumbers], note: str = "", described: Mapping[str, Any] | None = None
) -> Sheet:
    """The numbers of a table: each row has all jobs, or all models beside them, with its keys."""
    columns = {name: column_of(name, described) for name in table.columns}
    kept: dict[By, list[str]] = {by: words for by, words in table.only.items() if by != "label"}
    models = [model for model in _models(numbers, table) if chosen(model.keys, kept)]
    members: dict[tuple[Any, ...], list[ModelNumbers]] = {}
    for model in models:
        if model.part in table.also or (model.part is None and chosen(model.keys, table.only)):
            members.setdefault((*(model.keys[by] for by in table.rows), model.part), []).append(model)
    printed = paper_rows(table.paper) if table.paper else {}
    rows = []
    for (*words, part), some in members.items():
        theirs = printed.get(", ".join(words), {})
        place = tuple(some[0].keys[by] for by in table.rows if by != "label")
        cells = {name: _cell(some, name, theirs.get(name)) for name in columns}
        rows.append(Row(some[0].keys, part, cells, place))
    # Requests stay in the order of the jobs; in each, the other models come first.
    rank, turn = [*PARTS, None], [*dict.fromkeys(row.place for row in rows)]
    rows.sort(key=lambda row: (turn.index(row.place), rank.index(row.part)))
    aims = _judge(rows, models, table)
    made = Sheet(table, columns, rows, note, aims)
    if odd := dict.fromkeys(", ".join(made.key(row)) for row in rows if _compared_with_others(row, rows)):
        note += f" Compared with other retrained models than those shown: {'; '.join(odd)}."
    return made._replace(note=note)


def chosen(keys: Mapping[By, str], only: Mapping[By, Sequence[str]]) -> bool:
    """Does ``only`` leave a row of these keys?"""
    return all(keys[by] in words for by, words in only.items())


def _models(jobs: Sequence[ModelNumbers], table: Table) -> Iterator[ModelNumbers]:
    """The jobs, and after each the models that it was compared with, once for the jobs of a seed."""
    seen = set()
    for job in jobs:
        yield job
        for part, label in PARTS.items():
            values = {name: job.beside[part].get(name) for name in table.columns}
            once = part, job.keys["data"], job.keys["forget"], job.seed
            if once not in seen and any(value is not None for value in values.values()):
                seen.add(once)
                yield ModelNumbers({**job.keys, "label": label}, job.seed, part, values, {})


def _cell(members: Sequence[ModelNumbers], column: str, paper: float | None) -> Cell:
    values = [value for m in members if (value := m.values.get(column)) is not None]
    beside = {part: _mean(m.beside.get(part, {}).get(column) for m in members) for part in PARTS}
    low, high = min(values, default=None), max(values, default=None)
    return Cell(_mean(values), low, high, len(values), beside, paper)


def _mean(values: Iterable[float | None]) -> float | None:
    """The mean of what is there, correctly rounded, so that it does not depend on the order of the jobs."""
    there = [value for value in values if value is not None]
    return statistics.fmean(there) if there else None


def _judge(rows: Sequence[Row], models: Sequence[ModelNumbers], table: Table) -> dict[str, float]:
    """Write into each cell of a job how far it misses its goal; return the aims by column."""
    aims: dict[str, float] = {}
    for goal in table.goals:
        column, aim = goal.column, goal.aim
        part, mean = (aim, None) if isinstance(aim, str) else (None, aim)
        if part is not None:
            mean = _mean(model.values.get(column) for model in models if model.part == part)
        if mean is None:
            continue
        aims[column] = goal.times * mean
        for row in rows:
            cell = row.cells[column]
            if row.part is None and cell.mean is not None:  # judged by the models that its jobs had beside
                own = None if part is None else cell.beside[part]
                wanted = goal.times * (mean if own is None else own)
                missed = missed_by(cell.mean, goal.side, wanted, goal.slack)
                row.cells[column] = cell._replace(missed_by=missed)
    return aims


def _compared_with_others(row: Row, rows: Sequence[Row]) -> bool:
    """Were the jobs of a row compared with other models than those that the table shows?"""
    return row.part is None and any(
        (ours := cell.beside[other.part]) is not None
        and (theirs := other.cells[column].mean) is not None
        and not math.isclose(ours, theirs, abs_tol=1e-9)
        for other in rows
        if other.part in ("retrained", "floor") and other.place == row.place
        for column, cell in row.cells.items()
    )


# -- all of a bench ---------------------------------------------------------------------------


def sheets(out: Path) -> dict[str, Sheet]:
    """Every table of a bench, by name."""
    about = manifest(out)
    results = []
    for job in about.jobs:
        keys = dataclasses.asdict(job)
        result = result_in(below(out / "jobs", job.id, ending=".json"))
        results.append(JobResult(**keys) if result is None else dataclasses.replace(result, **keys))
    numbers = numbers_of(result for result in results if not result.skipped)
    return {t.name: sheet(t, numbers, _note(t, results), about.metrics) for t in about.tables}


def _note(table: Table, results: Sequence[JobResult]) -> str:
    """What the numbers are, the hardware and the commit they come from, and where the paper's are from."""
    late, failed = (sum(bool(getattr(r, key)) for r in results) for key in ("skipped", "error"))
    done = [r for r in results if r.hardware and not (r.error or r.skipped)]
    on = [r.hardware for r in done]
    machines = dict.fromkeys(str(h.get("gpu") or f"{h.get('machine')}, {h.get('cpus')} cores") for h in on)
    jobs = f"{len(done)} jobs" + (f", {failed} failed" if failed else "")
    jobs += f", {late} not begun for lack of seconds" if late else ""
    commits = ", ".join(dict.fromkeys(r.commit for r in done))
    where = f"{jobs}; {', '.join(machines) or 'no hardware'}; commit {commits}"
    beside = f" Paper: {paper()[table.paper]['by']}." if table.paper else ""
    return f"Ours: mean (lowest – highest) over seeds and requests; {where}.{beside}"
