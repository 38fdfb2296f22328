"""What an audit showed, in words that a person who signs for it understands.

Findings are read off the numbers of a report by fixed rules; nothing is measured here, and nothing is
claimed that was not measured. ``shown``: the numbers support it. ``failed``: they speak against it.
``unknown``: they do not tell, or were not there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from purge.report.tables import class_words, number

Level = Literal["shown", "failed", "unknown"]

# Two points of accuracy: about what two trainings from different seeds differ by anyway.
POINTS = 0.02
# A single class has a tenth of the test samples or fewer, so its accuracy moves more by chance.
CLASS_POINTS = 0.05
# Two retrained models differ by a few hundredths in the AUROC of one and the same attack.
AUROC = 0.05
# Beyond the one false alarm in a hundred that is allowed anyway, five found in a hundred are a finding.
RATE = 0.05
# An interval wider than this holds nearly every answer: that a number lies in it says nothing.
WIDE = 0.25
# Relearning twice as fast as a model that never knew is no accident of the order of the batches.
RATIO = 0.5
# Linear probes of two retrained models differ by a few points.
PROBE = 0.05
# Fewer samples than this on either side of an attack say nothing about it.
FEWEST = 10
# Where nothing was found, so much may have been missed by chance: a tenth, which takes 29 samples.
MISSED = 0.1
# One retraining may be twice as far off as another by chance, half as far again as the furthest of three.
FURTHER, FURTHER_OF_THREE = 2.0, 1.5


@dataclass(frozen=True)
class Finding:
    """One thing that was, was not, or could not be shown."""

    level: Level
    topic: str  # forgetting, damage, membership, robustness, distance or limits
    title: str
    text: str

    def __str__(self) -> str:
        return f"{SIGNS[self.level]} {WORDS[self.level]}: {self.title}. {self.text}"


SIGNS: dict[Level, str] = {"shown": "✔", "failed": "✘", "unknown": "?"}
WORDS: dict[Level, str] = {"shown": "Shown", "failed": "Failed", "unknown": "Not known"}

Report = Mapping[str, Any]


class Number(NamedTuple):
    """A value that is there; where it has no interval, the interval is the value."""

    name: str
    value: float
    low: float
    high: float
    n: int | None
    sure: bool  # is there an interval?

    @property
    def words(self) -> str:
        """The value as people read it."""
        return number(self.name, self.value)

    @property
    def unseen(self) -> float:
        """The share that may be there and yet be seen in none of n samples, exactly (about 3/n)."""
        return 1 - 0.05 ** (1 / self.n) if self.n else 0.0

    @property
    def wide(self) -> Number:
        """With an interval that allows for few samples: if all are alike, resampling them gives a point."""
        if self.low < self.high:
            return self
        return self._replace(low=self.low - self.unseen, high=self.high + self.unseen)

    @property
    def spread(self) -> str:
        """The interval in brackets; nothing where there is none, or where it is a point."""
        if self.low == self.high:
            return ""
        return f" (95 % interval {number(self.name, self.low)} to {number(self.name, self.high)})"


def verdict(report: Report) -> list[Finding]:
    """What the report shows about forgetting, damage, membership, robustness and distance; then limits."""
    forgot = _forgetting(report)
    found = [forgot, *_damage(report), *_membership(report), *_robustness(report, forgot.level)]
    return [*found, *_distance(report), *_unchecked(report), LIMITS]


# -- forgetting -------------------------------------------------------------------------------


def _forgetting(report: Report) -> Finding:
    what = _what(report)
    if not report["info"].get("forget_classes"):
        return _forgetting_samples(report)
    name = "fa_test" if _get(report, "values", "fa_test") else "fa_train"
    ours, theirs, before = (_get(report, part, name) for part in ("values", "retrained", "original"))
    on = "unseen samples of" if name == "fa_test" else "the training samples of"
    if ours is None:
        return Finding("unknown", "forgetting", "Whether it forgot was not measured", _why(report, name))
    aim = theirs.value if theirs else _chance(report)
    told = (
        f"On {on} {what} the model is right in {ours.words} of cases{ours.spread}; {_beside(report, name)}."
    )
    if before and theirs and before.value <= aim + POINTS and aim > _chance(report) + CLASS_POINTS:
        told += " The retrained model recognises it as well: check that it was trained without it."
        return Finding("unknown", "forgetting", "There is nothing to compare forgetting with", told)
    if before and before.value <= aim + POINTS:
        told += " The original did not recognise it either, so nothing follows from this."
        return Finding("unknown", "forgetting", "There was nothing to forget", told)
    level = _at_most(ours, aim + POINTS)
    few = _none_of(ours)
    if level == "unknown" and ours.value <= aim + POINTS and few:
        return Finding(
            level, "forgetting", "It recognises none of the samples, but they are too few", told + few
        )
    if level == "shown":
        told += few
    elif level == "failed":
        told += f" That is {_points(ours.value - aim)} more than where it should be."
    else:
        told += f" With {_count(ours.n or 0, 'sample').lower()} it is open whether that is "
        told += f"within {_points(POINTS)} of its aim."
    return Finding(level, "forgetting", _FORGETTING[level], told)


_FORGETTING: dict[Level, str] = {
    "shown": "It no longer recognises what was to be forgotten",
    "failed": "It still recognises what was to be forgotten",
    "unknown": "It may still recognise what was to be forgotten",
}


def _forgetting_samples(report: Report) -> Finding:
    """Single samples: a model that never saw them is right about them as often as about unseen ones."""
    ours, before = _get(report, "values", "fa_train"), _get(report, "original", "fa_train")
    theirs, unseen = _get(report, "retrained", "fa_train"), _get(report, "values", "fa_test")
    aim = theirs or unseen
    if ours is None or aim is None:
        missing = "fa_train" if ours is None else "fa_test"
        return Finding("unknown", "forgetting", "Whether it forgot was not measured", _why(report, missing))
    told = f"It is right about {ours.words} of the forgotten samples{ours.spread}, "
    told += (
        f"the retrained model, which never saw them, about {aim.words}."
        if theirs
        else f"and about {aim.words} of unseen samples of the same classes."
    )
    if before:
        told += f" The original was right about {before.words}."
    if before and abs(before.value - aim.value) <= POINTS:
        told += " So their accuracy cannot tell; the attacks on membership can."
        return Finding("unknown", "forgetting", "Accuracy does not tell whether it forgot", told)
    level = _like(ours, aim, POINTS)
    title = {
        "shown": "It treats the forgotten samples like ones it never saw",
        "failed": "It does not treat the forgotten samples like ones it never saw",
        "unknown": "Too few samples to say whether it forgot",
    }[level]
    return Finding(level, "forgetting", title, told)


# -- damage -----------------------------------------------------------------------------------


def _damage(report: Report) -> list[Finding]:
    name = "ta_retain" if _get(report, "values", "ta_retain") else "ra"
    ours = _get(report, "values", name)
    aim = _get(report, "retrained", name) or _get(report, "original", name)
    if ours is None or aim is None:
        why = _why(report, name) if ours is None else "There was no other model to compare its accuracy with."
        return [Finding("unknown", "damage", "Whether the rest suffered was not measured", why)]
    on = "test data of the classes that stay" if name == "ta_retain" else "the retained training data"
    told = f"On {on} it is right in {ours.words} of cases{ours.spread}; {_beside(report, name)}."
    drop = aim.value - ours.value
    level: Level = "shown"
    if drop > POINTS:
        level = "failed" if aim.value - ours.wide.high > POINTS else "unknown"
        told += f" That is {_points(drop)} less."
    elif _few(ours, CLASS_POINTS):
        level = "unknown"
        told += f" With {_count(ours.n or 0, 'sample').lower()} that may be chance."
    titles: dict[Level, str] = {
        "shown": "What was to stay works as before",
        "failed": "What was to stay has suffered",
        "unknown": "What was to stay may have suffered",
    }
    return [Finding(level, "damage", titles[level], told), *_worst_class(report)]


def _worst_class(report: Report) -> list[Finding]:
    """The class that lost most, of those that stay: a mean can hide it."""
    gone = set(report["info"].get("forget_classes") or [])
    names = report["info"].get("names") or []
    side = "retrained" if _by_class(report, "retrained") else "original"
    ours, aim = _by_class(report, "values"), _by_class(report, side)
    lost = {k: aim[k].value - v.value for k, v in ours.items() if k in aim and k not in gone}
    if not lost:
        return []
    worst = max(lost, key=lambda k: lost[k])
    beside = f"{ours[worst].words} against {aim[worst].words} in the {side} model"
    told = f"Of the classes that stay, {class_words([worst], names)} comes off worst: {beside}."
    few = lost[worst] <= CLASS_POINTS and _few(ours[worst], 2 * CLASS_POINTS)
    if lost[worst] <= CLASS_POINTS and not few:
        return [Finding("shown", "damage", "No single class has suffered much", told)]
    if aim[worst].value - ours[worst].wide.high > CLASS_POINTS:
        return [Finding("failed", "damage", "A single class has suffered", told)]
    told += f" With {_count(ours[worst].n or 0, 'sample').lower()} of it that may be chance."
    return [Finding("unknown", "damage", "A single class may have suffered", told)]


# -- membership -------------------------------------------------------------------------------

ATTACKS = {
    "mia_loss": "loss",
    "mia_confidence": "confidence",
    "mia_entropy": "entropy",
    "mia_m_entropy": "modified entropy",
    "mia_margin": "margin",
    "lira.auroc": "LiRA",
    "rmia.auroc": "RMIA",
    "u_lira.auroc": "U-LiRA",
}
LOW_ALARMS = {
    "tpr_1pct.loss": "loss",
    "tpr_1pct.confidence": "confidence",
    "tpr_1pct.entropy": "entropy",
    "tpr_1pct.m_entropy": "modified entropy",
    "tpr_1pct.margin": "margin",
    "lira.tpr_1pct": "LiRA",
    "rmia.tpr_1pct": "RMIA",
    "u_lira.tpr_1pct": "U-LiRA",
}


def _membership(report: Report) -> list[Finding]:
    ours = [v for name in ATTACKS if (v := _get(report, "values", name))]
    more = [*_low_alarms(report), *_called_members(report)]
    if not ours:
        title = "Whether forgotten samples can be told from unseen ones was not measured"
        return [Finding("unknown", "membership", title, _why(report, "mia_loss")), *more]
    compared = {v: _get(report, "retrained", v.name) for v in ours}
    aims = {v: theirs.value if theirs else 0.5 for v, theirs in compared.items()}
    few = _fewest(report) < FEWEST
    levels: dict[Number, Level] = {v: "unknown" if few else _attacked(v, compared[v]) for v in ours}
    level: Level = next((one for one in ("failed", "unknown") if one in levels.values()), "shown")
    furthest = max((v for v in ours if levels[v] == level), key=lambda v: abs(v.value - aims[v]))
    beside = (
        f"the retrained model {number(furthest.name, aims[furthest])}"
        if compared[furthest]
        else "and guessing 0.500; there was no retrained model to compare with"
    )
    told = (
        f"{_count(len(ours), 'attack')} tried to tell forgotten samples from unseen ones of the same kind. "
        f"Furthest off is {ATTACKS[furthest.name]}: {furthest.words}{furthest.spread}, {beside}."
    )
    titles: dict[Level, str] = {
        "shown": "No attack that was tried tells the forgotten samples from unseen ones",
        "failed": "An attack tells the forgotten samples from unseen ones",
        "unknown": "Too few samples to say whether forgotten ones can be told from unseen ones",
    }
    return [Finding(level, "membership", titles[level], told), *more]


def _attacked(ours: Number, theirs: Number | None) -> Level:
    """Like the retrained model's AUROC, or nearer to guessing than that: such an attack gains nothing."""
    level = _like(ours, theirs or ours._replace(value=0.5, low=0.5, high=0.5), AUROC)
    between = theirs and min(0.5, theirs.value) <= ours.value <= max(0.5, theirs.value)
    return "shown" if level == "failed" and between else level


