"""The functions that build models: torchvision's, timm's, Hugging Face's and the user's own."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlparse

import torch
from torch import Tensor, nn

from purge.core.errors import FileError, ModelError, did_you_mean
from purge.core.plugins import current_folder_importable, from_extra, named
from purge.data.prefetch import say_once
from purge.models.small_resnet import SmallResNet
from purge.models.wrappers import unwrapped

HIDDEN = 64  # units of a layer of mlp
LONGEST_TEXT = 512  # tokens, where neither the model nor its tokenizer says how many
SMALL = 64  # pixels; up to this size a stem that shrinks images to a quarter loses too much of them


class Wanted(NamedTuple):
    """What a model must fit."""

    classes: int
    channels: int
    size: int | None  # side of the images in pixels, if it is known
    pretrained: bool

    @property
    def small(self) -> bool:
        """Whether the images are small."""
        return self.size is not None and self.size <= SMALL

    @property
    def features(self) -> int:
        """How many numbers a sample has: the columns of a table, or all pixels."""
        return self.channels * (self.size or 1) ** 2

    def __str__(self) -> str:
        weights = "pretrained weights for " if self.pretrained else ""
        pixels = f" of {self.size} pixels" if self.size is not None else ""
        return f"{weights}{self.classes} classes and {self.channels} channels{pixels}"


def small_resnet(_name: str, want: Wanted) -> nn.Module:
    """The embedded ResNet."""
    return SmallResNet(want.classes, want.channels)


def mlp(_name: str, want: Wanted) -> nn.Module:
    """Two hidden layers, for the columns of a table."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(want.features, HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, want.classes),
    )


