"""Models as they come: what the README promises works, and what cannot work is refused in one line.

ResNets, ViTs, MLPs and forms of data are in test_architectures.py, models by name in test_zoo.py, GPUs in
tests/engine/test_gpu.py.
"""

from __future__ import annotations

import copy
import sys
from collections import OrderedDict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.utils.parametrizations as norms
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import prune

import purge
from purge.core.errors import ModelError
from purge.models.checkpoint import digest
from purge.models.copies import reinitialised
from purge.models.wrappers import unwrapped
from tests.nets import blobs, small_mlp
from tests.refusals import assert_sentence

FEW = {"steps": 3, "progress": False}
OLD = pytest.mark.filterwarnings(  # of torch
    "ignore::FutureWarning", "ignore::DeprecationWarning", "ignore:torch.quantize_per_tensor"
)  # fmt: skip


def compiled(model: nn.Module) -> Any:
    return torch.compile(model, backend="eager")


def called(model: nn.Module) -> nn.Module:
    model(torch.zeros(4, 6))
    return model


def changed(model: nn.Module, change: Any) -> nn.Module:
    model = copy.deepcopy(model)
    change(model)
    return model


# -- wrappers ----------------------------------------------------------------------------------------

WRAPPED = {
    "compiled": lambda m: compiled(m),
    "compiled and used": lambda m: called(compiled(copy.deepcopy(m).eval())),
    "compiled in place": lambda m: changed(m, lambda c: (c.eval().compile(backend="eager"), called(c))),
    "compiled within": lambda m: nn.Sequential(OrderedDict(  # the layers keep their names
        (name, compiled(child) if name == "3" else child) for name, child in m.named_children())),
    "DataParallel": lambda m: nn.DataParallel(m),
    "compiled DataParallel": lambda m: compiled(nn.DataParallel(m)),
}  # fmt: skip


@pytest.mark.parametrize("kind", WRAPPED)
def test_a_wrapped_model_gives_what_the_plain_one_gives(kind, toy):
    model, forget, retain, test = toy
    wrapped = WRAPPED[kind](model)
    before = digest(wrapped)
    plain, ours = (purge.unlearn(m, forget, retain, **FEW) for m in (model, wrapped))
    assert type(ours.model) is nn.Sequential
    assert digest(ours.model) == digest(plain.model) != digest(model)
    assert ours.info["original_digest"] == digest(model)
    settings = {"metrics": "quick", "progress": False}
    one, two = (
        purge.audit(ours.model, forget, retain, test, original=m, **settings) for m in (model, wrapped)
    )
    assert (one.values, one.original) == (two.values, two.original)
    assert one.info["digests"] == two.info["digests"]
    of_wrapped = purge.audit(wrapped, forget, retain, test, **settings)
    assert of_wrapped.info["digests"]["audited"] == digest(model)
    assert type(purge.train(wrapped, retain, epochs=1, progress=False).model) is nn.Sequential
    assert digest(wrapped) == before, "the caller's model is never touched"


def test_a_distributed_model_is_unwrapped(toy, tmp_path):
    model = toy[0]
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        assert unwrapped(DistributedDataParallel(model)) is unwrapped(model) is model
    finally:
        distributed.destroy_process_group()


# -- other kinds of models that work -----------------------------------------------------------------


