"""Reports as HTML: one page that needs nothing beside itself, and small tables for notebooks.

Everything is read from plain dicts. Names of classes, paths and reasons are other people's words: all
of them are escaped, and the page forbids itself every script but its own and every request.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from purge.core.errors import MetricError
from purge.report.findings import LIMITS, SIGNS, WORDS, Finding, verdict
from purge.report.tables import SECTIONS, class_words, number, spread, telling, value_words

Report = Mapping[str, Any]

QUESTIONS = {
    "forgetting": "Does the model still recognise what was to be forgotten?",
    "damage": "Is everything else as good as it was?",
    "membership": "Can an attacker tell that the forgotten samples were once used for training?",
    "robustness": "Does the forgetting last when the model is redeployed, compressed or trained further?",
    "distance": "How far is the model from one that never saw the data?",
    "other": "Further numbers.",
}
MAIN = (
    "fa_test", "fa_train", "ta_retain", "ra", "worst_class.accuracy", "mia", "lira.auroc", "u_lira.auroc",
    "bn_recal.after", "relearn_ratio", "agreement", "retrain_gap",
)  # fmt: skip
OTHERS = {"retrained": "retrained", "original": "original", "floor": "another retraining"}
STOPPED = {
    "forget_target": "it stopped because the forget target was reached",
    "retain_budget": "it was stopped because the loss on retained data exceeded its budget",
    "schedule": "it ran to the end of its schedule",
}


def page(
    reports: Mapping[str, Report],
    *,
    about: Mapping[str, str] | None = None,
    records: Mapping[str, Mapping[str, Any]] | None = None,
    written: str = "",
) -> str:
    """One self-contained page; several reports, by the names of their runs, are laid side by side.

    ``about``: a line on each metric. ``records``: what is to be kept about each deletion. ``written``:
    when, in words.
    """
    runs = [
        _run(name, report, dict(about or {}), (records or {}).get(name) or {}, f"run{i}")
        for i, (name, report) in enumerate(reports.items())
    ]
    names = " · ".join(reports)
    script = Markup(SCRIPT)
    return (
        _environment()
        .from_string(_template())
        .render(
            title=f"Unlearning compared: {names}" if len(runs) > 1 else f"Unlearning report: {names}",
            runs=runs,
            comparison=_comparison(reports, dict(about or {})) if len(runs) > 1 else None,
            figures=_side_by_side(runs),
            others=OTHERS,
            signs=SIGNS,
            words=WORDS,
            script=script,
            digest=base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode(),
            written=written,
        )
    )


def _run(
    name: str, report: Report, about: dict[str, str], record: Mapping[str, Any], id: str
) -> dict[str, Any]:
    """What the page says about one run."""
    findings = verdict(report)
    counts = {level: sum(f.level == level for f in findings if f != LIMITS) for level in WORDS}
    figures, left_out = _figures(report, id)
    return {
        "id": id,
        "name": name,
        "asked": _asked(report["info"]),
        "done": _done(report["info"]),
        "compared": _compared(report),
        "headline": _headline(findings),
        "findings": findings,
        "counts": counts,
        "columns": [part for part in OTHERS if report.get(part)],
        "main": [_row(report, n) for n in MAIN if n in report["values"]],
        "sections": _sections(report, about),
        "figures": figures,
        "left_out": left_out,
        "record": {k: v for k, v in record.items() if not isinstance(v, Mapping)},
        "details": {
            k: json.dumps(v, indent=2, default=str) for k, v in record.items() if isinstance(v, Mapping)
        },
        "about": about,
    }


# -- summary ----------------------------------------------------------------------------------


def _asked(info: Mapping[str, Any]) -> str:
    """What was to be forgotten."""
    if "forget_samples" not in info:
        return "The report does not say what was to be forgotten."
    classes = class_words(info.get("forget_classes") or [], info.get("names") or [])
    of = f" All samples of {classes}:" if classes else ""
    gone, stay = info["forget_samples"], info["retain_samples"]
    return f"{of} {gone:,} training samples, of {gone + stay:,} in all. The other {stay:,} stay.".strip()


def _done(info: Mapping[str, Any]) -> str:
    """What was done, from the record of the run."""
    run = info.get("run") or {}
    if not run:
        return "The report does not say how the model came about."
    name = run.get("preset") or run.get("method") or "?"
    if "preset" not in run:
        return f"The model was trained ({name}), not unlearned, in {run.get('seconds') or 0:.1f} seconds."
    how = STOPPED.get(run.get("stopped_by") or "", f"it stopped by {run.get('stopped_by')}")
    return (
        f"The method “{name}” changed the model's weights in {run.get('steps'):,} steps, within "
        f"{run.get('seconds') or 0:.1f} seconds; {how}."
    )


def _compared(report: Report) -> str:
    """What the numbers stand beside."""
    n = max((v["n"] or 0 for v in (report.get("floor") or {}).values()), default=0)
    further = f", and {n} further of its kind" if n else ""
    parts = [
        "the original model" if report["original"] else "",
        f"a model retrained without the data{further}" if report["retrained"] else "",
    ]
    given = " and ".join(filter(None, parts))
    return f"{given[:1].upper()}{given[1:]}." if given else "There was no other model to compare it with."


def _headline(findings: Sequence[Finding]) -> str:
    failed = [f for f in findings if f.level == "failed"]
    open_ = sum(f.level == "unknown" and f != LIMITS for f in findings)
    questions = {0: "", 1: " One question stays open."}.get(open_, f" {open_} questions stay open.")
    if not failed:
        return f"Nothing that was measured speaks against the forgetting.{questions}"
    many = "One finding speaks" if len(failed) == 1 else f"{len(failed)} findings speak"
    return f"{many} against it.{questions}"


# -- numbers ----------------------------------------------------------------------------------


def _row(report: Report, name: str) -> dict[str, str]:
    v = report["values"][name]
    beside = {part: report[part].get(name) for part in OTHERS if report.get(part)}
    return {
        "name": value_words(report["info"], name),
        "metric": name.partition(".")[0],
        "value": number(name, v["value"]),
        "spread": spread(name, v),
        "n": "" if v["n"] is None else f"{v['n']:,}",
        "why": v["why"],
        **{part: "–" if other is None else number(name, other["value"]) for part, other in beside.items()},
    }


def _sections(report: Report, about: Mapping[str, str]) -> list[dict[str, Any]]:
    """The values by section and metric; what no section knows comes last."""
    by_metric: dict[str, list[str]] = {}
    for name in report["values"]:
        if telling(report, name):
            by_metric.setdefault(name.partition(".")[0], []).append(name)
    known = {metric for names in SECTIONS.values() for metric in names}
    shelves = {**SECTIONS, "other": tuple(m for m in by_metric if m not in known)}
    found = []
    for section, metrics in shelves.items():
        rows = [
            {"name": m, "about": about.get(m, ""), "rows": [_row(report, n) for n in by_metric[m]]}
            for m in metrics
            if m in by_metric
        ]
        if rows:
            found.append({"name": section, "question": QUESTIONS[section], "metrics": rows})
    return found


def _comparison(reports: Mapping[str, Report], about: Mapping[str, str]) -> dict[str, Any]:
    """The runs side by side: a column each, and the retrained model's where all have the same one."""
    first = next(iter(reports.values()))
    names = list(dict.fromkeys(n for r in reports.values() for n in r["values"] if telling(r, n)))
    known = [m for metrics in SECTIONS.values() for m in metrics]
    at = {m: i for i, m in enumerate(known)}
    names.sort(key=lambda n: at.get(n.partition(".")[0], len(known)))
    rows = []
    for name in names:
        cells = [r["values"].get(name) for r in reports.values()]
        theirs = [v for r in reports.values() if (v := r["retrained"].get(name)) and v["value"] is not None]
        same = {number(name, v["value"]) for v in theirs}
        rows.append({
            "name": value_words(first["info"], name),
            "about": about.get(name.partition(".")[0], ""),
            "main": name in MAIN,
            "cells": [
                {"value": "–", "spread": "", "why": ""}
                if v is None
                else {"value": number(name, v["value"]), "spread": spread(name, v), "why": v["why"]}
                for v in cells
            ],
            "retrained": same.pop() if len(same) == 1 else "differ" if same else "–",
        })  # fmt: skip
    return {"names": list(reports), "rows": rows, "overview": _overview(reports)}


