"""Networks of scikit-learn as modules of PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from purge.core.errors import ModelError

ACTIVATIONS = {"identity": nn.Identity, "logistic": nn.Sigmoid, "tanh": nn.Tanh, "relu": nn.ReLU}


def from_sklearn(mlp: Any) -> nn.Sequential:
    """A fitted ``MLPClassifier`` as a module with the same answers: softmax gives its ``predict_proba``.

    The classes are numbered in the order of ``mlp.classes_``, which is that of sorted names. It computes in
    float32. A network for two classes, which has one output z in scikit-learn, has the two outputs 0 and z.

    Args:
        mlp: the classifier, fitted.

    Returns:
        Linear layers and activations, with copies of its weights.

    Raises:
        ModelError: it is not fitted, or no classifier of one class per sample.

    Example:
        >>> from sklearn.neural_network import MLPClassifier
        >>> x, y = np.eye(4), ["cat", "dog", "cat", "dog"]
        >>> mlp = MLPClassifier((5,), solver="lbfgs", random_state=0).fit(x, y)
        >>> model = from_sklearn(mlp)
        >>> p = model(torch.eye(4)).softmax(1)
        >>> bool(np.allclose(p.detach().numpy(), mlp.predict_proba(x), atol=1e-6))
        True
    """
    last, got = getattr(mlp, "out_activation_", ""), ""
    if not hasattr(mlp, "hidden_layer_sizes") or not hasattr(mlp, "classes_"):
        got = "one that was not fitted" if hasattr(mlp, "hidden_layer_sizes") else type(mlp).__name__
    elif last != "softmax" and (last != "logistic" or mlp.coefs_[-1].shape[1] != 1):
        got = f"one with outputs of {last}"
    if got:
        fix = "fit it on one class per sample, and pass the classifier itself"
        raise ModelError("a fitted MLPClassifier of one class per sample", got, fix)
    weights, offsets = list(map(np.asarray, mlp.coefs_)), list(map(np.asarray, mlp.intercepts_))
    if last == "logistic":  # one output z: its logits are 0 and z
        weights[-1] = np.concatenate([np.zeros_like(weights[-1]), weights[-1]], 1)
        offsets[-1] = np.concatenate([np.zeros_like(offsets[-1]), offsets[-1]])
    modules: list[nn.Module] = []
    for weight, offset in zip(weights, offsets, strict=True):
        linear = nn.Linear(*weight.shape)
        with torch.no_grad():
            linear.weight.copy_(torch.tensor(weight.T))
            linear.bias.copy_(torch.tensor(offset))
        modules += [linear, ACTIVATIONS[mlp.activation]()]
    return nn.Sequential(*modules[:-1])
