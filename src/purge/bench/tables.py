"""Tables from the results of a bench, with the paper's numbers beside ours; layout.py makes text of them.

A bench leaves ``bench.json`` (its jobs, and the tables and figures it was asked for) and one file per job.
:func:`numbers_of` reads them into one long data frame, and a table is a groupby over that frame. The paper's
numbers are in ``paper.json``, what its authors published later in ``paper_later.json``; none is in code.
"""

from __future__ import annotations

import dataclasses
import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from purge.core.errors import FileError, PurgeError, brief, did_you_mean
from purge.core.files import below, read_json
from purge.core.schema import build, fit
from purge.metrics.metric import Unit
from purge.metrics.registry import METRICS
from purge.report import tables as text
from purge.verdict.compare import GoalSide, missed_by

if TYPE_CHECKING:  # pandas takes long to import, and a plan needs only the dataclasses below
    import pandas as pd

By = Literal["data", "forget", "label"]
Part = Literal["original", "retrained", "floor"]

KEYS = {"data": "data", "forget": "forgotten", "label": "method"}  # the headings of key columns
PARTS = {"original": "original", "retrained": "retrain", "floor": "floor"}  # the labels of their rows
STATS = ["mean", "low", "high", "n", "paper", "missed_by"]  # of each cell

# Numbers of a job that are not metrics: the heading, and the unit or format.
NUMBERS = {
    "seconds": ("seconds", ".2f"),
    "first_seconds": ("seconds, first time", ".2f"),
    "retrain_seconds": ("seconds of retraining", ".1f"),
    "speedup": ("speed-up", ".1f"),
    "pflop": ("PFLOP", ".3g"),
    "retrain_pflop": ("PFLOP of retraining", ".3g"),
    "steps": ("steps", ".0f"),
    "projected": ("projected", "share"),
    "gated": ("gated", "share"),
    "raising": ("steps that raise the retain loss", "share"),
    "score": ("score", ".4f"),
}


class Column(NamedTuple):
    """How the numbers of a column are called and written."""

    heading: str
    unit: str  # of a metric, or a format such as ".2f"

    def text(self, value: float | None) -> str:
        """A number as text; a dash for None and NaN."""
        if value is None or math.isnan(value):
            return "–"
        return f"{value:{self.unit}}" if self.unit.startswith(".") else text.shown(value, self.unit)


@dataclass(frozen=True)
class Described:
    """What a column needs of what a metric says about itself."""

    symbol: str
    unit: Unit = "number"
    units: dict[str, Unit] = field(default_factory=dict)


def column_of(name: str, described: Mapping[str, Any] | None = None) -> Column:
    """The column of a number or metric; ``described`` tells of metrics that are not part of purge.

    >>> column_of("fa_test"), column_of("relearn_few.steps").unit, column_of("seconds").heading
    (Column(heading='FA', unit='share'), 'steps', 'seconds')
    """
    if name in NUMBERS:
        return Column(*NUMBERS[name])
    kind, _, part = name.partition(".")
    given = METRICS[kind].describe() if kind in METRICS else (described or {}).get(kind)
    if given is None:
        fix = did_you_mean(name, [*NUMBERS, *METRICS, *(described or {})])
        raise FileError("a column that is a metric or a number of a job", brief(name), fix)
    about = build(Described, given, f"metrics of bench.json, {kind}", ignore_unknown=True)
    return Column(f"{about.symbol} {part}".strip(), about.units.get(part, about.unit))


@dataclass(frozen=True)
class Goal:
    """What a column should be: at least, at most or near a number, or near the value of another model."""

    column: str
    least: float | Part | None = None
    most: float | Part | None = None
    near: float | Part | None = None
    times: float = 1.0  # the value of the other model is multiplied by this; the slack is not
    slack: float = 0.0

    def __post_init__(self) -> None:
        given = sum(v is not None for v in (self.least, self.most, self.near))
        if given != 1:
            raise FileError(f"one of least, most and near for {self.column}", str(given), "give one")
        if self.times != 1 and not isinstance(self.aim, str):
            got, fix = f"{self.side}: {self.aim}", f"write the product as {self.side}"
            raise FileError(f"times beside {' or '.join(PARTS)} in the goal for {self.column}", got, fix)

    @property
    def side(self) -> GoalSide:
        """Which of the three is given."""
        return next(side for side in get_args(GoalSide) if getattr(self, side) is not None)

    @property
    def aim(self) -> float | Part:
        """The number, or the model whose value it is."""
        found: float | Part = getattr(self, self.side)
        return found

    def missed_by(self, value: float, aim: float) -> float:
        """How far a value misses the goal; 0 if it meets it."""
        return missed_by(value, self.side, aim, self.slack)

    def words(self, aim: float, column: Column) -> str:
        """The goal as text."""
        if self.side == "near":
            return f"{column.text(aim)} ± {column.text(self.slack)}"
        sign, edge = ("≥", aim - self.slack) if self.side == "least" else ("≤", aim + self.slack)
        return f"{sign} {column.text(edge)}"