def _fewest(report: Report) -> int:
    """How many samples the smaller side of an attack has: the forgotten, or the unseen of their kind."""
    unseen = _get(report, "values", "fa_test")
    known = (report["info"].get("forget_samples"), unseen.n if unseen else None)
    return min((n for n in known if n is not None), default=FEWEST)


def _called_members(report: Report) -> list[Finding]:
    """Attacks that learned from retained and unseen data what members look like, asked about the rest."""
    pairs = []
    for name, words in (("mia_svc.confidence", "a support-vector machine"), ("mia_lr", "a regression")):
        ours, theirs = (_get(report, part, name) for part in ("values", "retrained"))
        if ours and theirs and name.startswith("mia_svc"):  # it counts the samples called unseen
            ours = ours._replace(value=1 - ours.value, low=1 - ours.high, high=1 - ours.low)
            theirs = theirs._replace(value=1 - theirs.value, low=1 - theirs.high, high=1 - theirs.low)
        if ours and theirs:
            pairs.append((ours, theirs, words))
    if not pairs:
        return []
    ours, theirs, words = max(pairs, key=lambda pair: pair[0].value - pair[1].value)
    level = _at_most(ours, theirs.value + RATE)
    told = (
        f"Having learned how the model treats retained and unseen data, {words} takes {ours.words} of the "
        f"forgotten samples for training data{ours.spread}; in the retrained model {theirs.words}."
    )
    titles: dict[Level, str] = {
        "shown": "The forgotten samples do not look like training data",
        "failed": "The forgotten samples still look like training data",
        "unknown": "The forgotten samples may still look like training data",
    }
    if ours.value > RATE:
        titles["shown"] = "They look no more like training data than in the retrained model"
    return [Finding(level, "membership", titles[level], told)]


