"""Training in shards and slices, and the ensemble that it returns.

The purpose and the equations are in :mod:`purge.methods.sisa`, which deletes samples from the ensemble.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import os
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from purge.core.errors import FileError, MethodError, ModelError, RunError
from purge.core.files import file_errors, read_json, write_json
from purge.core.settings import as_dict
from purge.core.threads import threads_for
from purge.data.accept import accepted
from purge.data.identity import identities
from purge.data.samples import Data, Samples, few
from purge.engine.context import Context
from purge.engine.precision import choose_device
from purge.engine.seeding import seeded
from purge.engine.trainer import diverged, fit
from purge.methods.sisa_plan import TRAINING, WEIGHTS, ShardPlan
from purge.models import checks
from purge.models.batchnorm import batchnorms
from purge.models.checkpoint import cpu_copies, digest, load_weights, read_tensors, tensors_of, write_tensors
from purge.models.copies import keep_frozen, reinitialised, widened
from purge.models.forward import counting, forward
from purge.models.inspect import device_of
from purge.models.work import flop_of, flop_per_row

Build = nn.Module | Callable[[], nn.Module]
History = list[dict[str, Any]]

INDEX, SAMPLES = "sisa.json", "sisa-samples.safetensors"  # without the first, a folder has no SISA model
FIX = "choose another folder"


def train_sisa(
    model: Build,
    dataset: Data,
    plan: ShardPlan,
    *,
    device: torch.device | str | None = None,
    progress: bool = True,
) -> SisaModel:
    """An ensemble from which samples can be deleted exactly.

    ``model``: a network whose layers draw new weights for every shard (it is not changed), or a
    function that builds an untrained one.

    >>> from purge.engine.trainer import Recipe
    >>> x, y = torch.randn(60, 4), torch.arange(60) % 3
    >>> plan = ShardPlan(shards=2, slices=2, recipe=Recipe(epochs=2))
    >>> sisa = train_sisa(nn.Linear(4, 3), (x, y), plan, progress=False)
    >>> len(sisa.shards), sisa(x).shape
    (2, torch.Size([60, 3]))
    """
    samples = accepted({"the dataset": dataset})["the dataset"]
    if plan.shards > (n := len(samples)):  # before there is a model for each of them
        raise MethodError(f"no more shards than samples, {n}", str(plan.shards), "train with fewer shards")
    nets = [_fresh(model, plan, shard) for shard in range(plan.shards)]
    at = choose_device(device, model if isinstance(model, nn.Module) else nets[0])
    sisa = SisaModel([net.to(at) for net in nets], plan)
    with seeded(plan.seed, at):  # a dataset may draw random numbers
        samples = checks.training_data(nets[0], samples, at)
    checks.check_batch_size(sisa, plan.recipe.batch_size)
    checks.check_augment(samples, plan.recipe.augment, plan.recipe.colour)
    checks.parameters_to_train(sisa)
    checks.check_differentiable(sisa, samples)
    ids = identities(samples)
    enough_in_each(sisa, ids, "train with fewer shards")
    context = Context(device_of(sisa), plan.seed, progress=progress, threads=sisa.threads)
    with counting(sisa) as counted:
        each = [train_shard(sisa, samples, ids, shard, context) for shard in range(plan.shards)]
    rows = [row for of_shard in each for row in of_shard]
    sisa.work = flop_of(counted, flop_per_row(sisa, few(samples)))
    sisa.zero_grad(set_to_none=True)
    if diverged(sisa, samples, rows):
        raise RunError("a finite loss", "NaN or infinity (nothing was returned)", "lower lr")
    sisa.finished(ids, samples.labels, rows)
    return sisa.eval()


def _fresh(model: Any, plan: ShardPlan, shard: int) -> nn.Module:
    """The untrained model of a shard, drawn on the CPU: the same on every device; never of half precision."""
    with seeded(plan.drawn(WEIGHTS, shard), torch.device("cpu")):
        if not isinstance(model, nn.Module) and callable(model):
            return widened(copy.deepcopy(checks.check_classifier(model())))  # it may be the same each time
        model = checks.check_classifier(model)
        try:
            net = reinitialised(widened(copy.deepcopy(model).cpu()))
        except ModelError:
            what = "layers that can draw new weights (reset_parameters)"
            fix = "pass a function that builds an untrained model instead of the model"
            raise ModelError(what, f"a {type(model).__name__} with some that cannot", fix) from None
    return keep_frozen(net, model)


class Checkpoint(dict[str, Tensor]):
    """The state of a shard before a slice, on the CPU; it never changes, so copies share it."""

    def __deepcopy__(self, memo: Any) -> Checkpoint:
        return self


class SisaModel(nn.Module):
    """The models of all shards and what a deletion needs; returns log-probabilities (B, K).

    ``checkpoints[k][s]`` is shard k before slice s; after the last slice it is ``shards[k]`` itself.
    """

    def __init__(self, shards: Sequence[nn.Module], plan: ShardPlan) -> None:
        super().__init__()
        self.shards = nn.ModuleList(shards)
        self.plan = plan
        self.checkpoints: list[list[Checkpoint]] = [[Checkpoint()] * plan.slices for _ in shards]
        # What it was trained on; not buffers, so that .to() does not move them.
        self.ids, self.labels = (torch.empty(0, dtype=torch.long) for _ in range(2))
        self.history: History = []  # of the latest training, a row per epoch of a shard
        self.trained = ""  # the digest of the weights after training
        self.work: dict[str, Any] = {}  # of this training, as models/work.py has it
        self.threads = set[int]()  # numbers of CPU threads of this training

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """The logarithm of the mean softmax, or of the share of votes."""
        inputs = kwargs or (args if len(args) > 1 else args[0])
        each = torch.stack([F.log_softmax(forward(shard, inputs).float(), 1) for shard in self.shards])
        mean = each.logsumexp(0) - math.log(len(each))  # (B, K)
        if self.plan.vote == "mean":
            return mean
        votes = F.one_hot(each.argmax(2), each.shape[2]).float().mean(0).log()
        # Half a vote more, spread like the mean: it decides ties, and no class gets probability 0.
        return torch.logaddexp(votes, mean - math.log(2 * len(each))) - math.log1p(0.5 / len(each))

    @property
    def retrained(self) -> dict[int, int]:
        """The shards that the latest training or deletion trained, and for how many epochs."""
        return dict(sorted(Counter(row["shard"] for row in self.history).items()))

    def finished(self, ids: Tensor, labels: Tensor, history: History) -> None:
        """Remember what it was trained on, and the result."""
        self.ids, self.labels = in_order(ids, labels)
        self.history, self.trained = history, digest(self)

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write model.safetensors, the checkpoints of each shard and, last of all, sisa.json."""
        path = Path(folder)
        with file_errors(path):
            path.mkdir(parents=True, exist_ok=True)
            for old in [path / INDEX, *path.glob("sisa-*.safetensors")]:
                old.unlink(missing_ok=True)
            write_tensors(path / "model.safetensors", tensors_of(self), fix=FIX)
            samples = {"ids": self.ids, "labels": self.labels}
            files = {SAMPLES: write_tensors(path / SAMPLES, samples, fix=FIX)}
            for shard, slices in enumerate(self.checkpoints):
                file = _shard_file(path, shard)
                states = {f"{i}/{name}": t for i, state in enumerate(slices) for name, t in state.items()}
                files[file.name] = write_tensors(file, states, fix=FIX)
            facts = {"plan": as_dict(self.plan), "trained": self.trained, "history": self.history}
            write_json(path / INDEX, {**facts, "digest": digest(self), "files": files})
        return path

    @classmethod
    def load(cls, folder: str | os.PathLike[str], fresh: nn.Module) -> SisaModel:
        """Read what :meth:`save` wrote; ``fresh`` is any model of the shards' architecture."""
        path = Path(folder)
        facts = read_json(path / INDEX)
        try:
            plan = ShardPlan(**facts["plan"])
            trained, history = str(facts["trained"]), list(facts["history"])
            files = dict[str, str](facts["files"])
        except (KeyError, TypeError, ValueError):  # a setting out of range is a ValueError
            raise _damaged(path / INDEX) from None
        if not _shard_file(path, plan.shards - 1).is_file():  # before there is a model for each of them
            raise _damaged(path)

        def read(file: Path) -> dict[str, Tensor]:
            if (tensors := read_tensors(file, files.get(file.name))) is None:
                raise _damaged(file)
            return tensors

        def shapes(state: dict[str, Tensor]) -> dict[str, tuple[Any, ...]]:
            return {k: (v.shape, v.dtype) for k, v in state.items()}

        sisa = cls([copy.deepcopy(fresh) for _ in range(plan.shards)], plan)
        load_weights(sisa, path / "model.safetensors")
        samples = read(path / SAMPLES)
        for shard, net in enumerate(sisa.shards):
            tensors = read(_shard_file(path, shard))
            states = [
                Checkpoint({k.partition("/")[2]: t for k, t in tensors.items() if k.startswith(f"{i}/")})
                for i in range(plan.slices)
            ]
            if any(shapes(state) != shapes(tensors_of(net)) for state in states):
                raise _damaged(_shard_file(path, shard))
            sisa.checkpoints[shard] = states
        if set(samples) != {"ids", "labels"} or digest(sisa) != facts.get("digest"):
            raise _damaged(path)
        sisa.ids, sisa.labels = samples["ids"], samples["labels"]
        sisa.history, sisa.trained = history, trained
        return sisa.eval()