# -- figures ----------------------------------------------------------------------------------


def _figures(report: Report, id: str) -> tuple[list[dict[str, Any]], list[dict[str, str]]]:
    """Every figure that can be drawn, and why the others cannot."""
    from purge.report import figures as plots
    from purge.report import theme as style

    drawn: list[dict[str, Any]] = []
    left_out = []
    for name, (title, caption) in plots.CAPTIONS.items():
        try:
            svg = style.as_inline_svg(plots.draw(report, name), f"{id}-{name}", f"{title}. {caption}")
            drawn.append({"name": name, "title": title, "caption": caption, "svg": Markup(svg)})
        except MetricError as error:
            left_out.append({"title": title, "why": str(error)})
    return drawn, left_out


def _overview(reports: Mapping[str, Report]) -> Markup | None:
    from purge.report import figures as plots
    from purge.report import theme as style

    words = "The main numbers of all runs with 95 % intervals, and the retrained model's"
    try:
        return Markup(style.as_inline_svg(plots.comparison(reports), "overview", words))
    except MetricError:
        return None


def _side_by_side(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Figures by name: one of each for every run that has it."""
    found: dict[str, dict[str, Any]] = {}
    for run in runs:
        for f in run["figures"]:
            entry = found.setdefault(f["name"], {"title": f["title"], "caption": f["caption"], "of": []})
            entry["of"].append({"run": run["name"], "svg": f["svg"]})
    return list(found.values())


# -- notebooks --------------------------------------------------------------------------------


def report_table(report: Report) -> str:
    """A report as a small table for a notebook, with the verdict beneath."""
    rows = [_row(report, name) for name in report["values"] if telling(report, name)]
    columns = [part for part in OTHERS if report.get(part)]
    return _small(NOTEBOOK_REPORT).render(
        asked=_asked(report["info"]), rows=rows, columns=columns, others=OTHERS, findings=verdict(report)
    )


def run_table(run: Mapping[str, Any], history: Mapping[str, Sequence[Any]]) -> str:
    """What unlearning or training returned, as a small table for a notebook."""
    rows = {
        "method": run.get("preset") or run["method"],
        "stopped by": run["stopped_by"],
        "steps": f"{run['steps']:,}",
        "seconds": f"{run['seconds']:.1f}",
    }
    checks = {"check_forget_accuracy": "forget accuracy", "check_retain_loss": "retain loss"}
    limits = {"check_forget_accuracy": "forget_target", "check_retain_loss": "retain_budget"}
    for name, words in checks.items():
        measured = [v for v in history.get(name) or [] if v is not None]
        if measured:
            limit = run.get(limits[name])
            show = "{:.1%}".format if name == "check_forget_accuracy" else "{:.4f}".format
            aim = "" if limit is None else f" ({limits[name].replace('_', ' ')} {show(limit)})"
            rows[words] = f"{show(measured[0])} → {show(measured[-1])}{aim}"
    for name in ("forget_samples", "retain_samples", "samples", "test_accuracy", "seed"):
        if run.get(name) is not None:
            share = name == "test_accuracy"
            rows[name.replace("_", " ")] = f"{run[name]:.1%}" if share else str(run[name])
    return _small(NOTEBOOK_RUN).render(rows=rows)


NOTEBOOK_REPORT = """<div style="overflow:auto;max-height:30em">
<p>Forgotten: {{ asked }}</p>
<table><thead><tr><th scope="col" style="text-align:left">metric</th><th scope="col">value</th>
<th scope="col">95 % interval</th>
{%- for c in columns %}<th scope="col">{{ others[c] }}</th>{% endfor -%}
<th scope="col" style="text-align:left">note</th></tr></thead><tbody>
{%- for row in rows %}
<tr><th scope="row" style="text-align:left">{{ row.name }}</th>
<td>{{ row.value }}</td><td>{{ row.spread }}</td>
{%- for c in columns %}<td>{{ row[c] }}</td>{% endfor -%}
<td style="text-align:left">{{ row.why }}</td></tr>
{%- endfor %}
</tbody></table>
<ul style="list-style:none;padding-left:0">{% for f in findings %}<li>{{ f }}</li>{% endfor %}</ul></div>"""

NOTEBOOK_RUN = """<table><tbody>
{%- for name, value in rows.items() %}
<tr><th scope="row" style="text-align:left">{{ name }}</th><td style="text-align:left">{{ value }}</td></tr>
{%- endfor %}
</tbody></table>"""


def _small(text: str) -> Template:
    return _environment().from_string(text)


def _environment() -> Environment:
    return Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)


def _template() -> str:
    return resources.files("purge.report").joinpath("page.html.j2").read_text(encoding="utf-8")


# The only script of the page; the page's policy names it by its digest.
SCRIPT = """
const root = document.documentElement, button = document.getElementById("theme");
const dark = () => root.dataset.theme
  ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
const say = () => { button.textContent = dark() ? "Light" : "Dark"; };
button.hidden = false;
button.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; say(); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", say);
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach(d => { d.open = true; }));
say();
"""
