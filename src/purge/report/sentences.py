"""What an audit showed, in sentences for the person who signs for it.

They are made from the findings of :mod:`purge.verdict` and the tables of :mod:`purge.report.words`;
nothing is decided here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from purge.report.tables import class_words, copies_words, in_a_sentence, shown
from purge.report.words import HEADLINES, HELP, LEVELS, PARTS, SIGNS, TEXTS, TITLES
from purge.verdict import rules
from purge.verdict.compare import Broken
from purge.verdict.findings import Against, Finding, Verdict, WhyOpen
from purge.verdict.judge import exactly_forgotten
from purge.verdict.numbers import Number, Numbers, Report
from purge.verdict.rules import Level, Part


class Sentence(NamedTuple):
    """A finding or a headline in words."""

    level: Level
    title: str
    text: str
    next: str = ""  # what would decide it, if it is not known

    def __str__(self) -> str:
        more = f" To decide it: {self.next}." if self.next else ""
        return f"{SIGNS[self.level]} {LEVELS[self.level]}: {self.title}. {self.text}{more}"


def sentence_of(finding: Finding, report: Report) -> Sentence:
    """A finding in words; the report has names, reasons and the record of the run."""
    own = report if finding.part is Part.WHOLE else report["parts"][finding.part]
    numbers, help_ = Numbers(own), finding.evidence.help
    title = title_of(finding)
    return Sentence(finding.level, title, _text(finding, numbers), HELP[help_] if help_ else "")


def title_of(finding: Finding) -> str:
    """The title of a finding; of a mixed request it says which part it is about."""
    title = title_for(finding.rule.name, finding.level, finding.evidence.missing)
    if finding.part is Part.WHOLE:
        return title
    return f"{PARTS[finding.part]}: {title[:1].lower()}{title[1:]}"


def title_for(rule: str, level: str, missing: str | None = None) -> str:
    """The title of what a rule found, by name, as a record keeps it."""
    titles = TITLES[rule]
    return (titles.get(WhyOpen(missing)) if missing else None) or titles[Level(level)]


def standing_alone(title: str) -> str:
    """A title for a place where nobody knows what “it” is."""
    return re.sub(r"^It(s?) (?!is open)", lambda its: "The model" + "'s" * bool(its[1]) + " ", title)


def headline_of(verdict: Verdict) -> Sentence:
    """The whole verdict in one sentence that can be quoted."""
    title, basis = HEADLINES[verdict.kind], verdict.basis
    if verdict.level is Level.FAILED and basis is not None:
        others = len(verdict.failed) - 1
        more = f", and {_count(others, 'more finding')} failed" if others else ""
        return Sentence(verdict.level, title, f"{title_of(basis)}{more}.")
    open_ = f"open questions: {len(verdict.open)}."
    if basis is not None:
        return Sentence(verdict.level, title, f"{title_of(basis)}, within the margins stated; {open_}")
    parts = sorted(f"{PARTS[part][:1].lower()}{PARTS[part][1:]}" for part in verdict.open_parts)
    title = title.format(parts=" and ".join(parts) or "the samples")
    return Sentence(verdict.level, title, f"No test that can tell the original shows it; {open_}")


def quotable(verdict: Verdict) -> str:
    """The verdict as one sentence that stands alone, away from this page."""
    headline = headline_of(verdict)
    text = standing_alone(headline.text)
    return f"{headline.title}: {text[:1].lower()}{text[1:]}"


def broken_words(broken: Broken) -> str:
    """Why an audit does not pass a condition, in one line."""
    condition = broken.condition
    if condition.sign is None:
        return f"Failed: {'; '.join(map(title_of, broken.findings))}."
    comparison = f"{condition.name}{condition.sign}{condition.bound:g}"
    if broken.value is None:
        return f"Failed: {comparison} cannot be ruled out, {condition.name} was not measured ({broken.why})."
    return f"Failed: {comparison}, it is {shown(broken.value, condition.unit)}."


def why_missing(report: Report, name: str) -> str:
    """Why a value is missing, as a sentence."""
    reason = Numbers(report).raw(name).get("why") or f"{name} was not asked for"
    metrics = {other.partition(".")[0] for other in (name, *report["values"])}
    named = reason.split(maxsplit=1)[0].rstrip(":") in {name, *metrics}  # these keep their small letters
    return (reason if named else _capital(reason)) + "."


def exact_words(run: Mapping[str, Any]) -> str:
    """What a run has verified about an exact deletion; empty if it was not found to be one."""
    if not exactly_forgotten(run):
        return ""
    claim, kept, forgotten = run["exact"], run["retain_samples"], run["forget_samples"]
    declared = "The user declares that they were not" if claim.get("frozen") is True else "That is not known"
    return (
        f"Verified in the run: its head {claim.get('head')!r} was the {claim.get('kind')} head of all "
        f"{kept + forgotten:,} samples (relative distance {claim['off']:.1e}), is now that of the {kept:,} "
        "retained ones alone, and every other weight is bit-identical. So the deletion is exact if the "
        f"features were never trained on the forgotten samples. {declared}, and no audit can verify it."
    )


# -- what a finding says ------------------------------------------------------------------------


def _text(finding: Finding, numbers: Numbers) -> str:
    name, evidence = finding.rule.name, finding.evidence
    if name in TEXTS:
        return TEXTS[name]
    if name in OWN:
        return OWN[name](finding, numbers)
    if ours := evidence.measured:
        interval = f" (95 % interval {_range(ours)})" if ours.low < ours.high else ""
        return (
            f"{_capital(in_a_sentence(numbers.report, ours.name))}: {number_words(ours)}{interval}. "
            "What a model that never saw the data would reach is not known."
        )
    if evidence.missing is WhyOpen.MEASUREMENT:
        return why_missing(numbers.report, finding.rule.numbers[0])
    one = evidence.compared[0]
    which_way = f" It is {numbers.raw(one.name)['why']}." if one.bound else ""
    return _compared(finding, numbers.report) + which_way


def _compared(finding: Finding, report: Report) -> str:
    """The number that decided, what it was compared with, and whether the test could have found anything."""
    one, rule = finding.evidence.compared[0], finding.rule
    text = f"{_capital(in_a_sentence(report, one.name))}: {number_words(one.ours)}"
    whose = {
        Against.RETRAINED: "in the retrained model",
        Against.ORIGINAL: "in the original",
        Against.CHANCE: "by guessing",
    }
    if one.against in whose:
        text += f", {whose[one.against]} {number_words(one.theirs)}"
    if one.original and one.against is not Against.ORIGINAL:
        text += f", in the original {number_words(one.original)}"
    n = f", {_samples(one.ours)}" if one.ours.n else ""
    margin = f"{100 * one.margin:g} points" if one.difference.unit == "change" else f"{one.margin:g}"
    text += f". The difference is {_range(one.difference)} (95 % interval{n}); the margin is {margin}."
    if rule.power:  # could this test have found anything?
        if one.original_difference is None:
            failed = finding.level is Level.FAILED
            text += "" if failed else " Without the original, nothing shows that this test can tell."
        elif one.tells:
            text += f" The original's is {_range(one.original_difference)}, so this test can tell."
        else:
            why = f"these {_samples(one.ours)} are too few, or there is nothing to tell: " * bool(one.ours.n)
            text += f" The original's is {_range(one.original_difference)}: {why}the test does not tell the "
            text += "original either."
    if (n_all := len(finding.evidence.compared)) > 1:
        telling = sum(c.tells for c in finding.evidence.compared)
        power = f", of which {telling or 'none'} can tell the original" if rule.power else ""
        text += f" It is one of {n_all} numbers of this kind{power}."
    return text


def _moved(finding: Finding, numbers: Numbers) -> str:
    texts = []
    for c in finding.evidence.compared:
        share = c.ours.value / c.theirs.value
        percent = f"{100 * share:.0f} %" if share >= 0.01 else f"{100 * share:.2f} %"
        least = f"below {100 * c.margin:g} % counts as unchanged"
        texts.append(f"its {in_a_sentence(numbers.report, c.name)} moved by {percent} of that ({least})")
    return f"Retraining moves a model away from the original on the forgotten samples; {', '.join(texts)}."


def _worst_class(finding: Finding, numbers: Numbers) -> str:
    one, stay = finding.evidence.compared[0], len(finding.evidence.compared)
    words = class_words([int(one.name.rpartition(".")[2])], numbers.info.get("names") or [])
    return (
        f"Of the classes that stay, {words} lost most: {number_words(one.ours)}, {one.against} model "
        f"{number_words(one.theirs)}. The difference is {_range(one.difference)} (95 % interval for the "
        f"lowest of {stay}, {_samples(one.ours)}); the margin is {100 * one.margin:g} points."
    )


def _lasts(finding: Finding, numbers: Numbers) -> str:
    if finding.evidence.missing is WhyOpen.FORGETTING:
        return TEXTS["no_forgetting"]
    if finding.evidence.missing is WhyOpen.METHOD:
        return TEXTS["no_method"]
    attacks = (*rules.TREATMENTS, rules.RELEARNED, rules.INSIDE)
    raw = [numbers.raw(name) for rule in attacks for name in rule.numbers]
    reasons = dict.fromkeys(v["why"] for v in raw if v.get("why"))
    if reasons:
        return f"The attacks that try to bring it back could not be run: {'; '.join(reasons)}."
    return "No attack that tries to bring it back was run: the panel 'standard' has them."


def _distance(finding: Finding, _: Numbers) -> str:
    compared = finding.evidence.compared
    if finding.evidence.missing is WhyOpen.FLOOR:
        main = finding.evidence.measured
        agrees = (
            f"It agrees with the retrained model on {number_words(main)} of the forget set. " if main else ""
        )
        further = "How far apart two retrainings are was not measured, so it is open whether this is close."
        return agrees + further
    off = [c for c in compared if c.level is finding.level] or list(compared)
    pairs = [(c.name, number_words(c.ours), number_words(c.theirs)) for c in off[:3]]
    distances = "; ".join(f"{name} {ours}, another retraining {theirs}" for name, ours, theirs in pairs)
    others = _capital(_count(max(c.theirs.n or 1 for c in compared), "further retraining"))
    telling = sum(c.tells for c in compared)
    text = {
        Level.SHOWN: f"It is no further in any of the distances that tell the original: {distances}.",
        Level.UNKNOWN: f"{others} cannot tell more: {distances}.",
        Level.FAILED: f"It is much further in {len(off)} of {len(compared)} distances: {distances}. That "
        "does not mean that something is remembered, but that it can be told from a model that never saw the "
        "data.",
    }[finding.level]
    return f"{text} {telling or 'None'} of {len(compared)} distances tell the original."


def _copies_stay(_: Finding, numbers: Numbers) -> str:
    copies = copies_words(numbers.info)[0]
    return f"{copies}. What stays in the retained data keeps teaching the model, whatever is forgotten."


def _copies_tested(_: Finding, numbers: Numbers) -> str:
    tested = [words for words in copies_words(numbers.info) if "test samples" in words]
    return f"{'; '.join(tested)}. Such copies are tolerated up to one percent of the smaller set."


def _not_computed(finding: Finding, numbers: Numbers) -> str:
    reasons: dict[str, list[str]] = {}
    for name in finding.evidence.not_computed:
        reasons.setdefault(numbers.values[name]["why"], []).append(name)
    return "; ".join(f"{', '.join(own)}: {why}" for why, own in reasons.items()) + "."


OWN: dict[str, Callable[[Finding, Numbers], str]] = {  # rules whose findings have sentences of their own
    "exact": lambda _, numbers: exact_words(numbers.info["run"]),
    "moved": _moved, "answers_moved": _moved, "worst_class": _worst_class, "lasts": _lasts,
    "distance": _distance, "copies_stay": _copies_stay, "copies_tested": _copies_tested,
    "augmented": lambda _, numbers: f"{numbers.info['augmented']}.", "not_computed": _not_computed,
}  # fmt: skip


# -- numbers ------------------------------------------------------------------------------------


def _shown(value: float, unit: str) -> str:
    if unit not in ("change", "difference"):
        return shown(value, unit)
    words = (f"{100 * value:+.1f}" if unit == "change" else f"{value:+.3f}").replace("-", "−")
    return words[1:] if set(words[1:]) <= {"0", "."} else words


def number_words(number: Number) -> str:
    """A number as text."""
    return _shown(number.value, number.unit)


def _range(number: Number) -> str:
    """Its interval as text."""
    ends = f"{_shown(number.low, number.unit)} to {_shown(number.high, number.unit)}"
    return f"{ends} points" if number.unit == "change" else ends


def _samples(number: Number) -> str:
    """How many samples it was measured on."""
    return "one sample" if number.n == 1 else f"{number.n or 0} samples"


def _count(n: int, thing: str) -> str:
    return f"one {thing}" if n == 1 else f"{n} {thing}s"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
