"""Scissorhands against a float64 computation of its trimming and of projected steps."""

from __future__ import annotations

import pytest
import torch

import purge
from purge.core.errors import MethodError
from purge.engine.optimizer import Optim
from purge.methods import Scissorhands
from tests.reference import (
    NAMES,
    STATS,
    WHOLE,
    assert_weights,
    before_norm,
    cross_entropy,
    gradient,
    moved,
    net,
    sgd,
    trained,
    weights_of,
)


@pytest.mark.parametrize(("part", "ascent"), [({"classes": [0]}, 0.4), ({"fraction": 0.2}, 0.0)])
@pytest.mark.parametrize("project", [True, False])
def test_trimming_and_steps(part, ascent, project):
    model, data = trained()
    forget, retain = purge.split(data, **part)
    method = Scissorhands(
        share=0.2, layers=("0.bias", "3.bias"), ascent=ascent, project=project,  # a fresh bias is 0
        epochs=2, batch_size=WHOLE, optim=Optim(lr=0.05, momentum=0.0),
    )  # fmt: skip
    result = purge.unlearn(model, forget, retain, method=method, progress=False)

    w = weights_of(model)

    def forget_gradient(w):
        return gradient(w, lambda w: cross_entropy(net(w, forget[0], frozen=True)[0], forget[1]))

    saliency = {k: (w[k] * g).abs() for k, g in forget_gradient(w).items()}
    everything = torch.cat([saliency[k].flatten() for k in NAMES])
    least = everything.sort(descending=True).values[int(0.2 * len(everything)) - 1]
    for k in ("0.bias", "3.bias"):
        w[k] = torch.where(saliency[k] >= least, 0.0, w[k])
    assert any(bool((saliency[k] >= least).any()) for k in ("0.bias", "3.bias"))

    def loss(w):
        stay = cross_entropy(net(w, retain[0])[0], retain[1])
        return stay - ascent * cross_entropy(net(w, forget[0])[0], forget[1])

    conflicts = []
    running = {k: v for k, v in w.items() if "running" in k}
    for _ in range(2):
        w |= running
        memory = {k: -g for k, g in forget_gradient(w).items()}
        moments = [w[k] for k in STATS]
        for x in (retain[0], forget[0]):
            moments = moved(moments, before_norm(w, x))

        def change(g, memory=memory):
            along = sum((g[k] * memory[k]).sum() for k in NAMES)
            conflicts.append(bool(along < 0))
            if not project or along >= 0:
                return g
            length = sum(memory[k].square().sum() for k in NAMES)
            return {k: g[k] + max(0.5, float(-along / (length + 1e-3))) * memory[k] for k in NAMES}

        w = sgd(w, loss, rates=[0.05], momentum=0.0, change=change)
        running = dict(zip(STATS, moments, strict=True))
    assert_weights(result, w)
    assert any(conflicts) == ("fraction" in part), "single samples pull with what stays, a class against it"


def test_fresh_weights_are_few_and_of_the_usual_size():
    model, data = trained()
    forget, retain = purge.split(data, classes=[0])
    method = Scissorhands(share=0.1, epochs=1, batch_size=WHOLE, optim=Optim(lr=1e-9))
    after = purge.unlearn(model, forget, retain, method=method, progress=False).model.state_dict()
    before = model.state_dict()
    changed = {k: (after[k] - before[k]).abs() > 1e-6 for k in NAMES}
    assert 0 < sum(int(c.sum()) for c in changed.values()) <= int(0.1 * sum(before[k].numel() for k in NAMES))
    assert not bool(changed["1.weight"].any() | changed["1.bias"].any()), "normalisation is left alone"
    for k, fan_in in (("0.weight", 6), ("3.weight", 8)):
        assert bool((after[k][changed[k]].abs() <= fan_in**-0.5 + 1e-6).all())


def test_layers_that_are_not_there_are_refused():
    model, data = trained()
    with pytest.raises(MethodError, match=r"layers with weights.*nowhere"):
        purge.unlearn(
            model, *purge.split(data, classes=[0]), method="scissorhands", layers="nowhere", progress=False
        )