def _low_alarms(report: Report) -> list[Finding]:
    """Attacks that accuse few people wrongly are the ones that would be believed."""
    ours = [v for name in LOW_ALARMS if (v := _get(report, "values", name))]
    if not ours:
        return []
    theirs = {v: _get(report, "retrained", v.name) for v in ours}
    excess = {v: v.value - (t.value if (t := theirs[v]) else 0.01) for v in ours}
    best = max(ours, key=lambda v: excess[v])
    beside = f"in the retrained model {t.words}" if (t := theirs[best]) else "guessing finds 1 %"
    told = (
        f"Allowed one false accusation in a hundred, the best attack ({LOW_ALARMS[best.name]}) finds "
        f"{best.words} of the forgotten samples{best.spread}; {beside}."
    )
    level = _at_most(best, best.value - excess[best] + RATE)
    titles: dict[Level, str] = {
        "shown": "Hardly a forgotten sample can be named without many false accusations",
        "failed": "Some forgotten samples can be named with few false accusations",
        "unknown": "Some forgotten samples may be named with few false accusations",
    }
    return [Finding(level, "membership", titles[level], told)]


# -- robustness -------------------------------------------------------------------------------


class Treatment(NamedTuple):
    """Something that may bring back what was forgotten: its values, and words for them."""

    rises: tuple[str, ...]
    shown: str
    failed: str
    unknown: str
    words: str


