"""What an audit showed, in words for the person who signs for it.

Fixed rules turn the numbers of a report into findings; nothing is measured here, and nothing is claimed
that was not measured. ``shown``: the numbers support it. ``failed``: they contradict it. ``unknown``: they
do not tell, or are missing.
"""

from __future__ import annotations

from purge.report import rules
from purge.report.numbers import Level, Number, Numbers, together
from purge.report.rules import AUROC, CLASS_POINTS, FEWEST, LIMITS, POINTS, PROBE, RATIO, Bound, Finding
from purge.report.tables import Report, class_words, described


def verdict(report: Report) -> list[Finding]:
    """What the report shows about forgetting, damage, membership, robustness and distance, and its limits."""
    of = Numbers(report)
    forgot = _class(of) if of.info.get("forget_classes") else _samples(of)
    found = [forgot, *_damage(of), *_membership(of), *_robustness(of, forgot.level), *_distance(of)]
    return [*found, *_unchecked(of), LIMITS]


def _bounded(of: Numbers, bound: Bound) -> list[Finding]:
    """The finding of a bound; none if nothing was measured."""
    measured = {_read(v): t and _read(t) for v, t in of.beside(bound.values).items()}
    aims = {v: max(0.0, t.value) if t else bound.alone for v, t in measured.items()}
    excess = {v: v.value - aim for v, aim in aims.items() if aim is not None}
    if not excess:
        return []
    worst = max(excess, key=lambda v: excess[v])
    level = worst.at_most((aims[worst] or 0.0) + bound.margin)
    told = bound.text.format(which=bound.values[worst.name], ours=worst)
    theirs = measured[worst]
    beside = f"in the retrained model {theirs.words}" if theirs else bound.beside
    alike = bound.alike if level == "shown" and worst.value > bound.margin else ""
    return [bound.rule.finding(level, f"{told}; {beside}." if beside else f"{told}.", alike)]


def _read(v: Number) -> Number:
    """A number as its bound needs it."""
    if v.name.startswith("mia_svc"):
        return v.rest  # it counts the samples called unseen
    return v._replace(unit="change") if v.name.endswith(("delta", "recovered")) else v


# -- forgetting -------------------------------------------------------------------------------


def _class(of: Numbers) -> Finding:
    """A class: a model that never saw it is right about it as often as the retrained one, or by guessing."""
    name = "fa_test" if of.get("fa_test") else "fa_train"
    ours, theirs, before = (of.get(name, part) for part in ("values", "retrained", "original"))
    if ours is None:
        return rules.CLASS.not_measured(of.why(name))
    aim = theirs.value if theirs else of.chance
    on = "unseen samples of" if name == "fa_test" else "the training samples of"
    what = class_words(of.info["forget_classes"], of.info.get("names") or [])
    told = f"On {on} {what} the model is right in {ours.words} of cases{ours.spread}; {of.others(name)}."
    if before and before.value <= aim + POINTS:
        if theirs and aim > of.chance + CLASS_POINTS:
            told += " The retrained model recognises it too: check that it was trained without it."
            return rules.CLASS.finding("unknown", told, "There is nothing to compare forgetting with")
        told += " The original did not recognise it either, so nothing follows from this."
        return rules.CLASS.finding("unknown", told, "There was nothing to forget")
    level = ours.at_most(aim + POINTS)
    if ours.value == 0 and ours.unseen > POINTS:  # nothing found among few samples proves little
        told += (
            f" With only {ours.samples} a true share of up to {100 * ours.unseen:.0f} % cannot be ruled out."
        )
        title = "It recognises none of the samples, but they are too few" if level == "unknown" else ""
        return rules.CLASS.finding(level, told, title)
    if level == "failed":
        told += f" That is {_points(ours.value - aim)} more than it should be."
    if level == "unknown":
        told += f" With {ours.samples} it is open whether that is within {_points(POINTS)} of the aim."
    return rules.CLASS.finding(level, told)


def _samples(of: Numbers) -> Finding:
    """Single samples: a model that never saw them is right about them as often as about unseen ones."""
    ours, theirs, before = (of.get("fa_train", part) for part in ("values", "retrained", "original"))
    aim = theirs or of.get("fa_test")
    if ours is None or aim is None:
        return rules.SAMPLES.finding(
            "unknown", of.why("fa_test" if ours else "fa_train"), rules.SAMPLES.missing
        )
    told = f"It is right about {ours.words} of the forgotten samples{ours.spread}, " + (
        f"the retrained model, which never saw them, about {aim.words}."
        if theirs
        else f"and about {aim.words} of unseen samples of the same classes."
    )
    if before:
        told += f" The original was right about {before.words}."
    if before and abs(before.value - aim.value) <= POINTS:
        told += " So accuracy cannot tell; the membership attacks can."
        return rules.SAMPLES.finding("unknown", told, "Accuracy does not tell whether it forgot")
    return rules.SAMPLES.finding(ours.like(aim, POINTS), told)


# -- damage -----------------------------------------------------------------------------------