@dataclass(frozen=True)
class Table:
    """A table to make: a row for each value of ``rows`` among the jobs, a column for each metric."""

    name: str
    columns: list[str]
    rows: list[By] = field(default_factory=lambda: ["label"])
    title: str = ""
    paper: str | None = None  # the table of paper.json or paper_later.json with the paper's numbers
    also: list[Part] = field(default_factory=list)  # other models that get rows of their own
    only: dict[By, list[str]] = field(default_factory=dict)  # leave out all other jobs
    goals: list[dict[str, Any]] = field(default_factory=list)  # each a Goal

    def __post_init__(self) -> None:
        _check_name(self.name, "tables")
        if twice := [by for by in self.rows if self.rows.count(by) > 1]:
            raise FileError(f"different rows in table {self.name}", f"{twice[0]!r} twice", "leave one out")

    @cached_property
    def aims(self) -> dict[str, Goal]:
        """The goals by column."""
        where = f"goals of table {self.name}"
        return {goal.column: goal for goal in (build(Goal, given, where) for given in self.goals)}


@dataclass(frozen=True)
class Drawing:
    """A figure to draw: some columns of a table, a panel each; or the picture of the method."""

    name: str
    table: str = ""
    columns: list[str] = field(default_factory=list)  # empty: all
    only: dict[By, list[str]] = field(default_factory=dict)
    kind: Literal["bars", "lines", "pipeline"] = "bars"

    def __post_init__(self) -> None:
        _check_name(self.name, "figures")


def _check_name(name: str, what: str) -> None:
    """A name that is part of a file's, and of a label in LaTeX."""
    if not re.fullmatch(r"[\w-]+", name):
        raise FileError(f"{what} of plain names", brief(name), "use letters, digits, - and _")
    below(Path(), name)


class Sheet(NamedTuple):
    """A table with its numbers, before it is laid out."""

    table: Table
    columns: Mapping[str, Column]
    rows: list[tuple[str, ...]]  # the keys of each row
    cells: pd.DataFrame  # one line for each row and column: the keys, ``part``, ``name`` and STATS
    note: str
    aims: Mapping[str, float]  # of columns with a goal: the number to reach

    def of(self, column: str) -> pd.DataFrame:
        """The cells of a column, in the order of the rows."""
        return self.cells[self.cells["name"] == column]


# -- from the results to numbers --------------------------------------------------------------


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
class Outcome(Keys):
    """What a table needs of the file of a job."""

    error: str = ""
    numbers: dict[str, float | None] = field(default_factory=dict)
    values: dict[str, dict[str, Any]] = field(default_factory=dict)
    original: dict[str, dict[str, Any]] = field(default_factory=dict)
    retrained: dict[str, dict[str, Any]] = field(default_factory=dict)
    floor: dict[str, dict[str, Any]] = field(default_factory=dict)
    hardware: dict[str, Any] = field(default_factory=dict)


def manifest(out: Path) -> Manifest:
    """The content of ``bench.json``; names in it that would not stay in the folder are refused."""
    found = read_json(out / "bench.json")
    if not {"jobs", "tables", "figures"} <= found.keys():
        raise FileError(f"a bench in {out}", "another bench.json", "name the folder of a purge bench")
    about = build(Manifest, found, str(out / "bench.json"), ignore_unknown=True)
    for drawing in about.figures:
        check_drawing(drawing, {table.name: table for table in about.tables})
    return about


def check_drawing(drawing: Drawing, tables: Mapping[str, Table]) -> None:
    """Refuse a figure of a table, columns or rows that are not there."""
    if drawing.kind != "pipeline" and drawing.table not in tables:
        fix = did_you_mean(drawing.table, tables)
        raise FileError(f"a table for figure {drawing.name}", brief(drawing.table), fix)
    table = tables.get(drawing.table)
    columns, rows = ([], []) if table is None else (table.columns, table.rows)
    if wrong := [c for c in drawing.columns if c not in columns]:
        fix = did_you_mean(wrong[0], columns)
        raise FileError(f"a column of table {drawing.table}", brief(wrong[0]), fix)
    if strange := [by for by in drawing.only if by not in rows]:
        got, fix = f"only: {{{strange[0]}: …}}", f"add {strange[0]} to the rows of table {drawing.table}"
        raise FileError(f"a choice of rows of table {drawing.table}", got, fix)


