"""Networks of scikit-learn, converted: the same answers, and they can forget."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier

import purge
from tests.nets import blobs
from tests.refusals import assert_sentence

X, Y = (t.numpy() for t in blobs(96))
NAMES = np.array(["ant", "bee", "cat"])
pytestmark = pytest.mark.filterwarnings("ignore:Stochastic Optimizer")


def fitted(y: np.ndarray, **settings) -> MLPClassifier:
    return MLPClassifier(random_state=0, max_iter=30, **settings).fit(X, y)


@pytest.mark.parametrize("activation", ["identity", "logistic", "tanh", "relu"])
@pytest.mark.parametrize("sizes", [(8,), (8, 5)])
def test_the_outputs_are_those_of_scikit_learn(activation: str, sizes: tuple[int, ...]) -> None:
    for y in (Y, Y > 0):
        mlp = fitted(y, activation=activation, hidden_layer_sizes=sizes)
        found = purge.from_sklearn(mlp)(torch.tensor(X)).softmax(1).detach().numpy()
        assert found.shape == (96, len(mlp.classes_))
        assert np.abs(found - mlp.predict_proba(X)).max() < 1e-6


def test_a_converted_network_forgets_a_class_by_its_name() -> None:
    data = pd.DataFrame(X).assign(label=NAMES[Y])
    model = purge.from_sklearn(fitted(NAMES[Y], hidden_layer_sizes=(16,), solver="lbfgs"))
    forget, retain = purge.split(data, classes="bee")
    result = purge.unlearn(model, forget, retain, steps=60, progress=False)
    right = [(m(torch.tensor(X)).argmax(1).numpy() == Y)[Y == 1].mean() for m in (model, result.model)]
    assert right[0] > 0.9
    assert right[1] < 0.1
    assert result.info["names"] == [*NAMES]


def test_others_are_refused() -> None:
    for other, words in (
        (MLPClassifier(), "one that was not fitted"),
        (LogisticRegression().fit(X, Y), "LogisticRegression"),
        (None, "NoneType"),
        (fitted(np.eye(3, dtype=int)[Y]), "outputs of logistic"),
    ):
        with pytest.raises(purge.PurgeError) as error:
            purge.from_sklearn(other)
        assert_sentence(str(error.value), words)
