"""TRW against a float64 computation of its targets and its step."""

from __future__ import annotations

import pytest
import torch

import purge
from purge.engine.optimizer import Optim
from purge.methods import TiltedReweighting
from tests.reference import WHOLE, assert_weights, log_softmax, net, sgd, trained, weights_of


def targets(w, forget, gone, beta, temperature, components):
    """q sample by sample; principal components as eigenvectors of the covariance of the class weights."""
    x, y = forget
    rows = w["3.weight"] - w["3.weight"].mean(0)
    vectors = torch.linalg.eigh(rows.T @ rows)[1].flip(1)[:, :components]
    v = rows @ vectors
    left = [k for k in range(len(v)) if k not in gone]
    found = torch.zeros(len(x), len(v), dtype=torch.float64)
    for i, (z, f) in enumerate(zip(net(w, x, frozen=True)[0], y.tolist(), strict=True)):
        cosines = torch.stack([v[f] @ v[k] / (v[f].norm() * v[k].norm()) for k in left])
        similar = (cosines / temperature).softmax(0)
        weight = z[left].exp() * (beta * similar).exp()
        found[i, left] = weight / weight.sum()
    return found


@pytest.mark.parametrize(("gone", "components"), [([0], 4), ([0, 3], 2)])
def test_a_step_goes_to_the_tilted_answer_of_the_original(gone, components):
    model, data = trained(classes=5)
    forget, retain = purge.split(data, classes=gone)
    method = TiltedReweighting(
        beta=2.0, temperature=0.5, components=components, epochs=2, batch_size=WHOLE, optim=Optim(lr=0.05)
    )
    result = purge.unlearn(model, forget, retain, method=method, progress=False)
    q = targets(weights_of(model), forget, gone, 2.0, 0.5, components)
    assert bool((q[:, gone] == 0).all())

    def loss(w):
        z, _ = net(w, torch.cat([retain[0], forget[0]]))  # normalised together
        label = torch.nn.functional.one_hot(retain[1], 5).double()
        return -(torch.cat([label, q]) * log_softmax(z)).sum(1).mean()

    assert_weights(result, sgd(weights_of(model), loss, rates=[0.05, 0.05]))
