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
from purge.metrics.likelihood import (
    margins,
)
from purge.metrics.shadow import Shadows
from purge.models.checkpoint import digest
from tests.metrics.shadows import CPU, FINE, QUICK, noise, request
from tests.nets import plain_mlp, small_conv


def made(tmp_path, split=None, *, model=None, seed=0, **changes) -> Ensemble:
    shadows = Shadows(**{"number": 6, "recipe": QUICK, "cache": tmp_path, **changes})
    split, model = split or request(), model or plain_mlp(0)
    return Ensemble(shadows, model, split, device=CPU, seed=seed, progress=False)


def test_every_target_is_in_half_of_the_models(tmp_path):
    small, large, other = made(tmp_path), made(tmp_path, number=10), made(tmp_path, seed=1)
    assert small.inside.shape == (6, small.targets)
    assert (small.inside.sum(0) == 3).all()
    sizes = set(small.inside.sum(1))
    assert sizes == {small.targets // 2, small.targets - small.targets // 2}
    assert (large.inside[:6] == small.inside).all()  # so that existing models can be used
    assert (other.inside != small.inside).any()
    assert len(np.unique(large.inside, axis=0)) == 10


def test_targets_are_the_forget_set_and_as_many_unseen_samples_of_its_classes(tmp_path, monkeypatch):
    x, y = noise(12, 0)
    split = request(forget=(x, y.clamp(max=1)), test=noise(90, 2))
    all_of_it = made(tmp_path, split)
    assert all_of_it.forget.tolist() == list(range(12))
    assert len(all_of_it.unseen) == len(set(all_of_it.unseen.tolist())) == 12
    assert (split.test.labels[all_of_it.unseen] < 2).all()
    assert len(all_of_it.population) == 90
    assert made(tmp_path, request(test=None)).targets == 11
    monkeypatch.setattr(ensemble, "MOST", 5)
    some = made(tmp_path, split)
    assert len(some.forget) == len(some.unseen) == len(some.population) == 5
    assert made(tmp_path, split, seed=1).forget.tolist() != some.forget.tolist()


@pytest.mark.parametrize("together", [True, False])
def test_a_shadow_model_has_seen_the_retain_set_and_its_half(tmp_path, together):
    """The cached weights are those of a training on exactly these samples, φ is that of these weights."""
    split = request()
    shadows = made(tmp_path, split, together=together)
    found = shadows.signals("original")
    x = torch.cat([s.take(at)[0] for s, at in ((split.forget, shadows.forget), (split.test, shadows.unseen))])
    y = torch.cat([split.forget.labels[shadows.forget], split.test.labels[shadows.unseen]])
    files = sorted(tmp_path.glob("*/original-*.safetensors"))
    assert len(files) == 6
    for i, file in enumerate(files):
        weights = {k[2:]: v for k, v in load_file(file).items() if k.startswith("w.")}
        model = plain_mlp(0)
        model.load_state_dict(weights)
        with torch.no_grad():
            z = model.eval()(x).double().numpy()
        assert found[i, : shadows.targets] == pytest.approx(margins(z, y.numpy()))
        own = torch.from_numpy(shadows.inside[i])
        pair = (
            torch.cat([split.retain.take(torch.arange(40))[0], x[own]]),
            torch.cat([split.retain.labels, y[own]]),
        )
        again = shadows._drawn("original", i)
        fit([again], [as_samples(pair, CPU, "d")], QUICK, seeds=[shadows._seed("original", i)])
        for name, value in again.state_dict().items():
            assert torch.allclose(value, weights[name], atol=1e-5), name
    retrained = shadows._drawn("retrained", 2)
    fit([retrained], [split.retain], QUICK, seeds=[shadows._seed("retrained", 2)])
    with torch.no_grad():
        z = retrained(x).double().numpy()
    assert shadows.signals("retrained")[2, : shadows.targets] == pytest.approx(
        margins(z, y.numpy()), abs=1e-4
    )


def test_models_start_from_their_own_weights(tmp_path):
    shadows = made(tmp_path, model=plain_mlp(3))
    first, again, second = (shadows._drawn("original", i) for i in (0, 0, 1))
    assert digest(first) == digest(again) != digest(second)
    assert digest(first) != digest(shadows._drawn("retrained", 0))
    assert digest(first) == digest(
        made(tmp_path, model=plain_mlp(4))._drawn("original", 0)
    )  # whichever model is audited
    partly = plain_mlp(3)
    partly[0].requires_grad_(False)
    kept = made(tmp_path, model=partly)._drawn("original", 0)
    assert torch.equal(kept[0].weight, partly[0].weight)
    assert not torch.equal(kept[2].weight, partly[2].weight)
    assert [p.requires_grad for p in kept.parameters()] == [False, False, True, True]
    deployed = made(tmp_path, model=plain_mlp(3).requires_grad_(False))._drawn("original", 0)
    assert digest(deployed) == digest(first)  # frozen for use, not for training
    assert all(p.requires_grad for p in deployed.parameters())


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
    drawn = [made(tmp_path, model=Free(0), fresh=Free(1))._drawn("original", i) for i in (0, 1)]
    assert all(torch.equal(m.weight, Free(1).weight) for m in drawn)
    assert not torch.equal(drawn[0].body.weight, drawn[1].body.weight)
    assert made(tmp_path, model=Free(0), fresh=Free(1)).signals("original").shape[0] == 6


@dataclasses.dataclass(frozen=True)
class Watched(FineTune):
    """Fine-tuning that remembers what it was asked to forget."""

    def run(self, model, split, run) -> None:
        asked.append((split, digest(model), run.seed, model.training, run.fresh(model)))
        super().run(model, split, run)


asked: list[tuple] = []


def test_shadow_models_unlearn_their_own_half(tmp_path):
    asked.clear()
    x, y = noise(40, 1)
    split = request(forget=(noise(11, 0)[0], torch.zeros(11, dtype=torch.long)), retain=(x, y.clamp(min=1)))
    shadows = made(tmp_path, split, method=Watched(epochs=1, batch_size=32))
    unlearned = shadows.signals("unlearned")
    rows = {
        tuple(v.tolist()): ("forget", i) for i, v in enumerate(split.forget.take(torch.arange(11))[0])
    } | {tuple(v.tolist()): ("test", i) for i, v in enumerate(split.test.take(torch.arange(30))[0])}
    targets = [("forget", i) for i in shadows.forget.tolist()] + [
        ("test", i) for i in shadows.unseen.tolist()
    ]
    for i, (own, weights, _, training, _) in enumerate(asked):
        given = [rows[tuple(v.tolist())] for v in own.forget.take(torch.arange(len(own.forget)))[0]]
        assert given == [t for t, inside in zip(targets, shadows.inside[i], strict=True) if inside]
        assert own.retain is split.retain
        left = [rows[tuple(v.tolist())] for v in own.test.take(torch.arange(len(own.test)))[0]]
        assert left == [("test", k) for k in range(30) if ("test", k) not in given]  # not seen by this one
        assert own.forget_classes == {0}
        original = plain_mlp(0)
        kept = load_file(next(tmp_path.glob(f"*/original-{i:03}.safetensors")))
        original.load_state_dict({k[2:]: v for k, v in kept.items() if k.startswith("w.")})
        assert weights == digest(original)
        assert not training
    assert len(asked) == len({seed for *_, seed, _, _ in asked}) == 6
    assert len({digest(fresh) for *_, fresh in asked}) == 6
    assert not np.allclose(unlearned, shadows.signals("original"))


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
    assert len(files) == 18
    again = made(tmp_path, model=plain_mlp(9), method=FINE)  # the audit of another model
    for kind, phi in found.items():
        assert np.array_equal(again.signals(kind), phi)
    assert trainings == {"together": 12, "unlearned": 6}
    assert {f: f.stat().st_mtime_ns for f in tmp_path.rglob("*.safetensors")} == files

    made(tmp_path, method=FineTune(epochs=2, batch_size=32)).signals("unlearned")  # another method
    assert trainings == {"together": 12, "unlearned": 12}
    more = made(tmp_path, method=FINE, number=8).signals("unlearned")
    assert np.array_equal(more[:6], found["unlearned"])
    assert trainings == {"together": 14, "unlearned": 14}


CHANGES = {
    "recipe": {"recipe": dataclasses.replace(QUICK, lr=0.04)},
    "seed": {"seed": 1},
    "architecture": {"model": plain_mlp(0, width=17)},
    "layers of the same weights": {"model": nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))},
    "a retained sample": {
        "split": request(retain=(noise(40, 1)[0] + 1e-3 * torch.eye(40, 6), noise(40, 1)[1]))
    },
    "a label": {"split": request(forget=(noise(11, 0)[0], noise(11, 3)[1]))},
    "test data": {"split": request(test=noise(29, 2))},
}


