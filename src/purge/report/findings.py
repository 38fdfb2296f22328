"""What an audit showed, in words for the person who signs for it.

The rules of :mod:`purge.report.rules` turn the numbers of a report into findings. Nothing is measured here,
and nothing is claimed that was not measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from purge.report import rules
from purge.report.exact import exact
from purge.report.numbers import Level, Number, Numbers
from purge.report.rules import LIMITS, Finding, Rule, Side
from purge.report.tables import Report, class_words, copies_words, described

RETRAINED = "audit it beside a model that was retrained without the data (--retrained RUN)"
ORIGINAL = "audit it beside the original model (--original RUN)"
MORE = "measure on more samples"
SHARPER = "measure on more samples, or with attacks by shadow models (--metrics full)"


def verdict(report: Report) -> list[Finding]:
    """What the report shows about forgetting, damage, membership, robustness and distance, and its limits.

    Where a request has whole classes and single samples, each of the two is judged on its own.
    """
    parts = report.get("parts") or {}
    words = {"classes": "The classes", "samples": "The single samples"}
    judged = [
        replace(f, title=f"{words.get(name, name)}: {f.title[:1].lower()}{f.title[1:]}")
        for name, part in parts.items()
        for f in _about_the_request(Numbers(part))
    ]
    of = Numbers(report)
    about = judged or _about_the_request(of)
    return [*exact(of), *about, *_damage(of), *_copies(of), *_unchecked(of), LIMITS]


def headline(findings: Sequence[Finding]) -> Finding:
    """The whole verdict in one sentence that can be quoted."""
    failed = [f for f in findings if f.level == "failed"]
    if failed:
        kept = {"damage": "The model was damaged", "distance": "The model can be told from a retrained one"}
        against = [f for f in failed if f.topic not in kept] or failed
        more = f", and {_count(len(failed) - 1, 'more finding')} failed" if len(failed) > 1 else ""
        title = kept.get(against[0].topic, "This audit contradicts the deletion")
        return Finding("failed", "headline", title, f"{against[0].title}{more}.")
    asked = [f for f in findings if f.topic in ("forgetting", "membership")]
    enough = tuple(r.shown[1:] for r in (rules.CLASS, rules.SAMPLES, rules.ATTACKED, rules.CANARIES))
    told = [f for f in asked if f.level == "shown" and f.title.endswith(enough)]
    parts = {f.title.partition(": ")[0] for f in asked if f.title.startswith("The ") and ": " in f.title}
    proved = {f.title.partition(": ")[0] for f in told}
    if told and parts <= proved:
        text = f"{told[0].title}, within the margins stated; open questions: {_open(findings)}."
        return Finding("shown", "headline", "No test of this audit contradicts the deletion", text)
    which = " and ".join(sorted(part[:1].lower() + part[1:] for part in parts - proved)) or "the samples"
    text = f"No test that can tell the original shows it; open questions: {_open(findings)}."
    return Finding("unknown", "headline", f"This audit cannot say whether {which} were forgotten", text)


def _open(findings: Sequence[Finding]) -> int:
    return sum(f.level == "unknown" and f.topic != "limits" for f in findings)


def _about_the_request(of: Numbers) -> list[Finding]:
    kind = "classes" if of.info.get("forget_classes") else "samples"
    forgot = [f for rule in (rules.CLASS, rules.SAMPLES) if kind in rule.kinds for f in judge(of, rule)]
    found = [*forgot, *_moved(of, kind)]
    found += [f for rule in rules.MEMBERSHIP if kind in rule.kinds for f in judge(of, rule)]
    return [*found, *_robustness(of, kind, forgot[0].level), *_distance(of)]


# -- one rule ---------------------------------------------------------------------------------


class Compared(NamedTuple):
    """A number beside the retrained model's."""

    ours: Number
    theirs: Number
    off: Number  # the difference
    original: Number | None  # the original's difference; None: not measured
    level: Level
    tells: bool  # does the same test tell the original?