def _damage(of: Numbers) -> list[Finding]:
    name = "ta_retain" if of.get("ta_retain") else "ra"
    ours, aim = of.get(name), of.get(name, "retrained") or of.get(name, "original")
    if ours is None or aim is None:
        why = "There was no other model to compare its accuracy with." if ours else of.why(name)
        return [rules.KEPT.not_measured(why)]
    on = "test data of the classes that stay" if name == "ta_retain" else "the retained training data"
    told = f"On {on} it is right in {ours.words} of cases{ours.spread}; {of.others(name)}."
    drop = aim.value - ours.value
    level: Level = "shown"
    if drop > POINTS:
        level = "failed" if aim.value - ours.wide.high > POINTS else "unknown"
        told += f" That is {_points(drop)} less."
    elif ours.few(CLASS_POINTS):
        level = "unknown"
        told += f" With {ours.samples} that may be chance."
    return [rules.KEPT.finding(level, told), *_worst_class(of)]


def _worst_class(of: Numbers) -> list[Finding]:
    """The class that lost most among those that stay: a mean can hide it."""
    side = "retrained" if of.by_class("retrained") else "original"
    ours, aim, gone = of.by_class("values"), of.by_class(side), of.info.get("forget_classes") or []
    lost = {k: aim[k].value - v.value for k, v in ours.items() if k in aim and k not in gone}
    if not lost:
        return []
    worst = max(lost, key=lambda k: lost[k])
    v, theirs = ours[worst], aim[worst]
    words = class_words([worst], of.info.get("names") or [])
    told = f"Of the classes that stay, {words} comes off worst: {v.words}, {side} model {theirs.words}."
    if lost[worst] <= CLASS_POINTS and not v.few(2 * CLASS_POINTS):
        return [rules.WORST_CLASS.finding("shown", told)]
    if theirs.value - v.wide.high > CLASS_POINTS:
        return [rules.WORST_CLASS.finding("failed", told)]
    return [rules.WORST_CLASS.finding("unknown", f"{told} With {v.samples} of it that may be chance.")]


# -- membership -------------------------------------------------------------------------------


def _membership(of: Numbers) -> list[Finding]:
    measured = of.beside(rules.ATTACKS)
    more = [*_bounded(of, rules.ACCUSED), *_bounded(of, rules.MEMBERS)]
    if not measured:
        return [rules.ATTACKED.not_measured(of.why("mia_loss")), *more]
    unseen = of.get("fa_test")
    sides = (of.info.get("forget_samples"), unseen.n if unseen else None)
    few = any(n is not None and n < FEWEST for n in sides)
    levels: dict[Number, Level] = {v: "unknown" if few else _attacked(v, t) for v, t in measured.items()}
    off = {v: abs(v.value - (t.value if t else 0.5)) for v, t in measured.items()}
    level = together(levels.values())
    furthest = max((v for v in off if levels[v] == level), key=lambda v: off[v])
    beside = "and guessing 0.500; there was no retrained model to compare with"
    if theirs := measured[furthest]:
        beside = f"the retrained model {theirs.words}"
    told = (
        f"{_count(len(off), 'attack')} tried to tell forgotten samples from unseen ones of the same kind. "
        f"Furthest off is {rules.ATTACKS[furthest.name]}: {furthest.words}{furthest.spread}, {beside}."
    )
    return [rules.ATTACKED.finding(level, told), *more]


def _attacked(ours: Number, theirs: Number | None) -> Level:
    """Like the retrained model's AUROC, or nearer to guessing than that: such an attack gains nothing."""
    level = ours.like(theirs or ours._replace(value=0.5, low=0.5, high=0.5), AUROC)
    between = theirs and min(0.5, theirs.value) <= ours.value <= max(0.5, theirs.value)
    return "shown" if level == "failed" and between else level


# -- robustness -------------------------------------------------------------------------------


def _robustness(of: Numbers, forgot: Level) -> list[Finding]:
    if forgot == "failed":
        title = "There is no forgetting that could last"
        told = "What is still recognised cannot come back, so attacks that try to bring it back say nothing."
    elif not of.info.get("forget_classes"):
        title = "Whether single samples come back was not measured"
        told = (
            "Recalibration, rounding, pruning and relearning are judged by the accuracy on whole classes. "
            "Here single samples were forgotten, whose classes stay, so these attacks do not tell."
        )
    else:
        found = [one for bound in rules.TREATMENTS for one in _bounded(of, bound)]
        found += [*_relearning(of), *_inside(of)]
        if found:
            return found
        title = "Whether the forgetting lasts was not measured"
        names = [name for bound in rules.TREATMENTS for name in bound.values]
        values = [of.raw(name) for name in (*names, "relearn_ratio", "probe_gap", "head_refit_gap")]
        reasons = dict.fromkeys(v["why"] for v in values if v.get("why"))
        told = "No attack that tries to bring it back was run: the panel 'standard' has them."
        if reasons:
            told = f"The attacks that try to bring it back could not be run: {'; '.join(reasons)}."
    return [Finding("unknown", "robustness", title, told)]


