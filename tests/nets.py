"""Small data and networks for tests: one of each kind that users bring."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from purge.data.accept import accepted
from purge.data.split import Split
from purge.models.checks import make_split
from purge.models.small_resnet import SmallResNet


def blobs(n: int = 96, classes: int = 3, features: int = 6, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Well separated clusters: n samples of a few classes in random order."""
    g = torch.Generator().manual_seed(seed)
    centres = 4 * torch.randn(classes, features, generator=torch.Generator().manual_seed(7))
    y = torch.randint(classes, (n,), generator=g)
    return centres[y] + torch.randn(n, features, generator=g), y


def small_mlp(seed: int = 0, features: int = 6, classes: int = 3) -> nn.Module:
    """An MLP with BatchNorm for blobs."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(features, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(),
        nn.Linear(16, classes),
    )  # fmt: skip


def small_conv(seed: int = 0) -> nn.Module:
    """Two convolutions with BatchNorm for digits."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 6, 3, stride=2),
        nn.BatchNorm2d(6, momentum=0.3), nn.ReLU(), nn.Flatten(), nn.Linear(54, 10),
    )  # fmt: skip


class Folded(nn.Conv2d):
    """A convolution that reads six numbers as an image of 2×3 pixels."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.view(-1, 1, 2, 3))


def folded_conv(seed: int = 0) -> nn.Module:
    """Two convolutions with BatchNorm for blobs."""
    torch.manual_seed(seed)
    return nn.Sequential(
        Folded(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(48, 3),
    )  # fmt: skip


def plain_mlp(seed: int = 0, width: int = 16) -> nn.Module:
    """An MLP without BatchNorm for blobs."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, 3))


class SmallViT(nn.Module):
    """A Vision Transformer for 8×8 images: 16 patches of 2×2, LayerNorm, a class token."""

    def __init__(self, width: int = 32, depth: int = 3, classes: int = 10) -> None:
        super().__init__()
        self.patch = nn.Conv2d(1, width, 2, 2)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.position = nn.Parameter(0.02 * torch.randn(1, 17, width))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.1, batch_first=True, norm_first=True)
            for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        h = self.patch(x).flatten(2).transpose(1, 2)
        h = torch.cat([self.token.expand(len(h), -1, -1), h], 1) + self.position
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h)[:, 0])


class WithLogits(nn.Module):
    """A classifier that returns an object with .logits, as Hugging Face models do."""

    def __init__(self) -> None:
        super().__init__()
        self.body = SmallResNet(width=8)

    def forward(self, x: Tensor) -> Any:
        return SimpleNamespace(loss=None, logits=self.body(x))


def group_norm_resnet() -> nn.Module:
    """The small ResNet with GroupNorm in place of BatchNorm."""
    model = SmallResNet(width=8)
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.BatchNorm2d):
            parent = model.get_submodule(name.rpartition(".")[0])
            setattr(parent, name.rpartition(".")[2], nn.GroupNorm(4, module.num_features))
    return model


def digits_mlp() -> nn.Module:
    """An MLP without any normalisation."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)
    )


def small_vgg() -> nn.Module:
    """Convolutions in one Sequential, the classifier in another."""
    return nn.Sequential(
        nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        ),
        nn.Flatten(),
        nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Dropout(), nn.Linear(64, 10)),
    )  # fmt: skip


NETWORKS = {
    "resnet-batchnorm": lambda: SmallResNet(width=8),
    "resnet-groupnorm": group_norm_resnet,
    "vit": SmallViT,
    "mlp": digits_mlp,
    "vgg": small_vgg,
    "object-with-logits": WithLogits,
}


def split_of(model: nn.Module, forget: Any, retain: Any, test: Any = None) -> Split:
    """What a method is given: sets of any form as samples on the CPU."""
    given = {"forget": forget, "retain": retain, **({} if test is None else {"test": test})}
    return make_split(model, accepted(given), torch.device("cpu"))
