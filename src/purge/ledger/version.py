"""Making the next version: unlearned from the one before, or trained anew, and audited before it is used.

After a backup was put back, or in a copy of the ledger, the same number is given to another batch, for other
people. So work names the hash of the entry that ordered it, which stands for the whole chain before.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from purge import DeletionRequest
from purge.core.errors import DataError, FileError, LedgerError, PurgeError
from purge.engine import STATE, choose_device
from purge.ledger.chain import Kind
from purge.ledger.data import OwnedData, choice_of, expected_of, missing_ids
from purge.ledger.policy import Spent
from purge.ledger.records import DeletionBatch, Request, Version
from purge.ledger.version_audits import Group, audit_rows, judged, measure, returned
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

# -- what a batch orders ----------------------------------------------------------------------

ORDER = "order"  # in run.json of what a batch makes
OTHER_LEDGER = (
    "was a backup put back, or the ledger copied? put the newest one in its place; if it is lost, move the "
    "folder away, and add the requests that are missing from this one again"
)


@dataclass(frozen=True)
class Order:
    """What must be made of which model, without naming anybody."""

    batch: int
    entry: str  # the hash of the entry that began the batch
    parent: str  # the digest of the version before
    rows: str  # a keyed hash of the rows that go, and of those that went before

    def check(self, folder: Path) -> None:
        """Refuse a run folder that is not what was ordered, or whose model still knows all that it knew."""
        if not ordered_by(folder, self.entry):
            raise unknown(folder)
        facts = facts_of(folder)
        if facts.content[ORDER] != asdict(self) or facts.digest is None:
            got, fix = "one for other rows or of another model", "restore the data, or move the folder away"
            raise FileError(f"a model without the rows of batch {self.batch} in {folder}", got, fix)
        check_weights(folder, facts.digest, whole=False)
        if facts.digest == self.parent:
            got = "the same weights, though rows were to be forgotten"
            fix = "let the method do more, or train anew: purge request run --retrain"
            raise LedgerError("other weights than those of the version before", got, fix)


def entry_of(ledger: Ledger, batch: DeletionBatch) -> str:
    """The hash of the entry that began a batch."""
    return next(one.hash for one in ledger.entries(Kind.BATCH) if one.payload["batch"] == batch.number)


def ordered_by(folder: Path, entry: str) -> bool:
    """Does a folder say that it is the work of this entry?"""
    if not (folder / "run.json").is_file():
        return False
    named = facts_of(folder).content.get(ORDER)
    return isinstance(named, dict) and named.get("entry") == entry


def unknown(folder: Path) -> FileError:
    """The refusal of a folder that this chain has not ordered."""
    what = f"no folder at {folder} but one that this ledger has ordered"
    return FileError(what, "one that it does not know", OTHER_LEDGER)


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
    missing: dict[int, int]  # request that is left out → how many of its ids are in no data
    before: list[Request]  # that were done before it
    keep: bool  # may forgotten samples be used for audits?
    today: date
    parent: Version
    first: Version  # of the chain: the last training
    data: OwnedData
    forgotten: Tensor  # a mask (N,) of what was forgotten before
    rows: Tensor  # what this batch must forget, and no earlier one did

    @classmethod
    def begin(
        cls, ledger: Ledger, plan: BatchPlan, requests: list[Request], *, keep: bool, today: date,
        at_most: int | None = None,
    ) -> NextVersion:  # fmt: skip
        """Look at data and requests; what cannot be carried out is refused before anything is written.

        Of the requests it takes ``at_most`` so many, all of whose ids are in the data.
        """
        versions = ledger.versions()
        parent = versions[-1]
        first, _ = trained_last(versions)
        check_weights(Path(parent.folder), parent.digest, whole=False)  # and not those of another run
        data = OwnedData.load(choice_of(ledger, parent, trust=plan.trust), progress=plan.progress)
        ids, source = expected_of(ledger, parent)
        data.check_ids(ids)
        if data.ids == "rows" and source not in (None, data.train.source):
            fix = "restore it, or write down what it is now: purge request deliver --data DATA"
            what = "the training data of the current version, whose rows have numbers"
            raise DataError(what, "others", fix)
        for gate in plan.gates:
            gate.check_class(len(data.train.names))
        absent = data.missing(ledger, requests, versions[versions.index(first) :])
        missing: dict[int, int] = {}
        taken: list[Request] = []
        for request, n in zip(requests, absent, strict=True):
            if len(taken) == at_most:
                break
            if n:
                missing[request.number] = n
            else:
                taken.append(request)
        before = ledger.requests("done")
        forgotten = data.rows(ledger, before)
        rows = data.rows(ledger, taken) & ~forgotten
        if bool((forgotten | rows).all()):
            got, fix = f"requests for all {len(data.train)} of them", "train a model on other data"
            raise PurgeError("training samples that stay", got, f"{fix}, and begin with it")
        return cls(ledger, plan, taken, missing, before, keep, today, parent, first, data, forgotten, rows)

    def nothing_to_forget(self) -> bool:
        """Does the training data hold nothing of these requests, or nothing more?"""
        return not bool(self.rows.any())

    def without_rows(self) -> list[int]:
        """The requests of which nothing is left to forget: it was forgotten before, or never trained on."""
        at = self.rows.nonzero()[:, 0]
        subjects = [self.data.subjects[i] for i in at.tolist()]
        classes = set(self.data.train.labels[at].tolist())
        absent = missing_ids(self.ledger, self.requests, subjects)
        return [
            r.number
            for r in self.requests
            if absent[r.number] == r.subjects and classes.isdisjoint(self.data.class_numbers([r]))
        ]

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
        rows = self.all_forgotten & ~self.data.rows(self.ledger, earlier)
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
        parts = [f"{len(self.rows)} rows"]
        for mask in (self.rows, self.forgotten):
            at = mask.nonzero()[:, 0].tolist()
            parts.append(repr([(i, self.data.subjects[i]) for i in at]))
        digest = hashlib.sha256("\n".join(parts).encode("utf-8", "surrogatepass")).hexdigest()
        rows = self.ledger.hashes([f"rows:{digest}"])[0]
        return Order(batch.number, entry_of(self.ledger, batch), self.parent.digest, rows)

    def made(self, stage: Path, order: Order) -> tuple[Path, dict[str, Any], list[str]]:
        """The folder of the new model, what the ledger keeps of it, and why it must not be used."""
        again = self.plan.policy.action == "retrain"
        over = self.used_up()
        if not self.plan.retrain and not (again and over):
            folder = stage / UNLEARNED
            if not whole(folder):  # a worker that was killed may have finished it
                self._unlearn(folder, order)
            order.check(folder)
            about, reasons, over = self._audited(folder, order.batch, "unlearned")
            if not over or not again:
                return folder, about, [*reasons, *over]
        instead = {"instead": over}  # why it is trained anew
        folder = stage / RETRAINED
        if not whole(folder):
            self._train(folder, order)
        order.check(folder)
        about, reasons, over = self._audited(folder, order.batch, "retrained")
        return folder, about | instead, [*reasons, *over]

    def _unlearn(self, folder: Path, order: Order) -> None:
        """Unlearn the batch from the version before, without teaching anything that went before."""
        plan, data, source = self.plan, self.data, Path(self.parent.folder)
        facts = facts_of(source)
        name = choose_model(facts, None, plan.trust)
        model = read_model(source, name, data.train, plan.trust)
        same_scale(facts, data.choice, "current")
        if facts.source == data.train.source:
            check_recorded(source, facts, model, data.train, data.test, plan.device)
        forget, retain = data.train.select(self.rows), data.train.select(~self.all_forgotten)
        test = data.test_without(data.class_numbers(self.before))
        received = min(request.received for request in self.requests)
        result = unlearn_run(
            model, name, forget, retain, facts=facts, method=plan.method,
            settings={**plan.settings, **self._budget(model)}, test=test if len(test) else None,
            seed=plan.seed, device=plan.device, progress=plan.progress, checkpoint=source,
            request=DeletionRequest(id=f"batch {order.batch}", received=str(received)),
        )  # fmt: skip
        about = facts_for(
            name, data.choice, data.train, data.recorded(self.ledger, self.requests, self.rows),
            original=source, gone=data.recorded(self.ledger, self.before, self.forgotten),
            deployed=first_of(source, facts, result.info["original_digest"]),
        )  # fmt: skip
        result.save(folder, force=True, **about, **{ORDER: asdict(order)})

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

    def _train(self, folder: Path, order: Order) -> None:
        """Train like the last training did, without anything that was asked to be forgotten."""
        plan, data, like = self.plan, self.data, Path(self.first.folder)
        facts = facts_of(like)
        recipe = recipe_of(like, facts)
        everything = data.recorded(self.ledger, [*self.before, *self.requests], self.all_forgotten)
        begun = (folder / STATE).is_file()
        if not begun:
            shutil.rmtree(folder, ignore_errors=True)
        train_run(
            folder, choose_model(facts, None, plan.trust), data.choice, data.train, everything,
            seed=plan.seed + order.batch, recipe=recipe, test=data.test, pretrained=facts.pretrained,
            shards=facts.shards, slices=facts.slices or 1, vote=facts.vote or "mean", device=plan.device,
            progress=plan.progress, resume=begun, more={ORDER: asdict(order)},
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
        report.to_json(folder / "audit.json")
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
            for kind in ("samples", "classes"):
                own = [r for r in requests if bool(r.classes) == (kind == "classes")]
                if not own:
                    continue
                rows = self.data.rows(self.ledger, own)
                if kind == "samples":  # those of whole classes are among the classes
                    rows = rows & ~torch.isin(self.data.train.labels, whole)
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