@pytest.mark.parametrize("what", CHANGES)
def test_another_training_has_its_own_models(tmp_path, trainings, what):
    made(tmp_path).signals("original")
    made(tmp_path, **CHANGES[what]).signals("original")
    assert trainings["together"] + trainings["alone"] == 12
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("which", [0, 1])
def test_another_version_of_purge_or_torch_has_its_own_models(tmp_path, trainings, monkeypatch, which):
    made(tmp_path).signals("original")
    versions = [purge.__version__, torch.__version__]
    assert list(ensemble.MADE_BY) == versions
    versions[which] = "99.0"
    monkeypatch.setattr(ensemble, "MADE_BY", tuple(versions))
    made(tmp_path).signals("original")
    assert trainings["together"] == 12
    assert len(list(tmp_path.iterdir())) == 2


def test_shadow_models_unlearn_at_the_precision_of_the_run(tmp_path, trainings):
    ensembles = [made(tmp_path, method=FINE, precision=p) for p in (None, "float32", "bf16")]
    found = [e.signals("unlearned") for e in ensembles]
    assert np.array_equal(found[0], found[1])  # what a CPU chooses
    assert trainings["unlearned"] == 12
    assert not np.array_equal(found[1], found[2])
    assert found[1] == pytest.approx(found[2], abs=0.3)
    first, split = ensembles[2], ensembles[2].split
    forget, left = first._pool.select(first._seen_by(0)), first._not_seen_by(0)
    parts = [s.take(torch.arange(len(s))) for s in (forget, split.retain, left)]
    original = plain_mlp(0)
    kept = load_file(next(tmp_path.glob("*/original-000.safetensors")))
    original.load_state_dict({k[2:]: v for k, v in kept.items() if k.startswith("w.")})
    run = purge.unlearn(original, *parts[:2], test=parts[2], method=FINE, seed=first._seed("unlearned", 0),
                        precision="bf16", progress=False)  # fmt: skip
    with torch.no_grad():
        z = run.model(split.forget.take(first.forget)[0]).double().numpy()
    assert found[2][0, :11] == pytest.approx(margins(z, split.forget.labels.numpy()), abs=1e-5)