def judge(of: Numbers, rule: Rule) -> list[Finding]:
    """The finding of a rule; none if nothing was measured and the rule has no title for that.

    One number beyond the margin is enough to fail. It is shown if at least one number shows it, and no
    other lies beyond the margin even by its value alone.
    """
    found = [one for name in rule.numbers if (one := _compared(of, rule, name))]
    if not found:
        return _not_judged(of, rule)
    failed = [one for one in found if one.level == "failed"]
    shown = [one for one in found if one.level == "shown"]
    contradicted = [one for one in found if _place(one.off.value, one.off.value, rule) == "failed"]
    level: Level = "failed" if failed else "shown" if shown and not contradicted else "unknown"
    named = failed or contradicted or shown or [one for one in found if one.tells] or found
    one = max(named, key=lambda c: _excess(c.off, rule)) if level != "shown" else named[0]
    return [_finding(of, rule, level, one, found)]


def _compared(of: Numbers, rule: Rule, name: str) -> Compared | None:
    ours, before = of.get(name), of.get(name, "original")
    if ours is None:
        return None
    theirs, only_fails = of.get(name, "retrained"), False
    if rule.aim is not None:
        theirs = _exactly(ours, rule.aim)
    elif theirs is None and rule.fallback == "original":
        theirs = before
    elif theirs is None and rule.fallback == "chance":
        theirs, only_fails = _exactly(ours, of.chance), True
    if theirs is None:
        return None
    off, original = ours.minus(theirs), before.minus(theirs) if before else None
    level = _place(off.low, off.high, rule)
    tells = original is not None and _place(original.low, original.high, rule) == "failed"
    if level == "shown" and ((rule.power and not tells) or only_fails):
        level = "unknown"
    return Compared(ours, theirs, off, original, level, tells)


def _exactly(number: Number, value: float) -> Number:
    """A number that is known, without an interval."""
    return number._replace(value=value, low=value, high=value, n=None)


def _place(low: float, high: float, rule: Rule) -> Level:
    """Does an interval lie within the margin, beyond it, or across it?"""
    margin, sides = rule.margin + 1e-9, _sides(rule.side)
    if ("above" in sides and low > margin) or ("below" in sides and high < -margin):
        return "failed"
    inside = ("above" not in sides or high <= margin) and ("below" not in sides or low >= -margin)
    return "shown" if inside else "unknown"


def _sides(side: Side) -> tuple[Side, ...]:
    return ("above", "below") if side == "both" else (side,)


def _excess(off: Number, rule: Rule) -> float:
    """How far a difference goes in the direction that counts."""
    return max({"above": off.value, "below": -off.value}[side] for side in _sides(rule.side))


def _finding(of: Numbers, rule: Rule, level: Level, one: Compared, found: list[Compared]) -> Finding:
    ours, theirs, off, original, _, tells = one
    words = rule.numbers[ours.name]
    told = f"{words[:1].upper()}{words[1:]}: {ours.words}"
    beside = [] if theirs.n is None and rule.aim is not None else [f"{_whose(of, rule, ours)} {theirs.words}"]
    if (before := of.get(ours.name, "original")) and not (rule.fallback == "original" and theirs == before):
        beside.append(f"in the original {before.words}")
    told += "".join(f", {part}" for part in beside) + "."
    n = f", {ours.samples}" if ours.n else ""
    margin = f"{100 * rule.margin:g} points" if off.unit == "change" else f"{rule.margin:g}"
    told += f" The difference is {off.range} (95 % interval{n}); the margin is {margin}."
    told += _power(rule, one, level)
    told += _several(found, rule)
    next_ = ""
    if level == "unknown":
        no_retrained = rule.aim is None and not of.get(ours.name, "retrained")
        next_ = RETRAINED if no_retrained else ORIGINAL if rule.power and original is None else MORE
        next_ = SHARPER if next_ == MORE and rule.topic == "membership" else next_
        if rule.power and original is not None and not tells and not no_retrained and rule.aim is not None:
            next_ = ""  # more samples do not make these models differ
    return Finding(level, rule.topic, getattr(rule, level), told, next_)