def train_shard(
    sisa: SisaModel, samples: Samples, ids: Tensor, shard: int, context: Context, *, first: int = 0
) -> History:
    """Continue to train a shard, from slice ``first`` to the last; return a row for every epoch."""
    plan, net = sisa.plan, sisa.shards[shard]
    rows: History = []
    for s in range(first, plan.slices):
        sisa.checkpoints[shard][s] = Checkpoint(cpu_copies(tensors_of(net)))
        at = plan.rows(ids, shard, s)
        if len(at) < least_of(net):  # no samples so far
            continue
        before = sum(plan.epochs[:s])
        drawn = plan.drawn(TRAINING, shard, s)
        threads = threads_for(net, device_of(net), plan.recipe.batch_size, seen=context.threads)
        with seeded(drawn, device_of(net)), threads:  # dropout
            (losses,), _ = fit(
                [net],
                [samples.select(at)],
                dataclasses.replace(plan.recipe, epochs=plan.epochs[s]),
                context,
                seeds=[drawn],
                title=f"shard {shard + 1} of {plan.shards}, slice {s + 1} of {plan.slices}",
                shuffle=partial(plan.order, ids[at], shard, before),
            )
        steps, _ = plan.recipe.batches(len(at))
        rows += [
            {"shard": shard, "slice": s, "epoch": before + i + 1, "steps": steps, "loss": row["loss"]}
            for i, row in enumerate(losses)
        ]
    return rows


def least_of(net: nn.Module) -> int:
    """The samples that a shard needs: one has no variance for BatchNorm."""
    return 2 if batchnorms(net) else 1


def enough_in_each(sisa: SisaModel, ids: Tensor, fix: str) -> None:
    """Refuse shards without a sample, or with only one for BatchNorm; ``fix`` goes into the message."""
    there = torch.bincount(sisa.plan.places(ids)[0], minlength=sisa.plan.shards)
    least = least_of(sisa)
    if int(there.min()) < least:
        what = f"at least {least} sample{'s' * (least > 1)} for each of {sisa.plan.shards} shards"
        raise MethodError(what, f"{int(there.min())} for shard {int(there.argmin())}", fix)


def in_order(ids: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Sorted by id, those of one id by label."""
    order = torch.from_numpy(np.lexsort((labels.numpy(), ids.numpy())))
    return ids[order], labels[order]


def _shard_file(folder: Path, shard: int) -> Path:
    return folder / f"sisa-shard-{shard}.safetensors"


def _damaged(path: Path) -> FileError:
    fix = "save it again with save()"
    return FileError(f"a complete SISA model in {path}", "a missing or damaged part", fix)
