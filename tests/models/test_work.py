"""The work of a run: rows by hand, operations by hand, and a reason where they cannot be counted."""

from __future__ import annotations

import copy
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
RETAIN, FORGET = 40, 20
MLP_FLOP = 2 * (4 * 8 + 8 * 3)  # of net(), for one row


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def unlearned(method: str, **settings: Any) -> purge.Result:
    gone = Y == 0
    return purge.unlearn(
        net(), (X[gone], Y[gone]), (X[~gone], Y[~gone]), method=method, progress=False, check=False,
        **settings,
    )  # fmt: skip


def checks_of(result: purge.Result) -> int:
    return sum(row["check_retain_loss"] is not None for row in result.history)


# -- rows ---------------------------------------------------------------------------------------


def test_rows_with_and_without_gradients() -> None:
    model = net()
    with counting(model) as rows:
        forward(model, X)
        with torch.no_grad():
            forward(model, {"input": X[:7]})
        model.requires_grad_(False)
        forward(model, X[:5])  # a frozen teacher has no backward pass
    forward(model, X)  # nobody counts
    assert rows == Rows(graded=60, plain=12)


def test_copies_count_with_the_model_and_so_does_a_block_around() -> None:
    model = net()
    with counting(model) as outer:
        with counting(model) as inner:
            forward(copy.deepcopy(model), X[:3])
        forward(model, X[:2])
        forward(net(), X)  # another model
    assert (outer, inner) == (Rows(5), Rows(3))
    assert not any("_purge_rows" in m.__dict__ for m in model.modules())


def test_rows_under_vmap_are_all_counted() -> None:
    model = net()
    with counting(model) as rows:
        per_sample_grads(model, X, Y)
    assert rows == Rows(graded=60)


def test_stacked_models_count_each() -> None:
    recipe = Recipe(epochs=3, batch_size=16)
    a, b = net(), net()
    with counting(a) as one:
        fit([a], [_samples()], recipe, seeds=[0])
    with counting(a, b) as two:
        fit([a, b], [_samples()] * 2, recipe, seeds=[0, 1])
    assert one == Rows(graded=3 * 3 * 16)  # 60 samples make three full batches
    assert two == Rows(graded=2 * one.graded)


def _samples() -> Any:
    return as_samples((X, Y), torch.device("cpu"), "the dataset", torch.float32)


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


class Recurrent(nn.Module):
    """An LSTM, whose kernels the counter does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(4, 6, batch_first=True), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Logits from the last step."""
        found: Tensor = self.head(self.lstm(x)[0][:, -1])
        return found


class Attentive(nn.Module):
    """A layer of a transformer, which has one fused kernel for all of it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Logits from the last token."""
        found: Tensor = self.head(self.layer(x)[:, -1])
        return found


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
        (Recurrent(), (5, 4), 2 * (5 * 4 * 6 * (4 + 6) + 6 * 3)),
        (Attentive(), (5, 8), 2 * (5 * 8 * 24 + 2 * 5 * 5 * 8 + 5 * 8 * 8 + 2 * 5 * 8 * 16 + 8 * 3)),
    ],
    ids=["mlp", "conv", "lstm", "attention"],
)
def test_operations_by_hand(model: nn.Module, shape: tuple[int, ...], wanted: int) -> None:
    before = flags()
    for n in (1, 2):
        assert flop_per_row(model, torch.zeros(n, *shape)) == (wanted, "")
    assert flags() == before


def test_what_cannot_be_counted_has_a_reason() -> None:
    class Refuses(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise ValueError("not today.")

    for model, words in ((Refuses(), "not today"), (nn.Identity(), "no product")):
        found, why = flop_per_row(model, torch.zeros(2, 3))
        assert found is None
        assert words in why
        work = flop_of(Rows(5, 5), (found, why))
        assert work["flop"] is None
        assert work["flop_missing"] == why


def test_of_an_ensemble_each_member_counts() -> None:
    recipe = {"epochs": 2, "batch_size": 8}
    result = purge.train_sharded(net(), (X, Y), shards=2, progress=False, **recipe)
    trained = sum(row["steps"] * 8 for row in result.history)
    assert result.info["flop_per_row"] == MLP_FLOP
    assert result.info["flop"] == 3 * MLP_FLOP * trained
    with counting(result.model) as rows, torch.no_grad():
        forward(result.model, X)
    assert rows == Rows(plain=2 * 60)


# -- runs ---------------------------------------------------------------------------------------


def test_the_work_of_runs_by_hand() -> None:
    tuned = unlearned("finetune", epochs=2, batch_size=8)
    seen = checks_of(tuned) * (RETAIN + FORGET)  # a check looks at all of these few samples
    assert tuned.info["rows_with_gradients"] == 2 * RETAIN
    assert tuned.info["rows_without"] == seen
    assert tuned.info["flop"] == MLP_FLOP * (3 * 2 * RETAIN + seen)

    taught = unlearned("purge-paper", epochs=2, batch_size=8)
    seen = checks_of(taught) * (RETAIN + FORGET)
    teacher = RETAIN + 2  # it looks at D_r once, and at two samples to find the layers
    assert taught.info["rows_with_gradients"] == 2 * 8 * taught.steps  # a batch of each set
    assert taught.info["rows_without"] == teacher + seen
    assert taught.info["flop"] == MLP_FLOP * (3 * 2 * 8 * taught.steps + teacher + seen)

    trained = purge.train(net(), (X, Y), epochs=3, batch_size=16, progress=False, test=(X, Y))
    assert trained.info["flop"] == 3 * MLP_FLOP * 3 * 48  # the accuracy on test data is not its work
    again = unlearned("retrain", epochs=3, batch_size=16)
    assert again.info["flop"] == MLP_FLOP * (3 * 3 * 32 + checks_of(again) * (RETAIN + FORGET))


def test_a_resumed_training_has_the_work_of_a_whole_one(tmp_path: Any) -> None:
    recipe, state, models = Recipe(epochs=4), tmp_path / "state.pt", (net(), net())

    class Killed(Exception):
        pass

    def killed(model: nn.Module, step: int, rows: Tensor) -> Any:
        if step == 2:
            raise Killed
        return torch.enable_grad()

    with counting(models[0]) as first, pytest.raises(Killed):
        fit([models[0]], [_samples()], recipe, seeds=[0], state=state, watch=killed)
    with counting(models[1]) as rest:
        fit([models[1]], [_samples()], recipe, seeds=[0], state=state)
    assert first == Rows(graded=2 * 60)
    assert rest == Rows(graded=4 * 60)