def _whose(of: Numbers, rule: Rule, ours: Number) -> str:
    """What a number was compared with."""
    if of.get(ours.name, "retrained"):
        return "in the retrained model"
    return "in the original" if rule.fallback == "original" else "by guessing"


def _power(rule: Rule, one: Compared, level: Level) -> str:
    """Could this test have found anything? Said wherever that is a condition."""
    if not rule.power:
        return ""
    if one.original is None:
        return "" if level == "failed" else " Without the original, nothing shows that this test can tell."
    if one.tells:
        return f" The original's is {one.original.range}, so this test can tell."
    few = f"these {one.ours.samples} are too few, or there is nothing to tell: " if one.ours.n else ""
    return f" The original's is {one.original.range}: {few}the test does not tell the original either."


def _several(found: list[Compared], rule: Rule) -> str:
    if len(found) == 1:
        return ""
    telling = sum(c.tells for c in found)
    power = f", of which {telling or 'none'} can tell the original" if rule.power else ""
    return f" It is one of {len(found)} numbers of this kind{power}."


def _not_judged(of: Numbers, rule: Rule) -> list[Finding]:
    """Nothing to compare: was it not measured, or is there no retrained model?"""
    measured = [v for name in rule.numbers if (v := of.get(name))]
    if measured and not of.report["retrained"]:
        words = rule.numbers[measured[0].name]
        told = f"{words[:1].upper()}{words[1:]}: {measured[0].words}{measured[0].spread}. "
        told += "What a model that never saw the data would reach is not known."
        return [Finding("unknown", rule.topic, rule.unknown, told, RETRAINED)]
    if not rule.missing:
        return []
    return [Finding("unknown", rule.topic, rule.missing, of.why(next(iter(rule.numbers))))]


# -- has anything changed at all? -------------------------------------------------------------


def _moved(of: Numbers, kind: str) -> list[Finding]:
    """A model that is still the original has forgotten nothing, whatever the numbers say."""
    rule, digests = rules.MOVED, of.info.get("digests") or {}
    if digests.get("audited") and digests.get("audited") == digests.get("original"):
        told = "Every weight equals the original's, so nothing was forgotten, whatever the numbers say."
        return [Finding("failed", rule.topic, "Its weights are the original's", told)]
    shares, least = {}, rules.MOVED_LEAST[kind]
    for name in rule.numbers:
        ours, theirs = of.get(name), of.get(name, "retrained")
        if ours and theirs and theirs.value > 0:
            shares[name] = ours.value / theirs.value
    if not shares:
        return []
    texts = [
        f"its {rule.numbers[name]} moved by {_percent(share)} of that (below {100 * least[name]:g} % counts "
        "as unchanged)"
        for name, share in shares.items()
    ]
    told = f"Retraining moves a model away from the original on the forgotten samples; {', '.join(texts)}."
    stuck = [name for name, share in shares.items() if share < least[name]]
    if not stuck:
        return [Finding("shown", rule.topic, rule.shown, told)]
    title = rule.failed if "hidden_change" in stuck else "It still answers as the original does"
    return [Finding("failed", rule.topic, title, told)]


# -- damage -----------------------------------------------------------------------------------


def _damage(of: Numbers) -> list[Finding]:
    return [*judge(of, rules.KEPT), *_worst_class(of)]


def _worst_class(of: Numbers) -> list[Finding]:
    """The class that lost most among those that stay: a mean can hide it."""
    side = "retrained" if of.by_class("retrained") else "original"
    ours, aim, gone = of.by_class("values"), of.by_class(side), of.info.get("forget_classes") or []
    stay = [k for k in ours if k in aim and k not in gone]
    if not stay:
        return []
    rule, lost = rules.WORST_CLASS, {k: ours[k].minus(aim[k]).one_of(len(stay)) for k in stay}
    levels = {k: _place(off.low, off.high, rule) for k, off in lost.items()}
    level: Level = "failed" if "failed" in levels.values() else "unknown"
    level = "shown" if set(levels.values()) == {"shown"} else level
    worst = min((k for k in lost if levels[k] == level), key=lambda k: lost[k].value)
    words = class_words([worst], of.info.get("names") or [])
    told = (
        f"Of the classes that stay, {words} lost most: {ours[worst].words}, {side} model {aim[worst].words}. "
        f"The difference is {lost[worst].range} (95 % interval for the lowest of {len(stay)}, "
        f"{ours[worst].samples}); the margin is {100 * rule.margin:g} points."
    )
    return [Finding(level, rule.topic, getattr(rule, level), told, MORE if level == "unknown" else "")]


