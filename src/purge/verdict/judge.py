"""From the numbers of a report to a verdict: the rules of ``rules.py``, applied.

Nothing is measured here, and nothing is claimed that was not measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from purge.verdict import rules
from purge.verdict.findings import Against, Compared, Evidence, Finding, Headline, Help, Verdict, WhyOpen
from purge.verdict.numbers import Number, Numbers, Report, beyond, described
from purge.verdict.rules import Level, Part, Question, Rule, Topic


def verdict_of(report: Report) -> Verdict:
    """What a report shows; of a request that mixes classes and single samples, each is judged on its own."""
    numbers, info = Numbers(report), report["info"]
    parts = (report.get("parts") or {}).items()
    judged = [replace(f, part=Part(p)) for p, own in parts for f in _about_the_request(Numbers(own))]
    about = judged or _about_the_request(numbers)
    findings = [*about, *judge(numbers, rules.KEPT), *_worst_class(numbers)]
    run = info.get("run") or {}
    if exactly_forgotten(run) and (info.get("digests") or {}).get("audited") == run.get("digest"):
        frozen = run["exact"].get("frozen") is True  # a head that was solved for again
        open_ = Finding(rules.EXACT, Level.UNKNOWN, Evidence(help=Help.FROZEN_FEATURES))
        findings.insert(0, Finding(rules.EXACT, Level.SHOWN) if frozen else open_)
    copies = info.get("copies") or {}
    if copies.get("near") or copies.get("exact"):
        findings.append(Finding(rules.COPIES_STAY, Level.UNKNOWN, Evidence(help=Help.REMOVED_COPIES)))
    if copies.get("test_forget") or copies.get("test_retain"):
        findings.append(Finding(rules.COPIES_TESTED, Level.UNKNOWN))
    return _headline((*findings, *_unchecked(numbers)))


FAILED_AT: dict[Question | None, Headline] = {
    Question.MEMORY: Headline.CONTRADICTED, Question.DISTANCE: Headline.TOLD_APART,
    Question.RETAINED: Headline.DAMAGED,
}  # fmt: skip


def _headline(findings: tuple[Finding, ...]) -> Verdict:
    failed = [f for f in findings if f.level is Level.FAILED]
    memory = [f for f in findings if f.rule.question is Question.MEMORY]
    if failed:
        basis = next((f for f in memory if f.level is Level.FAILED), failed[0])
        return Verdict(Level.FAILED, FAILED_AT[basis.rule.question], findings, basis)
    proofs = [f for f in memory if f.level is Level.SHOWN and f.rule.decides]
    parts = {f.part for f in memory} - {Part.WHOLE} - {f.part for f in proofs}
    if proofs and not parts:
        return Verdict(Level.SHOWN, Headline.NOT_CONTRADICTED, findings, proofs[0])
    return Verdict(Level.UNKNOWN, Headline.OPEN, findings, None, tuple(sorted(parts)))


def _about_the_request(numbers: Numbers) -> list[Finding]:
    kind = Part.CLASSES if numbers.info.get("forget_classes") else Part.SAMPLES
    forgot = judge(numbers, rules.RECOGNISED if kind is Part.CLASSES else rules.RIGHT_AS_OFTEN)
    findings = [*forgot, *_moved(numbers, kind)]
    findings += [f for rule in rules.MEMBERSHIP_RULES if kind in rule.kinds for f in judge(numbers, rule)]
    return [*findings, *_robustness(numbers, kind, forgot[0].level), *_distance(numbers)]


# -- one rule ---------------------------------------------------------------------------------


def judge(numbers: Numbers, rule: Rule) -> list[Finding]:
    """The finding of a rule; none if nothing was measured and that is no finding.

    One number beyond the margin is enough to fail. It is shown if at least one number shows it, and no
    other lies beyond the margin even by its value alone.
    """
    compared = [one for name in rule.numbers if (one := _compared(numbers, rule, name))]
    if not compared:
        return _not_judged(numbers, rule)
    failed, shown = ([c for c in compared if c.level is level] for level in (Level.FAILED, Level.SHOWN))
    contradicted = [c for c in compared if beyond(_furthest(c, rule), rule.margin)]  # by the value alone
    level = Level.FAILED if failed else Level.SHOWN if shown and not contradicted else Level.UNKNOWN
    named = failed or contradicted or shown or [c for c in compared if c.tells] or compared
    one = named[0] if level is Level.SHOWN else max(named, key=lambda c: _furthest(c, rule))
    help_ = _help(one, rule) if level is Level.UNKNOWN else None
    return [Finding(rule, level, Evidence((one, *(c for c in compared if c is not one)), help=help_))]


def _compared(numbers: Numbers, rule: Rule, name: str) -> Compared | None:
    ours, before = numbers.get(name), numbers.get(name, "original")
    if ours is None:
        return None
    theirs, against = numbers.get(name, "retrained"), Against.RETRAINED
    if rule.aim is not None:
        theirs, against = ours.exactly(rule.aim), Against.AIM
    elif theirs is None and rule.fallback == "original":
        theirs, against = before, Against.ORIGINAL
    elif theirs is None and rule.fallback == "chance":
        theirs, against = ours.exactly(numbers.chance), Against.CHANCE
    if theirs is None:
        return None
    off, original = ours.minus(theirs), before.minus(theirs) if before else None
    level = _place(off, rule)
    tells = original is not None and _place(original, rule) is Level.FAILED
    if level is Level.SHOWN and ((rule.power and not tells) or against is Against.CHANCE):
        level = Level.UNKNOWN
    return Compared(ours, theirs, against, off, rule.margin, level, before, original, tells)


def _place(off: Number, rule: Rule) -> Level:
    """Does the interval of a difference lie within the margin, beyond it, or across it?"""
    sides = _sides(off, rule)
    if any(beyond(low, rule.margin) for low, _, _ in sides):
        return Level.FAILED
    return Level.UNKNOWN if any(beyond(high, rule.margin) for _, _, high in sides) else Level.SHOWN


def _furthest(one: Compared, rule: Rule) -> float:
    """How far a difference goes in the direction that counts."""
    return max(value for _, value, _ in _sides(one.difference, rule))


def _sides(off: Number, rule: Rule) -> list[tuple[float, float, float]]:
    """A difference as low, value and high in each direction that counts against a model."""
    sides = {"above": (off.low, off.value, off.high), "below": (-off.high, -off.value, -off.low)}
    return [*sides.values()] if rule.side == "both" else [sides[rule.side]]


def _help(one: Compared, rule: Rule) -> Help | None:
    """What would decide a comparison that is open."""
    if one.against in (Against.ORIGINAL, Against.CHANCE):
        return Help.RETRAINED
    if rule.power and one.original is None:
        return Help.ORIGINAL
    if rule.power and not one.tells and one.against is Against.AIM:
        return None  # more samples do not make these models differ
    return Help.SHARPER_ATTACKS if rule.topic is Topic.MEMBERSHIP else Help.MORE_SAMPLES


def _not_judged(numbers: Numbers, rule: Rule) -> list[Finding]:
    """Nothing to compare: was it not measured, or is there no retrained model?"""
    measured = [v for name in rule.numbers if (v := numbers.get(name))]
    if measured and not numbers.report["retrained"]:
        evidence = Evidence(measured=measured[0], missing=WhyOpen.REFERENCE, help=Help.RETRAINED)
        return [Finding(rule, Level.UNKNOWN, evidence)]
    return [_open(rule, WhyOpen.MEASUREMENT)] if rule.expected else []


def _open(rule: Rule, missing: WhyOpen) -> Finding:
    return Finding(rule, Level.UNKNOWN, Evidence(missing=missing))


# -- more than a margin -----------------------------------------------------------------------


def exactly_forgotten(run: Mapping[str, Any]) -> bool:
    """Has a run verified that its deletion is exact by construction, on the features that it was given?"""
    claim = run.get("exact") or {}
    counts = isinstance(run.get("retain_samples"), int) and isinstance(run.get("forget_samples"), int)
    verified = claim.get("same_before") is True and claim.get("rest_kept") is True
    weights = claim.get("weights")
    untouched = bool(weights) and weights == run.get("digest")  # not edited after the run
    return isinstance(claim.get("off"), float) and counts and verified and untouched


def _moved(numbers: Numbers, kind: Part) -> list[Finding]:
    """A model that is still the original has forgotten nothing, whatever the numbers say."""
    digests = numbers.info.get("digests") or {}
    if digests.get("audited") and digests.get("audited") == digests.get("original"):
        return [Finding(rules.SAME_WEIGHTS, Level.FAILED)]
    compared = []
    for name, least in rules.MOVED_LEAST[kind].items():
        ours, theirs = numbers.get(name), numbers.get(name, "retrained")
        if ours and theirs and theirs.value > 0:
            level = Level.FAILED if ours.value / theirs.value < least else Level.SHOWN
            compared.append(Compared(ours, theirs, Against.RETRAINED, ours.minus(theirs), least, level))
    if not compared:
        return []
    stuck = {c.name for c in compared if c.level is Level.FAILED}
    rule = rules.ANSWERS_MOVED if stuck == {"output_change"} else rules.MOVED
    return [Finding(rule, Level.FAILED if stuck else Level.SHOWN, Evidence(tuple(compared)))]


def _worst_class(numbers: Numbers) -> list[Finding]:
    """The class that lost most among those that stay: a mean can hide it."""
    side = Against.RETRAINED if numbers.by_class("retrained") else Against.ORIGINAL
    ours, aim = numbers.by_class("values"), numbers.by_class(side)
    stay = [k for k in ours if k in aim and k not in (numbers.info.get("forget_classes") or [])]
    rule, compared = rules.WORST_CLASS, []
    for k in stay:
        off = ours[k].minus(aim[k]).one_of(len(stay))
        compared.append(Compared(ours[k], aim[k], side, off, rule.margin, _place(off, rule)))
    if not compared:
        return []
    found = {c.level for c in compared}
    level = next(one for one in (Level.FAILED, Level.UNKNOWN, Level.SHOWN) if one in found)
    worst = max((c for c in compared if c.level is level), key=lambda c: _furthest(c, rule))
    help_ = Help.MORE_SAMPLES if level is Level.UNKNOWN else None
    return [Finding(rule, level, Evidence((worst, *(c for c in compared if c is not worst)), help=help_))]


def _robustness(numbers: Numbers, kind: Part, forgot: Level) -> list[Finding]:
    """Does the forgetting last? Treatments are judged by the accuracy on whole classes."""
    if kind is Part.SAMPLES:
        return [_open(rules.LASTS, WhyOpen.METHOD)]
    treated = [one for rule in rules.TREATMENTS for one in judge(numbers, rule)]
    if forgot is Level.FAILED and treated:  # what is still recognised cannot come back
        treated = [_open(rules.LASTS, WhyOpen.FORGETTING)]
    findings = [*treated, *_relearning(numbers), *judge(numbers, rules.INSIDE)]
    return findings or [_open(rules.LASTS, WhyOpen.MEASUREMENT)]


def _relearning(numbers: Numbers) -> list[Finding]:
    """A model that cannot relearn while the retrained one can is blocked, which hides what it knows."""
    raw, findings = numbers.raw("relearn_ratio"), judge(numbers, rules.RELEARNED)
    if not findings or not raw.get("why"):
        return findings
    bound = raw.get("bound") or "none"  # audits of earlier versions do not say which
    (one, *_), finding = findings[0].evidence.compared, findings[0]
    finding = replace(finding, evidence=replace(finding.evidence, compared=(replace(one, bound=bound),)))
    if bound == "least":
        evidence = replace(finding.evidence, help=None)
        return [Finding(rules.BLOCKED, Level.FAILED, evidence)]
    opened = bound == "none" or finding.level is Level.SHOWN
    return [replace(finding, level=Level.UNKNOWN) if opened else finding]


# -- distance ---------------------------------------------------------------------------------


def _distance(numbers: Numbers) -> list[Finding]:
    """Is the model as close to the retrained one as another retraining is?"""
    if not numbers.report["retrained"]:
        return []  # said once, under what was not checked
    compared = []
    for v, floor in numbers.beside(numbers.values, "floor").items():
        metric = described(numbers.report, v.name)
        judged = metric.get("section") == "distance" and metric.get("direction") in ("higher", "lower")
        if floor and v.sure and judged and v.name not in rules.NOT_JUDGED:
            before = numbers.get(v.name, "original")
            tells = before is not None and _as_close(metric, before, floor) is Level.FAILED
            level, factor = _as_close(metric, v, floor), _factor(floor)
            off = v.minus(floor)
            compared.append(Compared(v, floor, Against.FLOOR, off, factor, level, before, tells=tells))
    if not compared:
        main, help_ = numbers.get("agreement"), Help.SECOND_RETRAINED
        evidence = Evidence(measured=main, missing=WhyOpen.FLOOR, help=help_)
        return [Finding(rules.DISTANCE, Level.UNKNOWN, evidence)]
    telling = {c.level for c in compared if c.tells}
    level = Level.FAILED if Level.FAILED in {c.level for c in compared} else Level.UNKNOWN
    if level is not Level.FAILED and telling == {Level.SHOWN}:
        level = Level.SHOWN
    first = sorted(compared, key=lambda c: c.level is not level)
    return [Finding(rules.DISTANCE, level, Evidence(tuple(first)))]


def _factor(floor: Number) -> float:
    """One other retraining is a single draw: honest ones are up to 1.8 times as far off, beside three 1.2."""
    return rules.FURTHER if (floor.n or 1) < 3 else rules.FURTHER_OF_THREE


def _as_close(metric: Mapping[str, Any], ours: Number, floor: Number) -> Level:
    """Is its whole interval within what chance may bring, or beyond it?"""
    likeness = metric["direction"] == "higher"  # 1 is the same model
    near, far = (1 - ours.high, 1 - ours.low) if likeness else (ours.low, ours.high)
    furthest = 1 - floor.low if likeness else floor.high
    chance = max(_factor(floor) * furthest, furthest + metric.get("slack", 0.0))
    return Level.FAILED if near > chance else Level.SHOWN if far <= chance else Level.UNKNOWN


# -- what was not checked ---------------------------------------------------------------------


def _unchecked(numbers: Numbers) -> Iterable[Finding]:
    if not numbers.report["retrained"]:
        yield Finding(rules.NO_REFERENCE, Level.UNKNOWN, Evidence(help=Help.RETRAINED))
    if not numbers.beside(f"{name}.auroc" for name in rules.SHADOWS):
        yield Finding(rules.NO_SHADOWS, Level.UNKNOWN, Evidence(help=Help.SHADOW_MODELS))
    if numbers.info.get("augmented"):
        yield Finding(rules.AUGMENTED, Level.UNKNOWN)
    names = []  # of values without a number, but for those that want the models whose lack is said already
    for name, value in numbers.values.items():
        needs = described(numbers.report, name).get("needs") or ()
        said = "shadows" in needs or ("retrained" in needs and not numbers.report["retrained"])
        if value["value"] is None and not said:
            names.append(name)
    if names:
        yield Finding(rules.NOT_COMPUTED, Level.UNKNOWN, Evidence(not_computed=tuple(names)))
    yield Finding(rules.NO_GUARANTEE, Level.UNKNOWN)