TREATMENTS = (
    Treatment(
        ("bn_recal.delta",),
        "It stays forgotten when BatchNorm is recalibrated",
        "It comes back when BatchNorm is recalibrated",
        "It may come back when BatchNorm is recalibrated",
        "Estimating the BatchNorm statistics anew on retained data, as any redeployment may,",
    ),
    Treatment(
        ("quantise.int8_delta", "quantise.bf16_delta", "prune.delta", "noise.delta"),
        "It stays forgotten when the weights are rounded, pruned or disturbed",
        "It comes back when the weights are rounded, pruned or disturbed",
        "It may come back when the weights are rounded, pruned or disturbed",
        "Rounding to int8 or bf16, pruning, or small noise on the weights, whichever brings back most,",
    ),
    Treatment(
        ("relearn_retain.recovered",),
        "It stays forgotten when training goes on with retained data",
        "It comes back when training goes on, with no forgotten sample at all",
        "It may come back when training goes on with retained data",
        "Going on with training on retained data alone",
    ),
)


def _robustness(report: Report, forgot: Level) -> list[Finding]:
    if forgot == "failed":
        told = (
            "What is still recognised need not come back: the attacks that try to bring it back say nothing."
        )
        return [Finding("unknown", "robustness", "There is no forgetting that could last", told)]
    if not report["info"].get("forget_classes"):
        told = (
            "Recalibration, rounding, pruning and relearning are judged by the accuracy on whole classes. "
            "Here single samples were forgotten, whose classes stay, so these attacks do not tell."
        )
        return [Finding("unknown", "robustness", "Whether single samples come back was not measured", told)]
    found = [one for t in TREATMENTS if (one := _treated(report, t))]
    found += [one for one in (_relearning(report), _inside(report)) if one]
    if not found:
        told = _why_not(report) or (
            "No attack that tries to bring it back was run: the panel 'standard' has them."
        )
        return [Finding("unknown", "robustness", "Whether the forgetting lasts was not measured", told)]
    return found


