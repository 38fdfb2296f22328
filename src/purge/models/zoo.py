"""Classifiers by name: the embedded ResNet, torchvision's, timm's, Hugging Face's and the user's own.

Weights are random, drawn from torch's global generator, unless ``pretrained`` asks for published
ones; then only plain tensors are read, and no file that comes with them can run code.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlparse

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from purge.core.errors import FileError, ModelError, did_you_mean

SMALL = 64  # pixels; up to here a ResNet that begins by quartering the image sees too little of it

# -- the embedded model -----------------------------------------------------------------------


class Block(nn.Module):
    """Two 3×3 convolutions with BatchNorm around a shortcut."""

    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width_in, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.shortcut = nn.Sequential()
        if stride != 1 or width_in != width:
            self.shortcut = nn.Sequential(
                nn.Conv2d(width_in, width, 1, stride, bias=False), nn.BatchNorm2d(width)
            )

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) → (B, width, H / stride, W / stride)."""
        h = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(h)) + self.shortcut(x))


class SmallResNet(nn.Module):
    """A ResNet of four blocks for tiny images, with the layer names of the large ones."""

    def __init__(self, classes: int = 10, channels: int = 1, width: int = 16) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.layer1 = Block(width, width, 1)
        self.layer2 = Block(width, 2 * width, 2)
        self.layer3 = Block(2 * width, 4 * width, 2)
        self.layer4 = Block(4 * width, 4 * width, 1)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(4 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """(B, channels, H, W) → (B, classes)."""
        h = F.relu(self.bn1(self.conv1(x)))
        h = self.layer4(self.layer3(self.layer2(self.layer1(h))))
        return self.fc(self.avgpool(h).flatten(1))  # type: ignore[no-any-return]


# -- torchvision ------------------------------------------------------------------------------


def _resnet(name: str, classes: int, channels: int, size: int | None, pretrained: bool) -> nn.Module:
    """A torchvision ResNet; small images get the stem of the CIFAR ResNets, 3×3 without pooling."""
    model = _torchvision().get_model(name, weights=None, num_classes=classes)
    fresh: tuple[str, ...] = ("fc.",)
    small = size is not None and size <= SMALL
    if small:
        model.maxpool = nn.Identity()
    if small or channels != 3:
        kernel, stride = (3, 1) if small else (7, 2)
        model.conv1 = nn.Conv2d(channels, 64, kernel, stride, kernel // 2, bias=False)
        _initialise(model.conv1)
        fresh += ("conv1.",)
    return _published(model, name, fresh) if pretrained else model


def _vgg(name: str, classes: int, channels: int, size: int | None, pretrained: bool) -> nn.Module:
    """A torchvision VGG with BatchNorm; on small images a single linear layer is the classifier."""
    if size is not None and size < 32:
        raise ModelError(
            f"images of at least 32 pixels for {name}, which halves them five times",
            f"{size} pixels",
            "enlarge the images, or use small-resnet or a ResNet",
        )
    fresh: tuple[str, ...] = ("classifier.6.",)
    if size is not None and size <= SMALL:
        fresh = ("classifier.",)
        with torch.device("meta"):  # the 120 million weights of the large classifier are never drawn
            model = _torchvision().get_model(name, weights=None)
            model.avgpool, model.classifier = nn.AdaptiveAvgPool2d(1), nn.Linear(512, classes)
        model.to_empty(device=torch.get_default_device()).apply(_initialise)
    else:
        model = _torchvision().get_model(name, weights=None, num_classes=classes)
    if channels != 3:
        model.features[0] = nn.Conv2d(channels, 64, 3, padding=1)
        _initialise(model.features[0])
        fresh += ("features.0.",)
    return _published(model, name, fresh) if pretrained else model


def _torchvision() -> Any:
    return importlib.import_module("torchvision.models")  # takes seconds: only when it is needed


def _initialise(layer: nn.Module) -> None:
    """Draw a layer's weights as torchvision does in its ResNets and VGGs."""
    if isinstance(layer, nn.Conv2d):
        nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    elif isinstance(layer, nn.Linear):
        nn.init.normal_(layer.weight, 0, 0.01)
    elif isinstance(layer, nn.BatchNorm2d):
        layer.reset_parameters()
    if isinstance(layer, (nn.Conv2d, nn.Linear)) and layer.bias is not None:
        nn.init.zeros_(layer.bias)


def _published(model: nn.Module, name: str, fresh: tuple[str, ...]) -> nn.Module:
    """The model with torchvision's ImageNet weights, but in the layers whose names begin as in ``fresh``."""
    url = _torchvision().get_model_weights(name).DEFAULT.url
    file = Path(torch.hub.get_dir(), "checkpoints", Path(urlparse(url).path).name)
    own = {k: v for k, v in model.state_dict().items() if k.startswith(fresh)}
    try:
        with redirect_stdout(sys.stderr):  # torch announces the download on stdout, where results go
            state = torch.hub.load_state_dict_from_url(
                url, map_location="cpu", progress=sys.stderr.isatty(), check_hash=True, weights_only=True
            )
        model.load_state_dict({k: v for k, v in state.items() if not k.startswith(fresh)} | own)
    except OSError as error:
        raise FileError(
            f"the weights of {name} at {file} or from {url}",
            _short(error),
            f"connect to the network, or put that file into {file.parent}",
        ) from None
    except Exception:  # a damaged file can fail in any way inside the reader
        raise FileError(
            f"the published weights of {name} in {file}",
            "a damaged or foreign file",
            "delete it, and it is downloaded again",
        ) from None
    return model


# -- GroupNorm in place of BatchNorm ----------------------------------------------------------


def batchnorm_to_groupnorm(model: nn.Module) -> nn.Module:
    """Replace every BatchNorm2d inside a model by GroupNorm, in place; scale and shift are kept.

    There are 32 groups, as in Wu and He 2018 (arXiv 1803.08494), or as many as divide the channels
    and leave two channels to each: with one, it would be InstanceNorm.

    >>> batchnorm_to_groupnorm(nn.Sequential(nn.BatchNorm2d(16)))[0].num_groups
    8
    """
    for name, child in model.named_children():
        if type(child) is nn.BatchNorm2d:  # a subclass may do more, such as apply an activation
            setattr(model, name, _groupnorm(child))
        else:
            batchnorm_to_groupnorm(child)
    return model


def _groupnorm(bn: nn.BatchNorm2d) -> nn.GroupNorm:
    channels = bn.num_features
    groups = max(g for g in range(1, 33) if channels % g == 0 and (g == 1 or 2 * g <= channels))
    norm = nn.GroupNorm(groups, channels, eps=bn.eps, affine=bn.affine).train(bn.training)
    if bn.affine:
        norm.weight, norm.bias = bn.weight, bn.bias
    return norm


def _with_groupnorm(
    build: Builder, classes: int, channels: int, size: int | None, pretrained: bool
) -> nn.Module:
    return batchnorm_to_groupnorm(build(classes, channels, size, pretrained))


# -- by name ----------------------------------------------------------------------------------

Builder = Callable[[int, int, int | None, bool], nn.Module]  # (classes, channels, size, pretrained)


class ModelEntry(NamedTuple):
    """A model that can be built by name."""

    build: Builder
    about: str
    weights: bool = False  # there are published weights for it


def _small_resnet(classes: int, channels: int, _size: int | None, _pretrained: bool) -> nn.Module:
    return SmallResNet(classes, channels)


MODELS: dict[str, ModelEntry] = {
    "small-resnet": ModelEntry(
        _small_resnet, "four residual blocks with BatchNorm, for images of 8 to 32 pixels"
    ),
    "small-resnet-gn": ModelEntry(
        partial(_with_groupnorm, _small_resnet), "small-resnet with GroupNorm in place of BatchNorm"
    ),
    "resnet18": ModelEntry(partial(_resnet, "resnet18"), "11 million weights; with BatchNorm", True),
    "resnet34": ModelEntry(partial(_resnet, "resnet34"), "21 million weights; with BatchNorm", True),
    "resnet50": ModelEntry(partial(_resnet, "resnet50"), "24 million weights; with BatchNorm", True),
    "resnet101": ModelEntry(partial(_resnet, "resnet101"), "43 million weights; with BatchNorm", True),
    "resnet152": ModelEntry(partial(_resnet, "resnet152"), "58 million weights; with BatchNorm", True),
    "resnet18-gn": ModelEntry(
        partial(_with_groupnorm, partial(_resnet, "resnet18")), "resnet18 with GroupNorm"
    ),
    "resnet34-gn": ModelEntry(
        partial(_with_groupnorm, partial(_resnet, "resnet34")), "resnet34 with GroupNorm"
    ),
    "resnet50-gn": ModelEntry(
        partial(_with_groupnorm, partial(_resnet, "resnet50")), "resnet50 with GroupNorm"
    ),
    "vgg11_bn": ModelEntry(partial(_vgg, "vgg11_bn"), "8 convolutions with BatchNorm, from 32 pixels", True),
    "vgg13_bn": ModelEntry(partial(_vgg, "vgg13_bn"), "10 convolutions with BatchNorm, from 32 pixels", True),
    "vgg16_bn": ModelEntry(partial(_vgg, "vgg16_bn"), "13 convolutions with BatchNorm, from 32 pixels", True),
    "vgg19_bn": ModelEntry(partial(_vgg, "vgg19_bn"), "16 convolutions with BatchNorm, from 32 pixels", True),
}

FORMS: dict[str, str] = {
    "timm:NAME": "any model of timm, such as timm:vit_tiny_patch16_224; needs the extra timm",
    "hf:PATH": "an image classifier of Hugging Face, by folder or hub id; needs the extra hf",
    "module:function": "your own: a function of any of classes, channels and size that returns the model",
}


def known_name(name: str) -> None:
    """A name of MODELS, or one of another form, which only building can tell about."""
    if ":" not in name and name not in MODELS:
        raise ModelError("the name of a model", repr(name), did_you_mean(name, [*MODELS, *FORMS]))


def build(
    name: str, *, classes: int, channels: int, size: int | None = None, pretrained: bool = False
) -> nn.Module:
    """A model by name, with random weights, or with published ones where ``pretrained`` asks for them.

    ``name`` is one of MODELS or has one of the FORMS. ``size`` is the edge of the images in pixels:
    up to 64, torchvision's models are built for small images; without it, as they are published.
    With published weights, the layers that do not fit classes, channels or size are drawn afresh, and
    the head of torchvision's models always.

    >>> build("small-resnet", classes=10, channels=1)(torch.zeros(2, 1, 8, 8)).shape
    torch.Size([2, 10])
    """
    form, colon, rest = name.partition(":")
    if form == "timm" and colon:
        return _timm(rest, classes, channels, size, pretrained)
    if form == "hf" and colon:
        return _hugging_face(rest, classes, channels, size, pretrained)
    known_name(name)
    if pretrained and (colon or not MODELS[name].weights):
        known = ", ".join(sorted(n for n, entry in MODELS.items() if entry.weights))
        raise ModelError(
            "a model that has published weights, as it is to be pretrained",
            f"{name!r}, which has none",
            f"leave pretrained out, or use timm:NAME, hf:PATH or one of these: {known}",
        )
    if colon:
        return _own(form, rest, classes, channels, size)
    return MODELS[name].build(classes, channels, size, pretrained)


def _timm(name: str, classes: int, channels: int, size: int | None, pretrained: bool) -> nn.Module:
    timm = _package("timm", "timm")
    if not timm.is_model(name):
        near = difflib.get_close_matches(name, timm.list_models(), n=5, cutoff=0.5)  # of over a thousand
        fix = did_you_mean(name, near) if near else "look for it in timm.list_models()"
        raise ModelError("the name of a model of timm", repr(name), fix)
    try:
        about = timm.get_pretrained_cfg(name)
        model = timm.create_model(
            name,
            pretrained=pretrained,
            num_classes=classes,
            in_chans=channels,
            img_size=size if about and about.fixed_input_size else None,
        )
    except Exception as error:  # a thousand models fail in as many ways
        raise ModelError(
            f"a model timm:{name} with {_wanted(classes, channels, size, pretrained)}",
            _short(error),
            "connect to the network or leave pretrained out"
            if pretrained
            else "use another size or another model",
        ) from None
    return model  # type: ignore[no-any-return]


def _hugging_face(path: str, classes: int, channels: int, size: int | None, pretrained: bool) -> nn.Module:
    transformers = _package("transformers", "hf")
    auto = transformers.AutoModelForImageClassification
    try:
        with _quiet(transformers.utils.logging):
            config = transformers.AutoConfig.from_pretrained(path, trust_remote_code=False)
            config.num_labels = classes
            if hasattr(config, "num_channels"):
                config.num_channels = channels
            if hasattr(config, "image_size") and size is not None:
                config.image_size = size
            if pretrained:
                model = auto.from_pretrained(
                    path,
                    config=config,
                    ignore_mismatched_sizes=True,
                    use_safetensors=True,
                    trust_remote_code=False,
                )
            else:
                model = auto.from_config(config, trust_remote_code=False)
    except Exception as error:  # no folder, no network, no image classifier: each has its own type
        raise ModelError(
            f"an image classifier hf:{path} with {_wanted(classes, channels, size, pretrained)}",
            _short(error),
            (
                "name a folder with config.json (and model.safetensors if pretrained), or a hub id with "
                "the network there"
            ),
        ) from None
    return model.float().train()  # type: ignore[no-any-return]  # some are stored in half precision


@contextmanager
def _quiet(log: Any) -> Iterator[None]:
    """Within the block transformers reports errors only, and draws no bars."""
    verbosity, bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(verbosity)
        if bars:
            log.enable_progress_bar()


def _own(module_name: str, function_name: str, classes: int, channels: int, size: int | None) -> nn.Module:
    """What the user's function returns when it is called with those of the values that it names."""
    name = f"{module_name}:{function_name}"
    with _current_folder_importable():
        try:
            module = importlib.import_module(module_name)
        except (Exception, SystemExit) as error:
            raise ModelError(
                f"a module {module_name!r} that can be imported, for {name}",
                _short(error),
                f"run purge where {module_name} lies, and check that python can import it",
            ) from error
        function = getattr(module, function_name, None)
        if not callable(function):
            here = [n for n, v in vars(module).items() if getattr(v, "__module__", None) == module_name]
            raise ModelError(
                f"a function {function_name!r} in the module {module_name}",
                "none of that name",
                did_you_mean(function_name, here) if here else "define it there",
            )
        try:
            offered = {"classes": classes, "channels": channels, "size": size}
            named = inspect.signature(function).parameters
            model = function(**{k: v for k, v in offered.items() if k in named})
        except (Exception, SystemExit) as error:
            raise ModelError(
                f"{name} to return a model",
                _short(error),
                "correct the function; it is called with those of classes, channels and size it names",
            ) from error
    if not isinstance(model, nn.Module):
        raise ModelError(f"{name} to return an nn.Module", type(model).__name__, "return the model itself")
    return model


@contextmanager
def _current_folder_importable() -> Iterator[None]:
    folder = str(Path.cwd())
    importlib.invalidate_caches()  # the module may have been written a moment ago
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        if folder in sys.path:
            sys.path.remove(folder)


def _package(name: str, extra: str) -> Any:
    """An optional package, or one sentence on how to get it."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise ModelError(
            f"the package {name} for {extra}:… models",
            "none installed",
            f"pip install 'purge-unlearning[{extra}]'",
        ) from None


def _wanted(classes: int, channels: int, size: int | None, pretrained: bool) -> str:
    of = f" of {size} pixels" if size is not None else ""
    return f"{'pretrained weights for ' if pretrained else ''}{classes} classes and {channels} channels{of}"


def _short(error: BaseException) -> str:
    """What an error of another package says, cut down to a part of one sentence."""
    first, *_ = str(error).strip().splitlines() or [""]
    text = textwrap.shorten(first, 160, placeholder="…")
    return f"{type(error).__name__}: {text}".rstrip(" .:…")
