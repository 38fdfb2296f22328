"""Where forgotten samples would go: each opinion by hand, their mean, ranks, and levels without test data."""

from __future__ import annotations

import logging

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import purge
from purge.core.settings import replace
from purge.engine.losses import masked_teacher, unseen_confidence
from purge.engine.run import Run
from purge.engine.seeding import seeded
from purge.engine.stopping import Stopping
from purge.methods import Masked, Pull
from purge.methods.purge.layers import look, neighbours_say
from purge.methods.purge.targets import HELD, Scene, held_out
from purge.models.copies import frozen_copy
from purge.models.forward import logits
from tests.golden.record import small_net
from tests.nets import split_of

CPU = torch.device("cpu")
ALL = ("own", "views", "layers", "neighbours", "copy")


def scene_of(model, split, augment=None):
    run = Run(model, split, device=CPU, stop=Stopping(), seed=0, augment=augment)
    return Scene(frozen_copy(model), split, run, None, lambda steps: min(steps, 4))


def aimed(target, model, split, augment=None):
    with seeded(0, CPU):
        return target.aim(scene_of(model, split, augment))


def confidence(z, y):
    return z.softmax(1).gather(1, y[:, None])[:, 0]


class Shifts:
    """Adds 1, 2, 3 … to the inputs, one after the other."""

    def __init__(self):
        self.calls = 0

    def __call__(self, x):
        self.calls += 1
        return x + self.calls


@pytest.fixture(scope="module")
def split(digits, base):
    return split_of(base, digits.forget, digits.retain, None)


@pytest.fixture(scope="module")
def single():
    """A linear model, sixty samples to forget of three classes that stay, and unseen ones."""
    torch.manual_seed(0)
    model = nn.Linear(4, 3).eval()
    x, y = torch.randn(300, 4), torch.arange(300) % 3
    unseen = torch.randn(90, 4), torch.arange(90) % 3
    return model, split_of(model, (x[:60], y[:60]), (x[60:], y[60:]), unseen)


# -- each opinion ------------------------------------------------------------------------------


def test_views_are_the_mean_over_changes_of_the_samples(single):
    model, data = single
    say = Masked(opinions=("views",), views=3)._say({"views"}, scene_of(model, data, Shifts()), data.retain)
    own = logits(model, data.forget)
    want = own + 2 * model.weight.detach().sum(1)  # the mean of 1, 2 and 3
    torch.testing.assert_close(say["views"](data.forget, own), want)


def test_where_no_change_is_known_a_view_is_the_sample(single, caplog):
    model, data = single
    caplog.set_level(logging.INFO, "purge")
    results = [aimed(Masked(opinions=(name,)), model, data).target for name in ("own", "views")]
    assert torch.equal(*results)
    assert "not known how samples are changed" in caplog.text
    caplog.clear()
    assert torch.equal(aimed(Masked(), model, data).target, results[0])
    assert not caplog.text, "nobody asked for views"