def test_an_audit_of_a_result_unlearns_its_shadow_models_at_its_precision(tmp_path, monkeypatch):
    asked = []
    plain = ensemble.Run
    monkeypatch.setattr(ensemble, "Run", lambda *a, **k: (asked.append(a[2].precision), plain(*a, **k))[1])
    forget, retain, test = noise(11, 0), noise(40, 1), noise(30, 2)
    run = purge.unlearn(plain_mlp(0), forget, retain, method=FINE, precision="bf16", progress=False)
    shadows = Shadows(number=4, recipe=QUICK, method=FINE, cache=tmp_path)
    purge.audit(run, forget, retain, test, metrics="u_lira", shadows=shadows, progress=False)
    assert asked == ["bf16"] * 4


def test_a_kill_loses_only_the_unfinished_model(tmp_path, trainings, monkeypatch):
    whole = made(tmp_path / "whole", together=False).signals("original")
    trainings.clear()
    real = ensemble.fit

    def killed(*args, **kwargs):
        if trainings["alone"] == 4:
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(ensemble, "fit", killed)
        with pytest.raises(KeyboardInterrupt):
            made(tmp_path / "cut", together=False).signals("original")
    assert len(list((tmp_path / "cut").rglob("original-*.safetensors"))) == 4
    assert np.array_equal(made(tmp_path / "cut", together=False).signals("original"), whole)
    assert trainings["alone"] == 4 + 2