# -- robustness -------------------------------------------------------------------------------


def _robustness(of: Numbers, kind: str, forgot: Level) -> list[Finding]:
    if kind == "samples":
        title = "Whether single samples come back was not measured"
        told = (
            "Recalibration, rounding, pruning and relearning are judged by the accuracy on whole classes. "
            "Here single samples were forgotten, whose classes stay, so these attacks do not tell."
        )
        return [Finding("unknown", "robustness", title, told)]
    treated = [one for rule in rules.TREATMENTS for one in judge(of, rule)]
    if forgot == "failed" and treated:
        title = "There is no forgetting that could last"
        told = "What is still recognised cannot come back, so attacks that try to bring it back say nothing."
        treated = [Finding("unknown", "robustness", title, told)]
    found = [*treated, *_relearning(of), *judge(of, rules.INSIDE)]
    if found:
        return found
    names = [name for rule in (*rules.TREATMENTS, rules.RELEARNED, rules.INSIDE) for name in rule.numbers]
    reasons = dict.fromkeys(v["why"] for v in map(of.raw, names) if v.get("why"))
    told = "No attack that tries to bring it back was run: the panel 'standard' has them."
    if reasons:
        told = f"The attacks that try to bring it back could not be run: {'; '.join(reasons)}."
    return [Finding("unknown", "robustness", "Whether the forgetting lasts was not measured", told)]


def _relearning(of: Numbers) -> list[Finding]:
    """A model that cannot relearn while the retrained one can is blocked, which hides what it knows."""
    note, found = of.raw("relearn_ratio").get("why") or "", judge(of, rules.RELEARNED)
    if not found or not note:
        return found
    if note.startswith("at least"):
        title = "It cannot be relearned, while a model that never knew it can be"
        return [replace(found[0], level="failed", title=title, text=f"{found[0].text} It is {note}.")]
    open_ = note.startswith("neither") or found[0].level == "shown"
    return [
        replace(found[0], level="unknown" if open_ else found[0].level, text=f"{found[0].text} It is {note}.")
    ]


# -- distance ---------------------------------------------------------------------------------


def _distance(of: Numbers) -> list[Finding]:
    """Is the model as close to the retrained one as another retraining is?"""
    if not of.report["retrained"]:
        return []  # said once, under what was not checked
    names = [name for name in of.values if _is_distance(of, name)]
    pairs = {v: floor for v, floor in of.beside(names, "floor").items() if floor and v.sure}
    if not pairs:
        main = of.get("agreement")
        said = f"It agrees with the retrained model on {main.words} of the forget set. " if main else ""
        told = (
            f"{said}How far apart two retrainings are was not measured, so it is open whether this is close."
        )
        return [
            Finding("unknown", "distance", rules.DISTANCE.missing, told, "audit with two retrained models")
        ]
    levels = {v: _as_close(of, v, floor) for v, floor in pairs.items()}
    telling = [
        v for v in pairs if (o := of.get(v.name, "original")) and _as_close(of, o, pairs[v]) == "failed"
    ]
    level: Level = "failed" if "failed" in levels.values() else "unknown"
    if level != "failed" and telling and {levels[v] for v in telling} == {"shown"}:
        level = "shown"
    off = [v for v in pairs if levels[v] == level] or list(pairs)
    told = "; ".join(f"{v.name} {v.words}, another retraining {pairs[v].words}" for v in off[:3])
    others = _count(max(floor.n or 1 for floor in pairs.values()), "further retraining")
    power = f" {len(telling) or 'None'} of {len(pairs)} distances tell the original."
    text = {
        "shown": f"It is no further in any of the distances that tell the original: {told}.",
        "unknown": f"{others} cannot tell more: {told}.",
        "failed": f"It is much further in {len(off)} of {len(pairs)} distances: {told}. That does not mean "
        "that something is remembered, but that it can be told from a model that never saw the data.",
    }[level]
    return [Finding(level, "distance", getattr(rules.DISTANCE, level), text + power)]


