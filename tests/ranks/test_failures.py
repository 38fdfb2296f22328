"""Ranks that die or do not agree: one line for all of them, nothing half written; what each may do."""

from __future__ import annotations

import math
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import purge
from tests.ranks import jobs
from tests.ranks.starting import start, texts

pytestmark = pytest.mark.dist


class Odd(nn.Module):
    """A network that fails, or dies on rank 1, after some batches with gradients, or adds up what it sees."""

    def __init__(self, what: str, after: float = 5) -> None:
        super().__init__()
        self.body, self.what, self.after, self.calls = jobs.network("vgg"), what, after, 0
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += torch.is_grad_enabled()
        if self.what == "adds up":
            self.seen.add_(x.sum())
        elif self.calls > self.after and self.what == "fails":
            raise ArithmeticError
        elif self.calls > self.after and dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.body(x)


def refused(call: Any) -> str:
    """What a call is refused with, in one line."""
    with pytest.raises(purge.PurgeError) as caught:
        call()
    said = str(caught.value)
    assert "\n" not in said
    assert said.startswith("Expected ")
    return said


def dying(folder: Path, door: str) -> None:
    forget, retain = jobs.parts()
    usual = {"epochs": 20, "progress": False, "out": folder / "run"}
    if door == "train":
        said = refused(lambda: purge.train(Odd("dies"), retain, **usual))
    else:
        said = refused(lambda: purge.unlearn(Odd("dies"), forget, retain, method=door, check=False, **usual))
    (folder / "said").write_text(said)


@pytest.mark.parametrize("door", ["train", "finetune"])
def test_a_rank_that_is_killed_ends_all_of_them(door: str, tmp_path: Path) -> None:
    began = time.monotonic()
    assert start(dying, tmp_path, door) == [0, -signal.SIGKILL], texts(tmp_path)
    said = (tmp_path / "said").read_text()
    assert said.startswith("Expected every rank to go on, got one that has failed or ended")
    assert not (tmp_path / "run" / "run.json").exists()
    assert time.monotonic() - began < 120  # not the half hour of torch.distributed


class Tells(purge.callbacks.Callback):
    def __init__(self) -> None:
        self.events = 0

    def on_check(self, step: int, values: Any) -> None:
        self.events += 1


def doors(folder: Path) -> None:
    """Much of what can be wrong, in one start."""
    rank = dist.get_rank()
    forget, retain = jobs.parts()
    net, usual = jobs.network("resnet-batchnorm"), {"progress": False, "check": False}
    few = {**usual, "steps": 4}

    # All ranks get the weights of the first, whatever they had; the caller's model stays as it was.
    own, told = jobs.network("resnet-batchnorm", seed=rank), Tells()
    before = {k: v.clone() for k, v in own.state_dict().items()}
    result = purge.unlearn(own, forget, retain, out=folder / "run", callbacks=told, **few)
    assert (folder / "run" / "run.json").is_file()  # the first one has written it when all come back
    assert all(torch.equal(v, before[k]) for k, v in own.state_dict().items())
    assert (told.events > 0) == (rank == 0)
    wrapped = nn.parallel.DistributedDataParallel(jobs.network("resnet-batchnorm"))
    again = purge.unlearn(wrapped, forget, retain, **few)
    assert again.to_dict()["digest"] == result.to_dict()["digest"]
    assert again.info["flop"] == result.info["flop"]

    # What differs between ranks is refused by both of them.
    mine = tuple(part[rank::2] for part in retain)
    assert "the same data on every rank" in refused(lambda: purge.unlearn(net, forget, mine, **few))
    assert "settings and seed" in refused(lambda: purge.unlearn(net, forget, retain, seed=rank, **few))
    assert "settings and seed" in refused(lambda: purge.train(net, retain, epochs=1 + rank, progress=False))
    other = jobs.network(["resnet-batchnorm", "mlp"][rank])
    assert "the same kind of model" in refused(lambda: purge.unlearn(other, forget, retain, **few))
    assert "the same weights at the end" in refused(
        lambda: purge.unlearn(Odd("adds up"), forget, retain, **few)
    )

    # What runs on one rank says so.
    for method in ("ssd", "purge-paper", "sisa"):
        said = refused(lambda method=method: purge.unlearn(net, forget, retain, method=method, **usual))
        assert f"got {method}, which runs on one" in said
    assert "which runs on one" in refused(lambda: purge.train_sharded(net, retain, shards=2, epochs=1))
    said = refused(lambda: purge.train(net, retain, epochs=1, log_updates=folder / "log", progress=False))
    assert "which runs on one" in said

    # An audit is each rank's own affair: one may audit while the other goes on.
    if rank == 0:
        purge.audit(again.model, forget, retain, None, metrics="quick", out=folder / "audit", **usual)
    report = purge.audit(again.model, forget, retain, None, metrics="quick", **usual)
    if rank == 1:
        report.save(folder / "by the second")
    dist.barrier()
    assert (folder / "audit" / "audit.json").is_file()
    assert not (folder / "by the second").exists()

    # A training that both have begun is gone on with by both, dropout and all.
    recipe = {"epochs": 3, "progress": False}
    with pytest.raises(ArithmeticError):
        purge.train(Odd("fails"), retain, out=folder / "t", **recipe)  # in the third epoch
    dist.barrier()
    resumed = purge.train(Odd("fails", math.inf), retain, out=folder / "t", resume=True, **recipe)
    straight = purge.train(Odd("fails", math.inf), retain, **recipe)
    assert resumed.to_dict()["digest"] == straight.to_dict()["digest"]
    assert resumed.info["flop"] == pytest.approx(straight.info["flop"], rel=0.01)


def test_what_ranks_agree_on(tmp_path: Path) -> None:
    assert start(doors, tmp_path) == [0, 0], texts(tmp_path)
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == [
        "history.parquet", "model.safetensors", "run.json",
    ]  # fmt: skip
