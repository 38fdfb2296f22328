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
    layers, biases = getattr(mlp, "coefs_", None), getattr(mlp, "intercepts_", None)
    if layers is None or biases is None or not hasattr(mlp, "classes_"):
        fitted = "one that was not fitted" if hasattr(mlp, "hidden_layer_sizes") else type(mlp).__name__
        raise ModelError("a fitted MLPClassifier", fitted, "call fit, and pass the classifier itself")
    last = getattr(mlp, "out_activation_", "softmax")
    if last not in ("softmax", "logistic") or (last == "logistic" and layers[-1].shape[1] != 1):
        fix = "fit it on one class per sample"
        raise ModelError("a classifier of one class per sample", f"outputs of {last}", fix)
    weights, offsets = list(map(np.asarray, layers)), list(map(np.asarray, biases))
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
