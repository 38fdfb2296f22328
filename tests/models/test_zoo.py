"""Models by name: what is built, with which weights, where its layers are, and what is refused."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.error import URLError

import pytest
import torch
from torch import Tensor, nn

from purge.core.errors import FileError, ModelError
from purge.models.builders import batchnorm_to_groupnorm
from purge.models.checkpoint import digest
from purge.models.forward import logits_of
from purge.models.hooks import capture, capture_features
from purge.models.inspect import anatomy
from purge.models.small_resnet import SmallResNet
from purge.models.zoo import MODELS, build
from tests.data.image_files import Payload

SENTENCE = re.compile(r"Expected .+, got .+\. Fix: .+\.")


def refused(error: type[Exception], name: str, **settings: object) -> str:
    """The one sentence of the error."""
    with pytest.raises(error) as raised:
        build(name, **{"classes": 7, "channels": 3, **settings})
    text = str(raised.value)
    assert SENTENCE.fullmatch(text), text  # "." does not match a line break
    assert len(text) < 600
    return text


def images(size: int = 32, channels: int = 3) -> Tensor:
    return torch.randn(2, channels, size, size, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with tiny Hugging Face models: two configurations, and a ViT with weights."""
    import transformers
    from transformers import EncodecConfig, ResNetConfig, ViTConfig

    folder = tmp_path_factory.mktemp("hub")
    vit = ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=16,
        patch_size=4,
    )  # fmt: skip
    vit.save_pretrained(folder / "vit")
    transformers.utils.logging.disable_progress_bar()
    transformers.AutoModelForImageClassification.from_config(vit).half().save_pretrained(folder / "weights")
    resnet = ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 8, 16, 16], depths=[1, 1, 1, 1], layer_type="basic"
    )
    resnet.save_pretrained(folder / "resnet")
    EncodecConfig().save_pretrained(folder / "encodec")
    return folder


RESNET = ("layer3", "layer4", "avgpool")
FOREIGN = {  # (head, erasure layers)
    "timm:vit_tiny_patch16_224": ("head", ("blocks.8", "blocks.11", "head_drop")),
    "timm:deit_tiny_distilled_patch16_224": ("head_dist", ("blocks.8", "blocks.11", "norm")),
    "timm:convnext_atto": ("head.fc", ("stages.1", "stages.3", "head.drop")),
    "timm:resnet18": ("fc", ("layer3.1", "layer4.1", "global_pool")),
    "hf:vit": ("classifier", ("0", "1", "layernorm")),  # names before the last dot vary with the version
    "hf:resnet": ("classifier.1", ("2", "0")),
}


@pytest.mark.parametrize("name", [*MODELS, *FOREIGN])
def test_logits_head_and_erasure_layers(name: str, hub: Path) -> None:
    full = name.replace("hf:", f"hf:{hub}/")
    model, x = build(full, classes=7, channels=3, size=32), images()
    assert model.training
    assert not (name.endswith("-gn") and any(isinstance(m, nn.BatchNorm2d) for m in model.modules()))
    parts = anatomy(model, x)
    head = model.get_submodule(parts.head)
    assert isinstance(head, nn.Linear)
    model.eval()
    with torch.no_grad(), capture(model, parts.blocks) as rows, capture_features(model, head) as fed:
        z = logits_of(model(x))
    assert z.shape == (2, head.out_features) == (2, 7)
    assert rows.keys() == set(parts.blocks)
    assert all(h.shape == (2, h.shape[1]) and h.shape[1] > 7 for h in rows.values())
    assert rows[parts.blocks[-1]].shape[1] == head.in_features
    blocks = parts.blocks
    if "distilled" in name:  # the logits are the average of two heads
        # Newer versions of timm drop features between the norm and the heads.
        blocks = tuple("norm" if block == "head_drop" else block for block in blocks)
    else:
        torch.testing.assert_close(head(fed[0]), z)
    if name.startswith("hf:"):
        blocks = tuple(block.rpartition(".")[2] for block in blocks)
    own = ("fc", RESNET) if "resnet" in name else ("5", ("2", "4")) if name == "mlp" else None
    if wanted := FOREIGN.get(name, own):
        assert (parts.head, blocks) == wanted
    else:
        assert (parts.head, blocks[-1]) == ("classifier", "avgpool")


@pytest.mark.parametrize(
    "name", ["small-resnet-gn", "resnet18", "vgg11_bn", "timm:vit_tiny_patch16_224", "hf:vit"]
)
def test_the_seed_decides_the_weights_for_grey_images_too(name: str, hub: Path) -> None:
    digests = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        model = build(name.replace("hf:", f"hf:{hub}/"), classes=4, channels=1, size=32)
        digests.append(digest(model))
    assert logits_of(model.eval()(images(channels=1))).shape == (2, 4)
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize(
    ("size", "kernel", "stride"), [(8, 3, 1), (64, 3, 1), (65, 7, 2), (224, 7, 2), (None, 7, 2)]
)
def test_the_stem_of_resnets_depends_on_the_size(size: int | None, kernel: int, stride: int) -> None:
    from torchvision.models import resnet18

    model = build("resnet18", classes=7, channels=3, size=size)
    assert model.conv1.kernel_size == (kernel, kernel)
    assert model.conv1.stride == (stride, stride)
    assert isinstance(model.maxpool, nn.Identity) == (kernel == 3)
    spread = (2 / (64 * kernel**2)) ** 0.5  # Kaiming, fan out
    assert float(model.conv1.weight.detach().std()) == pytest.approx(spread, rel=0.05)
    if size == 224:  # the model of torchvision
        seeded = []
        for make in (
            lambda: build("resnet18", classes=7, channels=3, size=size),
            lambda: resnet18(num_classes=7),
        ):
            torch.manual_seed(3)
            seeded.append(digest(make()))
        assert seeded[0] == seeded[1]


