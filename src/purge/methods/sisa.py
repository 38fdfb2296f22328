"""SISA: sharded, isolated, sliced, aggregated training, from which samples can be deleted exactly.

Bourtoule, Chandrasekaran, Choquette-Choo, Jia, Travers, Zhang, Lie, Papernot: "Machine Unlearning",
IEEE S&P 2021, arXiv:1912.03817. The data is divided into S shards of R slices. Shard k has its own
model, trained on one more slice at a time, and a checkpoint before every slice::

    θ_k,0 ~ fresh;    θ_k,s+1 = train(θ_k,s;  D_k,0 ∪ … ∪ D_k,s),   s = 0 … R−1
    f(x) = log mean_k softmax f_k(x; θ_k,R)      or the class that most of the f_k choose

To delete x ∈ D_k,s: restore θ_k,s and train slices s … R−1 again without x. With e = 2E/(R+1) epochs
per slice, slice s gets ⌊(s+1)e⌋ − ⌊s·e⌋ of them, so that on average a sample is seen as often as in E
epochs without slices.

Published defaults: 20 epochs, batches of 16, SGD with a rate of 1e-3. Ours are those of
:class:`purge.engine.trainer.Recipe`, because the models that SISA is compared with are trained by it.

Where we differ: a sample's shard, slice and place in every epoch come from a hash of the seed and of the
sample itself (the id of an image, the content of other data), not from its position. Training without
some samples therefore leaves all others in place, and the model after a deletion is bit for bit the one
that :func:`purge.train_sharded` would have returned without them (on the CPU; a GPU would need
deterministic algorithms; unaffected shards stay bit-identical anywhere). In return, shards are only
roughly equal in size. Every slice has its own learning rate schedule and optimiser: one schedule over all
slices would depend on how many samples come later. Only full batches are used. The authors' shards vote by
majority; ours answer with the mean of their softmax unless ``vote="majority"``, where it decides ties.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from purge.core.errors import DataError, MethodError, ModelError
from purge.data.identity import identities
from purge.methods.base import PUBLISHED, Method, Run, Split, Stopping, setting
from purge.methods.sisa_model import SisaModel, enough_in_each, in_order, least_of, train_shard
from purge.methods.sisa_plan import Vote
from purge.models.checkpoint import digest


@dataclass(frozen=True)
class Sisa(Method):
    """Delete samples from a :class:`SisaModel`: retrain their shards from the first slice with one of them.

    The model's own plan says how; only the vote, on which no weight depends, may be another from now on.
    """

    full_precision: ClassVar[bool] = True
    retrains: ClassVar[bool] = True
    needs: ClassVar[frozenset[str]] = frozenset({"forget", "retain", "shards"})

    vote: Vote | None = setting(None, "how shards decide: mean of the softmax, or majority; none: as before")
    stop: Stopping = PUBLISHED

    def run(self, model: nn.Module, split: Split, run: Run) -> None:
        """Retrain the affected shards; one row of the history is one epoch of one shard."""
        sisa, kept = _checked(model, split)
        plan = sisa.plan = dataclasses.replace(sisa.plan, vote=self.vote or sisa.plan.vote)
        shard_of, slice_of = plan.places(identities(split.forget))
        restarts = {k: int(slice_of[shard_of == k].min()) for k in shard_of.unique().tolist()}
        enough_in_each(sisa, kept, "train again with fewer shards, without what must be forgotten")
        for shard, first in restarts.items():
            for name, p in sisa.shards[shard].named_parameters():
                before = sisa.checkpoints[shard][first][name]
                if not p.requires_grad and not torch.equal(p.detach().cpu(), before):
                    got = f"shards.{shard}.{name}, which takes no gradient"
                    fix = "set requires_grad on it, or freeze it before train_sharded"
                    raise MethodError("all that SISA has trained to be trainable", got, fix)
        total = sum(
            plan.epochs[s]
            for shard, first in restarts.items()
            for s in range(first, plan.slices)
            if len(plan.rows(kept, shard, s)) >= least_of(sisa.shards[shard])
        )
        context = dataclasses.replace(run.context, tell=None)  # checks are told, not the epochs of a shard
        rows: list[dict[str, Any]] = []
        for i in run.steps(total, epoch=total):
            if i == 0:
                for shard, first in restarts.items():
                    sisa.shards[shard].load_state_dict(sisa.checkpoints[shard][first])
                    rows += train_shard(sisa, split.retain, kept, shard, context, first=first)
                sisa.finished(kept, split.retain.labels, rows)
            values = {k: torch.tensor(rows[i][k], device=run.device) for k in ("shard", "slice", "loss")}
            run.log(retain_loss=values["loss"], shard=values["shard"], slice=values["slice"])


def _checked(model: nn.Module, split: Split) -> tuple[SisaModel, Tensor]:
    """The model, if it is as SISA left it and was trained on forget and retain; the names of the latter."""
    if not isinstance(model, SisaModel):
        fix = "train one with purge.train_sharded(…, shards=5, slices=5) or purge train --shards 5 --slices 5"
        raise ModelError("a model that SISA has trained (SisaModel)", f"a {type(model).__name__}", fix)
    if digest(model) != model.trained:
        fix = "use the model as train_sharded returned it: an edited shard cannot be kept"
        raise ModelError("the weights that SISA's training left", "others", fix)
    kept, lost = identities(split.retain), identities(split.forget)
    labels = torch.cat([split.retain.labels, split.forget.labels])
    ids, labels = in_order(torch.cat([kept, lost]), labels)
    if not torch.equal(ids, model.ids) or not torch.equal(labels, model.labels):
        unknown, missing = (int((~torch.isin(*pair)).sum()) for pair in ((ids, model.ids), (model.ids, ids)))
        raise DataError(
            f"forget and retain to be, together, the {len(model.ids)} samples that SISA was trained on",
            f"{len(ids)} samples ({unknown} unknown to it, {missing} missing)",
            "split its training data with purge.split, without what it has already forgotten",
        )
    return model, kept
