"""Reports as HTML: one self-contained page, and small tables for notebooks.

Everything is read from plain dicts. Names of classes, paths and reasons come from users: all of them are
escaped, and the page forbids every script but its own and every request.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import groupby
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from purge.core.errors import MetricError
from purge.report import tables
from purge.report.figures import PLOTS, comparison
from purge.report.glossary import glosses
from purge.report.record import NOT
from purge.report.sentences import Sentence, quotable, sentence_of
from purge.report.tables import class_words, main_values
from purge.report.theme import as_inline_svg
from purge.report.words import LEVELS, SIGNS
from purge.verdict.findings import Verdict
from purge.verdict.judge import verdict_of
from purge.verdict.numbers import Numbers, Report, described, unit_of
from purge.verdict.rules import Topic

PARTS = {"classes": "The classes alone", "samples": "The single samples alone"}
OTHERS = {"retrained": "retrained", "original": "original", "floor": "another retraining"}
REQUEST = ("Request id", "Received", "Done", "By", "Model version")  # rows of the record that come first
GROUPS = {  # in reading order: the heading, and what is said if there is nothing to list
    "shown": ("What was shown", "Nothing was shown."),
    "failed": ("What failed", "No test failed."),
    "unknown": ("What could not be known", "No question that was asked is open."),
    "limit": ("Limits of this audit", ""),
}
STOPPED = {
    "forget_target": "it stopped because the forget target was reached",
    "retain_budget": "it was stopped because the loss on retained data exceeded its budget",
    "schedule": "it ran to the end of its schedule",
}


def page(
    reports: Mapping[str, Report],
    *,
    records: Mapping[str, Mapping[str, Any]] | None = None,
    written: str = "",
) -> str:
    """One self-contained page; several reports, by the names of their runs, are compared side by side.

    ``records``: the deletion record of each run. ``written``: when, in words.
    """
    runs = [
        _run(name, report, (records or {}).get(name) or {}, f"run{i}")
        for i, (name, report) in enumerate(reports.items())
    ]
    several = len(runs) > 1
    return _render(
        "page.html.j2",
        title=f"Unlearning {'compared' if several else 'report'}: {' · '.join(reports)}",
        runs=runs,
        comparison=_comparison(reports) if several else None,
        figures=_side_by_side(runs),
        signs={**SIGNS, "limit": "!"},
        words={**LEVELS, "limit": "Limits"},
        glosses=glosses,
        unrecorded=NOT,
        script=Markup(_script()),
        digest=script_digest(),
        written=written,
    )


def _script() -> str:
    return _environment().get_template("page.js").render()


def script_digest() -> str:
    """The digest of the page's only script, by which a policy of the browser names it."""
    return base64.b64encode(hashlib.sha256(_script().encode()).digest()).decode()


def _run(name: str, report: Report, record: Mapping[str, Any], id: str) -> dict[str, Any]:
    """What the page says about one run."""
    verdict = verdict_of(report)
    drawn = {plot: PLOTS[plot].draw(report) for plot in PLOTS}
    return {
        "id": id,
        "name": name,
        "warning": report["info"].get("warning") or "",
        "asked": _request(report["info"]),
        "done": _done(report),
        "compared": _compared(report),
        "models": _models(report["info"]),
        "level": verdict.level,
        "headline": quotable(verdict),
        "groups": _groups(verdict, report),
        "asks": _asks(verdict, report),
        "request": {key: record.get(key, NOT) for key in REQUEST},
        "columns": _columns(report),
        "main": [_row(report, n) for n in main_values(report) if n in report["values"]],
        "sections": _sections(report),
        "parts": [
            {"name": PARTS.get(kind, kind), "columns": _columns(part), "sections": _sections(part)}
            for kind, part in (report.get("parts") or {}).items()
        ],
        "figures": {
            plot: Markup(as_inline_svg(fig, f"{id}-{plot}", f"{PLOTS[plot].title}: {PLOTS[plot].caption}"))
            for plot, fig in drawn.items()
            if fig is not None
        },
        "left_out": [PLOTS[plot] for plot, fig in drawn.items() if fig is None],
        "record": {k: v for k, v in record.items() if not isinstance(v, Mapping) and k not in REQUEST},
        "details": {
            k: json.dumps(v, indent=2, default=str) for k, v in record.items() if isinstance(v, Mapping)
        },
    }


# -- summary ----------------------------------------------------------------------------------


def _request(info: Mapping[str, Any]) -> str:
    """What was to be forgotten."""
    forgotten, stay = info.get("forget_samples"), info.get("retain_samples")
    if forgotten is None or stay is None:
        return "The report does not say what was to be forgotten."
    classes = class_words(info.get("forget_classes") or [], info.get("names") or [])
    of = f"All samples of {classes}: " if classes else ""
    return f"{of}{forgotten:,} of {forgotten + stay:,} training samples. The other {stay:,} stay."