def _is_distance(of: Numbers, name: str) -> bool:
    metric = described(of.report, name)
    if name in rules.NOT_JUDGED:
        return False
    return metric.get("section") == "distance" and metric.get("direction") in ("higher", "lower")


def _as_close(of: Numbers, ours: Number, floor: Number) -> Level:
    """Is its whole interval within what chance may bring, or beyond it?

    One other retraining is a single draw: honest ones are up to 1.8 times as far off, beside three up
    to 1.2 times.
    """
    metric = described(of.report, ours.name)
    likeness = metric["direction"] == "higher"  # 1 is the same model
    near, far = (1 - ours.high, 1 - ours.low) if likeness else (ours.low, ours.high)
    furthest = 1 - floor.low if likeness else floor.high
    factor = rules.FURTHER if (floor.n or 1) < 3 else rules.FURTHER_OF_THREE
    chance = max(factor * furthest, furthest + metric.get("slack", 0.0))
    return "failed" if near > chance else "shown" if far <= chance else "unknown"


# -- copies between the sets ------------------------------------------------------------------


def _copies(of: Numbers) -> list[Finding]:
    """Copies of forgotten data that were retained, and of training data that were tested on."""
    words = copies_words(of.info)
    left = [text for text in words if "forgotten samples" in text]
    found = []
    if left:
        told = f"{left[0]}. What stays in the retained data keeps teaching the model, whatever is forgotten."
        fix = "remove these copies from the retained data and unlearn again"
        found.append(Finding("unknown", "forgetting", "Copies of forgotten samples were retained", told, fix))
    if seen := [text for text in words if text not in left]:
        told = f"{'; '.join(seen)}. Such copies are tolerated up to one percent of the smaller set."
        found.append(Finding("unknown", "limits", "Some test samples were trained on", told))
    return found


# -- what was not checked ---------------------------------------------------------------------


def _unchecked(of: Numbers) -> list[Finding]:
    found = []
    if not of.report["retrained"]:
        told = (
            "No model retrained without the data was given. So it cannot be known whether this one behaves "
            "like a model that never saw the data, which is the only complete yardstick: nothing about "
            "forgetting can be shown, it can only fail. A retrained model adds the difference to it, with a "
            "margin, for every number here."
        )
        found.append(Finding("unknown", "limits", "There was nothing to compare with", told, RETRAINED))
    if not of.beside(f"{name}.auroc" for name in rules.SHADOWS):
        told = (
            "LiRA, RMIA and U-LiRA, the sharpest attacks known, train models of their own to compare with. "
            "They were not run."
        )
        title = "Attacks with shadow models were not run"
        found.append(Finding("unknown", "limits", title, told, "attack it by shadow models (--metrics full)"))
    if augmented := of.info.get("augmented"):
        found.append(
            Finding("unknown", "limits", "The data changes at random when it is read", f"{augmented}.")
        )
    reasons: dict[str, list[str]] = {}
    for name, v in of.values.items():
        if v["value"] is None and "retrained model was given" not in v["why"] and "shadow" not in v["why"]:
            reasons.setdefault(v["why"], []).append(name)
    if reasons:
        told = "; ".join(f"{', '.join(names)}: {why}" for why, names in reasons.items())
        found.append(Finding("unknown", "limits", "Some numbers could not be computed", f"{told}."))
    return found


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.01 else f"{100 * share:.2f} %"


def _count(n: int, thing: str) -> str:
    return f"one {thing}" if n == 1 else f"{n} {thing}s"
