"""Audits: several models measured beside the same others."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

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
from purge.engine.precision import (
    arrange,
    choose_device,
    takes_channels_last,
)
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
from purge.result import Report, Result, columns, environment, floor_of, models_in_words, now
from purge.verdict.roles import Role, Slot

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
        self._models = {slot: m.model if isinstance(m, Result) else m for slot, m in others.items()}
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
        network = check_classifier(model.model if isinstance(model, Result) else model)
        at = self._device = choose_device(self._device, network)
        seed = self._seed = checked_seed(self._seed)
        digests = self._digests_with(network)
        models = self._models_with(network, run)
        split = models[AUDITED].split
        ensemble = None if shadows is None else self._ensemble(shadows, network, split, run, progress)
        for slot in {AUDITED, RETRAINED} & models.keys():
            models[slot].shadows = ensemble

        seen = set[int]()
        with threads_for(network, at, seen=seen):
            values = _measured(models, wanted, seed, at, progress)
        audited, retrained, original = (values.pop(slot, {}) for slot in (AUDITED, RETRAINED, ORIGINAL))
        report = Report(
            audited,
            retrained,
            original,
            info={
                "seed": seed, "finished": now(), **split.sizes(), **self._contents, "digests": digests,
                "models": models_in_words(digests, run, self._taught, self._contents["retain_content"]),
                "threads": numbers(seen), **environment(),
                "cache": places_of(split.forget, split.retain, split.test, split.triggered, ensemble),
            },
            floor=floor_of([*values.values()]),
            curves={slot.name: copy.deepcopy(m.curves) for slot, m in models.items() if not slot.number},
            metrics={metric.name: metric.describe() for metric in wanted},
            parts=self._reports_on_kinds(model, split, wanted, progress),
        )  # fmt: skip
        if why := still_random(split):
            report.info["augmented"] = why
        if run is not None:
            report.info["run"] = {**run.to_dict(), "seconds": run.seconds}
            report.curves[AUDITED.name]["history"] = columns(run.history)
        return report

    def _digests_with(self, model: nn.Module) -> dict[str, str]:
        """The digests of the weights of all models, by name; equal ones are refused."""
        if not self._digests:
            self._models = {slot: check_classifier(one) for slot, one in self._models.items()}
            self._digests = {slot: digest(one) for slot, one in self._models.items()}
        weights = {AUDITED: digest(model), **self._digests}
        if self._check:
            check_references(weights)
        return {slot.name: one for slot, one in weights.items()}

    def _models_with(self, model: nn.Module, run: Result | None) -> dict[Slot, AuditedModel]:
        """The model under audit, then the others; each knows the ones that it is compared with."""
        models = {AUDITED: self._copy(AUDITED, model, class_order(model if run is None else run), run)}
        if not self._beside:
            self._beside = {slot: self._copy(slot, one) for slot, one in self._models.items()}
        models |= self._beside
        for one in models.values():
            one.original, one.retrained = models.get(ORIGINAL), models.get(RETRAINED)
        return models

    def _ensemble(
        self, shadows: Shadows, model: nn.Module, split: Split, run: Result | None, progress: bool
    ) -> Ensemble:
        """Shadow models like the model under audit, which unlearn at the precision of its run."""
        if not isinstance(shadows, Shadows):
            fix = "pass shadows=purge.Shadows(number=16)"
            raise MetricError("purge.Shadows for shadows", repr(shadows), fix)
        at, how = choose_device(self._device, model), None if run is None else run.info.get("precision")
        return Ensemble(shadows, model, split, device=at, seed=self._seed, progress=progress, precision=how)

    def _reports_on_kinds(
        self, model: nn.Module | Result, split: Split, wanted: list[Metric], progress: bool
    ) -> dict[str, Report]:
        """A report each on the classes and on the single samples of a request that mixes them."""
        alone = [metric for metric in wanted if metric.cost != "shadow"]
        auditors = self._kinds(split) if alone else {}
        return {name: one.audit(model, metrics=alone, progress=progress) for name, one in auditors.items()}

    def _kinds(self, split: Split) -> dict[str, Auditor]:
        """An auditor each of the classes and of the single samples in a request that mixes them."""
        for name, own in split.kinds().items() if not self._apart else ():
            self._apart[name] = apart = copy.copy(self)
            apart._split, apart._beside, apart._apart = own, {}, {}
            apart._contents = contents(own)
        return self._apart

    def _copy(
        self, slot: Slot, model: nn.Module, order: Sequence[str] = (), run: Result | None = None
    ) -> AuditedModel:
        """A copy of a model, ready to be measured."""
        at = choose_device(self._device, model)
        own = copied(model, at)
        if self._split is None:
            with seeded(self._seed, at):
                truth, triggered = self._extra["truth"], self._extra["triggered"]
                names = ("forget", "retain", "test", "triggered")
                sets = dict(zip(names, (*self._data, triggered), strict=True))
                there = {what: data for what, data in sets.items() if data is not None or what in names[:2]}
                data = accepted(there, self._form, order, None if run is None else run.data)
                data = {what: plain(samples, "The audit") for what, samples in data.items()}
                self._split = make_split(own, data, at, truth=truth)
                self._contents = contents(self._split)
        check_same_classes(own, self._split, slot.name)
        if slot.role is Role.ORIGINAL and self._check:
            check_knows(own, self._split.retain, "an original")
        if takes_channels_last(own, self._split.retain):
            arrange(own, torch.channels_last)
        return AuditedModel(own, self._split, seed=self._seed)


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
