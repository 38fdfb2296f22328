"""LoRA models of peft: only adapters, and modules that are saved whole, move."""

from __future__ import annotations

import copy

import pytest
import torch

import purge
from purge.models.checkpoint import digest
from purge.models.copies import reinitialised
from purge.models.forward import logits
from tests.methods.test_contract import NAMES, QUICK
from tests.sequences import bert, pictures, sentences, vit

pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # of peft
ATTENTION = ["query", "value", "q_proj", "v_proj"]  # names in different versions of transformers
MOVED = ("lora_", "modules_to_save")
SKIPPED = {"convolution-transpose", "boundary-shrink", "unsir", "amun", "mu-mis"}  # refuse a dict of inputs
AT_ONCE = {"purge", "retrain", "bad-teacher", "boundary-expand"}


def lora(model, **config):
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(3)
    given = {"r": 4, "target_modules": ATTENTION, "modules_to_save": ["classifier"], **config}
    return get_peft_model(model, LoraConfig(**given))


def frozen(model):
    return {n: p.detach().clone() for n, p in model.named_parameters() if not p.requires_grad}


def only_adapters_moved(before, after):
    assert [p.requires_grad for p in after.parameters()] == [p.requires_grad for p in before.parameters()]
    own = dict(after.named_parameters())
    assert all(torch.equal(own[name], p) for name, p in frozen(before).items())
    moved = {n for n, p in before.named_parameters() if not torch.equal(own[n], p)}
    assert moved
    assert all(any(part in name for part in MOVED) for name in moved)
    return moved


@pytest.fixture(scope="module")
def pretrained():
    """A ViT that knows other pictures."""
    x, y = pictures(seed=5)
    turned = {"pixel_values": x["pixel_values"].flip(-1)}
    return purge.train(vit(), (turned, y), epochs=10, lr=0.03, batch_size=32, progress=False).model


def test_a_lora_vit_forgets_a_class_beside_a_retrained_one(pretrained, tmp_path):
    data, test = pictures(), pictures(seed=1)
    recipe = {"epochs": 15, "lr": 0.1, "batch_size": 32, "progress": False}
    model = purge.train(lora(copy.deepcopy(pretrained)), data, **recipe).model
    forget, retain = purge.split(data, classes=[0])
    retrained = purge.unlearn(model, forget, retain, method="retrain", **recipe)
    result = purge.unlearn(model, forget, retain, progress=False, out=tmp_path / "run")
    for one in (retrained.model, result.model):
        assert any("lora_" in name for name in only_adapters_moved(model, one))
    report = purge.audit(
        result, forget, retain, test, original=model, retrained=retrained, progress=False,
        metrics=["fa_test", "ra", "ta_retain", "feature_cosine", "cka", "zrf", "relearn_few", "head_refit"],
    )  # fmt: skip
    assert report["fa_test"].value == report.retrained["fa_test"].value == 0
    assert report["ra"].value >= 0.9
    assert all(value.value is not None for value in report.values.values())

    result.model.save_pretrained(tmp_path / "adapter")
    from peft import PeftModel

    again = PeftModel.from_pretrained(copy.deepcopy(pretrained), tmp_path / "adapter").eval()
    with torch.no_grad():
        torch.testing.assert_close(again(**test[0]).logits, result.model.eval()(**test[0]).logits)
    assert (tmp_path / "run" / "model.safetensors").is_file()


@pytest.fixture(scope="module")
def text():
    data = sentences(120)
    base = purge.train(bert(), data, epochs=12, lr=0.1, batch_size=32, progress=False).model
    model = purge.train(lora(base), data, epochs=6, lr=0.1, batch_size=32, progress=False).model
    return model, *purge.split(data, classes=[0])


@pytest.mark.parametrize(
    "name",
    [n if n in AT_ONCE else pytest.param(n, marks=pytest.mark.slow) for n in NAMES if n not in SKIPPED],
)
def test_every_method_leaves_the_model_below_alone(name, text):
    model, forget, retain = text
    before, settings = digest(model), {**QUICK.get(name, {})}
    if "fisher" in name:
        settings["samples"] = 10
    result = purge.unlearn(
        model,
        forget,
        retain,
        test=sentences(40, seed=1),
        method=name,
        check=False,
        progress=False,
        **settings,
    )
    assert digest(model) == before
    only_adapters_moved(model, result.model)


@pytest.mark.slow
def test_fresh_weights_are_mixed_into_adapters_alone(text):
    model, forget, retain = text
    result = purge.unlearn(model, forget, retain, fresh_share=0.5, check=False, progress=False)
    only_adapters_moved(model, result.model)


def test_adapters_on_a_model_in_half_precision():
    """A common case: what lies below in bf16, bit by bit the same afterwards, and adapters in float32."""
    model = lora(bert().bfloat16())
    kinds = {name: p.dtype for name, p in model.named_parameters()}
    assert {torch.bfloat16, torch.float32} == {*kinds.values()}
    forget, retain = purge.split(sentences(60), classes=[0])
    result = purge.unlearn(model, forget, retain, steps=4, check=False, progress=False)
    only_adapters_moved(model, result.model)
    assert {name: p.dtype for name, p in result.model.named_parameters()} == kinds


def test_drawn_anew_adapters_begin_without_a_say():
    """B = 0: an untrained adapter leaves the model as it was below, but for a head of its own."""
    base = bert().eval()
    model = lora(copy.deepcopy(base), modules_to_save=None).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_" in name:
                p.normal_()
    fresh = reinitialised(model)
    assert all(torch.equal(p, dict(model.named_parameters())[n]) for n, p in frozen(fresh).items())
    data = purge.data.accept.as_samples(sentences(8), torch.device("cpu"), "data")
    torch.testing.assert_close(logits(fresh, data), logits(base, data))
    assert not torch.allclose(logits(model, data), logits(base, data), atol=1e-3)