class Tied(nn.Module):
    """Two layers share one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.second(torch.relu(self.first(x)))))


class Optional(nn.Module):
    """Arguments that may be left out, and an output in some form."""

    def __init__(self, form: Any = lambda z: z) -> None:
        super().__init__()
        self.body, self.form = small_mlp(), form

    def forward(self, x: Tensor, mask: Tensor | None = None, *, features: bool = False) -> Any:
        assert mask is None
        return self.form(self.body(x) if not features else x)


class Output(dict):
    """A dict whose keys are attributes too, as Hugging Face returns it."""

    __getattr__ = dict.__getitem__


MODELS = {
    "returns a tensor": lambda: Optional(),
    "returns a tuple": lambda: Optional(lambda z: (z, None)),
    "returns a dict": lambda: Optional(lambda z: {"loss": None, "logits": z}),
    "returns an object": lambda: Optional(lambda z: SimpleNamespace(loss=None, logits=z)),
    "returns a dict with attributes": lambda: Optional(lambda z: Output(logits=z)),
    "traced by fx": lambda: torch.fx.symbolic_trace(small_mlp()),
    "weight_norm": lambda: changed(small_mlp(), lambda m: norms.weight_norm(m[3])),
    "spectral_norm": lambda: changed(small_mlp(), lambda m: norms.spectral_norm(m[3])),
    "orthogonal": lambda: changed(small_mlp(), lambda m: norms.orthogonal(m[3])),
    "tied weights": Tied,
    "partly frozen": lambda: changed(small_mlp(), lambda m: m[0].requires_grad_(False)),
}


@pytest.mark.parametrize("kind", MODELS)
def test_a_model_as_it_comes_forgets_and_is_audited(kind):
    model = MODELS[kind]()
    forget, retain = purge.split(blobs(), classes=[0])
    before = digest(model)
    for method in ({"method": "purge", "steps": 3}, {"method": "purge-paper", "epochs": 1}):
        result = purge.unlearn(model, forget, retain, check=False, progress=False, **method)
        assert type(result.model) is type(model) or kind == "traced by fx"
        assert digest(result.model) != before
        new = dict(result.model.named_parameters())
        assert all(torch.equal(new[n], p) for n, p in model.named_parameters() if not p.requires_grad)
        assert [*new] == [n for n, _ in model.named_parameters()], "tied weights stay tied"
    report = purge.audit(
        result.model, forget, retain, blobs(seed=1), original=model, check=False, progress=False,
        metrics=["quick", "noise", "feature_cosine_original"],
    )  # fmt: skip
    assert report["ra"].value is not None
    assert report["noise.1pct"].value is not None
    assert digest(model) == before


# -- weights that are drawn anew --------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["weight_norm", "spectral_norm", "orthogonal"])
def test_a_computed_weight_is_never_taken_for_a_fresh_one(kind):
    """Its layer would draw what it computes, and what it is computed from would still know everything."""
    model = MODELS[kind]()
    forget, retain = purge.split(blobs(), classes=[0])
    with pytest.raises(ModelError) as caught:
        purge.unlearn(model, forget, retain, method="retrain", epochs=1, check=False, progress=False)
    assert_sentence(str(caught.value), "pass fresh=")
    partly = reinitialised(model, partly=True).state_dict()
    same = {name for name, t in model.state_dict().items() if t.numel() > 1 and torch.equal(t, partly[name])}
    assert all(bool(t.isfinite().all()) for t in partly.values())
    assert any(name.startswith("3.") for name in same), "they keep what they had"
    assert "0.weight" not in same
    assert "5.weight" not in same
    purge.unlearn(model, forget, retain, method="retrain", epochs=1, check=False, progress=False,
                  fresh=MODELS[kind]())  # fmt: skip


class Half(nn.Linear):
    """A layer that draws some of its weights."""

    def __init__(self) -> None:
        super().__init__(6, 3)
        self.scale = nn.Parameter(torch.full((3,), 2.0))


def test_a_layer_that_draws_some_of_its_weights_is_not_fresh():
    model = nn.Sequential(Half())
    with pytest.raises(ModelError, match=r"0\.scale, which cannot"):
        reinitialised(model)
    assert torch.equal(reinitialised(model, partly=True)[0].scale, model[0].scale)


# -- what cannot work ---------------------------------------------------------------------------------


class Exits(nn.Module):
    """A model that ends the program."""

    def __init__(self, after: int = 0) -> None:
        super().__init__()
        self.body, self.left = small_mlp(), after

    def forward(self, x: Tensor) -> Tensor:
        if self.left == 0:
            sys.exit(0)
        self.left -= 1
        return self.body(x)


def exported() -> Any:
    return torch.export.export(small_mlp().eval(), (torch.zeros(4, 6),))


REFUSED = {
    "scripted": (lambda: torch.jit.script(small_mlp()), "got TorchScript. Fix: pass the nn.Module"),
    "traced": (lambda: torch.jit.trace(small_mlp().eval(), torch.zeros(4, 6)), "got TorchScript."),
    "scripted within": (lambda: nn.Sequential(torch.jit.script(small_mlp())), "got TorchScript in 0."),
    "quantised": (lambda: torch.ao.quantization.quantize_dynamic(small_mlp(), {nn.Linear}), "quantised"),
    "exported": (exported, "got ExportedProgram"),
    "old weight_norm": (
        lambda: called(changed(small_mlp(), lambda m: nn.utils.weight_norm(m[3]))), "parametrizations"),
    "pruned": (lambda: called(changed(small_mlp(), lambda m: prune.l1_unstructured(m[3], "weight", 0.2))),
               "prune.remove after pruning"),
    "exits": (Exits, "got a call of sys.exit(0) in its forward"),
    "exits later": (lambda: Exits(after=4), "got a call of sys.exit(0) in its forward"),
}  # fmt: skip


@OLD
@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_work_is_refused_in_one_line(kind, toy, tmp_path):
    _, forget, retain, test = toy
    make, words = REFUSED[kind]
    doors = {
        "unlearn": lambda m: purge.unlearn(m, forget, retain, check=False, out=tmp_path / "run", **FEW),
        "audit": lambda m: purge.audit(m, forget, retain, test, metrics="standard", progress=False),
        "train": lambda m: purge.train(m, retain, epochs=3, progress=False, out=tmp_path / "run"),
        "original": lambda m: purge.audit(
            small_mlp(), forget, retain, test, original=m, metrics="standard", check=False, progress=False),
    }  # fmt: skip
    for door in doors.values():
        with pytest.raises(ModelError) as caught:
            door(make())
        assert_sentence(str(caught.value), words)
    assert not (tmp_path / "run" / "run.json").exists()
