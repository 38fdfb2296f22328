"""On a CUDA device: the loop never waits for it between checks, and the result is the CPU's."""

from __future__ import annotations

import pytest
import torch

import purge
from purge.runtime import Run

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def quiet_again():
    yield
    torch.cuda.set_sync_debug_mode("default")


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("method", ["purge", "purge-paper", "gradient-ascent"])
def test_no_step_synchronises_with_the_device(method, digits, base, monkeypatch):
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
    result = purge.unlearn(
        base, digits.forget, digits.retain, method=method, device="cuda", erasure=0.1, progress=False
    ) if method != "gradient-ascent" else purge.unlearn(
        base, digits.forget, digits.retain, method=method, device="cuda", progress=False
    )  # fmt: skip
    assert result.steps > 1


def test_a_step_on_the_gpu_is_the_step_on_the_cpu(digits, base):
    torch.backends.cudnn.allow_tf32 = False
    runs = [
        purge.unlearn(
            base, digits.forget, digits.retain, device=d, min_steps=3, max_steps=3, progress=False
        ).model.cpu()
        for d in ("cpu", "cuda")
    ]
    a, b = (torch.cat([p.detach().reshape(-1) for p in m.parameters()]) for m in runs)
    start = torch.cat([p.detach().reshape(-1) for p in base.parameters()])
    assert float((a - b).norm()) <= 1e-2 * float((a - start).norm())


def test_audit_on_the_gpu_agrees_with_the_cpu(digits, base, retrained):
    reports = [
        purge.audit(
            base, digits.forget, digits.retain, digits.test, retrained=retrained, device=d, progress=False
        )
        for d in ("cpu", "cuda")
    ]
    for name, value in reports[0].values.items():
        if value.value is not None:
            assert reports[1].values[name].value == pytest.approx(value.value, rel=0.02, abs=0.02), name