def _why_not(report: Report) -> str:
    """Why the attacks that try to bring it back found no number; nothing where none was asked for."""
    names = [*(name for t in TREATMENTS for name in t.rises), "relearn_ratio", "probe_gap", "head_refit_gap"]
    found = [report["values"].get(name) or report["values"].get(_base(name)) or {} for name in names]
    reasons = dict.fromkeys(v["why"] for v in found if v.get("why"))
    return f"The attacks that try to bring it back could not be run: {'; '.join(reasons)}." if reasons else ""


def _treated(report: Report, t: Treatment) -> Finding | None:
    """Does a treatment raise the accuracy on what was forgotten, more than in the retrained model?"""
    ours = [v for name in t.rises if (v := _get(report, "values", name))]
    if not ours:
        return None
    allowed = {}
    for v in ours:
        theirs = _get(report, "retrained", v.name)
        allowed[v] = POINTS + max(0.0, theirs.value if theirs else 0.0)
    worst = max(ours, key=lambda v: v.value - allowed[v])
    level = _at_most(worst, allowed[worst])
    title = {"shown": t.shown, "failed": t.failed, "unknown": t.unknown}[level]
    if level == "shown" and worst.value > POINTS:
        title = "It comes back, but no more than in a model that never saw it"
    theirs = _get(report, "retrained", worst.name)
    spread = "" if worst.low == worst.high else f"95 % interval {_change(worst.low)} to {_change(worst.high)}"
    beside = f"retrained model {_change(theirs.value)}" if theirs else ""
    more = "; ".join(filter(None, (spread, beside)))
    told = f"{t.words} changes the accuracy on what was forgotten by {_change(worst.value)} points"
    return Finding(level, "robustness", title, told + (f" ({more})." if more else "."))


def _relearning(report: Report) -> Finding | None:
    ratio = _get(report, "values", "relearn_ratio")
    if ratio is None:
        return None
    level: Level = "shown" if ratio.low >= RATIO else "failed" if ratio.high < RATIO else "unknown"
    titles: dict[Level, str] = {
        "shown": "It is not relearned much faster than by a model that never knew it",
        "failed": "It is relearned much faster than by a model that never knew it",
        "unknown": "It may be relearned faster than by a model that never knew it",
    }
    note = report["values"]["relearn_ratio"]["why"]
    told = (
        f"Trained on a few forgotten samples, the model needs {ratio.value:.2f} times the retrained model's "
        f"steps to get it back{ratio.spread}{f'; {note}' if note else ''}."
    )
    return Finding(level, "robustness", titles[level], told)


def _inside(report: Report) -> Finding | None:
    """What the layers below the last still know, as the distance to what the retrained model's know."""
    words = {"probe_gap": "a linear probe", "head_refit_gap": "a new last layer"}
    gaps = [v for name in words if (v := _get(report, "values", name))]
    if not gaps:
        return None
    worst = max(gaps, key=lambda v: v.high)
    level = _at_most(worst, PROBE)
    titles: dict[Level, str] = {
        "shown": "Its inner layers give away about as much as those of a model that never saw it",
        "failed": "Its inner layers can be told from those of a model that never saw it",
        "unknown": "Its inner layers may be told from those of a model that never saw it",
    }
    told = (
        f"What can be read from them by {' and '.join(words[v.name] for v in gaps)} differs from the "
        f"retrained model by up to {_points(worst.value)}{worst.spread}."
    )
    return Finding(level, "robustness", titles[level], told)


# -- distance ---------------------------------------------------------------------------------