def result_in(file: Path) -> dict[str, Any] | None:
    """The result of a job, which may have failed or not begun; None if the file is missing or unreadable."""
    try:
        found = read_json(file)
        there = {key: value for key, value in found.items() if value is not None}
        done = build(Outcome, there, str(file), ignore_unknown=True)
        for value in (v for part in ("values", *PARTS) for v in getattr(done, part).values()):
            fit(value["value"], float | None, "value", str(file))
    except (PurgeError, OSError, KeyError):
        return None
    return found if {"error", "skipped"} & found.keys() or "values" in there else None


def numbers_of(results: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """One long data frame: a line for each job and number, with the values of the models it is compared with.

    The columns are id, data, forget, label, seed, name, value, and one for each of PARTS. Every job has a
    line without a name, so that it gets its row in tables even if it failed.
    """
    import pandas as pd

    lines: list[tuple[Any, ...]] = []
    for result in results:
        numbers = result.get("numbers") or {}
        of = {
            part: {k: v["value"] for k, v in (result.get(part) or {}).items()} for part in ("values", *PARTS)
        }
        of["values"] |= numbers
        of["retrained"] |= {name: numbers.get(f"retrain_{name}") for name in ("seconds", "pflop")}
        keys = (result["id"], *(str(result[key]) for key in KEYS), result["seed"])
        names = dict.fromkeys(["", *(name for values in of.values() for name in values)])
        lines += [(*keys, name, *(values.get(name) for values in of.values())) for name in names]
    found = pd.DataFrame(lines, columns=["id", *KEYS, "seed", "name", "value", *PARTS])
    return found.astype(dict.fromkeys(["value", *PARTS], float))


def sheet(
    table: Table, numbers: pd.DataFrame, note: str = "", described: Mapping[str, Any] | None = None
) -> Sheet:
    """The numbers of a table: a groupby over all jobs and models that share a row."""
    import pandas as pd

    keys: list[str] = [*table.rows]
    numbers = numbers[numbers["name"].isin(["", *table.columns])].assign(part="job")
    jobs = chosen(numbers, table.only)
    others = _other_models(chosen(numbers, {by: w for by, w in table.only.items() if by != "label"}))
    visible = pd.concat([jobs, others[others["part"].isin(table.also)]]).sort_index(kind="stable")
    rows = _in_order(visible, keys)
    stats = visible.groupby([*keys, "part", "name"], sort=False).agg(
        mean=("value", _mean), low=("value", "min"), high=("value", "max"), n=("value", "count"),
        **{part: (part, _mean) for part in PARTS},
    )  # fmt: skip
    lines = [(*row, column) for row in rows for column in dict.fromkeys(table.columns)]
    cells = pd.DataFrame(lines, columns=[*keys, "part", "name"]).merge(stats.reset_index(), how="left")
    cells["n"] = cells["n"].fillna(0).astype(int)
    theirs = paper_rows(table.paper)
    beside = [theirs.get(", ".join(row), {}).get(name) for *row, _, name in lines]
    cells["paper"] = pd.Series(beside, dtype=object)
    aims = _judge(cells, table, others)
    if apart := _apart(cells, table):
        names = "; ".join(dict.fromkeys(", ".join(row) for *row, _ in rows if tuple(row) in apart))
        note += f" Compared with other retrained models than those shown: {names}."
    columns = {name: column_of(name, described) for name in table.columns}
    return Sheet(table, columns, [row[:-1] for row in rows], cells, note, aims)


def chosen(lines: pd.DataFrame, only: Mapping[By, Sequence[str]]) -> pd.DataFrame:
    """The lines that ``only`` leaves."""
    for by, words in only.items():
        lines = lines[lines[by].isin(words)]
    return lines


def _other_models(numbers: pd.DataFrame) -> pd.DataFrame:
    """The models that jobs were compared with, as lines of their own: once for the jobs of a seed."""
    import pandas as pd

    found = []
    for part, label in PARTS.items():
        there = numbers.dropna(subset=[part])
        first = there.groupby(["data", "forget", "seed"])["id"].transform("first")
        found.append(there[there["id"] == first].assign(part=part, label=label, value=there[part]))
    return pd.concat(found)


def _in_order(visible: pd.DataFrame, keys: Sequence[str]) -> list[tuple[str, ...]]:
    """The keys and the part of each row: requests in the order of the jobs, the other models first."""
    rows: list[tuple[str, ...]] = [*visible[[*keys, "part"]].drop_duplicates().itertuples(False, None)]
    apart = {row: tuple(w for key, w in zip(keys, row, strict=False) if key != "label") for row in rows}
    turn, rank = [*dict.fromkeys(apart.values())], (*PARTS, "job")
    return sorted(rows, key=lambda row: (turn.index(apart[row]), rank.index(row[-1])))


def _mean(values: pd.Series) -> float:
    """The mean of what is there, correctly rounded, so that it does not depend on the order of the jobs."""
    there = values.dropna()
    return statistics.fmean(there) if len(there) else math.nan


def _judge(cells: pd.DataFrame, table: Table, others: pd.DataFrame) -> dict[str, float]:
    """Add how far each cell misses its goal, and return the aims of the columns that have one.

    A row is judged by the models that its own jobs were compared with.
    """
    aims: dict[str, float] = {}
    cells["missed_by"] = math.nan
    for column, goal in table.aims.items():
        mine = cells[(cells["name"] == column) & (cells["part"] == "job") & (cells["n"] > 0)]
        if isinstance(goal.aim, str):
            there = others[(others["part"] == goal.aim) & (others["name"] == column)]
            aim = goal.times * (mean := _mean(there["value"]))
            each = [*(goal.times * mine[goal.aim].fillna(mean))]
        else:
            aim, each = float(goal.aim), [float(goal.aim)] * len(mine)
        if not math.isnan(aim):
            aims[column] = aim
            cells.loc[mine.index, "missed_by"] = [*map(goal.missed_by, mine["mean"], each)]
    return aims


def _apart(cells: pd.DataFrame, table: Table) -> set[tuple[str, ...]]:
    """The rows whose jobs were compared with other models than those that the table shows."""
    found: set[tuple[str, ...]] = set()
    same = [key for key in table.rows if key != "label"]
    for part in (part for part in table.also if part != "original"):
        theirs = cells[cells["part"] == part][[*same, "name", "mean"]]
        both = cells[cells["part"] == "job"].merge(theirs, on=[*same, "name"], suffixes=("", " shown"))
        far = both[(both[part] - both["mean shown"]).abs() > 1e-9]
        found |= {*far[[*table.rows]].itertuples(False, None)}
    return found


@cache
def paper() -> dict[str, Any]:
    """The paper's tables as it prints them, by name, and those that its authors published later."""
    files = [Path(__file__).with_name(name) for name in ("paper.json", "paper_later.json")]
    return {name: table for file in files for name, table in read_json(file)["tables"].items()}


def _printed(name: str) -> dict[str, Any]:
    if name not in paper():
        raise FileError("a table of the paper", brief(name), did_you_mean(name, paper()))
    found: dict[str, Any] = paper()[name]
    return found


def paper_rows(name: str | None) -> dict[str, dict[str, float]]:
    """A table of the paper: row → column → number, shares as fractions."""
    rows = {} if name is None else _printed(name)["rows"]
    shares = {c for cells in rows.values() for c in cells if column_of(c).unit == "share"}
    return {row: {c: v / 100 if c in shares else v for c, v in cells.items()} for row, cells in rows.items()}


# -- all of a bench ---------------------------------------------------------------------------


def sheets(out: Path) -> dict[str, Sheet]:
    """Every table of a bench, by name."""
    about = manifest(out)
    files = [below(out / "jobs", job.id, ending=".json") for job in about.jobs]
    keys = map(dataclasses.asdict, about.jobs)
    found = [{**(result_in(file) or {}), **job} for file, job in zip(files, keys, strict=True)]
    numbers = numbers_of([result for result in found if "skipped" not in result])
    return {table.name: sheet(table, numbers, _note(table, found), about.metrics) for table in about.tables}


def _note(table: Table, found: Sequence[Mapping[str, Any]]) -> str:
    """What the numbers are, the hardware and the commit they come from, and where the paper's are from."""
    late = sum("skipped" in result for result in found)
    done = [result for result in found if "hardware" in result and not {"error", "skipped"} & result.keys()]
    on = [result["hardware"] for result in done]
    machines = dict.fromkeys(str(h.get("gpu") or f"{h.get('machine')}, {h.get('cpus')} cores") for h in on)
    commits = dict.fromkeys(str(result.get("commit")) for result in done)
    failed = sum("error" in result for result in found)
    jobs = f"{len(done)} jobs" + (f", {failed} failed" if failed else "")
    jobs += f", {late} not begun for lack of seconds" if late else ""
    where = f"{jobs}; {', '.join(machines) or 'no hardware'}; commit {', '.join(commits)}"
    beside = f" Paper: {_printed(table.paper)['by']}." if table.paper else ""
    return f"Ours: mean (lowest – highest) over seeds and requests; {where}.{beside}"
