"""Audits: several models measured beside the same others."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from purge.audit_report import Report
from purge.core.errors import MetricError
from purge.core.progress import progress_line
from purge.core.settings import checked_seed
from purge.core.threads import numbers, threads_for
from purge.data.accept import accepted
from purge.data.augmented import plain, still_random
from purge.data.cache import places_of
from purge.data.forgotten import class_order
from purge.data.items import Form
from purge.data.request import contents
from purge.data.samples import Data, GivenLabels
from purge.data.split import Split
from purge.engine.precision import arrange, choose_device, takes_channels_last
from purge.engine.seeding import seeded
from purge.metrics.audited import AuditedModel
from purge.metrics.ensemble import Ensemble
from purge.metrics.metric import Metric, Need
from purge.metrics.registry import resolve_metrics
from purge.metrics.shadow import Shadows
from purge.metrics.value import Value
from purge.models.checkpoint import digest
from purge.models.checks import (
    check_classifier,
    check_knows,
    check_references,
    check_same_classes,
    make_split,
)
from purge.models.copies import copied
from purge.result import Result, columns, environment, module_of, now
from purge.verdict.numbers import Role, Slot

AUDITED, RETRAINED, ORIGINAL = map(Slot, (Role.AUDITED, Role.RETRAINED, Role.ORIGINAL))


class Auditor:
    """Audits of several models beside the same others, which are looked at once.

    ``Auditor(forget, retain, test, retrained=…).audit(model)`` reports what :func:`audit` does.
    """

    def __init__(
        self,
        forget: Data,
        retain: Data,
        test: Data | None,
        *,
        original: nn.Module | Result | None = None,
        retrained: nn.Module | Result | Sequence[nn.Module | Result] | None = None,
        seed: int = 0,
        device: torch.device | str | None = None,
        check: bool = True,
        truth: GivenLabels | None = None,
        triggered: Data | None = None,
        form: Form | None = None,
    ) -> None:
        references = [retrained] if isinstance(retrained, (nn.Module, Result)) else list(retrained or [])
        others = {Slot(Role.RETRAINED, i): one for i, one in enumerate(references)}
        others |= {} if original is None else {ORIGINAL: original}
        self._form = form
        self._data, self._seed, self._device, self._check = (forget, retain, test), seed, device, check
        self._extra: dict[Need, Any] = {"truth": truth, "triggered": triggered}
        self._models = {slot: module_of(m) for slot, m in others.items()}
        results = {slot: m for slot, m in others.items() if isinstance(m, Result)}
        self._taught = {slot.name: m.info.get("train_content") for slot, m in results.items()}
        self._digests: dict[Slot, str] = {}  # of the others' weights
        self._split: Split | None = None
        self._contents: dict[str, str | None] = {}  # digests of the samples
        self._beside: dict[Slot, AuditedModel] = {}  # the others, once a first model was audited
        self._apart: dict[str, Auditor] = {}  # for classes and for single samples, of a request of both

    @torch.enable_grad()
    def audit(
        self,
        model: nn.Module | Result,
        *,
        metrics: str | Metric | Sequence[str | Metric] = "standard",
        shadows: Shadows | None = None,
        progress: bool = True,
    ) -> Report:
        """Measure what a model still knows: see :func:`audit`."""
        wanted = resolve_metrics(metrics, [name for name, extra in self._extra.items() if extra is not None])
        run = model if isinstance(model, Result) else None
        network = check_classifier(module_of(model))
        at = self._device = choose_device(self._device, network)
        seed, seen = checked_seed(self._seed), set[int]()
        models, digests, ensemble = self._models_with(network, run, shadows, progress)
        split, contents = models[AUDITED].split, self._contents
        with threads_for(network, at, seen=seen):
            values = _measured(models, wanted, seed, at, progress)
        audited, retrained, original = (values.pop(slot, {}) for slot in (AUDITED, RETRAINED, ORIGINAL))
        report = Report(
            audited,
            retrained,
            original,
            info={
                "seed": seed, "finished": now(), **split.sizes(), **contents, "digests": digests,
                "models": _models_in_words(digests, run, self._taught, contents["retain_content"]),
                "threads": numbers(seen), **environment(),
                "cache": places_of(split.forget, split.retain, split.test, split.triggered, ensemble),
            },
            floor=_floor_of([*values.values()]),
            curves={slot.name: copy.deepcopy(m.curves) for slot, m in models.items() if not slot.number},
            metrics={metric.name: metric.describe() for metric in wanted},
            parts=self._parts(model, split, [m for m in wanted if m.cost != "shadow"], progress),
        )  # fmt: skip
        if why := still_random(split):
            report.info["augmented"] = why
        if run is not None:
            report.info["run"] = {**run.to_dict(), "seconds": run.seconds}
            report.curves[AUDITED.name]["history"] = columns(run.history)
        return report

    def _models_with(
        self, network: nn.Module, run: Result | None, shadows: Shadows | None, progress: bool
    ) -> tuple[dict[Slot, AuditedModel], dict[str, str], Ensemble | None]:
        """The model under audit, then the others; the digests of their weights, and the shadow models."""
        if shadows is not None and not isinstance(shadows, Shadows):
            fix = "pass shadows=purge.Shadows(number=16)"
            raise MetricError("purge.Shadows for shadows", repr(shadows), fix)
        if not self._digests:
            self._models = {slot: check_classifier(one) for slot, one in self._models.items()}
            self._digests = {slot: digest(one) for slot, one in self._models.items()}
        weights = {AUDITED: digest(network), **self._digests}
        if self._check:
            check_references(weights)
        models = {AUDITED: self._copy(AUDITED, network, run or network)}
        if not self._beside:
            self._beside = {slot: self._copy(slot, one, one) for slot, one in self._models.items()}
        models |= self._beside
        ensemble = None if shadows is None else Ensemble(  # at the precision of the model's run
            shadows, network, models[AUDITED].split, device=choose_device(self._device, network),
            seed=self._seed, progress=progress, precision=run.info.get("precision") if run else None,
        )  # fmt: skip
        for slot, one in models.items():
            one.original, one.retrained = models.get(ORIGINAL), models.get(RETRAINED)
            one.shadows = ensemble if slot in (AUDITED, RETRAINED) else None
        return models, {slot.name: one for slot, one in weights.items()}, ensemble

    def _copy(self, slot: Slot, model: nn.Module, source: nn.Module | Result) -> AuditedModel:
        """A copy of a model, ready to be measured; the data is read with the first one."""
        at = choose_device(self._device, model)
        own = copied(model, at)
        if self._split is None:
            with seeded(self._seed, at):
                names = ("forget", "retain", "test", "triggered")
                sets = dict(zip(names, (*self._data, self._extra["triggered"]), strict=True))
                there = {what: data for what, data in sets.items() if data is not None or what in names[:2]}
                known = source.data if isinstance(source, Result) else None
                read = accepted(there, self._form, class_order(source), known)
                read = {what: plain(samples, "The audit") for what, samples in read.items()}
                self._split = make_split(own, read, at, truth=self._extra["truth"])
                self._contents = contents(self._split)
        check_same_classes(own, self._split, slot.name)
        if slot.role is Role.ORIGINAL and self._check:
            check_knows(own, self._split.retain, "an original")
        if takes_channels_last(own, self._split.retain):
            arrange(own, torch.channels_last)
        return AuditedModel(own, self._split, seed=self._seed)

    def _parts(
        self, model: nn.Module | Result, split: Split, wanted: list[Metric], progress: bool
    ) -> dict[str, Report]:
        """A report each on the classes and on the single samples of a request that mixes them."""
        if not wanted:
            return {}
        for name, own in split.kinds().items() if not self._apart else ():
            self._apart[name] = apart = copy.copy(self)
            apart._split, apart._beside, apart._apart, apart._contents = own, {}, {}, contents(own)
        return {
            name: one.audit(model, metrics=wanted, progress=progress) for name, one in self._apart.items()
        }


def _measured(
    models: Mapping[Slot, AuditedModel], wanted: Sequence[Metric], seed: int, at: torch.device, progress: bool
) -> dict[Slot, dict[str, Value]]:
    """The values of every model, by the name of the value.

    Of further retrained models only what is quick is measured, and distances.
    """
    with seeded(seed, at):
        for metric in wanted:  # before the audit's own line of progress: shadow models have theirs
            if metric.cost == "shadow":
                models[AUDITED].value(metric)
    values: dict[Slot, dict[str, Value]] = {slot: {} for slot in models}
    with seeded(seed, at), progress_line("audit", len(wanted), progress) as advance:
        for metric in wanted:
            quick = metric.cost == "forward" or "retrained" in metric.needs
            for slot, model in models.items():
                if quick or not slot.number:
                    values[slot].update(model.named(metric))
            advance(1, metric.name)
        advance(0, "done")  # the line that a notebook keeps
    return values


def _floor_of(others: list[dict[str, Value]]) -> dict[str, Value]:
    """What further retrained models reach: mean, lowest, highest, and how many there are."""
    floor = {}
    for name in others[0] if others else {}:
        numbers = [v for other in others if name in other and (v := other[name].value) is not None]
        if numbers:
            floor[name] = Value(sum(numbers) / len(numbers), min(numbers), max(numbers), len(numbers))
    return floor


def _models_in_words(
    digests: Mapping[str, str], run: Result | None, taught: Mapping[str, str | None], retained: str | None
) -> dict[str, str]:
    """Which model each column of an audit is, as far as an audit in Python can know.

    ``taught``: digests of the data that the others were trained on; ``retained``: that of the retained data.
    """
    about = {} if run is None else run.info
    began = about.get("original_digest")
    if began is None:
        original = "passed as the original"
    elif began == digests.get("original"):
        original = "the model that the unlearning began with"
    else:
        original = "passed as the original, but not the model that the unlearning began with"
    made = "a model that was passed" if run is None else f"the result of “{about.get('preset') or 'train'}”"
    words = {"audited": made, "original": original}
    return {
        name: f"{words.get(name) or reference_in_words(taught.get(name), retained)} (weights {weights[:12]}…)"
        for name, weights in digests.items()
    }


def reference_in_words(taught: str | None, retained: str | None) -> str:
    """What a retrained model was trained on, if both digests are known."""
    if taught is None or retained is None:
        return "passed as retrained; what it was trained on is not recorded"
    if taught == retained:
        return "trained on exactly the retained samples"
    return "passed as retrained, but trained on other samples than the retained ones"
