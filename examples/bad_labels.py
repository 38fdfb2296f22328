"""Wrong labels: a tenth of the training labels are bad, and the model has to forget what they taught it.

    uv run python examples/bad_labels.py

A label that turns out to be wrong is the most common reason to take samples out of a model. This script puts
wrong labels on a tenth of the digits, trains, unlearns these samples and compares the result with a model
that was retrained without them. It needs no network and takes some seconds on a CPU.
"""

from __future__ import annotations

import torch
from torch import nn

import purge

EPOCHS = 60  # enough to learn the wrong labels by heart


def network(seed: int) -> nn.Module:
    """A small convolutional network with BatchNorm for images of 8×8 pixels."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, 2, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, 10),
    )  # fmt: skip


def mislabelled(data: purge.Images, share: float, seed: int) -> tuple[purge.Images, torch.Tensor]:
    """The same images with another label on a share of them, and which these are."""
    g = torch.Generator().manual_seed(seed)
    rows = torch.randperm(len(data), generator=g)[: round(share * len(data))]
    labels, classes = data.labels.clone(), len(data.names)
    labels[rows] = (labels[rows] + torch.randint(1, classes, (len(rows),), generator=g)) % classes
    changed = purge.Images(data.pixels, labels, mean=data.mean, std=data.std, names=data.names)
    return changed, rows.sort().values


def main(epochs: int = EPOCHS) -> None:
    """Train on bad labels, forget them, and say what is left of them."""
    right, test = purge.load("digits")
    train, bad = mislabelled(right, share=0.1, seed=0)
    forget, retain = purge.split(train, indices=bad)
    truth = right.labels[bad]  # in the order of the forget set

    original = purge.train(network(0), train, epochs=epochs, progress=False)
    retrained = purge.train(network(1), retain, epochs=epochs, seed=1, progress=False)
    unlearned = purge.unlearn(original.model, forget, retain, test=test, progress=False)

    report = purge.audit(
        unlearned, forget, retain, test, truth=truth, original=original, retrained=retrained,
        metrics=["fa_train", "clean_label", "ta", "kl_retrain"], progress=False,
    )  # fmt: skip
    print(f"{len(forget)} of {len(train)} training labels are wrong.\n")
    print(
        f"{'':10}{'still says the wrong label':>27}{'the right one':>15}{'test accuracy':>15}{'seconds':>9}"
    )
    rows = {
        "original": (report.original, original),
        "unlearned": (report.values, unlearned),
        "retrained": (report.retrained, retrained),
    }
    for name, (found, made) in rows.items():
        wrong, clean, accuracy = (found[key].value for key in ("fa_train", "clean_label", "ta"))
        print(f"{name:10}{wrong:>27.1%}{clean:>15.1%}{accuracy:>15.1%}{made.seconds:>9.1f}")
    before, after = (found["kl_retrain"].value for found in (report.original, report.values))
    print(
        "\nThe retrained model never saw the wrong labels: its row is the aim.\n"
        "Distance from its answers to these samples (KL divergence, 0 is equal): "
        f"original {before:.2f}, unlearned {after:.2f}."
    )


if __name__ == "__main__":
    main()
