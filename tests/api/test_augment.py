"""augment=: a method reads the samples as the model was trained on them, where that is known."""

from __future__ import annotations

import copy
from typing import Any, get_args

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Subset
from torchvision.transforms import v2

import purge
from purge.core.errors import MethodError
from purge.data.accept import as_samples
from purge.data.augmented import Augment
from purge.data.images import Images, draw_colours, draw_moves, recoloured
from purge.models.checkpoint import digest
from tests.augmenting import Augmenting
from tests.data.test_augmented import PLAIN, RANDOM, Flipped, images_net, pictures
from tests.nets import small_mlp
from tests.refusals import assert_sentence

CPU = torch.device("cpu")
NAMES = get_args(Augment)


def coloured(n: int = 60, size: tuple[int, int] = (12, 12)) -> Images:
    g = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (n, 3, *size), generator=g).byte()
    return Images(pixels, torch.arange(n) % 3, mean=(0.5,) * 3, std=(0.25,) * 3)


def unlearned(data: Any, augment: Any = None, **given: Any) -> tuple[purge.Result, dict[str, Any]]:
    model = images_net(0) if given.get("model") is None else given.pop("model")
    parts = purge.split(data, indices=range(20))
    result = purge.unlearn(
        model, *parts, augment=augment, progress=False, check=False, **{"method": Augmenting(), **given}
    )  # fmt: skip
    return result, dict(Augmenting.seen)


def same(a: list[Any], b: list[Any]) -> bool:
    return all(torch.equal(one.x, two.x) and torch.equal(one.y, two.y) for one, two in zip(a, b, strict=True))


# -- images -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "augment", [*NAMES, purge.Augmentation("flip", colour=0.3), purge.Augmentation(colour=0.3)], ids=str
)
def test_images_are_changed_as_it_says(augment):
    """Moves and colours are drawn as in training, once for a stream; the order is the run's."""
    data = coloured()
    (result, seen), (_, without) = unlearned(data, augment), unlearned(data)
    how = purge.Augmentation(augment) if isinstance(augment, str) else augment
    assert torch.equal(seen["order"], without["order"])
    assert without["changed"] is None
    assert (seen["changed"] is None) == (augment == "none")
    assert seen["plain"] is seen["split"].retain
    assert result.info["augment"] == str(how)
    g, moves, colours = torch.Generator().manual_seed(0 ^ 0xA06), None, None
    if how.moves != "none":
        ways = {
            "pad": 2 if "crop" in how.moves else 0,
            "flip": how.moves != "crop",
            "turn": how.moves == "turn",
        }
        moves = draw_moves(24, **ways, generator=g).view(3, 8, -1)
    if how.colour:
        colours = draw_colours(24, 3, how.colour, g).view(3, 8, 3, 2)
    for i, (rows, batch) in enumerate(zip(seen["order"], seen["batches"], strict=True)):
        ((x, y),) = seen["split"].retain.moved([rows], None if moves is None else [moves[i]])
        torch.testing.assert_close(batch.x, x if colours is None else recoloured(x, colours[i]))
        assert torch.equal(batch.y, y)
        assert torch.equal(batch.y, seen["split"].retain.labels[rows])


@pytest.mark.parametrize(
    ("data", "augment"),
    [(coloured(), "crop-flip"), (coloured(), v2.GaussianNoise()), (Flipped(0.5, 60), None)],
    ids=["by name", "by a function", "by itself"],
)
def test_the_same_seed_gives_the_same_batches(data, augment):
    model = small_mlp() if augment is None else images_net(0)
    one, two, other = (unlearned(data, augment, model=copy.deepcopy(model), seed=seed) for seed in (1, 1, 2))
    assert digest(one[0].model) == digest(two[0].model) != digest(other[0].model)
    assert same(one[1]["batches"], two[1]["batches"])
    assert not same(one[1]["batches"], other[1]["batches"])


def test_every_stream_is_drawn_anew_and_batches_may_differ_in_size():
    _, seen = unlearned(coloured(), "crop-flip")
    changed, order = seen["changed"], [torch.arange(5), torch.tensor([3]), torch.arange(4, 11)]
    one, two = list(changed.stream(order)), list(changed.stream(order))
    for rows, (a, y), (b, _) in zip(order, one, two, strict=True):
        assert a.shape == b.shape == (len(rows), 3, 12, 12)
        assert torch.equal(y, changed.labels[rows])
    assert not torch.equal(one[2][0], two[2][0])
    assert not torch.equal(changed.take(torch.arange(9))[0], changed.take(torch.arange(9))[0])
    assert len(changed) == len(seen["split"].retain)
    half = changed.select(torch.arange(10, 20))
    assert torch.equal(half.take(torch.arange(10))[1], changed.labels[10:20])


# -- functions ----------------------------------------------------------------------------------


def test_a_function_of_a_batch_changes_any_data(toy):
    model, forget, retain, _ = toy
    given: list[Tensor] = []

    def noisy(x: Tensor) -> Tensor:
        given.append(x.clone())
        assert not torch.is_grad_enabled()
        return x + torch.rand(len(x), 1)

    result = purge.unlearn(model, forget, retain, method=Augmenting(), augment=noisy, progress=False)
    assert result.info["augment"] == "by noisy"
    assert all(len(x) == 2 for x in given[:2])  # forget and retain are tried
    for rows, x, batch in zip(Augmenting.seen["order"], given[2:], Augmenting.seen["batches"], strict=True):
        assert torch.equal(x, retain[0][rows])
        assert not torch.equal(batch.x, x)
        assert torch.equal(batch.y, retain[1][rows])