def resnet(name: str, want: Wanted) -> nn.Module:
    """A torchvision ResNet; for small images with the stem of the CIFAR ResNets, 3×3 without pooling."""
    model = _torchvision().get_model(name, weights=None, num_classes=want.classes)
    fresh: tuple[str, ...] = ("fc.",)
    if want.small:
        model.maxpool = nn.Identity()
    if want.small or want.channels != 3:
        kernel, stride = (3, 1) if want.small else (7, 2)
        model.conv1 = nn.Conv2d(want.channels, 64, kernel, stride, kernel // 2, bias=False)
        _initialise(model.conv1)
        fresh += ("conv1.",)
    return _published(model, name, fresh) if want.pretrained else model


def vgg(name: str, want: Wanted) -> nn.Module:
    """A torchvision VGG with BatchNorm; for small images with a single linear layer as classifier."""
    if want.size is not None and want.size < 32:
        what = f"images of at least 32 pixels for {name}, which halves them five times"
        raise ModelError(what, f"{want.size} pixels", "use larger images, small-resnet or a ResNet")
    fresh: tuple[str, ...] = ("classifier.6.",)
    if want.small:
        fresh = ("classifier.",)
        with torch.device("meta"):  # never draws the 120 million weights of the large classifier
            model = _torchvision().get_model(name, weights=None)
            model.avgpool, model.classifier = nn.AdaptiveAvgPool2d(1), nn.Linear(512, want.classes)
        model.to_empty(device=torch.get_default_device()).apply(_initialise)
    else:
        model = _torchvision().get_model(name, weights=None, num_classes=want.classes)
    if want.channels != 3:
        model.features[0] = nn.Conv2d(want.channels, 64, 3, padding=1)
        _initialise(model.features[0])
        fresh += ("features.0.",)
    return _published(model, name, fresh) if want.pretrained else model


def _torchvision() -> Any:
    return importlib.import_module("torchvision.models")  # takes seconds to import


def _initialise(layer: nn.Module) -> None:
    """Draw a layer's weights as torchvision does for its ResNets and VGGs."""
    if isinstance(layer, nn.Conv2d):
        nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    elif isinstance(layer, nn.Linear):
        nn.init.normal_(layer.weight, 0, 0.01)
    elif isinstance(layer, nn.BatchNorm2d):
        layer.reset_parameters()
    if isinstance(layer, (nn.Conv2d, nn.Linear)) and layer.bias is not None:
        nn.init.zeros_(layer.bias)


def _published(model: nn.Module, name: str, fresh: tuple[str, ...]) -> nn.Module:
    """Load torchvision's ImageNet weights, except for layers whose names start with one of ``fresh``."""
    url = _torchvision().get_model_weights(name).DEFAULT.url
    file = Path(torch.hub.get_dir(), "checkpoints", Path(urlparse(url).path).name)
    own = {k: v for k, v in model.state_dict().items() if k.startswith(fresh)}
    try:
        with redirect_stdout(sys.stderr):  # torch announces the download on stdout, where results go
            state = torch.hub.load_state_dict_from_url(
                url, map_location="cpu", progress=sys.stderr.isatty(), check_hash=True, weights_only=True
            )
        model.load_state_dict({k: v for k, v in state.items() if not k.startswith(fresh)} | own)
    except Exception as error:  # torch raises many kinds of errors on a damaged file
        got = _short(error) if isinstance(error, OSError) else "a damaged or foreign file"
        fix = f"connect to the network and delete that file, if it is there, or put it into {file.parent}"
        raise FileError(f"the weights of {name} at {file} or from {url}", got, fix) from None
    return model


def batchnorm_to_groupnorm(model: nn.Module) -> nn.Module:
    """Replace every BatchNorm2d inside a model by GroupNorm, in place, keeping scale and shift.

    There are 32 groups, as in Wu and He 2018 (arXiv 1803.08494), or the most that divide the channels
    into groups of at least two: groups of one would be InstanceNorm.

    >>> batchnorm_to_groupnorm(nn.Sequential(nn.BatchNorm2d(16)))[0].num_groups
    8
    """
    for name, child in model.named_children():
        if type(child) is not nn.BatchNorm2d:  # a subclass may do more, such as apply an activation
            batchnorm_to_groupnorm(child)
            continue
        channels = child.num_features
        groups = max(g for g in range(1, 33) if channels % g == 0 and (g == 1 or 2 * g <= channels))
        norm = nn.GroupNorm(groups, channels, eps=child.eps, affine=child.affine).train(child.training)
        norm.weight, norm.bias = child.weight, child.bias
        setattr(model, name, norm)
    return model


def timm_model(name: str, want: Wanted) -> nn.Module:
    """A model of timm."""
    timm = from_extra("timm", "timm", "timm:… models", ModelError)
    if not timm.is_model(name):
        fix = did_you_mean(name, timm.list_models(), "timm.list_models()")
        raise ModelError("the name of a model of timm", repr(name), fix)
    try:
        about = timm.get_pretrained_cfg(name)
        model = timm.create_model(
            name,
            pretrained=want.pretrained,
            num_classes=want.classes,
            in_chans=want.channels,
            img_size=want.size if about and about.fixed_input_size else None,
        )
    except Exception as error:  # timm's thousand models raise all kinds of errors
        fix = "connect to the network, or leave out pretrained" if want.pretrained else "use another size"
        raise ModelError(f"a model timm:{name} with {want}", _short(error), fix) from None
    return model  # type: ignore[no-any-return]


def hugging_face(path: str, want: Wanted) -> nn.Module:
    """A classifier of images, texts or sounds of Hugging Face's transformers."""
    transformers = from_extra("transformers", "hf", "hf:… models", ModelError)
    try:
        with _quiet(transformers.utils.logging):
            config = transformers.AutoConfig.from_pretrained(path, trust_remote_code=False)
            kinds = {
                "ForImageClassification": transformers.AutoModelForImageClassification,
                "ForSequenceClassification": transformers.AutoModelForSequenceClassification,
                "ForAudioClassification": transformers.AutoModelForAudioClassification,
            }
            # A model that can be several says which it was.
            written = (getattr(config, "architectures", None) or [""])[0]
            fitting = [auto for auto in kinds.values() if type(config) in auto._model_mapping]
            named = [auto for ending, auto in kinds.items() if written.endswith(ending) and auto in fitting]
            auto = next(iter([*named, *fitting]), transformers.AutoModelForImageClassification)
            if config.num_labels != want.classes:
                config.num_labels = want.classes
            images = auto is transformers.AutoModelForImageClassification
            for key, value in (("num_channels", want.channels), ("image_size", want.size)):
                if images and hasattr(config, key) and value is not None:
                    setattr(config, key, value)
            if want.pretrained:
                safe = {"use_safetensors": True, "trust_remote_code": False}
                model = auto.from_pretrained(path, config=config, ignore_mismatched_sizes=True, **safe)
            else:
                model = auto.from_config(config, trust_remote_code=False)
    except Exception as error:  # no folder, no network, not a classifier: each raises its own type
        fix = "name a folder with config.json (and model.safetensors if pretrained), or a hub id if online"
        raise ModelError(f"a classifier hf:{path} with {want}", _short(error), fix) from None
    return model.float().train()  # type: ignore[no-any-return]  # some are stored in half precision


class Tokenizer(NamedTuple):
    """What a folder of Hugging Face says about texts."""

    encode: Callable[[list[str]], dict[str, Tensor]]  # texts → tensors of tokens, padded to one length
    names: tuple[str, ...]  # of the classes, in the order of the outputs; empty if they have none


def tokenizer(path: str) -> Tokenizer:
    """The tokenizer in a folder; nothing is downloaded, and no code in the folder is run."""
    transformers = from_extra("transformers", "hf", "hf:… models", ModelError)
    safe = {"trust_remote_code": False, "local_files_only": True}
    try:
        with _quiet(transformers.utils.logging):
            encoder = transformers.AutoTokenizer.from_pretrained(path, **safe)
            config = transformers.AutoConfig.from_pretrained(path, **safe)
        made_up = len(encoder) <= len(set(encoder.all_special_ids))  # for a folder without one
        if made_up or encoder.pad_token_id is None:
            raise ValueError("it knows no words" if made_up else "it has no token for padding")
    except Exception as error:  # no folder, no tokenizer in it, or one that needs code
        fix = "name a folder with tokenizer.json, as tokenizer.save_pretrained(DIR) writes it"
        raise ModelError(f"a tokenizer in {path}", _short(error), fix) from None
    longest = min(encoder.model_max_length, getattr(config, "max_position_embeddings", None) or LONGEST_TEXT)

    def encode(texts: list[str]) -> dict[str, Tensor]:
        try:
            with _quiet(transformers.utils.logging):
                made = encoder(texts, padding=True, truncation=True, max_length=longest, return_tensors="pt")
        except Exception as error:
            what = f"texts that the tokenizer in {path} takes"
            raise ModelError(what, _short(error), "check them") from None
        tokens = {key: t for key, t in made.items() if isinstance(t, Tensor)}
        lengths = tokens["attention_mask"].sum(1) if "attention_mask" in tokens else torch.zeros(0)
        if full := int((lengths >= longest).sum()):
            say_once(f"{full} texts take up all {longest} tokens that the model reads; the rest is cut.")
        return tokens

    names = [str(name) for _, name in sorted((config.id2label or {}).items())]
    usual = all(re.fullmatch(r"LABEL_\d+", name) for name in names)
    return Tokenizer(encode, () if usual else tuple(names))


@contextmanager
def _quiet(log: Any) -> Iterator[None]:
    """Let transformers report errors only, without progress bars."""
    verbosity, bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(verbosity)
        if bars:
            log.enable_progress_bar()


def own_model(name: str, want: Wanted) -> nn.Module:
    """Call the user's ``module:function`` with what it takes of classes, channels, size and features."""
    with current_folder_importable():
        function = named(name, ModelError)
        try:
            takes = inspect.signature(function).parameters
            offered = ("classes", "channels", "size", "features")
            model = function(**{key: getattr(want, key) for key in offered if key in takes})
        except (Exception, SystemExit) as error:
            fix = "correct the function; its parameters may be classes, channels, size and features"
            raise ModelError(f"{name} to return a model", _short(error), fix) from error
    if not isinstance(model, nn.Module):
        raise ModelError(f"{name} to return an nn.Module", type(model).__name__, "return the model itself")
    return unwrapped(model)  # weights are kept by the names of the plain module


def _short(error: BaseException) -> str:
    """An error of another package, shortened to fit into a sentence."""
    first, *_ = str(error).strip().splitlines() or [""]
    text = textwrap.shorten(first, 160, placeholder="…")
    return f"{type(error).__name__}: {text}".rstrip(" .:…")