def test_vggs_for_small_and_for_large_images() -> None:
    small = build("vgg11_bn", classes=7, channels=3, size=64)
    assert small.classifier.in_features == 512
    assert not any(p.is_meta or p.isnan().any() for p in (*small.parameters(), *small.buffers()))
    assert float(small.features[4].weight.detach().std()) == pytest.approx((2 / (128 * 9)) ** 0.5, rel=0.05)
    assert small.features[1].running_var.eq(1).all()
    assert float(small.classifier.weight.detach().std()) == pytest.approx(0.01, rel=0.1)
    large = build("vgg11_bn", classes=7, channels=1, size=96)
    assert anatomy(large, images(96, 1)).head == "classifier.6"
    assert "at least 32 pixels for vgg11_bn" in refused(ModelError, "vgg11_bn", size=31, pretrained=True)


@pytest.mark.parametrize("name", ["small-resnet-gn", "resnet18-gn"])
def test_groupnorm_variants_differ_in_normalisation_only(name: str) -> None:
    model, twin = (build(n, classes=7, channels=3, size=32) for n in (name, name.removesuffix("-gn")))
    kinds = [[type(m) for m in net.modules()] for net in (model, twin)]
    assert [nn.GroupNorm if k is nn.BatchNorm2d else k for k in kinds[1]] == kinds[0]
    groups = {m.num_channels: m.num_groups for m in model.modules() if isinstance(m, nn.GroupNorm)}
    assert all(g == min(32, c // 2) for c, g in groups.items())
    plain = SmallResNet(width=3).eval()
    weight = plain.bn1.weight
    assert batchnorm_to_groupnorm(plain).bn1.weight is weight
    assert not plain.bn1.training
    assert (plain.bn1.num_groups, plain.layer3.bn1.num_groups) == (1, 6)  # of 3 and 12 channels


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache for torch's downloads, and no network."""

    def no_network(*_: object, **__: object) -> None:
        raise URLError("no network")

    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr(torch.hub, "download_url_to_file", no_network)
    folder = tmp_path / "hub" / "checkpoints"
    folder.mkdir(parents=True)
    return folder


def test_published_weights_are_used_except_for_head_and_stem(cache: Path) -> None:
    from torchvision.models import ResNet18_Weights, VGG11_BN_Weights, resnet18

    torch.manual_seed(0)
    state = resnet18().state_dict()
    torch.save(state, cache / Path(ResNet18_Weights.DEFAULT.url).name)
    for channels, size, fresh in [
        (3, 224, ("fc.",)),
        (3, 32, ("fc.", "conv1.")),
        (1, None, ("fc.", "conv1.")),
    ]:
        model = build("resnet18", classes=7, channels=channels, size=size, pretrained=True)
        for key, value in model.state_dict().items():
            same = value.shape == state[key].shape and torch.equal(value, state[key])
            assert same != key.startswith(fresh), key
    thousand = build("resnet18", classes=1000, channels=3, pretrained=True)
    assert not torch.equal(thousand.fc.weight, state["fc.weight"]), "the head is always drawn at random"
    vgg = {"classes": 5, "channels": 3, "size": 32}
    state = build("vgg11_bn", **vgg).state_dict()
    state["classifier.0.weight"] = torch.zeros(3)  # the published classifier is not used for small images
    torch.save(state, cache / Path(VGG11_BN_Weights.DEFAULT.url).name)
    model = build("vgg11_bn", **vgg, pretrained=True)
    assert torch.equal(model.features[0].weight, state["features.0.weight"])


def test_weights_that_are_missing_damaged_or_code_are_reported(
    cache: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text, file = refused(FileError, "resnet18", pretrained=True), cache / "resnet18-f37072fd.pth"
    assert str(file) in text
    assert "https://download.pytorch.org/models/resnet18-f37072fd.pth" in text
    assert capfd.readouterr().out == "", "stdout is for results only"
    file.write_bytes(b"no weights")
    assert "damaged or foreign" in refused(FileError, "resnet18", pretrained=True)
    for content in ({}, [1], {"fc.weight": Payload(tmp_path / "ran")}):
        torch.save(content, file)
        assert "damaged or foreign" in refused(FileError, "resnet18", pretrained=True)
    assert not (tmp_path / "ran").exists()


def test_unknown_names_and_models_without_weights_are_answered_with_known_ones() -> None:
    for name, words in (
        ("resnt18", "did you mean 'resnet18'?"), ("zzz", "purge list models"),
        ("timm", "did you mean 'timm:NAME'?"),
    ):  # fmt: skip
        assert words in refused(ModelError, name)
    for name in ("small-resnet", "resnet18-gn", "some:function"):
        assert "resnet18," in refused(ModelError, name, pretrained=True)


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The Hugging Face hub is offline, and its cache is empty."""
    import huggingface_hub.constants as hub_constants

    monkeypatch.setattr(hub_constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(hub_constants, "HF_HUB_CACHE", str(tmp_path))


def test_what_timm_cannot_build_is_reported(offline: None) -> None:
    for name, words in (
        ("resnt18", "did you mean 'resnet18'?"), ("~~~~", "timm.list_models()"), ("", ""),
        ("hf-hub:someone/something", ""), ("vit_tiny_patch16_224.nonesuch", ""),
    ):  # fmt: skip
        assert words in refused(ModelError, f"timm:{name}")
    assert "of 8 pixels, got ZeroDivisionError" in refused(ModelError, "timm:gcvit_xxtiny", size=8)
    assert "network" in refused(ModelError, "timm:resnet18", pretrained=True)


@pytest.mark.parametrize(("package", "form"), [("timm", "timm"), ("transformers", "hf")])
def test_a_missing_package_is_named_with_its_extra(
    package: str, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    assert f"pip install 'purge-unlearning[{form}]'" in refused(ModelError, f"{form}:anything")


def test_pretrained_weights_of_hugging_face(hub: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from transformers import ViTForImageClassification

    state = ViTForImageClassification.from_pretrained(hub / "weights").float().state_dict()
    capfd.readouterr()
    model = build(f"hf:{hub}/weights", classes=7, channels=3, pretrained=True)
    assert model.training
    for key, value in model.state_dict().items():
        assert value.dtype == torch.float32, "stored in half precision"
        same = value.shape == state[key].shape and torch.equal(value, state[key])
        assert same != key.startswith("classifier."), key
    assert logits_of(model(images(16))).shape == (2, 7)
    larger = build(f"hf:{hub}/weights", classes=2, channels=3, size=32, pretrained=True)
    assert logits_of(larger(images(32))).shape == (2, 2)
    assert "".join(capfd.readouterr()) == ""


def test_what_hugging_face_cannot_build_is_reported(hub: Path, offline: None, tmp_path: Path) -> None:
    from transformers.utils import logging

    logging.enable_progress_bar()
    before = logging.get_verbosity()
    assert "EncodecConfig" in refused(ModelError, f"hf:{hub}/encodec")
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == (before, True)
    logging.disable_progress_bar()
    assert "model.safetensors" in refused(ModelError, f"hf:{hub}/vit", pretrained=True)
    for path in ("someone/something", "./nowhere", "/nowhere/at/all", "", str(hub)):
        assert "config.json" in refused(ModelError, f"hf:{path}")
    about = '{"model_type": "mine", "auto_map": {"AutoConfig": "configuration_mine.Mine"}}'
    (tmp_path / "config.json").write_text(about)
    (tmp_path / "configuration_mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    refused(ModelError, f"hf:{tmp_path}")
    assert not (tmp_path / "ran").exists(), "code in a folder is not run"


OWN = """
import sys
from torch import nn

def plain(): return nn.Sequential(nn.Flatten(), nn.LazyLinear(3))
def sized(classes, size=None, *, width=5):
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * size**2, width), nn.Linear(width, classes))
class Net(nn.Module):
    def __init__(self, channels, classes):
        super().__init__()
        self.values = channels, classes
def needs_more(classes, depth): return nn.Identity()
def broken(): raise RuntimeError("first line\\nsecond line")
def leaves(): sys.exit("bye")
def text(): return "resnet18"
number = 5
"""


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """The current folder, which contains the module own_models; the path to modules stays as it is."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "own_models", raising=False)
    for name, content in (("own_models", OWN), ("own_broken", "1 / 0"), ("own_empty", "")):
        (tmp_path / f"{name}.py").write_text(content)
    path = list(sys.path)
    yield
    assert sys.path == path


def test_a_function_of_the_user_builds_a_model(folder: None) -> None:
    model = build("own_models:sized", classes=7, channels=3, size=8)
    assert model(images(8)).shape == (2, 7)
    assert isinstance(build("own_models:plain", classes=7, channels=3), nn.Sequential)
    assert build("own_models:Net", classes=7, channels=3).values == (3, 7)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no_such_module:f", "ModuleNotFoundError"),
        (":f", ""),
        ("own_models:", ""),
        ("own_models:size", "did you mean 'sized'?"),
        ("own_models:number", "not a callable object"),
        ("own_models:needs_more", "'depth'"),
        ("own_models:broken", "first line"),
        ("own_models:leaves", "SystemExit: bye"),
        ("own_models:text", "got str"),
        ("own_broken:f", "ZeroDivisionError"),
        ("own_empty:f", "'f' in the module own_empty"),
    ],
)
def test_what_is_wrong_with_a_function_of_the_user_is_reported(name: str, words: str, folder: None) -> None:
    assert words in refused(ModelError, name)
