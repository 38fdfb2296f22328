"""Classifiers by name: the embedded ResNet, torchvision's, timm's, Hugging Face's and the user's own.

Weights are random, drawn from torch's global generator, unless ``pretrained`` asks for published
ones; then only plain tensors are read, and no file that comes with them can run code.

The table needs no torch, so that models can be listed quickly; what builds them is in builders.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from purge.core.errors import ModelError, did_you_mean

if TYPE_CHECKING:
    from torch import nn


class ModelEntry(NamedTuple):
    """A model that can be built by name; one with GroupNorm in place of BatchNorm ends in -gn."""

    about: str
    builder: str  # a function of builders.py
    weights: bool = False  # whether there are published weights


MODELS: dict[str, ModelEntry] = {
    "small-resnet": ModelEntry(
        "four residual blocks with BatchNorm, for images of 8 to 32 pixels", "small_resnet"
    ),
    "small-resnet-gn": ModelEntry("small-resnet with GroupNorm instead of BatchNorm", "small_resnet"),
    "mlp": ModelEntry("two hidden layers of 64, for tables", "mlp"),
    "resnet18": ModelEntry("11 million weights; with BatchNorm", "resnet", weights=True),
    "resnet34": ModelEntry("21 million weights; with BatchNorm", "resnet", weights=True),
    "resnet50": ModelEntry("24 million weights; with BatchNorm", "resnet", weights=True),
    "resnet101": ModelEntry("43 million weights; with BatchNorm", "resnet", weights=True),
    "resnet152": ModelEntry("58 million weights; with BatchNorm", "resnet", weights=True),
    "resnet18-gn": ModelEntry("resnet18 with GroupNorm", "resnet"),
    "resnet34-gn": ModelEntry("resnet34 with GroupNorm", "resnet"),
    "resnet50-gn": ModelEntry("resnet50 with GroupNorm", "resnet"),
    "vgg11_bn": ModelEntry("8 convolutions with BatchNorm, from 32 pixels", "vgg", weights=True),
    "vgg13_bn": ModelEntry("10 convolutions with BatchNorm, from 32 pixels", "vgg", weights=True),
    "vgg16_bn": ModelEntry("13 convolutions with BatchNorm, from 32 pixels", "vgg", weights=True),
    "vgg19_bn": ModelEntry("16 convolutions with BatchNorm, from 32 pixels", "vgg", weights=True),
}

FORMS: dict[str, str] = {
    "timm:NAME": "any model of timm, such as timm:vit_tiny_patch16_224; needs the extra timm",
    "hf:PATH": "a classifier of images or texts of Hugging Face, by folder or hub id; needs the extra hf",
    "module:function": "your own: a function of any of classes, channels, size and features → model",
}


def list_models() -> dict[str, str]:
    """The models that can be built by name, and the forms of other names.

    Returns:
        Name → one line about it.

    Example:
        >>> "resnet18" in list_models()
        True
    """
    return {**{name: entry.about for name, entry in MODELS.items()}, **FORMS}


def known_name(name: str) -> None:
    """Refuse a name that is neither in MODELS nor of one of the FORMS, which only building can check."""
    if ":" not in name and name not in MODELS:
        fix = did_you_mean(name, [*MODELS, *FORMS], "purge list models")
        raise ModelError("the name of a model", repr(name), fix)


def build(
    name: str, *, classes: int, channels: int, size: int | None = None, pretrained: bool = False
) -> nn.Module:
    """Build a model by name.

    Args:
        name: one of MODELS, or a name of one of the FORMS.
        classes: number of classes, the width of the head.
        channels: channels of the images, or columns of a table.
        size: side of the images in pixels. Up to 64, torchvision's models are built for small images;
            without it, as they are published.
        pretrained: start from published weights instead of random ones. Layers that do not fit classes,
            channels or size are drawn at random, and so is the head of torchvision's models.

    Returns:
        The model, on the CPU.

    Raises:
        ModelError: an unknown name, or a package that is not installed.

    Example:
        >>> import torch
        >>> build("small-resnet", classes=10, channels=1)(torch.zeros(2, 1, 8, 8)).shape
        torch.Size([2, 10])
    """
    from purge.models import builders  # torch takes seconds to import

    known_name(name)
    want = builders.Wanted(classes, channels, size, pretrained)
    form, colon, rest = name.partition(":")
    if colon and form in ("timm", "hf"):
        return (builders.timm_model if form == "timm" else builders.hugging_face)(rest, want)
    if pretrained and (colon or not MODELS[name].weights):
        known = ", ".join(sorted(n for n, entry in MODELS.items() if entry.weights))
        raise ModelError(
            "a model with published weights, because of pretrained",
            f"{name!r}, which has none",
            f"leave out pretrained, or use timm:NAME, hf:PATH or one of these: {known}",
        )
    if colon:
        return builders.own_model(name, want)
    model: nn.Module = getattr(builders, MODELS[name].builder)(name.removesuffix("-gn"), want)
    return builders.batchnorm_to_groupnorm(model) if name.endswith("-gn") else model
