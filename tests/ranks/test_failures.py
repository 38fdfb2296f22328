"""Ranks that fail, die, wait in vain or do not agree: one line for all of them, and nothing half written."""

from __future__ import annotations

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
from purge.core import ranks as core
from tests.ranks import jobs
from tests.ranks.starting import start, texts

pytestmark = pytest.mark.dist


class Fails(nn.Module):
    """A model in which rank 1 does something at its fifth forward pass in training."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.body, self.what, self.calls = jobs.network("mlp"), what, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += torch.is_grad_enabled()
        if self.calls > 5 and dist.get_rank() == 1:
            if self.what == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise KeyError(self.what)
        return self.body(x)


def refused(call: Any) -> str:
    """What a call is refused with, in one line."""
    with pytest.raises(purge.PurgeError) as caught:
        call()
    said = str(caught.value)
    assert "\n" not in said
    assert said.startswith("Expected ")
    return said


def failing(folder: Path, what: str) -> None:
    forget, retain = jobs.parts(True)
    settings = {"method": "finetune", "epochs": 20, "check": False, "progress": False}
    try:
        purge.unlearn(Fails(what), forget, retain, out=folder / "run", **settings)
    except KeyError:
        assert dist.get_rank() == 1
    except purge.PurgeError as error:
        (folder / f"said-{dist.get_rank()}").write_text(str(error))
    if what == "raise":  # the ranks are still there, and go on
        again = purge.unlearn(jobs.network("mlp"), forget, retain, out=folder / "again", **settings)
        (folder / f"digest-{dist.get_rank()}").write_text(again.to_dict()["digest"])


@pytest.mark.parametrize("what", ["kill", "raise"])
def test_a_rank_that_fails_ends_all_of_them(what: str, tmp_path: Path) -> None:
    began = time.monotonic()
    codes = start(failing, tmp_path, what)
    assert codes == [0, -signal.SIGKILL if what == "kill" else 0], texts(tmp_path)
    said = (tmp_path / "said-0").read_text()
    assert "Expected every rank to go on, got one that has failed or ended" in said
    assert "\n" not in said
    assert not (tmp_path / "said-1").exists()
    assert not (tmp_path / "run").exists()
    assert time.monotonic() - began < 120  # not the half hour of torch.distributed
    if what == "raise":
        assert (tmp_path / "digest-0").read_text() == (tmp_path / "digest-1").read_text()
        assert (tmp_path / "again" / "run.json").is_file()


class Remembers(nn.Module):
    """A model with a buffer that holds what its rank has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.body = jobs.network("mlp")
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.seen.copy_(x.sum())
        return self.body(x)