def _done(report: Report) -> str:
    """What was done, from the record of the run."""
    run = report["info"].get("run") or {}
    if run.get("steps") is None or run.get("seconds") is None:
        return "The report does not say how the model was made."
    name = run.get("preset") or run.get("method") or "?"
    if "preset" not in run:
        return f"The model was trained ({name}), not unlearned, in {run['seconds']:.1f} seconds."
    how = STOPPED.get(run.get("stopped_by") or "", f"it was stopped by {run.get('stopped_by')}")
    took = f" For this request it took {run['took']}." if run.get("took") else ""
    checks = Numbers(report).curve("audited", "history").get("check_forget_accuracy") or []
    if reached := [v for v in checks if v is not None and run.get("forget_target") is not None]:
        now, target = (tables.shown(v, "share") for v in (reached[-1], run["forget_target"]))
        took += f" Its accuracy on the forget set was then {now}; the target was at most {target}."
    return (
        f"The method “{name}” changed the model's weights in {run['steps']:,} steps and "
        f"{run['seconds']:.1f} seconds; {how}.{took}"
    )


def _compared(report: Report) -> str:
    """The models that the numbers are compared with."""
    n = max((v["n"] or 0 for v in (report.get("floor") or {}).values()), default=0)
    further = f", and {n} more of its kind" if n else ""
    parts = [
        "the original model" if report["original"] else "",
        f"a model retrained without the data{further}" if report["retrained"] else "",
    ]
    models = " and ".join(filter(None, parts))
    return f"{models[:1].upper()}{models[1:]}." if models else "There was no other model to compare it with."


def _models(info: Mapping[str, Any]) -> dict[str, str]:
    """Which model each column is."""
    columns = {"audited": "this model", **OTHERS}
    models = {columns.get(name, OTHERS["floor"]): which for name, which in (info.get("models") or {}).items()}
    return {column: models[column] for column in columns.values() if column in models}


def _groups(verdict: Verdict, report: Report) -> list[dict[str, Any]]:
    """The findings as the page lists them, with the terms that each is the first to use.

    What failed comes first: nobody should have to look for it.
    """
    rows: dict[str, list[Sentence]] = {name: [] for name in GROUPS}
    for finding in verdict.findings:
        name = "limit" if finding.topic is Topic.LIMITS else finding.level
        rows[name].append(sentence_of(finding, report))
    order, known, groups = ["failed", *GROUPS] if rows["failed"] else GROUPS, set[str](), []
    for name in dict.fromkeys(order):
        listed = []
        for f in rows[name]:
            new = glosses(f"{f.title} {f.text}", known)
            known |= set(new)
            listed.append({**f._asdict(), "terms": new})
        heading, nothing = GROUPS[name]
        groups.append({"level": name, "heading": heading, "nothing": nothing, "rows": listed})
    return groups


def _asks(verdict: Verdict, report: Report) -> list[dict[str, Any]]:
    """What a reader may ask for next: what would decide an open question, and what no audit can see."""
    wanted: dict[str, list[str]] = {}
    for f in verdict.findings:
        if (said := sentence_of(f, report)).next:
            wanted.setdefault(said.next, []).append(said.title)
    asks = [
        {"what": f"{ask[:1].upper()}{ask[1:]}", "decides": titles, "why": ""}
        for ask, titles in wanted.items()
    ]
    general = {
        "Show that the model in use is the one that was audited": "Anyone who has its weights can compute "
        "their digest and compare it with the record below.",
        "List the copies, backups, logs and other models that saw the data": "This audit is about one model.",
    }
    if (report["values"].get("fa_test") or {"value": 0})["value"] is None:
        why = "Without it, nothing is known about unseen samples like those that were forgotten."
        general = {"Audit it with test data of the classes in the forget set": why, **general}
    return [*asks, *({"what": what, "decides": [], "why": why} for what, why in general.items())]


def _columns(report: Report) -> list[str]:
    return [words for part, words in OTHERS.items() if report.get(part)]


# -- numbers ----------------------------------------------------------------------------------


