"""Other kinds of models than plain ones in float32 with one tensor of inputs: all of purge works with each.

Half precision and float64, several inputs, one logit for two classes, adapters of LoRA, modules of Lightning.
"""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import purge
from purge.core.errors import ModelError, PurgeError
from purge.metrics.registry import PANELS
from purge.models.checkpoint import digest
from purge.models.copies import copied, narrowed, reinitialised, with_neutral_head
from purge.models.forward import as_classes, evaluating, forward
from purge.models.inspect import anatomy
from tests.methods.test_contract import NAMES, QUICK
from tests.nets import blobs, small_mlp
from tests.sequences import bert, pictures, sentences, vit

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning"),  # of peft
    pytest.mark.filterwarnings("ignore:.*num_workers.*", "ignore:.*LeafSpec.*", "ignore:.*srun.*"),
]
CPU = torch.device("cpu")
RECIPE = {"epochs": 10, "lr": 0.05, "batch_size": 32, "progress": False}


def types(model: nn.Module) -> list[torch.dtype]:
    return [t.dtype for t in [*model.parameters(), *model.buffers()]]


def of_type(data: Any, dtype: torch.dtype) -> Any:
    return data[0].to(dtype), data[1]


class Table(nn.Module):
    """Numbers and categories, in two tensors."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.kinds = nn.Embedding(8, 4)
        self.body, self.head = nn.Sequential(nn.Linear(8, 16), nn.ReLU()), nn.Linear(16, 3)

    def forward(self, numbers: Tensor, kind: Tensor) -> Tensor:
        return self.head(self.body(torch.cat([numbers, self.kinds(kind)], 1)))


def table(seed: int = 0) -> tuple[Any, Tensor]:
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(3, (160,), generator=g)
    kind = torch.where(y == 2, 5, torch.randint(4, (160,), generator=g))
    return (torch.randn(160, 4, generator=g) + 3 * (y == 1)[:, None], kind), y


class Binary(nn.Module):
    """One logit per sample, (B, 1) or (B,)."""

    def __init__(self, flat: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU())
        self.head, self.flat = nn.Linear(16, 1), flat

    def forward(self, x: Tensor) -> Tensor:
        z = self.head(self.body(x))
        return z.squeeze() if self.flat else z


def pairs(seed: int = 0) -> tuple[Tensor, Tensor]:
    return blobs(60 if seed else 96, classes=2, seed=seed)


def lora(model: nn.Module, **config: Any) -> nn.Module:
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(3)
    attention = ["query", "value", "q_proj", "v_proj"]  # names in different versions of transformers
    config = {"r": 4, "target_modules": attention, "modules_to_save": ["classifier"], **config}
    return get_peft_model(model, LoraConfig(**config))


@cache
def pretrained() -> nn.Module:
    """A ViT that knows other pictures."""
    x, y = pictures(seed=5)
    turned = {"pixel_values": x["pixel_values"].flip(-1)}
    return purge.train(vit(), (turned, y), epochs=10, lr=0.03, batch_size=32, progress=False).model


class Kind(NamedTuple):
    make: Callable[[], nn.Module]
    data: Callable[[int], Any]
    recipe: dict[str, Any] = {}  # noqa: RUF012
    forget: int = 0


KINDS = {
    **{
        f"in {t}": Kind(lambda t=t: small_mlp().to(t), lambda seed, t=t: of_type(blobs(seed=seed), t))
        for t in (torch.float64, torch.float16, torch.bfloat16)
    },
    "text in bf16": Kind(
        lambda: bert().bfloat16(), lambda seed: sentences(120, seed), {"epochs": 20, "lr": 0.1}),
    "a tuple of inputs": Kind(Table, table, {"epochs": 15}, 1),
    "one logit": Kind(lambda: Binary(flat=True), pairs, {}, 1),
    "LoRA": Kind(lambda: lora(copy.deepcopy(pretrained())), lambda seed: pictures(seed=seed),
                 {"epochs": 15, "lr": 0.1}),
}  # fmt: skip
SLOW = ("in torch.float64", "in torch.float16", "text in bf16", "one logit", "LoRA")


@cache
def trained(kind: str) -> nn.Module:
    make, data, recipe, _ = KINDS[kind]
    return purge.train(make(), data(0), **{**RECIPE, **recipe}).model


@pytest.mark.parametrize("kind", [pytest.param(k, marks=pytest.mark.slow) if k in SLOW else k for k in KINDS])
def test_it_is_trained_forgets_a_class_and_has_every_metric_of_the_standard_audit(kind, tmp_path):
    make, data, recipe, label = KINDS[kind]
    model, test, recipe = trained(kind), data(1), {**RECIPE, **recipe}
    forget, retain = purge.split(data(0), classes=[label])
    before = digest(model)
    retrained = purge.unlearn(model, forget, retain, method="retrain", **recipe)
    result = purge.unlearn(model, forget, retain, progress=False, out=tmp_path / "run")
    for one in (model, result.model, retrained.model):
        assert types(one) == types(make())
        assert [p.requires_grad for p in one.parameters()] == [p.requires_grad for p in make().parameters()]
    report = purge.audit(
        result, forget, retain, test, original=model, retrained=retrained, check=False, progress=False
    )
    assert {name.partition(".")[0] for name in report.values} == set(PANELS["standard"])
    assert all(value.why or math.isfinite(value.value) for value in report.values.values())
    assert report["feature_cosine"].value is not None
    assert report["relearn_few.after"].value is not None
    assert report["fa_test"].value <= 0.1
    assert report["ra"].value >= 0.9
    assert digest(model) == before


# -- types of numbers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_half_model_is_computed_with_in_float32_and_rounded_once_at_the_end(dtype):
    half = small_mlp().to(dtype)
    wide, (x, y) = copy.deepcopy(half).float(), of_type(blobs(), dtype)
    settings = {"method": "purge", "steps": 12, "progress": False, "check": False}
    ours = purge.unlearn(half, *purge.split((x, y), classes=[0]), **settings)
    theirs = purge.unlearn(wide, *purge.split((x.float(), y), classes=[0]), **settings)
    assert digest(ours.model) == digest(theirs.model.to(dtype))
    assert ours.history == theirs.history
    assert torch.equal(forward(wide.eval(), x), forward(wide, x.float())), "inputs may be of another type"
    metrics = ["fa_train", "ra", "ta", "mia_loss", "feature_l2_original", "ece", "head_refit"]
    reports = [
        purge.audit(model, *purge.split(blobs(), classes=[0]), blobs(seed=1), original=small_mlp(5),
                    metrics=metrics, check=False, progress=False)
        for model in (half, wide)
    ]  # fmt: skip
    for name, value in reports[1].values.items():
        assert reports[0][name].value == pytest.approx(value.value, rel=0.05, abs=0.03), name


def test_shards_and_logs_of_a_half_model_are_kept_and_undone(tmp_path):
    data, half = of_type(blobs(), torch.bfloat16), {"progress": False, "check": False}
    forget, retain = purge.split(data, indices=range(6))
    model = purge.train_sharded(small_mlp().bfloat16(), data, shards=2, **RECIPE).model
    assert torch.bfloat16 not in types(model), "shards are trained and kept in float32"
    assert digest(purge.unlearn(model, forget, retain, method="sisa", **half).model) != digest(model)
    log = str(tmp_path / "log")
    model = purge.train(small_mlp().bfloat16(), data, log_updates=log, **RECIPE).model
    assert digest(purge.unlearn(model, forget, retain, method="amnesiac", log=log, **half).model) != digest(
        model
    )


class Mixed(nn.Module):
    """A body in bf16 and a head in float32, as large models are often stored."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(6, 16).bfloat16(), nn.Linear(16, 3)
        self.body.register_buffer("scale", torch.ones(16, dtype=torch.float16))

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x.to(self.body.weight.dtype)).relu() * self.body.scale
        return self.head(h.to(self.head.weight))


