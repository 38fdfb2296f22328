"""Making the next version: unlearned from the one before, or trained anew, and audited before it is used."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from purge import DeletionRequest
from purge.core.errors import DataError, PurgeError
from purge.data import Samples
from purge.engine import STATE, choose_device
from purge.ledger.chain import Kind
from purge.ledger.data import OwnedData, choice_of, expected_of
from purge.ledger.orders import ORDER, Order, order_of
from purge.ledger.policy import Spent
from purge.ledger.records import DeletionBatch, Request, Version
from purge.ledger.version_audits import Group, audit_rows, judged, kind_of, measure, returned
from purge.ledger.working import Watched
from purge.methods import resolve_method
from purge.models import copied, logits, training_data
from purge.report import broken_words
from purge.runs import (
    check_recorded,
    check_weights,
    choose_model,
    facts_for,
    facts_of,
    first_of,
    read_model,
    recipe_of,
    same_scale,
    train_run,
    unlearn_run,
)
from purge.verdict import broken

if TYPE_CHECKING:
    from purge.ledger.ledger import Ledger
    from purge.ledger.plan import BatchPlan

STAGES = UNLEARNED, RETRAINED = "unlearned", "retrained"  # folders in the stage of a batch

# What run.json and audit.json say elsewhere about whose rows went. Whoever has the training table can look
# row numbers and digests up in it, and with the seed could forget each person in turn until the weights are
# the same. So the folders of a ledger have the keyed hash of an order alone.
HIDDEN = (
    "forget_rows", "rows_of", "forget_digest", "forget_subjects", "forget_content", "retain_content",
    "train_content", "forgotten", "seed",
)  # fmt: skip


# -- carrying it out --------------------------------------------------------------------------


def trained_last(versions: Sequence[Version]) -> tuple[Version, date]:
    """The version that a chain of deletions began with, and the day on which it was written down."""
    version = [one for one in versions if one.kind != "unlearned"][-1]
    return version, date.fromisoformat(version.added[:10])


@dataclass(frozen=True)
class NextVersion:
    """A batch and all that is needed to carry it out."""

    ledger: Ledger
    plan: BatchPlan
    requests: list[Request]  # of this batch
    missing: dict[int, list[str]]  # request that is left out → its keyed ids, or classes, in no data
    before: list[Request]  # that were done before it
    keep: bool  # may forgotten samples be used for audits?
    today: date
    parent: Version
    first: Version  # of the chain: the last training
    data: OwnedData
    forgotten: Tensor  # a mask (N,) of what was forgotten before
    rows: Tensor  # what this batch must forget, and no earlier one did
    relabelled: Tensor  # those of them that stay, with their right label

    @classmethod
    def begin(
        cls, ledger: Ledger, plan: BatchPlan, requests: list[Request], *, keep: bool, today: date,
        at_most: int | None = None,
    ) -> NextVersion:  # fmt: skip
        """Look at data and requests; what cannot be carried out is refused before anything is written.

        Of the requests it takes ``at_most`` so many, all of whose ids are in the data.
        """
        versions = ledger.lineage()
        parent = versions[-1]
        first, _ = trained_last(versions)
        choice = choice_of(ledger, parent, trust=plan.trust)
        data = OwnedData.load(choice, ledger, progress=plan.progress)
        ids, source = expected_of(ledger, parent)
        data.check_ids(ids)
        if data.ids == "rows" and source not in (None, data.train.source):
            fix = "restore it, or write down what it is now: purge request deliver --data DATA"
            what = "the training data of the current version, whose rows have numbers"
            raise DataError(what, "others", fix)
        for gate in plan.gates:
            gate.check_class(len(data.train.names))
        absent = data.not_found(ledger, requests, versions[versions.index(first) :])
        missing: dict[int, list[str]] = {}
        taken: list[Request] = []
        for request, unknown in zip(requests, absent, strict=True):
            if len(taken) == at_most:
                break
            if unknown:
                missing[request.number] = unknown
            else:
                taken.append(request)
        before = ledger.requests("done")
        forgotten = data.rows([one for one in before if one.label is None])
        rows = data.rows([one for one in taken if one.label is None]) & ~forgotten
        if bool((forgotten | rows).all()):
            got, fix = f"requests for all {len(data.train)} of them", "train a model on other data"
            raise PurgeError("training samples that stay", got, f"{fix}, and begin with it")
        erased, known = forgotten | rows, data.corrected_by(before, forgotten)
        data = known.corrected_by(taken, erased)
        relabelled = (data.corrected != known.corrected) & ~erased
        return cls(
            ledger, plan, taken, missing, before, keep, today, parent, first, data, forgotten,
            rows | relabelled, relabelled,
        )  # fmt: skip

    def nothing_to_forget(self) -> bool:
        """Does the training data hold nothing of these requests, or nothing more?"""
        return not bool(self.rows.any())

    def found(self) -> dict[str, dict[str, int | None]]:
        """For each request, and each keyed id or class of it: how many rows go; None: it is in no data."""
        held_out = {*self.ledger.hashes(self.data.held_out, blank=True)}
        return {
            str(request.number): {
                one: int(self.rows[at].sum()) if len(at) or one in held_out else None
                for one, at in self.data.parts(request).items()
            }
            for request in self.requests
        }

    @property
    def all_forgotten(self) -> Tensor:
        """A mask of all that the new version must not know."""
        return self.forgotten | self.rows

    @property
    def classes(self) -> list[int]:
        """The classes of all requests, this batch included."""
        return self.data.class_numbers([*self.before, *self.requests])

    # -- how far the chain has gone ------------------------------------------------------------

    def spent(self, measured: Mapping[str, Any] | None = None) -> Spent:
        """How far the chain would have gone with this batch; ``measured``: what was measured, if it was."""
        numbers = {r.number for r in self.requests}
        for entry in reversed(self.ledger.entries(Kind.BATCH_DONE)):  # as the chain has them: clocks go back
            if entry.payload.get("version") == self.first.digest:
                break
            numbers |= {*entry.payload["requests"]}
        earlier = [r for r in self.before if r.number not in numbers]
        rows = self.all_forgotten & ~self.data.rows(earlier)
        if measured is None:  # as far as the version before had gone
            last = self.parent.about.get("spent") or {} if self.parent.kind == "unlearned" else {}
        else:
            last = measured["stays"]
        return Spent(
            len(numbers), float(rows.float().mean()), last.get("drift"), last.get("distance"),
            (self.today - trained_last([self.first])[1]).days,
        )  # fmt: skip

    def used_up(self) -> list[str]:
        """Why this batch may not be unlearned any more, as far as can be known before it is."""
        return [] if self.nothing_to_forget() else self.plan.policy.reasons(self.spent())

    # -- making --------------------------------------------------------------------------------

    def order(self, batch: DeletionBatch) -> Order:
        """What a batch of these requests orders, from the chain and the data as they are now."""
        masks = [
            [(i, self.data.subjects[i]) for i in mask.nonzero()[:, 0].tolist()]
            for mask in (self.rows, self.forgotten)
        ]
        at = self.relabelled.nonzero()[:, 0].tolist()
        labels = [] if self.data.corrected is None else [(i, int(self.data.corrected[i])) for i in at]
        return order_of(self.ledger, batch, self.parent, [len(self.rows), *masks, labels])

    def made(self, stage: Path, order: Order, watched: Watched) -> tuple[Path, dict[str, Any], list[str]]:
        """The folder of the new model, what the ledger keeps of it, and why it must not be used."""
        again = self.plan.policy.action == "retrain"
        over = self.used_up()
        if not self.plan.retrain and not (again and over):
            folder = stage / UNLEARNED
            if not whole(folder):  # a worker that was killed may have finished it
                watched.begins("unlearning")
                self._unlearn(folder, order, watched)
            order.check(folder, self.ledger.lineage())
            watched.begins("auditing")
            about, reasons, over = self._audited(folder, order.batch, "unlearned")
            if not over or not again:
                return folder, about, [*reasons, *over]
        instead = {"instead": over}  # why it is trained anew
        folder = stage / RETRAINED
        if not whole(folder):
            watched.begins("training")
            self._train(folder, order, watched)
        order.check(folder, self.ledger.lineage())
        watched.begins("auditing")
        about, reasons, over = self._audited(folder, order.batch, "retrained")
        return folder, about | instead, [*reasons, *over]

    def _unlearn(self, folder: Path, order: Order, watched: Watched) -> None:
        """Unlearn the batch from the version before, without teaching anything that went before."""
        plan, data, source = self.plan, self.data, Path(self.parent.folder)
        facts = facts_of(source)
        name = choose_model(facts, None, plan.trust)
        model = read_model(source, name, data.train, plan.trust)
        same_scale(facts, data.choice, "current")
        if facts.source == data.train.source:
            check_recorded(source, facts, model, data.train, data.test, plan.device)
        forget, retain = data.train.select(self.rows), self._taught()
        test = data.test_without(data.class_numbers(self.before))
        received = min(request.received for request in self.requests)
        result = unlearn_run(
            model, name, forget, retain, facts=facts, method=plan.method,
            settings={**plan.settings, **self._budget(model)}, test=test if len(test) else None,
            seed=self._seed(order), device=plan.device, progress=plan.progress, checkpoint=source,
            request=DeletionRequest(id=f"batch {order.batch}", received=str(received)), callbacks=[watched],
        )  # fmt: skip
        first = first_of(source, facts, result.info["original_digest"])
        about = facts_for(name, data.choice, data.train, {}, original=source, deployed=first)
        result.save(folder, force=True, **about, **self._marked(order))

    def _taught(self) -> Samples:
        """All rows that stay, with their right labels."""
        return self.data.taught(~self.all_forgotten | self.relabelled)

    def _marked(self, order: Order) -> dict[str, Any]:
        """What makes a run folder one of this ledger, and keeps to itself who was forgotten."""
        return {**dict.fromkeys(HIDDEN), "ledger": self.ledger.identity, ORDER: asdict(order)}

    def _seed(self, order: Order) -> int:
        """The seed of a version, which only the key tells."""
        return int(self.ledger.hashes([f"seed:{self.plan.seed}:{order.rows}"])[0][:8], 16) >> 1

    def _budget(self, model: nn.Module) -> dict[str, Any]:
        """The retain budget counted from the first version: each batch would otherwise get all of it anew."""
        plan = self.plan
        stop = resolve_method(plan.method, plan.settings).stop
        first = self._first_model()
        if stop.retain_budget is None or first is None or self.first.digest == self.parent.digest:
            return {}
        at = choose_device(plan.device, model)
        rows = (~self.all_forgotten).nonzero()[:, 0][: stop.check_samples]
        losses = []
        for one in (first, model):
            own = copied(one, at)
            own.eval()
            data = training_data(own, self.data.train, at)
            z = logits(own, data, rows)
            losses.append(max(F.cross_entropy(z, data.labels[rows].to(z.device)).item(), stop.retain_floor))
        return {"stop": {"retain_budget": stop.retain_budget * losses[0] / losses[1]}}

    def _train(self, folder: Path, order: Order, watched: Watched) -> None:
        """Train like the last training did, without anything that was asked to be forgotten."""
        plan, data, like = self.plan, self.data, Path(self.first.folder)
        facts = facts_of(like)
        recipe, stays = recipe_of(like, facts), self._taught()
        begun = (folder / STATE).is_file()
        if not begun:
            shutil.rmtree(folder, ignore_errors=True)
        train_run(
            folder, choose_model(facts, None, plan.trust), data.choice, stays, {},
            seed=self._seed(order), recipe=recipe, test=data.test, pretrained=facts.pretrained,
            shards=facts.shards, slices=facts.slices or 1, vote=facts.vote or "mean", device=plan.device,
            progress=plan.progress, resume=begun, more=self._marked(order), callbacks=[watched],
        )  # fmt: skip

    # -- audits --------------------------------------------------------------------------------

    def _audited(self, folder: Path, batch: int, kind: str) -> tuple[dict[str, Any], list[str], list[str]]:
        """What the ledger keeps of a new model; the gates that it misses, and the bounds of the policy."""
        plan, data, facts = self.plan, self.data, facts_of(folder)
        model = read_model(folder, None, data.train, plan.trust)
        first = self._first_model()
        report = audit_rows(
            model, data, self.rows, self.all_forgotten, self.classes, original=first,
            metrics=plan.metrics, seed=plan.seed, device=plan.device, progress=plan.progress,
        )  # fmt: skip
        known = {key: value for key, value in report.info.items() if key not in HIDDEN}
        replace(report, info=known).to_json(folder / "audit.json")
        measured = measure(
            model, data, self._groups(batch), self.all_forgotten, self.classes, first=first,
            max_return=plan.policy.max_return, seed=plan.seed, device=plan.device,
        )  # fmt: skip
        values = report.to_dict()
        measured |= {"values": values["values"], "verdict": judged(report)}
        spent = self.spent(measured)
        about = {
            "batch": batch, "digest": facts.digest, "kind": kind, "found": measured, "spent": asdict(spent),
            "method": plan.method if kind == "unlearned" else "retrain", "rows": int(self.rows.sum()),
            "parent": self.parent.digest, "ids": data.ids,
        }  # fmt: skip
        missed = [broken_words(one) for one in broken(plan.gates, values, report.verdict)]
        over = [f"{line}." for line in returned(measured)]
        if kind == "unlearned":
            over += [f"Retraining is due: {line}." for line in plan.policy.reasons(spent)]
            bounded = plan.policy.max_drift is not None or plan.policy.max_distance is not None
            if bounded and (why := measured["stays"]["why"]):  # what was not measured may be anything
                over.append(f"The policy cannot be checked: {why}.")
        return about, missed, over

    def _groups(self, batch: int) -> list[Group]:
        """This batch and all before it, samples and classes apart, with what was found at their time."""
        then = {
            (group["batch"], group["kind"]): group["values"]
            for audit in self.ledger.audits()
            if audit.passed
            for group in audit.found.get("groups", ())
            if group["batch"] == audit.batch
        }
        members: dict[int, list[Request]] = {}
        for request in self.before:
            members.setdefault(request.batch or 0, []).append(request)
        whole = torch.tensor(self.classes, dtype=torch.long)
        groups = []
        for number, requests in [*members.items(), (batch, self.requests)]:
            now = number == batch
            for kind in ("samples", "classes", "labels"):
                own = [r for r in requests if kind_of(r) == kind]
                if not own:
                    continue
                rows = self.data.rows(own)
                if kind != "classes":  # those of whole classes are among the classes
                    rows = rows & ~torch.isin(self.data.train.labels, whole)
                if kind == "labels":  # those that are forgotten since are among the samples
                    rows = rows & ~(self.all_forgotten & ~self.relabelled)
                groups.append(
                    Group(
                        number, kind, tuple(r.number for r in own), rows & self.rows if now else rows,
                        tuple(self.data.class_numbers(own)), self.keep,
                        None if now else then.get((number, kind), {}),
                    )
                )  # fmt: skip
        return groups

    def _first_model(self) -> nn.Module | None:
        """The model that the chain began with, if it is still there."""
        folder = Path(self.first.folder)
        if not folder.exists():
            return None
        check_weights(folder, self.first.digest, whole=False)
        return read_model(folder, None, self.data.train, self.plan.trust)


def whole(folder: Path) -> bool:
    """Is there a finished model in a folder?"""
    return (folder / "run.json").is_file() and not (folder / STATE).exists()