def test_a_damaged_file_is_made_again(tmp_path, trainings):
    found = made(tmp_path).signals("original")
    file = next(tmp_path.rglob("original-003.safetensors"))
    file.write_bytes(file.read_bytes()[:-50])
    assert made(tmp_path).signals("original") == pytest.approx(found, abs=1e-4)
    assert trainings == {"together": 6, "alone": 1}


@pytest.mark.parametrize("tensor", ["phi", "w.0.weight"])
def test_a_file_with_other_numbers_is_made_again(tmp_path, trainings, tensor):
    """Of φ, or of the weights that unlearning starts from."""
    found = {kind: made(tmp_path, method=FINE).signals(kind) for kind in ("original", "unlearned")}
    for file in tmp_path.rglob("unlearned-*"):
        file.unlink()
    file = next(tmp_path.rglob("original-003.safetensors"))
    with safe_open(file, "pt") as opened:
        about = opened.metadata()
    kept = load_file(file)
    save_file({**kept, tensor: kept[tensor] + 1}, file, metadata=about)
    trainings.clear()
    again = made(tmp_path, method=FINE)
    for kind in ("original", "unlearned"):
        assert again.signals(kind) == pytest.approx(found[kind], abs=1e-3)
    assert trainings == {"alone": 1, "unlearned": 6}


def test_the_users_cache_is_the_default(tmp_path, monkeypatch):
    monkeypatch.setenv("PURGE_CACHE", str(tmp_path))
    made(None).signals("original")
    assert len(list(tmp_path.glob("shadows/*/original-*.safetensors"))) == 6


# -- how they are trained ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "calls"),
    [
        ({}, {"together": 6}),
        ({"together": False}, {"alone": 6}),
        ({"recipe": dataclasses.replace(QUICK, ema=0.9)}, {"together": 6}),
        ({"recipe": dataclasses.replace(QUICK, compile=True), "together": True}, {"alone": 6}),
    ],
)
def test_small_models_are_trained_together(tmp_path, trainings, changes, calls, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda model: model)
    made(tmp_path, **changes).signals("original")
    assert trainings == calls


class Stubborn(nn.Linear):
    """A network that branches on its input, which stacked models cannot."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * (1 if x.sum().item() > 0 else 2)


def test_a_network_that_cannot_be_stacked_is_trained_one_by_one(tmp_path, trainings):
    made(tmp_path, model=Stubborn(6, 3)).signals("original")
    assert trainings == {"together": 6, "alone": 6}
    with pytest.raises(ModelError, match="together"):
        made(tmp_path / "asked", model=Stubborn(6, 3), together=True).signals("original")


def test_images_are_augmented(tmp_path, digits):
    forget, retain = purge.split(digits.train.select(torch.arange(60)), fraction=0.2)
    images = Split(forget, retain, digits.test, 10, frozenset())
    found = [
        made(tmp_path, images, model=small_conv(0), recipe=dataclasses.replace(QUICK, augment=a)).signals(
            "original"
        )
        for a in ("none", "flip")
    ]
    assert not np.allclose(*found)
    with pytest.raises(MethodError, match="Images"):
        made(tmp_path, recipe=dataclasses.replace(QUICK, augment="flip"))
