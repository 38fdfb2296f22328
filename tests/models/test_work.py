"""The work of a run: rows by hand, operations by hand, and a reason where they cannot be counted."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import purge
from purge.data.accept import as_samples
from purge.engine.cuda_graph import Recorded
from purge.engine.projection import per_sample_grads
from purge.engine.trainer import Recipe, fit
from purge.models.forward import Rows, counting, forward
from purge.models.work import flop_of, flop_per_row

X, Y = torch.randn(60, 4, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 3
RETAIN = 40
MLP_FLOP = 2 * (4 * 8 + 8 * 3)  # of net(), for one row


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def samples() -> Any:
    return as_samples((X, Y), torch.device("cpu"), "the dataset", torch.float32)


# -- rows ---------------------------------------------------------------------------------------


def test_rows_with_and_without_gradients() -> None:
    model = net()
    with counting(model) as outer:
        with counting(model) as inner:
            forward(copy.deepcopy(model), X)  # a copy counts with the model, a block with the one around
            with torch.no_grad():
                forward(model, {"input": X[:7]})
        model.requires_grad_(False)
        forward(model, X[:5])  # a frozen teacher has no backward pass
        forward(net(), X)  # another model
    forward(model, X)  # nobody counts
    assert (outer, inner) == (Rows(graded=60, plain=12), Rows(graded=60, plain=7))
    assert not any("_purge_rows" in m.__dict__ for m in model.modules())


def test_rows_under_vmap_and_of_stacked_models_are_all_counted() -> None:
    a, b, recipe = net(), net(), Recipe(epochs=3, batch_size=16)
    with counting(a) as rows:
        per_sample_grads(a, X, Y)
    assert rows == Rows(graded=60)
    with counting(a, b) as rows:
        fit([a, b], [samples()] * 2, recipe, seeds=[0, 1])
    assert rows == Rows(graded=2 * 3 * 3 * 16)  # 60 samples make three full batches


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_replays_of_a_recorded_step_count_like_calls(device: str) -> None:
    model, x = net().to(device), X.to(device)
    counts = []
    for enabled in (False, device == "cuda"):
        step = Recorded(lambda x: {"z": forward(model, x).sum()}, model=model, enabled=enabled)
        with counting(model) as rows:
            for n in (6, 6, 6, 6, 5, 6):  # a call of another shape runs as it is
                step(x[:n])
        counts.append(rows)
    assert (step._graph is not None) == (device == "cuda")
    assert counts[0] == counts[1] == Rows(graded=35)


# -- operations ---------------------------------------------------------------------------------


class Last(nn.Module):
    """Logits from the last token of an LSTM or a transformer, whose own kernels the counter does not know."""

    def __init__(self, layer: nn.Module, width: int) -> None:
        super().__init__()
        self.layer, self.head = layer, nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.layer(x)
        z: Tensor = self.head((h[0] if isinstance(h, tuple) else h)[:, -1])
        return z


def flags() -> list[bool]:
    backends = torch.backends
    return [backends.mha.get_fastpath_enabled(), backends.mkldnn.enabled, backends.cudnn.enabled]


@pytest.mark.parametrize(
    ("model", "shape", "wanted"),
    [
        (net(), (4,), MLP_FLOP),
        (
            nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Flatten(), nn.Linear(4 * 36, 5)),
            (3, 6, 6),
            2 * (36 * 4 * 27 + 144 * 5),
        ),
        (Last(nn.LSTM(4, 6, batch_first=True), 6), (5, 4), 2 * (5 * 4 * 6 * (4 + 6) + 6 * 3)),
        (
            Last(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 8),
            (5, 8),
            2 * (5 * 8 * 24 + 2 * 5 * 5 * 8 + 5 * 8 * 8 + 2 * 5 * 8 * 16 + 8 * 3),
        ),
    ],
    ids=["mlp", "conv", "lstm", "attention"],
)
def test_operations_by_hand(model: nn.Module, shape: tuple[int, ...], wanted: int) -> None:
    before = flags()
    for n in (1, 2):
        assert flop_per_row(model, torch.zeros(n, *shape)) == (wanted, "")
    assert flags() == before


class Refuses(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise ValueError("not today.")


def test_what_cannot_be_counted_has_a_reason() -> None:
    for model, words in ((Refuses(), "not today"), (nn.Identity(), "no product")):
        flop, why = flop_per_row(model, torch.zeros(2, 3))
        assert flop is None
        assert words in why
        work = flop_of(Rows(5, 5), (flop, why))
        assert (work["flop"], work["flop_missing"]) == (None, why)


# -- runs ---------------------------------------------------------------------------------------


def work(result: purge.Result) -> tuple[Any, ...]:
    return tuple(result.info[key] for key in ("rows_with_gradients", "rows_without", "flop"))


def test_the_work_of_runs_by_hand() -> None:
    def unlearned(method: str, **settings: Any) -> tuple[purge.Result, int]:
        sets = purge.split((X, Y), classes=[0])
        result = purge.unlearn(net(), *sets, method=method, progress=False, check=False, **settings)
        checks = sum(row["check_retain_loss"] is not None for row in result.history)
        return result, checks * len(X)  # a check looks at all of these few samples

    tuned, seen = unlearned("finetune", epochs=2, batch_size=8)
    assert work(tuned) == (2 * RETAIN, seen, MLP_FLOP * (3 * 2 * RETAIN + seen))

    taught, seen = unlearned("purge-paper", epochs=2, batch_size=8)
    graded = 2 * 8 * taught.steps  # a batch of each set
    plain = RETAIN + 2 + seen  # the teacher looks at D_r once, and at two samples to find the layers
    assert work(taught) == (graded, plain, MLP_FLOP * (3 * graded + plain))

    again, seen = unlearned("retrain", epochs=3, batch_size=16)
    assert again.info["flop"] == MLP_FLOP * (3 * 3 * 32 + seen)
    trained = purge.train(net(), (X, Y), epochs=3, batch_size=16, progress=False, test=(X, Y))
    assert trained.info["flop"] == 3 * MLP_FLOP * 3 * 48  # the accuracy on test data is not its work


def test_of_an_ensemble_each_member_counts() -> None:
    result = purge.train_sharded(net(), (X, Y), shards=2, progress=False, epochs=2, batch_size=8)
    trained = sum(row["steps"] * 8 for row in result.history)
    assert (result.info["flop_per_row"], result.info["flop"]) == (MLP_FLOP, 3 * MLP_FLOP * trained)
    with counting(result.model) as rows, torch.no_grad():
        forward(result.model, X)
    assert rows == Rows(plain=2 * 60)


class Killed(Exception):
    pass


def test_a_resumed_training_has_the_work_of_a_whole_one(tmp_path: Any) -> None:
    settings = {"seeds": [0], "state": tmp_path / "state.pt"}

    def killed(model: nn.Module, step: int, rows: Tensor) -> Any:
        if step == 2:
            raise Killed
        return torch.enable_grad()

    for watch, wanted in ((killed, 2 * 60), (None, 4 * 60)):
        model = net()
        with counting(model) as rows, pytest.raises(Killed) if watch else nullcontext():
            fit([model], [samples()], Recipe(epochs=4), watch=watch, **settings)
        assert rows == Rows(graded=wanted)