def _relearning(of: Numbers) -> list[Finding]:
    ratio = of.get("relearn_ratio")
    if ratio is None:
        return []
    level: Level = "shown" if ratio.low >= RATIO else "failed" if ratio.high < RATIO else "unknown"
    note = of.raw("relearn_ratio")["why"]
    told = (
        f"Trained on a few forgotten samples, the model needs {ratio.value:.2f} times the retrained model's "
        f"steps to get it back{ratio.spread}{f'; {note}' if note else ''}."
    )
    return [rules.RELEARNED.finding(level, told)]


def _inside(of: Numbers) -> list[Finding]:
    """What the layers below the last still know, as the distance to what the retrained model's know."""
    words = {"probe_gap": "a linear probe", "head_refit_gap": "a new last layer"}
    gaps = list(of.beside(words))
    if not gaps:
        return []
    worst = max(gaps, key=lambda v: v.high)
    told = (
        f"What {' and '.join(words[v.name] for v in gaps)} can read from them differs from the retrained "
        f"model by up to {_points(worst.value)}{worst.spread}."
    )
    return [rules.INSIDE.finding(worst.at_most(PROBE), told)]


# -- distance ---------------------------------------------------------------------------------


def _distance(of: Numbers) -> list[Finding]:
    """Is the model as close to the retrained one as another retraining is?"""
    if not of.report["retrained"]:
        return []  # said once, under what was not checked
    told_apart = [name for name in of.values if _is_distance(of, name)]
    pairs = {v: floor for v, floor in of.beside(told_apart, "floor").items() if floor}
    if not pairs:
        main = of.get("agreement")
        said = f"It agrees with the retrained model on {main.words} of the forget set. " if main else ""
        told = (
            f"{said}How far apart two retrainings are was not measured, so it is open whether this is close: "
            "audit with two retrained models."
        )
        return [rules.DISTANCE.not_measured(told)]
    pairs = {v: floor for v, floor in pairs.items() if v.sure} or pairs  # those with an interval say more
    levels = {v: _as_close(of, v, floor) for v, floor in pairs.items()}
    level = together(levels.values())
    off = [v for v in pairs if levels[v] == level]
    usual = [v for v in pairs if v.name in ("agreement", "kl_retrain")]
    named = ((usual if level == "shown" else off) or list(pairs))[:3]
    told = "; ".join(f"{v.name} {v.words}, another retraining {pairs[v].words}" for v in named)
    others = _count(max(floor.n or 1 for floor in pairs.values()), "further retraining")
    text = {
        "shown": f"This holds for all {len(pairs)} distances that were compared: {told}.",
        "unknown": f"It is further in {len(off)} of {len(pairs)} distances, but by no more than chance in "
        f"training may cause: {told}. {others} cannot tell more.",
        "failed": f"It is much further in {len(off)} of {len(pairs)} distances: {told}. That does not mean "
        "that something is remembered, but that it can be told from a model that never saw the data.",
    }[level]
    return [rules.DISTANCE.finding(level, text)]


def _is_distance(of: Numbers, name: str) -> bool:
    metric = described(of.report, name)
    return metric.get("section") == "distance" and metric.get("direction") in ("higher", "lower")


def _as_close(of: Numbers, ours: Number, floor: Number) -> Level:
    """Does our interval reach the furthest of the other retrainings, or come as near as chance may bring?

    One other retraining is a single draw: honest ones are up to 1.8 times as far off, beside three up
    to 1.2 times. Only a distance that has an interval can contradict a model.
    """
    metric = described(of.report, ours.name)
    likeness = metric["direction"] == "higher"  # 1 is the same model
    distance, furthest = (1 - ours.high, 1 - floor.low) if likeness else (ours.low, floor.high)
    if distance <= furthest:
        return "shown"
    factor = rules.FURTHER if (floor.n or 1) < 3 else rules.FURTHER_OF_THREE
    chance = max(factor * furthest, furthest + metric.get("slack", 0.0))
    return "failed" if ours.sure and distance > chance else "unknown"


# -- what was not checked ---------------------------------------------------------------------


def _unchecked(of: Numbers) -> list[Finding]:
    found = {}
    if not of.report["retrained"]:
        found["There was nothing to compare with"] = (
            "No model retrained without the data was given. So it could not be checked whether this one "
            "behaves like a model that never saw the data, which is the only complete yardstick."
        )
    if not of.beside(f"{name}.auroc" for name in rules.SHADOWS):
        found["Attacks with shadow models were not run"] = (
            "LiRA, RMIA and U-LiRA, the sharpest attacks known, train models of their own to compare with. "
            "They were not run; the panel 'full' has them."
        )
    reasons: dict[str, list[str]] = {}
    for name, v in of.values.items():
        if v["value"] is None and "retrained model was given" not in v["why"] and "shadow" not in v["why"]:
            reasons.setdefault(v["why"], []).append(name)
    if reasons:
        told = "; ".join(f"{', '.join(names)}: {why}" for why, names in reasons.items())
        found["Some numbers could not be computed"] = f"{told}."
    return [Finding("unknown", "limits", title, text) for title, text in found.items()]


def _points(difference: float) -> str:
    return f"{100 * difference:.1f} points"


def _count(n: int, thing: str) -> str:
    return f"One {thing}" if n == 1 else f"{n} {thing}s"