# Which way is nearer to the retrained model: +1, the larger; −1, the smaller.
NEARER = {
    "agreement": +1,
    "agreement_test": +1,
    "kl_retrain": -1,
    "js_retrain": -1,
    "destinations_tv": -1,
    "fid_feat": -1,
    "feature_cosine": +1,
    "feature_l2": -1,
    "retrain_gap": -1,
    "cka": +1,
    "tow": +1,
}
# What two retrainings differ by anyway, where the floor happens to be next to nothing.
SLACK = {
    "agreement": 0.1,
    "agreement_test": 0.1,
    "destinations_tv": 0.1,
    "feature_cosine": 0.1,
    "tow": 0.1,
    "kl_retrain": 0.01,
    "js_retrain": 0.01,
}


def _distance(report: Report) -> list[Finding]:
    if not report["retrained"]:
        return []  # said once, under what was not checked
    ours = [v for name in report["values"] if _base(name) in NEARER and (v := _get(report, "values", name))]
    pairs = [(v, floor) for v in ours if (floor := _get(report, "floor", v.name))]
    if not pairs:
        main = _get(report, "values", "agreement")
        said = f"It agrees with the retrained model on {main.words} of the forget set. " if main else ""
        told = (
            f"{said}How far apart two retrainings are was not measured, so it is open whether this is close: "
            "audit with two retrained models."
        )
        return [Finding("unknown", "distance", "Whether it is as close as another retraining", told)]
    pairs = [(v, floor) for v, floor in pairs if v.sure] or pairs  # without an interval they tell little
    levels = {v: _as_close(v, floor) for v, floor in pairs}
    level: Level = next((one for one in ("failed", "unknown") if one in levels.values()), "shown")
    off = [(v, floor) for v, floor in pairs if levels[v] == level]
    usual = [(v, floor) for v, floor in pairs if v.name in ("agreement", "kl_retrain")]
    named = (usual if level == "shown" else off) or pairs
    told = "; ".join(f"{v.name} {v.words}, another retraining {floor.words}" for v, floor in named[:3])
    if level == "shown":
        text = f"It is so in all {len(pairs)} distances that were judged: {told}."
        return [Finding(level, "distance", "It is as close to the retrained model as another one", text)]
    if level == "unknown":
        others = max(floor.n or 1 for _, floor in pairs)
        text = (
            f"It is further in {len(off)} of {len(pairs)} distances, but by no more than chance in training "
            f"may do: {told}. {_count(others, 'further retraining')} cannot tell more."
        )
        title = "It may be further from the retrained model than another retraining is"
        return [Finding(level, "distance", title, text)]
    text = (
        f"It is much further in {len(off)} of {len(pairs)} distances: {told}. That does not mean that "
        "something is remembered, but that it can be told from a model that never saw the data."
    )
    title = "It is further from the retrained model than another retraining is"
    return [Finding(level, "distance", title, text)]


def _as_close(ours: Number, floor: Number) -> Level:
    """Does our interval reach the furthest of the other retrainings, or come as near as chance may bring?

    One other retraining is a single draw: honest ones are up to 1.8 times as far off, beside three up
    to 1.2 times. Only a distance that has an interval can speak against a model.
    """
    more = NEARER[_base(ours.name)] > 0
    distance, furthest = (1 - ours.high, 1 - floor.low) if more else (ours.low, floor.high)
    if distance <= furthest:
        return "shown"
    factor = FURTHER if (floor.n or 1) < 3 else FURTHER_OF_THREE
    chance = max(factor * furthest, furthest + SLACK.get(_base(ours.name), 0.0))
    return "failed" if ours.sure and distance > chance else "unknown"


# -- limits -----------------------------------------------------------------------------------

LIMITS = Finding(
    "unknown",
    "limits",
    "What no audit can show",
    "It shows what its attacks would have found, not that no attack exists; it is no mathematical guarantee "
    "such as (ε, δ)-unlearning. It looks at this one model: copies, backups, logs and other models that saw "
    "the data are not its subject. Its intervals cover the choice of samples, not of training seeds.",
)