def _row(report: Report, name: str) -> dict[str, Any]:
    """A value as the page shows it, with those of the other models."""
    v = report["values"].get(name) or {"value": None, "low": None, "high": None, "n": None, "why": ""}
    unit, metric = unit_of(report, name), described(report, name)
    ideal = metric.get("ideal", "retrain")  # the retrained model is the usual aim, and the page says so once
    aim = "" if isinstance(ideal, str) else f"; aim: {tables.shown(ideal, unit)}"
    return {
        "name": tables.value_words(report, name),
        "metric": name.partition(".")[0],
        "about": metric.get("about", "") + aim,
        "value": tables.shown(v["value"], unit),
        "spread": tables.spread(v, unit),
        "n": "" if v["n"] is None else f"{v['n']:,}",
        "why": v["why"],
        "others": {
            words: tables.shown(report[part].get(name, {}).get("value"), unit)
            for part, words in OTHERS.items()
            if report.get(part)
        },
    }


def _sections(report: Report) -> list[dict[str, Any]]:
    """The values by section and, within one, by metric."""
    return [
        {
            "name": section,
            "question": tables.QUESTIONS[section],
            "metrics": [
                [_row(report, name) for name in parts]
                for _, parts in groupby(names, lambda name: name.partition(".")[0])
            ],
        }
        for section, names in groupby(tables.ordered(report), lambda name: tables.section_of(report, name))
    ]


def _comparison(reports: Mapping[str, Report]) -> dict[str, Any]:
    """The runs side by side: a column each, and the retrained model's value if they have the same one."""
    runs = list(reports.values())
    metrics = {name: m for r in reversed(runs) for name, m in (r.get("metrics") or {}).items()}
    together = {**runs[0], "metrics": metrics}
    rows, main = [], main_values(together)
    for name in tables.in_order(together, dict.fromkeys(n for r in runs for n in tables.ordered(r))):
        theirs = {
            tables.shown(v["value"], unit_of(together, name))
            for r in runs
            if (v := r["retrained"].get(name)) and v["value"] is not None
        }
        rows.append({
            **_row(together, name),
            "main": name in main,
            "cells": [_row({**r, "metrics": metrics}, name) for r in runs],
            "retrained": theirs.pop() if len(theirs) == 1 else "differ" if theirs else "–",
        })  # fmt: skip
    try:
        words = "The main numbers of all runs with 95 % intervals, and the retrained model's"
        overview = Markup(as_inline_svg(comparison(reports), "overview", words))
    except MetricError:
        overview = None
    return {"names": list(reports), "rows": rows, "overview": overview}


def _side_by_side(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Each figure with one picture for every run that has it."""
    of = {name: [(run["name"], run["figures"].get(name)) for run in runs] for name in PLOTS}
    pairs, known = [], set[str]()
    for name, pictures in of.items():
        there = [(run, svg) for run, svg in pictures if svg]
        if there:
            letters = [words for _, svg in there for words in re.findall(r"<text[^>]*>([^<]*)</text>", svg)]
            new = glosses(" ".join([PLOTS[name].caption, *letters]), known)
            known |= set(new)
            pairs.append({"plot": PLOTS[name], "of": there, "terms": new})
    return pairs


# -- notebooks --------------------------------------------------------------------------------


def report_table(report: Report) -> str:
    """A report as a small table for a notebook, with the verdict beneath."""
    rows = [_row(report, name) for name in tables.ordered(report)]
    verdict = verdict_of(report)
    findings = [sentence_of(finding, report) for finding in verdict.findings]
    return _render(
        "notebook_report.html.j2", request=_request(report["info"]), rows=rows, columns=_columns(report),
        models=_models(report["info"]), headline=quotable(verdict), findings=findings,
    )  # fmt: skip


def run_table(run: Mapping[str, Any], history: Mapping[str, Sequence[Any]]) -> str:
    """What unlearning or training returned, as a small table for a notebook."""
    rows = {"method": run.get("preset") or run["method"], "stopped by": run["stopped_by"]}
    rows |= {"steps": f"{run['steps']:,}", "seconds": f"{run['seconds']:.1f}"}
    rows |= {"took": run["took"]} if run.get("took") else {}
    checks = {
        "forget accuracy": ("check_forget_accuracy", "forget_target", "{:.1%}"),
        "retain loss": ("check_retain_loss", "retain_budget", "{:.4f}"),
    }
    for words, (column, limit, form) in checks.items():
        if measured := [v for v in history.get(column) or [] if v is not None]:
            aim = "" if run.get(limit) is None else f" ({limit.replace('_', ' ')} {form.format(run[limit])})"
            rows[words] = f"{form.format(measured[0])} → {form.format(measured[-1])}{aim}"
    for name in ("forget_samples", "retain_samples", "samples", "test_accuracy", "seed"):
        if run.get(name) is not None:
            rows[name.replace("_", " ")] = f"{run[name]:{'.1%' if name == 'test_accuracy' else ''}}"
    return _render("notebook_run.html.j2", rows=rows)


def _render(template: str, **content: Any) -> str:
    return _environment().get_template(template).render(**content)


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("purge.report", "."), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