def test_a_function_of_inputs_that_are_a_dict():
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = small_mlp()

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return self.fc(a + b)

    x = {"a": torch.randn(60, 6), "b": torch.zeros(60, 6)}
    data = (x, torch.arange(60) % 3)
    flip = lambda x: {"a": x["a"].flip(1), "b": x["b"]}  # noqa: E731
    _, seen = unlearned(data, flip, model=Two())
    for rows, batch in zip(seen["order"], seen["batches"], strict=True):
        assert torch.equal(batch.x["a"], x["a"][20:][rows].flip(1))


def test_a_function_is_not_autocast():
    half = lambda x: x + (x.flatten(2) @ x.flatten(2).mT).mean()  # noqa: E731
    _, seen = unlearned(coloured(), half, precision="bf16")
    assert {batch.x.dtype for batch in seen["batches"]} == {torch.float32}
    rows, batch = seen["order"][0], seen["batches"][0]
    assert torch.equal(batch.x, half(seen["split"].retain.take(rows)[0]))


# -- data that is random by itself --------------------------------------------------------------


@pytest.mark.parametrize("kind", RANDOM)
def test_a_dataset_with_random_transforms_augments_itself(kind):
    data = pictures(RANDOM[kind])
    result, seen = unlearned(data)
    assert result.info["augment"] == "by the data itself"
    assert seen["changed"] is seen["split"].retain
    wanted = as_samples(Subset(pictures(PLAIN), range(20, 60)), CPU, "plain")
    assert not seen["plain"].streamed  # it is read once
    rows = torch.arange(40)
    torch.testing.assert_close(seen["plain"].take(rows)[0], wanted.take(rows)[0])
    assert torch.equal(seen["plain"].labels, seen["split"].retain.labels)
    assert not torch.equal(seen["changed"].take(rows)[0], wanted.take(rows)[0])
    assert seen["run"].plain(seen["split"].retain) is seen["plain"]
    assert data.transform is RANDOM[kind]


def test_random_data_is_read_plain_if_asked():
    result, seen = unlearned(pictures(RANDOM["nested"]), "none")
    assert seen["changed"] is None
    assert result.info["augment"] == "none"
    rows = seen["order"][0]
    assert torch.equal(seen["batches"][0].x, seen["plain"].take(rows)[0])


def test_what_cannot_be_taken_out_stays():
    data = Flipped(0.3, 60)
    _, seen = unlearned(data, model=small_mlp())
    assert seen["plain"] is seen["changed"] is seen["split"].retain


# -- refusals -----------------------------------------------------------------------------------

REFUSED: dict[str, tuple[Any, str]] = {
    "a wrong name": ("crop-flop", "one of none, crop, flip, crop-flip, turn for augment, got 'crop-flop'"),
    "no name": ("", "one of none, crop, flip, crop-flip, turn for augment, got ''"),
    "a number": (3, "for augment, got 3"),
    "another size": (v2.Resize(6), r"like \(2, 3, 12, 12\) of float32 on cpu, got \(2, 3, 6, 6\) .* Resize"),
    "fewer rows": (lambda x: x[:1], r"got \(1, 3, 12, 12\) of float32"),
    "another type": (lambda x: x.double(), r"got \(2, 3, 12, 12\) of float64"),
    "no tensor": (lambda x: x.tolist(), "got list from <lambda>"),
    "an error": (lambda x: x @ torch.ones(5, 5), "augment to return forget like .*, got "),
    "no argument": (lambda: None, "augment to return forget like"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_augment_is_refused(case):
    augment, words = REFUSED[case]
    model = images_net(0)
    before = digest(model)
    with pytest.raises(MethodError, match=words) as error:
        unlearned(coloured(), augment, model=model)
    assert_sentence(str(error.value), "")
    assert digest(model) == before


def test_names_are_for_images_that_can_be_moved_so(toy):
    model, forget, retain, _ = toy
    with pytest.raises(MethodError, match=r"purge\.Images to augment by crop, got other data") as error:
        purge.unlearn(model, forget, retain, method=Augmenting(), augment="crop", progress=False)
    assert_sentence(str(error.value), "")
    torch.manual_seed(0)
    wide = nn.Sequential(nn.Flatten(), nn.Linear(3 * 12 * 10, 3))
    with pytest.raises(MethodError, match="square images to turn, got 12×10 pixels") as error:
        unlearned(coloured(size=(12, 10)), "turn", model=wide)
    assert_sentence(str(error.value), "")
    with pytest.raises(MethodError, match="colour >= 0 and <= 1, got 2"):
        purge.Augmentation("flip", colour=2)
    with pytest.raises(MethodError, match="for moves, got 'up'"):
        purge.Augmentation("up")


def test_a_method_without_a_use_for_it_refuses_and_records_nothing():
    with pytest.raises(MethodError, match=r"a method that augments its data, .* got Scrub") as error:
        unlearned(coloured(), "none", method="scrub")
    assert_sentence(str(error.value), "")
    assert unlearned(pictures(RANDOM["v2"]), method="scrub", epochs=1)[0].info["augment"] is None


def test_augment_is_a_setting_of_a_method_that_trains_by_a_recipe():
    result, _ = unlearned(coloured(), "flip", method="retrain", epochs=1, colour=0.2)
    assert (result.method.recipe.augment, result.method.recipe.colour) == ("flip", 0.2)
    with pytest.raises(MethodError, match="one of none, crop, flip, crop-flip, turn for augment"):
        unlearned(coloured(), "up", method="retrain", epochs=1)
