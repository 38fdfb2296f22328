"""Making the next version: unlearned from the one before, or trained anew, and audited before it is used."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from purge.core.errors import DataError, PurgeError
from purge.data.request import DeletionRequest
from purge.engine.resume import STATE
from purge.ledger.audits import Group, Subjects, batch_report, measure, returned
from purge.ledger.grounds import Grounds, choice_of, expected_of
from purge.ledger.order import Order, order_of
from purge.ledger.policy import Spent
from purge.ledger.records import Batch, Request, Version
from purge.methods.registry import resolve_method
from purge.models.forward import logits
from purge.report.findings import broken_words
from purge.runs.folder import choose_model, facts_of, first_of, read_model, recipe_of, same_scale
from purge.runs.make import check_recorded, facts_for, train_run, unlearn_run
from purge.runs.weights import check_weights
from purge.verdict.compare import broken

if TYPE_CHECKING:
    from purge.ledger.ledger import Ledger
    from purge.ledger.worker import Plan


UNLEARNED, RETRAINED = "unlearned", "retrained"  # folders in the stage of a batch


def _trained_last(versions: Sequence[Version]) -> Version:
    """The version that a chain of deletions began with."""
    return [version for version in versions if version.kind != "unlearned"][-1]


def last_training(versions: Sequence[Version]) -> date:
    """The day on which the version that the chain began with was written down."""
    return date.fromisoformat(_trained_last(versions).added[:10])


@dataclass(frozen=True)
class Making:
    """A batch and all that is needed to carry it out."""

    ledger: Ledger
    plan: Plan
    requests: list[Request]  # of this batch
    missing: dict[int, int]  # request that is left out → how many of its ids are in no data
    before: list[Request]  # that were done before it
    keep: bool  # may forgotten samples be used for audits?
    today: date
    parent: Version
    first: Version  # of the chain: the last training
    grounds: Grounds
    gone: Tensor  # a mask (N,) of what was forgotten before
    rows: Tensor  # what this batch must forget, and was not gone before

    @classmethod
    def begin(
        cls, ledger: Ledger, plan: Plan, requests: list[Request], *, keep: bool, today: date,
        at_most: int | None = None,
    ) -> Making:  # fmt: skip
        """Look at data and requests; what cannot be carried out is refused before anything is written.

        Of the requests it takes ``at_most`` so many, all of whose ids are in the data.
        """
        versions = ledger.versions()
        parent = versions[-1]
        first = _trained_last(versions)
        check_weights(Path(parent.folder), parent.digest, whole=False)  # and not those of another run
        grounds = Grounds.load(choice_of(ledger, parent, trust=plan.trust), progress=plan.progress)
        told_apart, source = expected_of(ledger, parent)
        grounds.check_ids(told_apart)
        if grounds.ids == "rows" and source not in (None, grounds.train.source):
            fix = "restore it, or write down what it is now: purge request deliver --data DATA"
            raise DataError(
                "the training data of the current version, whose rows have numbers", "others", fix
            )
        for gate in plan.gates:
            gate.check_class(len(grounds.train.names))
        absent = grounds.missing(ledger, requests, versions[versions.index(first) :])
        missing: dict[int, int] = {}
        found: list[Request] = []
        for request, n in zip(requests, absent, strict=True):
            if len(found) == at_most:
                break
            if n:
                missing[request.number] = n
            else:
                found.append(request)
        before = ledger.requests("done")
        gone = grounds.rows(ledger, before)
        rows = grounds.rows(ledger, found) & ~gone
        if bool((gone | rows).all()):
            got = f"requests for all {len(grounds.train)} of them"
            raise PurgeError(
                "training samples that stay", got, "train a model on other data, and begin with it"
            )
        return cls(ledger, plan, found, missing, before, keep, today, parent, first, grounds, gone, rows)

    def nothing_to_forget(self) -> bool:
        """Does the training data hold nothing of these requests, or nothing more?"""
        return not bool(self.rows.any())

    def without_rows(self) -> list[int]:
        """The requests of which nothing is left to forget: it was forgotten before, or never trained on."""
        at = self.rows.nonzero()[:, 0]
        subjects = [self.grounds.subjects[i] for i in at.tolist()]
        classes = set(self.grounds.train.labels[at].tolist())
        absent = self.ledger.missing([request.number for request in self.requests], subjects)
        return [
            request.number
            for request, n in zip(self.requests, absent, strict=True)
            if n == request.subjects and classes.isdisjoint(self.grounds.class_numbers([request]))
        ]

    @property
    def all_gone(self) -> Tensor:
        """A mask of all that the new version must not know."""
        return self.gone | self.rows

    @property
    def gone_classes(self) -> list[int]:
        """The classes of all requests, this batch included."""
        return self.grounds.class_numbers([*self.before, *self.requests])

    # -- how far the chain has gone ------------------------------------------------------------

    def spent(self, found: Mapping[str, Any] | None = None) -> Spent:
        """How far the chain would have gone with this batch; ``found``: what was measured, if it was."""
        since = [b for b in self.ledger.batches() if b.state == "done" and b.started > self.first.added]
        numbers = {n for batch in since for n in batch.requests} | {r.number for r in self.requests}
        earlier = [r for r in self.before if r.number not in numbers]
        rows = self.all_gone & ~self.grounds.rows(self.ledger, earlier)
        if found is None:  # as far as the version before had gone
            last = self.parent.about.get("spent") or {} if self.parent.kind == "unlearned" else {}
        else:
            last = found["stays"]
        return Spent(
            len(numbers), float(rows.float().mean()), last.get("drift"), last.get("distance"),
            (self.today - last_training([self.first])).days,
        )  # fmt: skip

    def used_up(self) -> list[str]:
        """Why this batch may not be unlearned any more, as far as can be known before it is."""
        return [] if self.nothing_to_forget() else self.plan.policy.reasons(self.spent())

    # -- making --------------------------------------------------------------------------------

    def order(self, batch: Batch) -> Order:
        """What a batch of these requests orders."""
        here, parent = self.grounds, self.parent.digest
        return order_of(self.ledger, batch, parent=parent, grounds=here, rows=self.rows, gone=self.gone)

    def made(self, stage: Path, order: Order) -> tuple[Path, dict[str, Any], list[str]]:
        """The folder of the new model, what is to be told about it, and why it must not be used."""
        again = self.plan.policy.action == "retrain"
        tried: list[str] = []
        if self.plan.retrain or (again and self.used_up()):
            tried = self.used_up()
        else:
            folder, about, reasons, over = self._unlearned(stage / UNLEARNED, order)
            if not over or not again:
                return folder, about, [*reasons, *over]
            tried = over
        folder = self._trained(stage / RETRAINED, order)
        about, reasons, over = self._audited(folder, order.batch, "retrained")
        return folder, {**about, "instead": tried}, [*reasons, *over]

    def _unlearned(self, folder: Path, order: Order) -> tuple[Path, dict[str, Any], list[str], list[str]]:
        if not whole(folder):
            self._unlearn(folder, order)
        order.check(folder)
        return folder, *self._audited(folder, order.batch, "unlearned")

    def _unlearn(self, folder: Path, order: Order) -> None:
        """Unlearn the batch from the version before, without teaching anything that was gone before."""
        plan, grounds, source = self.plan, self.grounds, Path(self.parent.folder)
        facts = facts_of(source)
        name = choose_model(facts, None, plan.trust)
        model = read_model(source, name, grounds.train, plan.trust)
        same_scale(facts, grounds.choice, "current")
        if facts.source == grounds.train.source:
            check_recorded(source, facts, model, grounds.train, grounds.test, plan.device)
        forget, retain = grounds.train.select(self.rows), grounds.train.select(~self.all_gone)
        test = grounds.test_without(grounds.class_numbers(self.before))
        received = min(request.received for request in self.requests)
        result = unlearn_run(
            model, name, forget, retain, facts=facts, method=plan.method,
            settings={**plan.settings, **self._budget(model)}, test=test if len(test) else None,
            seed=plan.seed, device=plan.device, progress=plan.progress, checkpoint=source,
            request=DeletionRequest(id=f"batch {order.batch}", received=str(received)),
        )  # fmt: skip
        asked = grounds.recorded(self.ledger, self.requests, self.rows)
        gone = grounds.recorded(self.ledger, self.before, self.gone)
        began = first_of(source, facts, result.info["original_digest"])
        about = facts_for(
            name, grounds.choice, grounds.train, asked, original=source, gone=gone, deployed=began
        )
        result.save(folder, force=True, **about, **order.record())

    def _budget(self, model: nn.Module) -> dict[str, Any]:
        """The retain budget counted from the first version: each batch would otherwise get all of it anew."""
        stop = resolve_method(self.plan.method, self.plan.settings).stop
        first = self._first_model()
        if stop.retain_budget is None or first is None or self.first.digest == self.parent.digest:
            return {}
        losses = []
        for one in (first, model):
            seen = Subjects.of(one, self.grounds, device=self.plan.device, seed=self.plan.seed)
            at = (~self.all_gone).nonzero()[:, 0][: stop.check_samples]
            z = logits(seen.model, seen.train, at)
            losses.append(
                max(F.cross_entropy(z, seen.train.labels[at].to(z.device)).item(), stop.retain_floor)
            )
        return {"stop": {"retain_budget": stop.retain_budget * losses[0] / losses[1]}}

    def _trained(self, folder: Path, order: Order) -> Path:
        """Train like the last training did, without anything that was asked to be forgotten."""
        if not whole(folder):
            self._train(folder, order)
        order.check(folder)
        return folder

    def _train(self, folder: Path, order: Order) -> None:
        plan, grounds, like = self.plan, self.grounds, Path(self.first.folder)
        facts = facts_of(like)
        recipe = recipe_of(like, facts)
        everything = grounds.recorded(self.ledger, [*self.before, *self.requests], self.all_gone)
        begun = (folder / STATE).is_file()
        if not begun:
            shutil.rmtree(folder, ignore_errors=True)
        train_run(
            folder, choose_model(facts, None, plan.trust), grounds.choice, grounds.train, everything,
            seed=plan.seed + order.batch, recipe=recipe, test=grounds.test, pretrained=facts.pretrained,
            shards=facts.shards, slices=facts.slices or 1, vote=facts.vote or "mean", device=plan.device,
            progress=plan.progress, resume=begun, more=order.record(),
        )  # fmt: skip

    # -- audits --------------------------------------------------------------------------------

    def _audited(self, folder: Path, batch: int, kind: str) -> tuple[dict[str, Any], list[str], list[str]]:
        """What is to be told about a new model; the gates that it misses, and the bounds of the policy."""
        plan, grounds, facts = self.plan, self.grounds, facts_of(folder)
        model = read_model(folder, None, grounds.train, plan.trust)
        first = self._first_model()
        report = batch_report(
            model, grounds, self.rows, self.all_gone, self.gone_classes, original=first, metrics=plan.metrics,
            seed=plan.seed, device=plan.device, progress=plan.progress,
        )  # fmt: skip
        report.to_json(folder / "audit.json")
        found = measure(
            model, grounds, self._groups(batch), self.all_gone, self.gone_classes, first=first,
            max_return=plan.policy.max_return, seed=plan.seed, device=plan.device,
        )  # fmt: skip
        values = report.to_dict()
        found["values"] = values["values"]
        spent = self.spent(found)
        about = {
            "batch": batch, "digest": facts.digest, "kind": kind, "found": found, "spent": spent.to_dict(),
            "method": plan.method if kind == "unlearned" else "retrain", "rows": int(self.rows.sum()),
            "parent": self.parent.digest, "ids": grounds.ids,
        }  # fmt: skip
        missed = [broken_words(one) for one in broken(plan.gates, values, report.verdict)]
        over = [f"{line}." for line in returned(found)]
        if kind == "unlearned":
            over += [f"Retraining is due: {line}." for line in plan.policy.reasons(spent)]
            bounded = plan.policy.max_drift is not None or plan.policy.max_distance is not None
            if bounded and (why := found["stays"]["why"]):  # what was not measured may be anything
                over.append(f"The policy cannot be checked: {why}.")
        return about, missed, over

    def _groups(self, batch: int) -> list[Group]:
        """This batch and all before it, samples and classes apart, with what was found at their time."""
        told = {
            (group["batch"], group["kind"]): group["values"]
            for audit in self.ledger.audits()
            if audit.passed
            for group in audit.found.get("groups", ())
            if group["batch"] == audit.batch
        }
        members: dict[int, list[Request]] = {}
        for request in self.before:
            members.setdefault(request.batch or 0, []).append(request)
        gone = torch.tensor(self.gone_classes, dtype=torch.long)
        groups = []
        for number, requests in [*members.items(), (batch, self.requests)]:
            now = number == batch
            for kind in ("samples", "classes"):
                own = [r for r in requests if bool(r.classes) == (kind == "classes")]
                if not own:
                    continue
                rows = self.grounds.rows(self.ledger, own)
                if kind == "samples":  # those of classes that are gone as a whole are among the classes
                    rows = rows & ~torch.isin(self.grounds.train.labels, gone)
                then = None if now else told.get((number, kind), {})
                groups.append(
                    Group(
                        number, kind, tuple(r.number for r in own), rows & self.rows if now else rows,
                        tuple(self.grounds.class_numbers(own)), self.keep, then,
                    )
                )  # fmt: skip
        return groups

    def _first_model(self) -> nn.Module | None:
        """The model that the chain began with, if it is still there."""
        folder = Path(self.first.folder)
        if not folder.exists():
            return None
        check_weights(folder, self.first.digest, whole=False)
        return read_model(folder, None, self.grounds.train, self.plan.trust)


def whole(folder: Path) -> bool:
    """Is there a finished model in a folder?"""
    return (folder / "run.json").is_file() and not (folder / STATE).exists()
