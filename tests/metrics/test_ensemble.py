"""Shadow models: which samples each has seen, the cache, and how they are trained."""

from __future__ import annotations

import dataclasses
from collections import Counter

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

import purge
from purge.core.errors import MethodError, ModelError
from purge.data.accept import as_samples
from purge.data.split import Split
from purge.engine.trainer import fit
from purge.methods import FineTune
from purge.metrics import ensemble
from purge.metrics.ensemble import Ensemble
from purge.metrics.likelihood import margins
from purge.metrics.shadow import Shadows
from purge.models.checkpoint import digest
from tests.metrics.shadows import CPU, FINE, QUICK, noise, request
from tests.nets import plain_mlp, small_conv


def made(tmp_path, split=None, *, model=None, seed=0, precision=None, **changes) -> Ensemble:
    shadows = Shadows(**{"number": 6, "recipe": QUICK, "cache": tmp_path, **changes})
    split, model = split or request(), model or plain_mlp(0)
    return Ensemble(shadows, model, split, device=CPU, seed=seed, progress=False, precision=precision)


def original(tmp_path, i: int) -> nn.Module:
    """A shadow model as it lies in the cache."""
    model = plain_mlp(0)
    model.load_state_dict(load_file(next(tmp_path.glob(f"*/original-{i:03}-weights.safetensors"))))
    return model.eval()


def targets_of(split: Split, shadows: Ensemble) -> tuple[torch.Tensor, torch.Tensor]:
    parts = [(split.forget, shadows.forget), (split.test, shadows.unseen)]
    return torch.cat([s.take(at)[0] for s, at in parts]), torch.cat([s.labels[at] for s, at in parts])


