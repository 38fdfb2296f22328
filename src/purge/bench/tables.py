"""Tables from the results of a bench: ours beside the paper's, as Markdown, LaTeX and CSV.

A bench leaves ``bench.json`` (which jobs there are, which tables and figures are wanted) and a file for
each job. Everything here is made from these and from ``paper.json``, which has what the paper reports;
no number is written in code.
"""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

from purge.core.errors import FileError
from purge.core.files import read_json
from purge.metrics.registry import METRICS, check_value_name, number, unit_of

check_name = check_value_name  # its name until callers import it from the registry

By = Literal["data", "forget", "label"]
Part = Literal["original", "retrained", "floor"]

KEYS = {"data": "data", "forget": "forgotten", "label": "method"}  # what their columns are called
PARTS = {"original": "original", "retrained": "retrain", "floor": "floor"}  # what their rows are called

# Numbers of a job that are no metrics: the heading, and how one is printed ("%": as a share).
NUMBERS = {
    "seconds": ("seconds", ".2f"),
    "first_seconds": ("seconds, first time", ".2f"),
    "retrain_seconds": ("seconds of retraining", ".1f"),
    "speedup": ("speed-up", ".1f"),
    "steps": ("steps", ".0f"),
    "projected": ("projected", "%"),
    "gated": ("gated", "%"),
    "raising": ("steps that raise the retain loss", "%"),
    "score": ("score", ".4f"),
}


@dataclass(frozen=True)
class Goal:
    """What a column should be: at least, at most or near a number, or what another model has."""

    column: str
    least: float | Part | None = None
    most: float | Part | None = None
    near: float | Part | None = None
    slack: float = 0.0

    def __post_init__(self) -> None:
        given = sum(v is not None for v in (self.least, self.most, self.near))
        if given != 1:
            raise FileError(f"one of least, most and near for {self.column}", str(given), "give one")

    @property
    def aim(self) -> float | Part:
        """The number, or the model that has it."""
        return next(v for v in (self.least, self.most, self.near) if v is not None)

    def missed_by(self, value: float, aim: float) -> float:
        """How far a value lies outside of what is wanted; 0 where it does not."""
        off = {"least": aim - value, "most": value - aim, "near": abs(value - aim)}
        far = next(off[side] for side in off if getattr(self, side) is not None) - self.slack
        return far if far > 1e-9 else 0.0

    def words(self, aim: float) -> str:
        """What is wanted, for people."""
        if self.near is not None:
            return f"{shown(self.column, aim)} ± {shown(self.column, self.slack)}"
        sign, edge = ("≥", aim - self.slack) if self.least is not None else ("≤", aim + self.slack)
        return f"{sign} {shown(self.column, edge)}"


@dataclass(frozen=True)
class Table:
    """A table that is wanted: a row for each value of ``rows`` among the jobs, a column for each metric."""

    name: str
    columns: list[str]
    rows: list[By] = field(default_factory=lambda: ["label"])
    title: str = ""
    paper: str | None = None  # the table of paper.json that has the paper's numbers
    also: list[Part] = field(default_factory=list)  # other models that get rows of their own
    only: dict[By, list[str]] = field(default_factory=dict)  # leave out all other jobs
    goals: list[dict[str, Any]] = field(default_factory=list)  # each a Goal: is it met, or how far off?

    @cached_property
    def aims(self) -> dict[str, Goal]:
        """The goals by column."""
        return {goal.column: goal for goal in (Goal(**given) for given in self.goals)}


@dataclass(frozen=True)
class Drawing:
    """A figure that is wanted: some columns of a table, a panel each; or the picture of the method."""

    name: str
    table: str = ""
    columns: list[str] = field(default_factory=list)  # none: all
    only: dict[By, list[str]] = field(default_factory=dict)
    kind: Literal["bars", "lines", "pipeline"] = "bars"


class Record(NamedTuple):
    """What one job, or a model that it was compared with, has for the tables."""

    keys: dict[str, str]  # data, forget, label
    values: dict[str, float]
    beside: Mapping[str, dict[str, float]] = {}  # what the models have that a job was compared with


class Cell(NamedTuple):
    """Ours as mean, lowest and highest of ``n`` runs, and the paper's number; None where there is none."""

    mean: float | None
    low: float | None
    high: float | None
    n: int
    paper: float | None
    missed_by: float | None = None  # 0: the goal is met; None: there is none


