"""On a CUDA device: the loop never waits for it between checks, and the result is the CPU's."""

from __future__ import annotations

import pytest
import torch

import purge
from purge.engine.run import Run
from tests.golden.record import small_net

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:Synchronization debug mode")]


@pytest.fixture(autouse=True)
def quiet_again():
    yield
    torch.cuda.set_sync_debug_mode("default")


@pytest.fixture
def guarded_steps(monkeypatch):
    """Torch raises at any synchronising call while a step is being made."""
    steps = Run.steps

    def guarded(self, *args, **kwargs):
        for i in steps(self, *args, **kwargs):
            torch.cuda.set_sync_debug_mode("error")
            yield i
            torch.cuda.set_sync_debug_mode("default")

    log = Run.log

    def logged(self, **scalars):  # the last thing that a step does; checks may read the device
        log(self, **scalars)
        torch.cuda.set_sync_debug_mode("default")

    monkeypatch.setattr(Run, "steps", guarded)
    monkeypatch.setattr(Run, "log", logged)


@pytest.mark.parametrize("method", ["purge", "purge-close", "purge-paper", "gradient-ascent"])
@pytest.mark.usefixtures("guarded_steps")
def test_no_step_synchronises_with_the_device(method, digits, base):
    result = purge.unlearn(base, digits.forget, digits.retain, method=method, device="cuda", progress=False)
    assert result.steps > 1


def test_a_recorded_training_takes_the_same_steps(digits, monkeypatch):
    recipe = {"epochs": 2, "batch_size": 64, "precision": "float32", "device": "cuda", "progress": False}
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)  # otherwise two eager runs differ, too
    models = [purge.train(small_net(0), digits.train, graph=g, **recipe).model for g in (False, True)]
    for (name, a), b in zip(models[0].state_dict().items(), models[1].state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4, msg=name)


def weights(model):
    return torch.cat([p.detach().reshape(-1).cpu() for p in model.parameters()])


def unlearned(base, digits, **settings):
    torch.backends.cudnn.allow_tf32 = False
    usual = {"device": "cuda", "precision": "float32", "progress": False}
    return purge.unlearn(base, digits.forget, digits.retain, **{**usual, **settings})


def test_a_step_on_the_gpu_is_the_step_on_the_cpu(digits, base):
    a, b = (
        unlearned(base, digits, device=d, steps=6).model for d in ("cpu", "cuda")
    )  # there, some are replayed
    assert (weights(a) - weights(b)).norm() <= 1e-2 * (weights(a) - weights(base)).norm()


PAPER = {"method": "purge-paper", "epochs": 10, "lr": 1e-2, "forget_target": 0.0}
OURS = [
    {"steps": 20, "forget_target": 0.0},
    {"steps": 20, "forget_target": 0.0, "budget": "close"},
    {**PAPER},
    {**PAPER, "optimizer": "adamw", "lr": 1e-3, "objective": "masked_teacher"},
    {**PAPER, "norm": "shared", "space": "update"},
    {**PAPER, "objective": "ga", "gate": 0.5},
]
BASELINES = [
    {"method": "finetune"},
    {"method": "finetune", "optimizer": "adam", "lr": 1e-3},
    {"method": "l1-sparse", "free_epochs": 1},
    {"method": "gradient-ascent", "norm": "train"},
    {"method": "neggrad-plus", "clip": 1.0},
    {"method": "delete"},
    {"method": "boundary-shrink", "lr": 1e-3},
    {"method": "random-label"},
    {"method": "salun"},
    {"method": "salun-soft"},
]


@pytest.mark.parametrize("settings", [*OURS, *BASELINES], ids=str)
def test_captured_and_eager_runs_agree(settings, digits, base, caplog):
    caplog.set_level("INFO", "purge")
    ours = settings in OURS
    more = {} if ours else {"epochs": 2, "batch_size": 64}
    eager, captured = (unlearned(base, digits, graph=g, **more, **settings) for g in (False, True))
    start, a, b = (weights(m) for m in (base, eager.model, captured.model))
    assert (a - start).norm() > 0
    assert (a - b).norm() <= (0.01 if ours else 0.02) * (a - start).norm()
    assert "cannot be recorded" not in caplog.text
    assert eager.steps == captured.steps
    for one, other in zip(eager.history[1:], captured.history[1:], strict=True):
        for key in ("retain_loss", "forget_loss", "cosine") if ours else ():
            if one[key] is not None:
                assert one[key] == pytest.approx(other[key], rel=0.05, abs=2e-3), (key, one["step"])


class Odd(torch.nn.Module):
    """Asks for a view of what a convolution returns, and may look at its own values."""

    def __init__(self, peek):
        super().__init__()
        self.conv, self.norm, self.head = (
            torch.nn.Conv2d(1, 8, 3),
            torch.nn.BatchNorm2d(8),
            torch.nn.Linear(288, 10),
        )
        self.peek = peek

    def forward(self, x):
        h = self.norm(self.conv(x)).relu()
        if self.peek and float(h.sum().detach()) < 0:
            h = -h
        return self.head(h.view(len(h), -1))


@pytest.mark.parametrize("peek", [False, True])
def test_models_that_cannot_be_recorded_or_laid_out_are_run_as_they_are(peek, digits):
    trained = purge.train(Odd(peek), digits.retain, epochs=1, device="cuda", progress=False).model
    result = purge.unlearn(trained, digits.forget, digits.retain, steps=8, forget_target=0.0, progress=False)
    assert result.steps == 8