def phi(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> np.ndarray:
    with torch.no_grad():
        return margins(model(x).double().numpy(), y.numpy())


# -- who has seen what -------------------------------------------------------------------------


def test_every_target_is_in_half_of_the_models(tmp_path):
    small, large, other = made(tmp_path), made(tmp_path, number=10), made(tmp_path, seed=1)
    assert small.inside.shape == (6, small.targets)
    assert (small.inside.sum(0) == 3).all()
    assert set(small.inside.sum(1)) == {small.targets // 2, small.targets - small.targets // 2}
    assert (large.inside[:6] == small.inside).all()  # so that existing models can be used
    assert (other.inside != small.inside).any()
    assert len(np.unique(large.inside, axis=0)) == 10


def test_targets_are_the_forget_set_and_as_many_unseen_samples_of_its_classes(tmp_path, monkeypatch):
    x, y = noise(12, 0)
    split = request(forget=(x, y.clamp(max=1)), test=noise(90, 2))
    whole = made(tmp_path, split)
    assert whole.forget.tolist() == list(range(12))
    assert len(whole.unseen) == len(set(whole.unseen.tolist())) == 12
    assert (split.test.labels[whole.unseen] < 2).all()
    assert len(whole.population) == 90
    assert made(tmp_path, request(test=None)).targets == 11
    monkeypatch.setattr(ensemble, "MOST", 5)
    some = made(tmp_path, split)
    assert len(some.forget) == len(some.unseen) == len(some.population) == 5
    assert made(tmp_path, split, seed=1).forget.tolist() != some.forget.tolist()


@pytest.mark.parametrize("small", [ensemble.SMALL, 0])
def test_a_shadow_model_has_seen_the_retain_set_and_its_half(tmp_path, small, monkeypatch):
    """The cached weights are those of a training on exactly these samples, φ is that of these weights."""
    monkeypatch.setattr(ensemble, "SMALL", small)
    split = request()
    shadows = made(tmp_path, split)
    found, (x, y) = shadows.signals("original"), targets_of(split, shadows)
    for i in range(6):
        model, own = original(tmp_path, i), torch.from_numpy(shadows.inside[i])
        assert found[i, : shadows.targets] == pytest.approx(phi(model, x, y))
        seen = torch.cat([split.retain.take(torch.arange(40))[0], x[own]])
        labels, again = torch.cat([split.retain.labels, y[own]]), shadows._drawn("original", i)
        fit([again], [as_samples((seen, labels), CPU, "d")], QUICK, seeds=[shadows._seed("original", i)])
        for name, value in again.state_dict().items():
            assert torch.allclose(value, model.state_dict()[name], atol=1e-5), name
    again = shadows._drawn("retrained", 2)
    fit([again], [split.retain], QUICK, seeds=[shadows._seed("retrained", 2)])
    assert shadows.signals("retrained")[2, : shadows.targets] == pytest.approx(phi(again, x, y), abs=1e-4)


def test_models_start_from_their_own_weights(tmp_path):
    shadows = made(tmp_path, model=plain_mlp(3))
    first, again, second = (digest(shadows._drawn("original", i)) for i in (0, 0, 1))
    assert first == again != second
    assert first != digest(shadows._drawn("retrained", 0))
    for another in (plain_mlp(4), plain_mlp(3).requires_grad_(False)):  # also one that is frozen for use
        drawn = made(tmp_path, model=another)._drawn("original", 0)
        assert digest(drawn) == first
        assert all(p.requires_grad for p in drawn.parameters())
    partly = plain_mlp(3)
    partly[0].requires_grad_(False)
    kept = made(tmp_path, model=partly)._drawn("original", 0)
    assert torch.equal(kept[0].weight, partly[0].weight)
    assert not torch.equal(kept[2].weight, partly[2].weight)
    assert [p.requires_grad for p in kept.parameters()] == [False, False, True, True]


class Free(nn.Module):
    """A network with a weight that belongs to no layer, so that it cannot be drawn anew."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.body, self.weight = nn.Linear(6, 8), nn.Parameter(torch.randn(8, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x).relu() @ self.weight


def test_fresh_supplies_the_weights_that_cannot_be_drawn(tmp_path):
    with pytest.raises(ModelError, match="fresh"):
        made(tmp_path, model=Free(0))
    fresh = made(tmp_path, model=Free(0), fresh=Free(1))
    drawn = [fresh._drawn("original", i) for i in (0, 1)]
    assert all(torch.equal(m.weight, Free(1).weight) for m in drawn)
    assert not torch.equal(drawn[0].body.weight, drawn[1].body.weight)
    assert fresh.signals("original").shape[0] == 6


# -- unlearning --------------------------------------------------------------------------------

asked: list[tuple] = []


@dataclasses.dataclass(frozen=True)
class Watched(FineTune):
    """Fine-tuning that remembers what it was asked to forget."""

    def run(self, model, split, run) -> None:
        asked.append((split, digest(model), model.training, run.seed, digest(run.fresh(model))))
        super().run(model, split, run)


def test_shadow_models_unlearn_their_own_half(tmp_path):
    asked.clear()
    x, y = noise(40, 1)
    split = request(forget=(noise(11, 0)[0], torch.zeros(11, dtype=torch.long)), retain=(x, y.clamp(min=1)))
    shadows = made(tmp_path, split, method=Watched(epochs=1, batch_size=32))
    unlearned, (x, _) = shadows.signals("unlearned"), targets_of(split, shadows)
    for i, (own, weights, training, _, _) in enumerate(asked):
        inside = torch.from_numpy(shadows.inside[i])
        assert torch.equal(own.forget.take(torch.arange(len(own.forget)))[0], x[inside])
        assert own.retain is split.retain
        seen = shadows.unseen[inside[len(shadows.forget) :]]  # the rest is new to this one
        left = torch.tensor([k for k in range(30) if k not in seen.tolist()])
        assert torch.equal(own.test.take(torch.arange(len(own.test)))[0], split.test.take(left)[0])
        assert own.forget_classes == {0}
        assert (weights, training) == (digest(original(tmp_path, i)), False)
    seeds, fresh = map(set, list(zip(*asked, strict=True))[3:])
    assert len(asked) == len(seeds) == len(fresh) == 6
    assert not np.allclose(unlearned, shadows.signals("original"))


def test_shadow_models_unlearn_at_the_precision_of_the_run(tmp_path, trainings, monkeypatch):
    ensembles = [made(tmp_path, method=FINE, precision=p) for p in (None, "float32", "bf16")]
    found = [e.signals("unlearned") for e in ensembles]
    assert np.array_equal(found[0], found[1])  # what a CPU chooses
    assert trainings["unlearned"] == 12
    assert found[1] == pytest.approx(found[2], abs=0.3)
    assert not np.array_equal(found[1], found[2])
    seen, plain = [], ensemble.Run
    monkeypatch.setattr(ensemble, "Run", lambda *a, **k: (seen.append(a[2].precision), plain(*a, **k))[1])
    forget, retain, test = noise(11, 0), noise(40, 1), noise(30, 2)
    run = purge.unlearn(plain_mlp(0), forget, retain, method=FINE, precision="bf16", progress=False)
    shadows = Shadows(number=4, recipe=QUICK, method=FINE, cache=tmp_path / "audit")
    purge.audit(run, forget, retain, test, metrics="u_lira", shadows=shadows, progress=False)
    assert seen == ["bf16"] * 4


# -- the cache ---------------------------------------------------------------------------------


@pytest.fixture
def trainings(monkeypatch) -> Counter:
    """Counts the models trained and unlearned so far."""
    done: Counter = Counter()
    train, run = ensemble.fit, ensemble.Run

    def trained(models, *args, **kwargs):
        done["together" if len(models) > 1 else "alone"] += len(models)
        return train(models, *args, **kwargs)

    def unlearned(*args, **kwargs):
        done["unlearned"] += 1
        return run(*args, **kwargs)

    monkeypatch.setattr(ensemble, "fit", trained)
    monkeypatch.setattr(ensemble, "Run", unlearned)
    return done


def test_models_in_the_cache_are_not_made_again(tmp_path, trainings):
    first = made(tmp_path, method=FINE)
    found = {kind: first.signals(kind) for kind in ("original", "unlearned", "retrained")}
    assert trainings == {"together": 12, "unlearned": 6}
    files = {f: f.stat().st_mtime_ns for f in tmp_path.rglob("*.safetensors")}
    assert len(files) == 24  # six of them weights
    again = made(tmp_path, model=plain_mlp(9), method=FINE)  # the audit of another model
    for kind, numbers in found.items():
        assert np.array_equal(again.signals(kind), numbers)
    assert {f: f.stat().st_mtime_ns for f in tmp_path.rglob("*.safetensors")} == files
    made(tmp_path, method=FineTune(epochs=2, batch_size=32)).signals("unlearned")  # another method
    assert trainings == {"together": 12, "unlearned": 12}
    more = made(tmp_path, method=FINE, number=8).signals("unlearned")
    assert np.array_equal(more[:6], found["unlearned"])
    assert trainings == {"together": 14, "unlearned": 14}


(X, Y), F = noise(40, 1), noise(11, 0)
CHANGES = {
    "recipe": {"recipe": dataclasses.replace(QUICK, lr=0.04)},
    "seed": {"seed": 1},
    "architecture": {"model": plain_mlp(0, width=17)},
    "layers of the same weights": {"model": nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))},
    "initial weights": {"fresh": plain_mlp(1)},
    "a retained sample": {"split": request(retain=(X + 1e-3 * torch.eye(40, 6), Y))},
    "a label": {"split": request(forget=(F[0], noise(11, 3)[1]))},
    "test data": {"split": request(test=noise(29, 2))},
    "version of purge": {},
    "version of torch": {},
}


@pytest.mark.parametrize("what", CHANGES)
def test_another_training_has_its_own_models(tmp_path, trainings, monkeypatch, what):
    made(tmp_path).signals("original")
    versions = {"version of purge": purge.__version__, "version of torch": str(torch.__version__)}
    assert list(ensemble.MADE_BY) == list(versions.values())
    if what in versions:
        monkeypatch.setattr(ensemble, "MADE_BY", tuple((versions | {what: "99.0"}).values()))
    made(tmp_path, **CHANGES[what]).signals("original")
    own = 1 if what == "initial weights" else 2  # layers are drawn anew all the same
    assert trainings["together"] + trainings["alone"] == 6 * own
    assert len(list(tmp_path.iterdir())) == own


def test_a_kill_loses_only_the_unfinished_model(tmp_path, trainings, monkeypatch):
    monkeypatch.setattr(ensemble, "SMALL", 0)  # one by one
    whole = made(tmp_path / "whole").signals("original")
    trainings.clear()
    real = ensemble.fit

    def killed(*args, **kwargs):
        if trainings["alone"] == 4:
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(ensemble, "fit", killed)
        with pytest.raises(KeyboardInterrupt):
            made(tmp_path / "cut").signals("original")
    assert len(list((tmp_path / "cut").rglob("original-???.safetensors"))) == 4
    assert np.array_equal(made(tmp_path / "cut").signals("original"), whole)
    assert trainings["alone"] == 4 + 2


@pytest.mark.parametrize("what", ["original-003", "original-003-weights"])
@pytest.mark.parametrize("damage", ["cut short", "other numbers"])
def test_a_damaged_file_is_made_again(tmp_path, trainings, what, damage):
    """Also one that can be read and has other numbers, of φ or of the weights that unlearning starts from."""
    found = {kind: made(tmp_path, method=FINE).signals(kind) for kind in ("original", "unlearned")}
    for file in tmp_path.rglob("unlearned-*"):
        file.unlink()
    file = next(tmp_path.rglob(f"{what}.safetensors"))
    if damage == "cut short":
        file.write_bytes(file.read_bytes()[:-50])
    else:
        with safe_open(file, "pt") as opened:
            about = opened.metadata()
        save_file({name: t + 1 for name, t in load_file(file).items()}, file, metadata=about)
    trainings.clear()
    again = made(tmp_path, method=FINE)
    for kind in ("original", "unlearned"):
        assert again.signals(kind) == pytest.approx(found[kind], abs=1e-3)
    assert trainings == {"alone": 1, "unlearned": 6}


# -- how they are trained ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("recipe", "small", "how"),
    [
        ({}, 10**6, "together"),
        ({}, 100, "alone"),
        ({"ema": 0.9}, 10**6, "together"),
        ({"compile": True}, 10**6, "alone"),
    ],
)
def test_small_models_are_trained_together(tmp_path, trainings, recipe, small, how, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda model: model)
    monkeypatch.setattr(ensemble, "SMALL", small)
    made(tmp_path, recipe=dataclasses.replace(QUICK, **recipe)).signals("original")
    assert trainings == {how: 6}


class Stubborn(nn.Linear):
    """A network that branches on its input, which stacked models cannot."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * (1 if x.sum().item() > 0 else 2)


def test_a_network_that_cannot_be_stacked_is_trained_one_by_one(tmp_path, trainings):
    made(tmp_path, model=Stubborn(6, 3)).signals("original")
    assert trainings == {"together": 6, "alone": 6}


def test_images_are_augmented(tmp_path, digits):
    forget, retain = purge.split(digits.train.select(torch.arange(60)), fraction=0.2)
    images = Split(forget, retain, digits.test, 10, frozenset())
    recipes = [dataclasses.replace(QUICK, augment=name) for name in ("none", "flip")]
    plain, flipped = (
        made(tmp_path, images, model=small_conv(0), recipe=r).signals("original") for r in recipes
    )
    assert not np.allclose(plain, flipped)
    with pytest.raises(MethodError, match="Images"):
        made(tmp_path, recipe=recipes[1])