class Sheet(NamedTuple):
    """A table with its numbers, before it is laid out."""

    table: Table
    rows: dict[tuple[str, ...], dict[str, Cell]]
    note: str
    aims: Mapping[str, float] = {}  # of columns with a goal: what is aimed at


# -- from the results to numbers --------------------------------------------------------------


def manifest(out: Path) -> dict[str, Any]:
    """What ``bench.json`` says."""
    found = read_json(out / "bench.json")
    if not {"jobs", "tables", "figures"} <= found.keys():
        raise FileError(f"a bench in {out}", "another bench.json", "name the folder of a purge bench")
    return found


def results(out: Path, jobs: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The results of these jobs that can be read, failed ones among them, in their order."""
    files = [out / "jobs" / f"{job['id']}.json" for job in jobs]
    return [found for file in files if (found := result_in(file)) is not None]


def result_in(file: Path) -> dict[str, Any] | None:
    """What a job left, be it that it failed; None where there is nothing that can be read."""
    try:
        return read_json(file)
    except (FileError, OSError):
        return None


def records(jobs: Sequence[Mapping[str, Any]], found: Iterable[Mapping[str, Any]]) -> list[Record]:
    """A record of each job; and of each model that jobs were compared with one for every seed."""
    by_id = {result["id"]: result for result in found}
    made, seen = [], set()
    for job in jobs:
        keys = {key: str(job[key]) for key in ("data", "forget", "label")}
        result = by_id.get(job["id"], {})
        values = {**numbers_of(result.get("values")), **_given(result.get("numbers"))}
        made.append(Record(keys, values, {part: numbers_of(result.get(part)) for part in PARTS}))
        for part, called in PARTS.items():
            which = (called, job["data"], job["forget"], job["seed"])
            if result.get(part) and which not in seen:
                seen.add(which)
                seconds = _given({"seconds": result["numbers"].get("retrain_seconds")})
                more = seconds if part == "retrained" else {}
                made.append(Record({**keys, "label": called}, {**numbers_of(result[part]), **more}))
    return made


def numbers_of(values: Mapping[str, Mapping[str, Any]] | None) -> dict[str, float]:
    """The values of a report that are numbers."""
    return {name: v["value"] for name, v in (values or {}).items() if v["value"] is not None}


def _given(numbers: Mapping[str, float | None] | None) -> dict[str, float]:
    return {name: v for name, v in (numbers or {}).items() if v is not None}


def sheet(table: Table, found: Sequence[Record], note: str = "") -> Sheet:
    """The numbers of a table: the mean and the range over all records that share a row."""
    parts = {PARTS[part] for part in table.also}
    wanted = [r for r in found if r.keys["label"] in parts or r.keys["label"] not in PARTS.values()]
    wanted = [r for r in wanted if chosen(r.keys, table.only, parts)]
    theirs = paper_rows(table.paper)
    groups: dict[tuple[str, ...], list[Record]] = {}
    for one in wanted:
        groups.setdefault(tuple(one.keys[by] for by in table.rows), []).append(one)
    rows: dict[tuple[str, ...], dict[str, Cell]] = {}
    for key, same in groups.items():
        beside = theirs.get(", ".join(key), {})
        of = {c: [r.values[c] for r in same if c in r.values] for c in table.columns}
        rows[key] = {c: _cell(values, beside.get(c)) for c, values in of.items()}
    aims = _aims(table, found)
    elsewhere = []
    for key, same in groups.items():
        if set(key) & set(PARTS.values()):
            continue
        own = {c: _own_aim(table.aims[c], same, aim) for c, aim in aims.items()}
        rows[key] |= {c: _judged(rows[key][c], table.aims[c], aim) for c, aim in own.items()}
        for part in (p for p in table.also if p != "original"):
            place = tuple(PARTS[part] if by == "label" else w for by, w in zip(table.rows, key, strict=True))
            if _others(rows.get(place, {}), [r.beside.get(part, {}) for r in same]):
                elsewhere.append(", ".join(key))
    if elsewhere:
        names = "; ".join(dict.fromkeys(elsewhere))
        note += f" Compared with other retrained models than those shown: {names}."
    first = {PARTS[p]: i - len(PARTS) for i, p in enumerate(PARTS)}
    group = {key: tuple(w for by, w in zip(table.rows, key, strict=True) if by != "label") for key in rows}
    turn = {words: i for i, words in enumerate(dict.fromkeys(group.values()))}
    order = sorted(rows, key=lambda key: (turn[group[key]], min(first.get(word, 0) for word in key)))
    return Sheet(table, {key: rows[key] for key in order}, note, aims)


def _aims(table: Table, found: Sequence[Record]) -> dict[str, float]:
    """What is aimed at in each column with a goal; nothing where the model that would tell is not there."""
    aims = {}
    for column, goal in table.aims.items():
        if not isinstance(goal.aim, str):
            aims[column] = float(goal.aim)
            continue
        called = PARTS[goal.aim]
        there = [r for r in found if r.keys["label"] == called and chosen(r.keys, table.only, [called])]
        if values := [r.values[column] for r in there if column in r.values]:
            aims[column] = statistics.fmean(values)
    return aims


def _own_aim(goal: Goal, same: Sequence[Record], aim: float) -> float:
    """What a row aims at: the mean of the models that its own jobs were compared with."""
    if not isinstance(goal.aim, str):
        return aim
    values = [r.beside[goal.aim][goal.column] for r in same if goal.column in r.beside.get(goal.aim, {})]
    return statistics.fmean(values) if values else aim


def _others(row: Mapping[str, Cell], own: Sequence[Mapping[str, float]]) -> bool:
    """Were jobs compared with other models than those of this row?"""
    for column, cell in row.items():
        values = [found[column] for found in own if column in found]
        if values and cell.mean is not None and abs(statistics.fmean(values) - cell.mean) > 1e-9:
            return True
    return False


def _judged(cell: Cell, goal: Goal, aim: float) -> Cell:
    return cell if cell.mean is None else cell._replace(missed_by=goal.missed_by(cell.mean, aim))


def chosen(keys: Mapping[str, str], only: Mapping[By, Sequence[str]], always: Iterable[str] = ()) -> bool:
    """Is a row wanted? A label of ``always`` is."""
    return all(keys[by] in map(str, wanted) or keys[by] in always for by, wanted in only.items())


def _cell(values: Sequence[float], paper: float | None) -> Cell:
    if not values:
        return Cell(None, None, None, 0, paper)
    return Cell(statistics.fmean(values), min(values), max(values), len(values), paper)


@cache
def paper() -> dict[str, Any]:
    """What the paper reports, as it prints it."""
    found: dict[str, Any] = read_json(Path(__file__).with_name("paper.json"))["tables"]
    return found


def paper_rows(name: str | None) -> dict[str, dict[str, float]]:
    """A table of the paper: row → column → number, shares as fractions."""
    rows = {} if name is None else paper()[name]["rows"]
    return {row: {c: v / 100 if is_share(c) else v for c, v in cells.items()} for row, cells in rows.items()}


# -- laying out -------------------------------------------------------------------------------


def is_share(column: str) -> bool:
    """Is a column printed in percent?"""
    return NUMBERS.get(column, ("", ""))[1] == "%" or unit_of(column) == "share"


def heading(column: str) -> str:
    """What a column is called.

    >>> heading("fa_test"), heading("bn_recal.after"), heading("seconds")
    ('FA', 'recal after', 'seconds')
    """
    if column in NUMBERS:
        return NUMBERS[column][0]
    kind, _, part = column.partition(".")
    return f"{METRICS[kind].symbol} {part}".strip()


def shown(column: str, value: float | None) -> str:
    """A number as people read it."""
    if value is None or column not in NUMBERS:
        return number(column, value)
    kind = NUMBERS[column][1]
    return f"{100 * value:.1f} %" if kind == "%" else f"{value:{kind}}"


def ours(column: str, cell: Cell) -> str:
    """The mean, and the range where it is not the same for all."""
    mean, low, high = (shown(column, v) for v in (cell.mean, cell.low, cell.high))
    words = mean if low == high else f"{mean} ({low.removesuffix(' %')} – {high})"
    if cell.missed_by is None:
        return words
    if cell.missed_by == 0:
        return f"{words} ✓"
    margin = shown(column, cell.missed_by)
    return f"{words} ✗ by {margin}" if margin != shown(column, 0) else f"{words} ✗ narrowly"


def laid_out(found: Sheet) -> tuple[list[str], list[list[str]]]:
    """Headings and rows as text; a column of the paper's beside each of ours that it reports."""
    table = found.table
    reported = {c for c in table.columns if any(row[c].paper is not None for row in found.rows.values())}
    heads = [KEYS[by] for by in table.rows]
    for c in table.columns:
        heads += [heading(c), "paper"] if c in reported else [heading(c)]
    body = []
    if found.aims:
        heads.append("goals met")
        wanted = {c: table.aims[c].words(aim) for c, aim in found.aims.items()}
        aims = [[wanted.get(c, "")] + [""] * (c in reported) for c in table.columns]
        body.append(["aim", *[""] * (len(table.rows) - 1), *(word for pair in aims for word in pair), ""])
    for key, cells in found.rows.items():
        line = [*key]
        for c in table.columns:
            line += [ours(c, cells[c])] + ([shown(c, cells[c].paper)] if c in reported else [])
        if found.aims:
            judged = [cells[c].missed_by for c in found.aims if cells[c].missed_by is not None]
            line.append(f"{judged.count(0.0)} of {len(judged)}" if judged else "")
        body.append(line)
    return heads, body


def as_markdown(found: Sheet) -> str:
    """A table for a README."""
    heads, body = laid_out(found)
    rows = [heads, ["---"] * len(heads), *body]
    lines = ["| " + " | ".join(word.replace("|", "\\|") for word in row) + " |" for row in rows]
    title = [f"**{found.table.title}**", ""] if found.table.title else []
    return "\n".join([*title, *lines, "", found.note]).strip() + "\n"


TEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{",
    "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--", "×": r"$\times$",
    "→": r"$\to$", "Δ": r"$\Delta$", "α": r"$\alpha$", "₀": "$_0$", "≤": r"$\leq$",
    "≥": r"$\geq$", "±": r"$\pm$", "✓": r"$\checkmark$", "✗": r"$\times$",
}  # fmt: skip


def as_latex(found: Sheet) -> str:
    """A table for a paper; it needs the packages booktabs and amssymb."""
    heads, body = laid_out(found)
    n = len(found.table.rows)
    rows = [" & ".join(_tex(word) for word in row) + r" \\" for row in (heads, *body)]
    caption = _tex(" ".join(filter(None, (found.table.title.rstrip(".") + ".", found.note))).lstrip(". "))
    return "\n".join(
        [
            r"\begin{table}[t]", r"\centering", r"\small",
            rf"\begin{{tabular}}{{{'l' * n}{'r' * (len(heads) - n)}}}", r"\toprule", rows[0], r"\midrule",
            *rows[1:], r"\bottomrule", r"\end{tabular}", rf"\caption{{{caption}}}",
            rf"\label{{tab:{found.table.name}}}", r"\end{table}", "",
        ]
    )  # fmt: skip


def _tex(words: str) -> str:
    return "".join(TEX.get(letter, letter) for letter in words)


def as_csv(found: Sheet) -> str:
    """All numbers unrounded, accuracies as fractions."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    parts = ("", ".low", ".high", ".n", ".paper", ".missed_by")
    writer.writerow([*found.table.rows, *(c + part for c in found.table.columns for part in parts)])
    for key, cells in found.rows.items():
        writer.writerow([*key, *("" if v is None else v for c in found.table.columns for v in cells[c])])
    return file.getvalue()


FORMS = {"md": as_markdown, "tex": as_latex, "csv": as_csv}  # by the ending of the file


# -- all of a bench ---------------------------------------------------------------------------


def sheets(out: Path) -> dict[str, Sheet]:
    """Every table of a bench, by name."""
    about = manifest(out)
    found = results(out, about["jobs"])
    made = records(about["jobs"], found)
    where = _origin(found)
    wanted = [Table(**table) for table in about["tables"]]
    return {table.name: sheet(table, made, _note(table, where)) for table in wanted}


def _note(table: Table, where: str) -> str:
    beside = f" Paper: {paper()[table.paper]['by']}." if table.paper else ""
    return f"Ours: mean (lowest – highest) over seeds and requests; {where}.{beside}"


def _origin(found: Sequence[Mapping[str, Any]]) -> str:
    """On which hardware and from which commit the results are."""
    done = [r for r in found if "error" not in r]
    hardware = [r["hardware"] for r in done]
    machines = dict.fromkeys(h["gpu"] or f"{h['machine']}, {h['cpus']} cores" for h in hardware)
    commits = dict.fromkeys(str(r["commit"]) for r in done)
    failed = f", {len(found) - len(done)} failed" if len(done) < len(found) else ""
    return f"{len(done)} jobs{failed}; {', '.join(machines) or 'no hardware'}; commit {', '.join(commits)}"