def _unchecked(report: Report) -> list[Finding]:
    found = []
    if not report["retrained"]:
        told = (
            "No model retrained without the data was given. Whether this one behaves like a model that never "
            "saw it, the only complete yardstick, could therefore not be checked."
        )
        found.append(Finding("unknown", "limits", "There was nothing to compare with", told))
    if not any(_get(report, "values", f"{name}.auroc") for name in ("lira", "rmia", "u_lira")):
        told = (
            "LiRA, RMIA and U-LiRA, the sharpest attacks known, train models of their own to compare with. "
            "They were not run; the panel 'full' has them."
        )
        found.append(Finding("unknown", "limits", "Attacks with shadow models were not run", told))
    reasons: dict[str, list[str]] = {}
    for name, v in report["values"].items():
        if v["value"] is None and "retrained model was given" not in v["why"] and "shadow" not in v["why"]:
            reasons.setdefault(v["why"], []).append(name)
    if reasons:
        told = "; ".join(f"{', '.join(names)}: {why}" for why, names in reasons.items())
        found.append(Finding("unknown", "limits", "Some numbers could not be computed", told + "."))
    return found


# -- parts ------------------------------------------------------------------------------------


def _get(report: Report, part: str, name: str) -> Number | None:
    found = (report.get(part) or {}).get(name)
    if found is None or found["value"] is None:
        return None
    value, low, high = found["value"], found["low"], found["high"]
    sure = low is not None and high is not None
    return Number(name, value, low if sure else value, high if sure else value, found["n"], sure)


def _by_class(report: Report, part: str) -> dict[int, Number]:
    kind = "class_accuracy."
    numbers = [v for name in report[part] if name.startswith(kind) and (v := _get(report, part, name))]
    return {int(v.name.removeprefix(kind)): v for v in numbers}


def _at_most(v: Number, limit: float) -> Level:
    """Is a number certainly no larger than a limit, certainly larger, or neither?

    That nothing was found is enough where few would have been missed; the words say how many.
    """
    if v.value == 0 and v.unseen <= MISSED:
        return "shown"
    v = v.wide
    return "shown" if v.high <= limit else "failed" if v.low > limit else "unknown"


def _like(v: Number, aim: Number, margin: float) -> Level:
    """Is a number what it would be without the data: near its aim, or not to be told from it?"""
    v, aim_wide = v.wide, aim.wide
    if abs(v.value - aim.value) > margin and (v.low > aim_wide.high or v.high < aim_wide.low):
        return "failed"
    return "unknown" if v.high - v.low > WIDE else "shown"


def _few(v: Number, margin: float) -> bool:
    """Are all of so few samples alike that the true share may be further off than a margin?"""
    return v.low == v.high and v.unseen > margin


def _none_of(v: Number) -> str:
    """That nothing was found among few samples proves little: what may have been missed."""
    if v.value > 0 or v.unseen <= POINTS:
        return ""
    with_only = _count(v.n or 0, "sample").lower()
    return f" With only {with_only} a true share of up to {100 * v.unseen:.0f} % cannot be ruled out."


def _beside(report: Report, name: str) -> str:
    """The other models' values of the same name, or what stands in for them."""
    theirs = {part: v for part in ("retrained", "original") if (v := _get(report, part, name))}
    words = [
        f"the {part} model {'in ' if not i else ''}{v.words}" for i, (part, v) in enumerate(theirs.items())
    ]
    if "retrained" not in theirs and name in ("fa_test", "fa_train"):
        words.append(f"guessing would be right in {100 * _chance(report):.1f} %")
    return ", ".join(words) or "there was no other model to compare with"


def _chance(report: Report) -> float:
    return 1 / max(1, report["info"].get("classes") or 1)


def _what(report: Report) -> str:
    info = report["info"]
    return class_words(info.get("forget_classes") or [], info.get("names") or []) or "what was forgotten"


def _why(report: Report, name: str) -> str:
    """Why a value is missing, as a sentence."""
    found = report["values"].get(name) or report["values"].get(_base(name))
    reason = (found or {}).get("why") or f"{name} was not asked for"
    named = reason.split(maxsplit=1)[0].rstrip(":") in {name, _base(name), *map(_base, report["values"])}
    return (reason if named else reason[:1].upper() + reason[1:]) + "."


def _base(name: str) -> str:
    return name.partition(".")[0]


def _points(difference: float) -> str:
    return f"{100 * difference:.1f} points"


def _change(difference: float) -> str:
    words = f"{100 * difference:+.1f}".replace("-", "−")
    return "0.0" if words[1:] == "0.0" else words


def _count(n: int, thing: str) -> str:
    return f"One {thing}" if n == 1 else f"{n} {thing}s"