def doors(folder: Path) -> None:
    """Much of what can be wrong, in one start."""
    rank = dist.get_rank()
    forget, retain = jobs.parts(True)
    net, usual = jobs.network("resnet-batchnorm"), {"progress": False, "check": False}
    few = {**usual, "steps": 4}

    # All ranks get the weights of the first, whatever they had; its model stays as it was.
    own = jobs.network("resnet-batchnorm", seed=rank)
    before = {k: v.clone() for k, v in own.state_dict().items()}
    result = purge.unlearn(own, forget, retain, out=folder / "run", **few)
    assert (folder / "run" / "run.json").is_file()  # the first one has written it when all come back
    assert all(torch.equal(v, before[k]) for k, v in own.state_dict().items())
    core_digest = result.to_dict()["digest"]
    result.save(folder / "saved")  # called by both, written by one
    dist.barrier()
    assert (folder / "saved" / "run.json").is_file()

    # A wrapped model is taken out of its wrapper.
    wrapped = nn.parallel.DistributedDataParallel(jobs.network("resnet-batchnorm"))
    again = purge.unlearn(wrapped, forget, retain, **few)
    assert again.to_dict()["digest"] == core_digest
    assert not core.several()

    # What differs between ranks is refused by both of them.
    mine = tuple(part[rank::2] for part in retain)
    assert "the same data on every rank" in refused(lambda: purge.unlearn(net, forget, mine, **few))
    assert "settings and seed" in refused(lambda: purge.unlearn(net, forget, retain, seed=rank, **few))
    other = jobs.network(["resnet-batchnorm", "mlp"][rank])
    assert "the same kind of model" in refused(lambda: purge.unlearn(other, forget, retain, **few))
    said = refused(lambda: purge.unlearn(Remembers(), forget, retain, **few))
    assert "the same weights on every rank at the end" in said
    two = [jobs.network("mlp", seed=rank) for _ in range(2)]
    assert "the same models" in refused(lambda: purge.audit(two[0], forget, retain, None, **usual))
    # One rank that refuses its input ends the other.
    bad = (retain[0], retain[1][:7]) if rank else retain
    words = ["every rank to go on", "as many inputs as labels"][rank]
    assert words in refused(lambda: purge.unlearn(net, forget, bad, **few))

    # What runs on one rank says so.
    for method in ("ssd", "fisher", "exact-head", "sisa"):
        said = refused(lambda method=method: purge.unlearn(net, forget, retain, method=method, **usual))
        assert f"got {method}, which runs on one" in said
        assert "without torchrun" in said
    assert "which runs on one" in refused(lambda: purge.train_sharded(net, retain, shards=2, epochs=1))
    said = refused(lambda: purge.train(net, retain, epochs=1, log_updates=folder / "log", progress=False))
    assert "which runs on one" in said

    # A rank works alone where it is told to, and the others do not wait.
    if rank == 1:
        with purge.alone():
            alone = purge.unlearn(net, forget, retain, method="ssd", out=folder / "alone", **usual)
        assert alone.steps >= 0
    dist.barrier()
    assert (folder / "alone" / "run.json").is_file()

    # A training that both have begun is gone on with by both.
    whole = purge.train(net, retain, epochs=3, progress=False).to_dict()["digest"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("purge.engine.trainer.cosine", _stops_after_an_epoch)
        with pytest.raises(InterruptedError):
            purge.train(net, retain, epochs=3, schedule="cosine", out=folder / "t", progress=False)
    resumed = purge.train(
        net, retain, epochs=3, schedule="cosine", out=folder / "t", resume=True, progress=False
    )
    straight = purge.train(net, retain, epochs=3, schedule="cosine", progress=False)
    assert resumed.to_dict()["digest"] == straight.to_dict()["digest"] != whole
    assert resumed.info["flop"] == pytest.approx(straight.info["flop"], rel=0.01)


def _stops_after_an_epoch(step: int, total: int) -> float:
    from purge.engine.trainer import math

    if step > total // 2:
        raise InterruptedError
    return 0.5 * (1 + math.cos(math.pi * step / total))


def test_what_ranks_agree_on(tmp_path: Path) -> None:
    assert start(doors, tmp_path) == [0, 0], texts(tmp_path)
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == [
        "history.parquet", "model.safetensors", "run.json",
    ]  # fmt: skip


def waiting(folder: Path) -> None:
    core.PATIENCE, core.LIMIT = 0.1, 1.0
    forget, retain = jobs.parts(True)
    if dist.get_rank() == 0:
        said = refused(lambda: purge.unlearn(jobs.network("mlp"), forget, retain, progress=False))
        assert "all 2 ranks to call unlearn, got 1 of them" in said
    dist.barrier()


def test_a_rank_that_waits_in_vain_says_so(tmp_path: Path) -> None:
    assert start(waiting, tmp_path) == [0, 0], texts(tmp_path)
    assert "Rank 0 waits for the other ranks to call unlearn too." in texts(tmp_path)[0]


def three(folder: Path) -> None:
    """More ranks than a batch has rows."""
    job = jobs.Job("purge-pull", "vgg", "float64", False, jobs.OTHERS["pull of one sample a step"])
    torch.save(jobs.kept(jobs.unlearned(job))["weights"], folder / f"{dist.get_rank()}.pt")


def test_more_ranks_than_rows(tmp_path: Path) -> None:
    assert start(three, tmp_path, ranks=3) == [0, 0, 0], texts(tmp_path, 3)
    job = jobs.Job("purge-pull", "vgg", "float64", False, jobs.OTHERS["pull of one sample a step"])
    one = jobs.kept(jobs.unlearned(job))["weights"]
    found = [torch.load(tmp_path / f"{rank}.pt") for rank in range(3)]
    for name, t in one.items():
        assert torch.equal(found[0][name], found[1][name])
        assert torch.equal(found[0][name], found[2][name])
        assert torch.allclose(found[0][name], t, rtol=1e-10, atol=1e-10)


def sharded(folder: Path) -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

    forget, retain = jobs.parts(True)
    net = jobs.network("mlp")
    for wrap in (fully_shard, lambda net: FullyShardedDataParallel(net, device_id=torch.device("cpu"))):
        said = refused(lambda wrap=wrap: purge.unlearn(wrap(jobs.network("mlp")), forget, retain))
        assert "Expected whole weights on every rank, got a module in FSDP" in said
    mesh = torch.distributed.init_device_mesh("cpu", (2,))
    net[1].weight = nn.Parameter(torch.distributed.tensor.distribute_tensor(net[1].weight.detach(), mesh))
    assert "DTensor: 1.weight" in refused(lambda: purge.unlearn(net, forget, retain))


def test_models_in_fsdp_are_refused(tmp_path: Path) -> None:
    assert start(sharded, tmp_path) == [0, 0], texts(tmp_path)


def accelerated(folder: Path) -> None:
    accelerate = pytest.importorskip("accelerate")
    forget, retain = jobs.parts(True)
    net = jobs.network("resnet-batchnorm")
    accelerator = accelerate.Accelerator(cpu=True)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*retain), batch_size=32)
    model, loader = accelerator.prepare(net, loader)
    assert isinstance(model, nn.parallel.DistributedDataParallel)
    found = purge.unlearn(model, forget, loader, steps=4, check=False)
    torch.save(found.model.state_dict(), folder / f"{accelerator.process_index}.pt")
    accelerator.end_training()


def by_fabric(folder: Path) -> None:
    lightning = pytest.importorskip("lightning")
    os.environ["TORCHELASTIC_RUN_ID"] = "test"  # as torchrun does
    os.environ["LOCAL_WORLD_SIZE"] = "2"
    forget, retain = jobs.parts(True)
    fabric = lightning.Fabric(accelerator="cpu", devices=2, strategy="ddp")
    fabric.launch()
    model = fabric.setup_module(jobs.network("resnet-batchnorm"))
    found = purge.unlearn(model.module, forget, retain, steps=4, check=False)
    torch.save(found.model.state_dict(), folder / f"{fabric.global_rank}.pt")


@pytest.mark.parametrize("program", [accelerated, by_fabric])
def test_in_programs_of_others(program: Any, tmp_path: Path) -> None:
    pytest.importorskip({accelerated: "accelerate", by_fabric: "lightning"}[program])
    assert start(program, tmp_path, group=False) == [0, 0], texts(tmp_path)
    one = purge.unlearn(
        jobs.network("resnet-batchnorm"), *jobs.parts(True), steps=4, check=False, progress=False
    ).model.state_dict()
    found = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    for name, t in one.items():
        assert torch.equal(found[0][name], found[1][name])
        assert torch.allclose(found[0][name].double(), t.double(), rtol=1e-5, atol=1e-5)