def test_each_tensor_gets_its_own_type_back():
    model = Mixed()
    result = purge.unlearn(model, *purge.split(blobs(), classes=[0]), check=False, steps=4, progress=False)
    assert types(result.model) == types(model)
    wide = copied(model, CPU)
    assert set(types(wide)) == {torch.float32}
    assert digest(narrowed(wide, model)) == digest(model), "there and back is exact"


# -- one logit -------------------------------------------------------------------------------------------


class Pair(nn.Module):
    """The same network with two logits, the first of them 0."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return as_classes(self.inner(x))


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("n", [1, 2, 7])
def test_losses_and_gradients_are_those_of_binary_cross_entropy(flat, n):
    model = Binary(flat).double().eval()
    x, y = torch.randn(n, 6, dtype=torch.float64), torch.arange(n) % 2
    z, own = forward(model, x), model(x).reshape(-1)
    torch.testing.assert_close(z.softmax(1)[:, 1], own.sigmoid())
    losses = F.cross_entropy(z, y), F.binary_cross_entropy_with_logits(own, y.double())
    grads = [torch.autograd.grad(loss, [*model.parameters()], retain_graph=True) for loss in losses]
    torch.testing.assert_close((losses[0], *grads[0]), (losses[1], *grads[1]))


@pytest.mark.parametrize("flat", [False, True])
def test_head_and_blocks_are_found_and_a_neutral_head_is_zero(flat):
    model, x = Binary(flat), pairs()[0]
    parts = anatomy(model, x[:2])
    assert parts.head == "head"
    assert parts.blocks
    assert anatomy(Pair(model), x[:2]).head is None, "which two logits alone do not give"
    assert torch.equal(forward(with_neutral_head(model, "head", {1}), x), torch.zeros(len(x), 2))


def test_both_forms_of_one_logit_and_two_logits_are_alike():
    forget, retain = purge.split(pairs(), classes=[1])
    flat = trained("one logit")
    both = [flat, purge.train(Binary(), pairs(), **RECIPE).model]
    assert digest(both[0]) == digest(both[1])
    assert len({digest(purge.unlearn(m, forget, retain, steps=8, progress=False).model) for m in both}) == 1
    metrics = [name for name in PANELS["quick"] if "retrained" not in name]
    one, two = (
        purge.audit(m, forget, retain, pairs(1), original=m, metrics=metrics, check=False, progress=False)
        for m in (flat, Pair(flat))
    )
    for name, value in two.values.items():
        if value.value is not None:
            assert one[name].value == pytest.approx(value.value, abs=1e-6), name


REFUSED = {  # there is no row for each class
    "boundary-expand": "3 logits for boundary-expand",
    "fisher": "rows of weights for fisher",
    "fisher-large": "rows of weights for fisher",
    "trw": "rows of weights for trw",
    "convolution-transpose": "a convolution",
    "exact-head": "one logit for each class",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_method_works_with_one_logit_or_says_why_not(name):
    model, (forget, retain) = trained("one logit"), purge.split(pairs(), classes=[1])
    settings = {"test": pairs(1), "method": name, "progress": False, **QUICK.get(name, {})}
    settings |= {"alpha": 1.2} if name == "ssd" else {}
    if name in REFUSED:
        with pytest.raises(PurgeError, match=rf"^Expected .*{REFUSED[name]}.*\.$"):
            purge.unlearn(model, forget, retain, **settings)
    else:
        assert digest(purge.unlearn(model, forget, retain, **settings).model) != digest(model)


def test_other_meanings_of_one_logit_are_told(caplog):
    x, y = blobs()  # three classes
    zeros = torch.zeros_like(y)
    with pytest.raises(ModelError, match=r"^Expected a model with one output per class.*label 2\. Fix"):
        purge.train(Binary(), (x, y), epochs=1, progress=False)
    with pytest.raises(ModelError, match=r"^Expected labels 0 and 1 for one logit.*label 0 alone\. Fix"):
        purge.unlearn(Binary(), (x[:9], zeros[:9]), (x[9:], zeros[9:]), check=False, progress=False)
    with caplog.at_level(logging.WARNING, "purge"):
        purge.train(Binary(), (x, zeros), epochs=1, progress=False)
    assert "every label is 0" in caplog.text


# -- LoRA: only adapters, and modules that are saved whole, move ------------------------------------------

SKIPPED = {"convolution-transpose", "boundary-shrink", "unsir", "amun", "mu-mis"}  # refuse a dict of inputs
AT_ONCE = {"purge", "retrain", "bad-teacher", "boundary-expand"}


def assert_only_adapters_moved(before: nn.Module, after: nn.Module) -> None:
    own = dict(after.named_parameters())
    moved = {name for name, p in before.named_parameters() if not torch.equal(own[name], p)}
    assert moved
    assert all("lora_" in name or "modules_to_save" in name for name in moved)
    assert {n: p.dtype for n, p in before.named_parameters()} == {n: p.dtype for n, p in own.items()}


@cache
def text() -> tuple[nn.Module, Any, Any]:
    data, recipe = sentences(120), {"lr": 0.1, "batch_size": 32, "progress": False}
    base = purge.train(bert(), data, epochs=12, **recipe).model
    return purge.train(lora(base), data, epochs=6, **recipe).model, *purge.split(data, classes=[0])


@pytest.mark.parametrize(
    "name",
    [n if n in AT_ONCE else pytest.param(n, marks=pytest.mark.slow) for n in NAMES if n not in SKIPPED],
)
def test_every_method_leaves_the_model_below_alone(name):
    model, forget, retain = text()
    before, settings = digest(model), {**QUICK.get(name, {}), **({"samples": 10} if "fisher" in name else {})}
    settings |= {"method": name, "check": False, "progress": False}
    result = purge.unlearn(model, forget, retain, test=sentences(40, seed=1), **settings)
    assert digest(model) == before
    assert_only_adapters_moved(model, result.model)


def test_adapters_are_mixed_with_fresh_weights_and_may_lie_on_half_precision():
    """A common case: what lies below in bf16, bit by bit the same afterwards, and adapters in float32."""
    model = lora(bert().bfloat16())
    forget, retain = purge.split(sentences(60), classes=[0])
    result = purge.unlearn(model, forget, retain, steps=4, fresh_share=0.5, check=False, progress=False)
    assert_only_adapters_moved(model, result.model)


def test_drawn_anew_adapters_begin_without_a_say():
    """B = 0: an untrained adapter leaves the model as it was below, but for a head of its own."""
    base, (x, _) = bert().eval(), sentences(8)
    model = lora(copy.deepcopy(base), modules_to_save=None)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_" in name:
                p.normal_()
    answers = []
    for one in (reinitialised(model), base, model):
        with evaluating(one):
            answers.append(forward(one, x))
    torch.testing.assert_close(answers[0], answers[1])
    assert not torch.allclose(answers[2], answers[1], atol=1e-3)


# -- Lightning: modules are models, their trainer stays with the caller -----------------------------------

QUIET = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False,
         "enable_model_summary": False, "accelerator": "cpu"}  # fmt: skip


def test_a_lightning_module_is_unlearned_and_trained_again():
    import lightning

    class Blobs(lightning.LightningModule):
        def __init__(self, width=16, lr=0.01):
            super().__init__()
            self.save_hyperparameters()
            self.example_input_array = torch.zeros(2, 6)
            self.body = nn.Sequential(nn.Linear(6, width), nn.BatchNorm1d(width), nn.ReLU())
            self.head = nn.Linear(width, 3)

        def forward(self, x):
            return self.head(self.body(x))

        def training_step(self, batch, _):
            loss = F.cross_entropy(self(batch[0]), batch[1])
            self.log("loss", loss)
            return loss

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), self.hparams.lr)

    def fit(model, data, epochs):
        trainer = lightning.Trainer(max_epochs=epochs, log_every_n_steps=1, **QUIET)
        trainer.fit(model, torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*data), batch_size=32))
        return trainer

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.manual_seed(0)
    trainer = fit(model := Blobs(), blobs(), 20)
    before, (forget, retain) = digest(model), purge.split(blobs(), classes=[0])
    result = purge.unlearn(model, forget, retain, progress=False)
    report = purge.audit(result, forget, retain, blobs(seed=1), original=model, progress=False,
                         metrics=["fa_test", "ra", "zrf", "bn_recal", "relearn_few"])  # fmt: skip
    assert report["fa_test"].value == 0
    assert report["ra"].value >= 0.95
    assert all(value.value is not None for value in report.values.values())
    assert digest(model) == before
    assert model.trainer is trainer, "the caller's module keeps its trainer"
    new = result.model
    assert type(new) is Blobs
    assert new._trainer is None, "the copy does not drag it along"
    assert dict(new.hparams) == dict(model.hparams) == {"width": 16, "lr": 0.01}
    unlearned = digest(new)
    fit(new, retain, 1)
    assert digest(new) != unlearned
