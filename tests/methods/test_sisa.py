"""SISA: after a deletion the model is, bit for bit, the one trained without the samples."""

from __future__ import annotations

import copy
import json
import math
from collections import Counter

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import purge
from purge.core.errors import DataError, FileError, MethodError, ModelError, RunError
from purge.data.accept import as_samples
from purge.data.identity import identities
from purge.data.images import Images
from purge.data.split import split
from purge.engine.trainer import Recipe
from purge.methods import sisa_model as module
from purge.methods.sisa import Sisa
from purge.methods.sisa_model import SisaModel, train_sisa
from purge.methods.sisa_plan import ShardPlan, mixed
from purge.models.checkpoint import digest
from tests.nets import blobs
from tests.properties import (
    assert_caller_untouched,
    assert_nothing_left_when_it_raises,
    assert_same_seed_same_model,
    facts,
)

RECIPE = Recipe(epochs=3, lr=0.05, batch_size=8)
SHARDS, SLICES = 3, 2


def net(seed=0):
    """With BatchNorm and dropout, which keep a state and draw random numbers while training."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3)
    )  # fmt: skip


def pictures(n=60):
    g = torch.Generator().manual_seed(3)
    pixels = torch.randint(0, 256, (n, 1, 4, 4), generator=g, dtype=torch.uint8)
    return Images(pixels, torch.arange(n) % 3, names=("a", "b", "c"), ids=torch.arange(n) * 7 + 100)


def picture_net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))


def train(data, model=None, **changes):
    plan = ShardPlan(**{"shards": SHARDS, "slices": SLICES, "recipe": RECIPE, **changes})
    return train_sisa(model or net(), data, plan, progress=False)


def forget(model, gone, kept, **changes):
    return purge.unlearn(model, gone, kept, method=Sisa(), progress=False, **changes)


def samples(data):
    return data if isinstance(data, Images) else as_samples(data, torch.device("cpu"), "data")


def places(model, data):
    return [t.tolist() for t in model.plan.places(identities(samples(data)))]


def in_place(model, data, shard, part, count=2):
    """Positions of some samples of one shard and slice."""
    found = [i for i, place in enumerate(zip(*places(model, data), strict=True)) if place == (shard, part)]
    return found[:count]


@pytest.fixture(scope="module")
def trained():
    return train(blobs())


@pytest.fixture(scope="module")
def trained_on_pictures():
    return train(pictures(), picture_net(), recipe=Recipe(epochs=3, batch_size=8, augment="crop-flip"))


def same(a, b):
    """Weights, checkpoints and what is remembered."""
    assert digest(a) == digest(b)
    for ours, theirs in zip(a.checkpoints, b.checkpoints, strict=True):
        for one, two in zip(ours, theirs, strict=True):
            assert one.keys() == two.keys()
            assert all(torch.equal(one[k], two[k]) for k in one)
    assert torch.equal(a.ids, b.ids)
    assert torch.equal(a.labels, b.labels)
    assert a.trained == b.trained == digest(a)


# -- the claim --------------------------------------------------------------------------------


@pytest.mark.parametrize("part", range(SLICES))
@pytest.mark.parametrize("shard", [0, 2])
def test_after_deleting_samples_the_model_is_the_one_trained_without_them(trained, shard, part):
    data = blobs()
    gone, kept = split(data, indices=in_place(trained, data, shard, part))
    result = forget(trained, gone, kept)
    without = train(kept)
    same(result.model, without)
    assert digest(result.model) != digest(trained)
    for k in range(SHARDS):
        assert (digest(result.model.shards[k]) == digest(trained.shards[k])) == (k != shard)


@pytest.mark.parametrize("how", ["samples", "class"])
def test_the_same_with_augmented_images(trained_on_pictures, how):
    data, model = pictures(), trained_on_pictures
    request = {"classes": [2]} if how == "class" else {"indices": in_place(model, data, 1, 1)}
    gone, kept = split(data, **request)
    without = train(kept, picture_net(), recipe=model.plan.recipe)
    same(forget(model, gone, kept).model, without)


def test_one_deletion_after_another_and_both_at_once(trained):
    data = blobs()
    first, then = in_place(trained, data, 0, 1), in_place(trained, data, 1, 0)
    kept = split(data, indices=first)[1]
    once = forget(trained, split(data, indices=first)[0], kept).model
    rest = split(data, indices=[*first, *then])[1]
    twice = forget(once, split(data, indices=then)[0], rest).model
    same(twice, forget(trained, split(data, indices=[*first, *then])[0], rest).model)
    same(twice, train(rest))


def test_only_affected_shards_are_trained_from_the_first_affected_slice(trained, monkeypatch):
    data, calls = blobs(), []
    real = module.fit

    def counted(models, samples, recipe, context, **rest):
        calls.append((len(samples[0]), recipe.epochs))
        return real(models, samples, recipe, context, **rest)

    monkeypatch.setattr(module, "fit", counted)
    late = in_place(trained, data, 1, 1, 1)
    result = forget(trained, *split(data, indices=late))
    of_shard = Counter(places(trained, data)[0])
    assert calls == [(of_shard[1] - 1, trained.plan.epochs[1])], "slice 1 of shard 1 alone"
    assert result.model.retrained == {1: trained.plan.epochs[1]}
    assert [row["shard"] for row in result.history] == [None] + [1] * trained.plan.epochs[1]
    assert {row["slice"] for row in result.history[1:]} == {1}
    assert result.steps == trained.plan.epochs[1]
    calls.clear()
    early = in_place(trained, data, 1, 0, 1)
    result = forget(trained, *split(data, indices=[*early, *late]))
    assert [epochs for _, epochs in calls] == trained.plan.epochs, "all slices of shard 1"
    assert result.model.retrained == {1: sum(trained.plan.epochs)}


# -- against the formulas ---------------------------------------------------------------------

WORD = 2**64 - 1


def plain_hash(*parts):
    h = 0
    for part in parts:
        h = ((h ^ (part & WORD)) + 0x9E3779B97F4A7C15) & WORD
        h = ((h ^ (h >> 30)) * 0xBF58476D1CE4E5B9) & WORD
        h = ((h ^ (h >> 27)) * 0x94D049BB133111EB) & WORD
        h ^= h >> 31
    return h


def test_hash_places_and_order_in_plain_python():
    ids = torch.tensor([0, 1, 5, -3, 2**62, -(2**63)])
    plan = ShardPlan(4, 3, 9, "mean", Recipe(epochs=4))
    shard, part = plan.places(ids)
    assert shard.tolist() == [plain_hash(9, 0, i) % 4 for i in ids.tolist()]
    assert part.tolist() == [plain_hash(9, 1, i) % 3 for i in ids.tolist()]
    keys = [plain_hash(9, 2, 1, 7, i) for i in ids.tolist()]
    assert plan.order(ids, 1, 3, 4).tolist() == sorted(range(len(ids)), key=keys.__getitem__)
    assert int(mixed(3, 4)[0]) == plain_hash(3, 4)
    places = list(zip(shard.tolist(), part.tolist(), strict=True))
    for k in range(4):
        for s in range(3):
            assert plan.rows(ids, k, s).tolist() == [
                i for i, (a, b) in enumerate(places) if a == k and b <= s
            ]


@pytest.mark.parametrize(("slices", "epochs"), [(1, 7), (2, 3), (4, 10), (5, 20), (9, 5), (7, 13)])
def test_a_sample_is_seen_as_often_as_without_slices(slices, epochs):
    plan = ShardPlan(1, slices, 0, "mean", Recipe(epochs=epochs))
    e = 2 * slices / (slices + 1) * epochs / slices
    expected = [int((s + 1) * e + 1e-9) - int(s * e + 1e-9) for s in range(slices)]
    assert plan.epochs == expected
    visits = sum(n * (s + 1) / slices for s, n in enumerate(plan.epochs))  # in passes over the shard
    assert abs(visits - epochs) <= 1
    assert min(plan.epochs) >= 1


def test_votes():
    class Says(nn.Module):
        def __init__(self, *p):
            super().__init__()
            self.z = nn.Parameter(torch.tensor(p).log())

        def forward(self, x):
            return self.z.expand(len(x), -1)

    def answer(vote, *p):
        return SisaModel([Says(*q) for q in p], ShardPlan(len(p), 1, 0, vote, Recipe()))(torch.zeros(2, 1))

    said = (0.9, 0.1, 0.0001), (0.4, 0.5, 0.1), (0.4, 0.5, 0.1)
    said = [tuple(v / sum(q) for v in q) for q in said]
    mean = torch.tensor(said).mean(0)
    torch.testing.assert_close(answer("mean", *said)[0].exp(), mean)
    assert int(answer("mean", *said)[0].argmax()) == 0
    majority = answer("majority", *said)[0].exp()
    torch.testing.assert_close(majority, (torch.tensor([1 / 3, 2 / 3, 0]) + mean / 6) / (1 + 1 / 6))
    assert int(majority.argmax()) == 1
    tie = answer("majority", (0.9, 0.1), (0.4, 0.6))
    assert tie[0].argmax() == 0, "the mean decides"
    sure = answer("majority", (1.0, 0.0), (1.0, 0.0))
    assert sure[0, 0].exp() == 1
    tie.sum().backward()  # other methods need a gradient


# -- what assignment and weights depend on ----------------------------------------------------


def test_neither_position_nor_order_of_the_data_matters(trained):
    x, y = blobs()
    shuffled = torch.randperm(len(x), generator=torch.Generator().manual_seed(1))
    same(train((x[shuffled], y[shuffled])), trained)


def test_a_copy_of_a_deleted_sample_is_kept():
    x, y = blobs()
    x, y = torch.cat([x, x[:3]]), torch.cat([y, y[:3]])
    model = train((x, y))
    gone, kept = split((x, y), indices=[0])  # row 96 is the same and stays
    result = forget(model, gone, kept).model
    same(result, train(kept))


def test_frozen_layers_stay(trained):
    model = net()
    model[0].weight.requires_grad_(False)
    one = train(blobs(), model)
    gone, kept = split(blobs(), indices=[0, 1])
    result = forget(one, gone, kept).model
    same(result, train(kept, model))
    for shard in result.shards:
        assert torch.equal(shard[0].weight, model[0].weight)
        assert not shard[0].weight.requires_grad
    later = copy.deepcopy(trained)
    for shard in later.shards:
        shard[0].weight.requires_grad_(False)
    with pytest.raises(MethodError, match="takes no gradient"):
        forget(later, gone, kept)


# -- files ------------------------------------------------------------------------------------


def test_a_run_folder_holds_both(trained, tmp_path):
    result = forget(trained, *split(blobs(), classes=[0]))
    result.save(tmp_path / "run")
    result.model.save(tmp_path / "run")
    same(SisaModel.load(tmp_path / "run", net()), result.model)
    assert json.loads((tmp_path / "run" / "run.json").read_text())["digest"] == result.model.trained


def test_damaged_files_are_refused(trained, tmp_path):
    trained.save(tmp_path)
    whole = {file: file.read_bytes() for file in tmp_path.iterdir()}

    def refused(name, change):
        """The error after a change to the tensors or the JSON of a file."""
        file = tmp_path / name
        tensors = name.endswith(".safetensors")
        content = load_file(file) if tensors else json.loads(file.read_text())
        change(content)
        save_file(content, file) if tensors else file.write_text(json.dumps(content))
        with pytest.raises(FileError) as caught:
            SisaModel.load(tmp_path, net())
        file.write_bytes(whole[file])
        return str(caught.value)

    for file in whole:
        file.unlink()
        with pytest.raises(FileError):
            SisaModel.load(tmp_path, net())
        file.write_bytes(whole[file][:-3])
        with pytest.raises(FileError):
            SisaModel.load(tmp_path, net())
        file.write_bytes(whole[file])
    assert "shard-2" in refused("sisa-shard-2.safetensors", lambda t: t.pop("1/0.weight"))
    assert "shard-1" in refused("sisa-shard-1.safetensors", lambda t: t["1/0.weight"].add_(1))
    assert "damaged" in refused("model.safetensors", lambda t: t["shards.0.0.weight"].add_(1))
    assert "samples" in refused("sisa-samples.safetensors", lambda t: t["labels"].add_(1))
    assert "damaged" in refused("sisa.json", lambda facts: facts.update(files=3))
    assert "damaged" in refused("sisa.json", lambda facts: facts.pop("digest"))
    assert "damaged" in refused("sisa.json", lambda facts: facts["plan"].update(shards=0))
    with pytest.raises(FileError, match="another architecture"):
        SisaModel.load(tmp_path, nn.Linear(6, 3))
    edited = copy.deepcopy(trained)  # by another method, say
    with torch.no_grad():
        edited.shards[0][0].weight.add_(1)
    edited.save(tmp_path)
    back = SisaModel.load(tmp_path, net())
    assert digest(back) == digest(edited) != back.trained == trained.trained


# -- refusals ---------------------------------------------------------------------------------


def test_another_model_is_refused_with_how_to_train_one():
    gone, kept = split(blobs(), indices=[0])
    with pytest.raises(ModelError, match=r"SisaModel.*train_sharded.*purge train --shards 5 --slices 5"):
        forget(net(), gone, kept)


def test_a_model_that_was_edited_is_refused(trained):
    edited = copy.deepcopy(trained)
    with torch.no_grad():
        edited.shards[1][0].bias.add_(1e-3)
    with pytest.raises(ModelError, match="weights that SISA's training left"):
        forget(edited, *split(blobs(), indices=[0]))


def test_other_data_is_refused(trained, trained_on_pictures):
    x, y = blobs()
    gone, kept = split((x, y), indices=[0])
    with pytest.raises(DataError, match=r"95 samples \(0 unknown to it, 1 missing\)"):
        forget(trained, gone, (kept[0][1:], kept[1][1:]))
    with pytest.raises(DataError, match=r"1 unknown to it, 1 missing"):
        forget(trained, (gone[0] + 1, gone[1]), kept)
    first = purge.unlearn(trained, gone, kept, method="sisa", progress=False)
    once = first.model
    again, rest = split((x, y), indices=[5])  # which has sample 0 again
    with pytest.raises(DataError, match="the model has forgotten before, got 1 of them"):
        forget(first, again, rest)
    with pytest.raises(DataError, match="1 unknown to it"):
        forget(copy.deepcopy(once), again, rest)
    data = pictures()
    relabelled = Images(data.pixels, (data.labels + 1) % 3, names=data.names, ids=data.ids)
    with pytest.raises(DataError, match="together, the 60 samples"):
        forget(trained_on_pictures, *split(relabelled, indices=[0]))


def test_shards_without_samples_are_refused(trained):
    with pytest.raises(MethodError, match=r"at least 2 samples for each of 60 shards.*fewer shards"):
        train(blobs(), shards=60)
    data = blobs()
    shard = torch.tensor(places(trained, data)[0])
    gone, kept = split(data, indices=(shard == 1).nonzero()[:, 0])
    with pytest.raises(MethodError, match=r"0 for shard 1.*without what must be forgotten"):
        forget(trained, gone, kept)
    ids = identities(samples(blobs(30)))
    plans = (ShardPlan(15, 1, seed) for seed in range(2000))
    full = next(plan for plan in plans if len(plan.places(ids)[0].unique()) == 15)
    assert train(blobs(30), nn.Linear(6, 3), shards=15, slices=1, seed=full.seed), "one is enough for Linear"


def test_settings_out_of_range_are_refused():
    with pytest.raises(MethodError, match="at least 3 epochs for 5 slices"):
        train(blobs(), slices=5, recipe=Recipe(epochs=2))
    assert ShardPlan(1, 5, 0, "mean", Recipe(epochs=3)).epochs == [1, 1, 1, 1, 1]
    for wrong in ({"shards": 0}, {"slices": 0}, {"vote": "loudest"}, {"shards": 1.5}):
        with pytest.raises(MethodError):
            train(blobs(), **wrong)
    for recipe, words in (({"batch_size": 1}, "batch_size"), ({"augment": "flip"}, "augment")):
        with pytest.raises(MethodError, match=words):
            train(blobs(), recipe=Recipe(epochs=3, **recipe))
    with pytest.raises(RunError, match="lower lr"):
        train(blobs(), recipe=Recipe(epochs=6, lr=1e30, batch_size=8))
    with pytest.raises(ModelError, match="builds an untrained model"):
        train(blobs(), nn.MultiheadAttention(6, 2))
    with pytest.raises(ModelError, match=r"torch\.nn\.Module"):
        train(blobs(), "resnet18")


# -- the contract of every method (tests/methods/test_contract.py), for a sharded model -------


def test_the_contract(trained, monkeypatch):
    gone, kept = split(blobs(), classes=[0])
    model = copy.deepcopy(trained).train()
    model.shards[1][1].eval()  # a caller's own mixture of flags
    before, checkpoints = facts(model), [list(c) for c in model.checkpoints]

    def go(seed=0):
        return forget(model, gone, kept, test=blobs(seed=1), seed=seed)

    one = assert_caller_untouched(model, go)
    assert_same_seed_same_model(go, draws=False)  # the seed is the model's, not the request's
    assert model.checkpoints == checkpoints
    assert facts(one.model)[1:] == before[1:]
    assert one.stopped_by == "schedule"
    assert math.isfinite(one.history[-1]["check_retain_loss"])

    def fails(*args, **rest):
        raise RuntimeError("boom")

    monkeypatch.setattr(module, "fit", fails)
    assert_nothing_left_when_it_raises(model, go)