def test_neighbours_by_hand():
    """Two hidden layers; class 0 goes, class 3 has no retained sample."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 6), nn.Linear(6, 4)).eval()
    x, y = torch.randn(40, 3), torch.arange(40) % 3
    data = split_of(model, (x[y == 0], y[y == 0]), (x[y > 0], y[y > 0]), None)
    own = logits(model, data.forget)
    place = scene_of(model, data)
    known = look(place.teacher, data.retain, 4, place.run)
    got = neighbours_say(place.teacher, known, place.run, count=5)(data.forget, own)

    want, labels = [], y[y > 0]
    with torch.no_grad():
        layers = [model[0], model[:2]]
        for one in x[y == 0]:
            near = torch.zeros(len(labels))
            for layer in layers:
                h = layer(x[y > 0])
                near += F.cosine_similarity(h - h.mean(0), (layer(one) - h.mean(0))[None])
            votes = labels[near.argsort(descending=True)[:5]].tolist()
            want.append([(votes.count(c) + 1) / (5 + 4) for c in (1, 2)])
    z = torch.tensor(want).log()
    z = z - z.mean(1, keepdim=True)
    mine = own[:, 1:3] - own[:, 1:3].mean(1, keepdim=True)
    z = own[:, 1:3].mean(1, keepdim=True) + mine.pow(2).mean().sqrt() * z / z.pow(2).mean().sqrt()
    torch.testing.assert_close(got[:, 1:3], z, atol=1e-4, rtol=1e-4)
    assert torch.equal(got[:, [0, 3]], own[:, [0, 3]])


def test_fewer_retained_samples_than_neighbours_and_no_hidden_layer(single):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 6), nn.Linear(6, 3)).eval()
    x, y = torch.randn(9, 3), torch.arange(9) % 3
    data = split_of(model, (x[y == 0], y[y == 0]), (x[y > 0], y[y > 0]), None)
    assert aimed(Masked(opinions=("neighbours",)), model, data).target.isfinite().all()
    model, data = single
    own, asked = (aimed(Masked(opinions=(name,)), model, data).target for name in ("own", "neighbours"))
    assert torch.equal(own, asked), "without hidden layers the model speaks for itself"


def test_the_target_is_the_mean_of_all_opinions(digits, base, split):
    target = Masked(opinions=ALL, sharpness=2.0, views=2)
    got = aimed(target, base, split, Shifts())
    with seeded(0, CPU):
        say = target._say(set(ALL), scene_of(base, split, Shifts()), split.retain)
    own = logits(base, split.forget)
    said = {name: say[name](split.forget, own) for name in ALL}
    assert len({float(z.sum()) for z in said.values()}) == len(ALL), "each has its own"
    want = masked_teacher(2 * torch.stack([*said.values()]).mean(0), digits.forget.labels, frozenset({0}))
    torch.testing.assert_close(got.target, want)
    assert torch.equal(got.second, said["copy"])


def test_unknown_opinions_and_none_at_all_are_refused():
    with pytest.raises(purge.PurgeError, match="own, views, layers, neighbours, copy"):
        replace(Pull(), {"opinions": "own,oracle"})
    with pytest.raises(purge.PurgeError, match="at least one opinion"):
        replace(Pull(), {"opinions": []})


def test_only_what_looks_at_views_augments():
    assert Pull().augments
    assert replace(Pull(), {"opinions": "own,views"}).augments
    assert not replace(Pull(), {"opinions": "own"}).augments
    assert not replace(Pull(), {"target": "paper"}).augments


# -- single samples ----------------------------------------------------------------------------


def test_the_mixed_opinion_ranks_single_samples(single):
    """Their labels get the levels of unseen samples, in the order of the opinion."""
    model, data = single
    y, own = data.forget.labels, logits(model, data.forget)
    other = own + 2 * model.weight.detach().sum(1)
    levels = confidence(logits(model, data.test), data.test.labels)
    for opinions, z in ((None, other), (("own", "views"), (own + other) / 2), (("own",), own)):
        got = aimed(Masked(opinions=opinions, views=3), model, data, Shifts()).target
        back = got.gather(1, y[:, None])[:, 0]
        assert torch.equal(back.argsort(), confidence(z, y).argsort())
        want = torch.quantile(levels, (torch.arange(60) + 0.5) / 60)
        torch.testing.assert_close(back.sort().values, want)
    assert not torch.equal(confidence(own, y).argsort(), confidence(other, y).argsort())


def test_what_is_held_out_is_a_seeded_tenth(digits, base, split):
    parts = [held_out(split.retain, scene_of(base, split).run) for _ in range(2)]
    held, rest = (part.labels for part in parts[0])
    assert torch.equal(held, parts[1][0].labels)
    assert (len(held), len(rest)) == (130, len(split.retain) - 130)
    counts = held.bincount(minlength=10) + rest.bincount(minlength=10)
    assert torch.equal(counts, split.retain.labels.bincount(minlength=10))
    many = split_of(nn.Linear(1, 2), *[(torch.randn(n, 1), torch.arange(n) % 2) for n in (4, 20_000)], None)
    assert len(held_out(many.retain, scene_of(nn.Linear(1, 2), many).run)[0]) == HELD
    one = split_of(nn.Linear(1, 2), *[(torch.randn(n, 1), torch.zeros(n).long()) for n in (4, 1)], None)
    assert [len(p) for p in held_out(one.retain, scene_of(nn.Linear(1, 2), one).run)] == [1, 1]


@pytest.fixture(scope="module")
def samples(digits):
    """A tenth of the digits at random, a network that knows them by heart, and one that never saw them."""
    forget, retain = purge.split(digits.train, fraction=0.1, seed=0)
    how = {"epochs": 15, "progress": False}
    base = purge.train(small_net(0), digits.train, seed=0, **how).model
    return base, purge.train(small_net(1), retain, seed=1, **how).model, forget, retain


def test_without_test_data_hidden_layers_tell_what_unseen_samples_get(samples, digits, caplog):
    """The target is as near to a retrained model as with test data, and nearer than the original."""
    base, retrained, forget, retain = samples
    wanted = logits(retrained, forget).log_softmax(1)

    def far(p):
        return float((wanted.exp() * (wanted - (p + 1e-7).log())).sum(1).mean())

    without, beside = (
        aimed(Masked(), base, split_of(base, forget, retain, test)) for test in (None, digits.test)
    )
    assert "estimated from 130 retained" in caplog.text
    assert far(without.target) < min(far(beside.target) + 0.01, far(logits(base, forget).softmax(1)))
    right = float((wanted.argmax(1) == forget.labels).float().mean())
    assert without.accuracy == pytest.approx(right, abs=0.04)
    assert beside.accuracy is None, "test data tells"


def test_levels_by_hand_where_there_is_no_test_data(samples):
    base, _, forget, retain = samples
    data = split_of(base, forget, retain, None)
    got = aimed(Masked(opinions=("own",)), base, data)
    place = scene_of(base, data)
    with seeded(0, CPU):
        held, rest = held_out(data.retain, place.run)
        say = Masked()._say({"layers"}, place, rest)["layers"]
    z, y = logits(base, data.forget), data.forget.labels
    z_held = say(held, logits(base, held))
    keep = unseen_confidence(z, y, z_held, held.labels)
    torch.testing.assert_close(got.target, masked_teacher(z, y, frozenset(), keep))


def test_without_test_data_the_run_may_end_at_the_estimate(samples):
    base, _, forget, retain = samples
    few = {"method": "purge-pull", "min_steps": 1, "max_steps": 2, "progress": False}
    assert purge.unlearn(base, forget, retain, **few).info["forget_target"] > 0.9  # not 1/K
    assert purge.unlearn(base, forget, retain, forget_target=0.5, **few).info["forget_target"] == 0.5


@pytest.mark.slow
def test_without_test_data_no_sample_is_exposed(samples):
    """However long it is pulled, forget accuracy ends near that of a retrained model, not far below."""
    base, retrained, forget, retain = samples
    result = purge.unlearn(
        base, forget, retain, method="purge-pull", min_steps=300, early=False, progress=False
    )
    right = [
        float((logits(m, forget).argmax(1) == forget.labels).float().mean())
        for m in (result.model, retrained)
    ]
    assert right[0] == pytest.approx(right[1], abs=0.05)
    assert result.info["forget_target"] == pytest.approx(right[1], abs=0.04)


# -- the rate ----------------------------------------------------------------------------------


def test_the_rate_follows_the_optimizer_unless_it_is_given():
    assert (Pull().rate, Pull(optimizer="adamw").rate) == (2e-2, 2e-3)
    assert Pull(optimizer="adamw", lr=0.5).rate == 0.5


def test_adamw_forgets_within_the_retain_budget(digits, base):
    result = purge.unlearn(
        base, digits.forget, digits.retain, method="purge-pull", optimizer="adamw", progress=False
    )
    assert result.stopped_by == "forget_target"
    assert (
        float((logits(result.model, digits.retain).argmax(1) == digits.retain.labels).float().mean()) > 0.98
    )
