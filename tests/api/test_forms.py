"""Each form of data that users have is split, trained on, unlearned and audited, like the plain tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

import purge
from purge.core.errors import DataError
from purge.data.accept import as_samples
from tests.nets import blobs, plain_mlp
from tests.refusals import assert_sentence

CPU = torch.device("cpu")
NAMES = np.array(["ant", "bee", "cat"])
QUICK = {"steps": 2, "progress": False, "check": False}
X, Y = blobs(60)
TEST_X, TEST_Y = blobs(30, seed=1)


class Items(Dataset):
    """A map-style dataset of whatever a function makes of a sample."""

    def __init__(self, x: Tensor, y: Tensor, item: Callable[[Tensor, int], Any]) -> None:
        self.x, self.y, self.item = x, y.tolist(), item

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, i: int) -> Any:
        return self.item(self.x[i], self.y[i])


def items(item: Callable[[Tensor, int], Any]) -> Callable[[Tensor, Tensor], Dataset]:
    return lambda x, y: Items(x, y, item)


def frame(x: Tensor, y: Any, **more: Any) -> pd.DataFrame:
    return pd.DataFrame({f"f{i}": x[:, i].numpy() for i in range(x.shape[1])} | {"kind": y} | more)


def hugging(x: Tensor, y: Any, **more: Any) -> datasets.Dataset:
    return datasets.Dataset.from_dict({"inputs": x.tolist(), "label": y} | more)


Make = Callable[[Tensor, Tensor], Any]
FORMS: dict[str, tuple[Make, dict[str, Any]]] = {
    "DataFrame": (lambda x, y: frame(x, y.numpy()), {"label": "kind"}),
    "DataFrame of names": (lambda x, y: frame(x, NAMES[y]), {"label": "kind"}),
    "DataFrame of categories": (lambda x, y: frame(x, pd.Categorical(NAMES[y], NAMES)), {"label": "kind"}),
    "DataFrame by rows": (lambda x, y: frame(x, y.numpy()), {
        "adapt": lambda row: ([row[f"f{i}"] for i in range(6)], row["kind"])}),
    "DataFrame with ids": (lambda x, y: frame(x, y.numpy(), who=[f"c-{i}" for i in range(len(y))]), {
        "label": "kind", "id_of": "who"}),
    "arrays": (lambda x, y: (x.double().numpy(), y.numpy()), {}),
    "DataFrame and names": (lambda x, y: (pd.DataFrame(x.numpy()), pd.Series(NAMES[y])), {}),
    "array and list of names": (lambda x, y: (x.numpy(), NAMES[y].tolist()), {}),
    "one-hot": (lambda x, y: (x, nn.functional.one_hot(y, 3).float()), {}),
    "four tensors": (lambda x, y: TensorDataset(x, y, x, y), {}),
    "one-hot items": (items(lambda x, y: (x, np.eye(3, dtype=int)[y])), {}),
    "names": (items(lambda x, y: (x, str(NAMES[y]))), {}),
    "a list of items": (lambda x, y: list(zip(x, y.tolist(), strict=True)), {}),
    "dicts": (items(lambda x, y: {"x": x, "target": y, "note": "-"}), {}),
    "dicts with a key": (items(lambda x, y: {"x": x, "kind": y, "label": 0}), {"label": "kind"}),
    "adapted": (items(lambda x, y: {"a": x[:3], "b": x[3:], "z": y}), {
        "adapt": lambda item: (torch.cat([item["a"], item["b"]]), item["z"])}),
    "DataLoader": (lambda x, y: DataLoader(TensorDataset(x, y), 7, shuffle=True, drop_last=True), {}),
    "DataLoader that collates": (lambda x, y: DataLoader(
        Items(x, y, lambda x, y: (x, y)), 7, shuffle=True, drop_last=True,
        collate_fn=lambda batch: {"x": torch.stack([b[0] for b in batch]), "y": [b[1] for b in batch]}), {}),
    "Hugging Face": (lambda x, y: hugging(x, y.tolist()), {}),
    "Hugging Face, torch": (lambda x, y: hugging(x, y.tolist()).with_format("torch"), {}),
    "Hugging Face, names": (lambda x, y: hugging(x, NAMES[y].tolist()), {}),
    "Subset of Hugging Face": (lambda x, y: Subset(hugging(x, y.tolist()), range(len(y))), {}),
}  # fmt: skip


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return purge.train(plain_mlp(), (X, Y), epochs=20, lr=0.1, progress=False).model


def weights(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.fixture(scope="module")
def plain(model: nn.Module) -> Tensor:
    """The weights that the same training gives on plain tensors."""
    return weights(purge.train(model, (X, Y), epochs=1, progress=False).model)


@pytest.mark.parametrize("name", FORMS)
def test_every_form_is_trained_on_unlearned_and_audited(name: str, model: nn.Module, plain: Tensor) -> None:
    make, how = FORMS[name]
    data, test = make(X, Y), make(TEST_X, TEST_Y)
    trained = purge.train(model, data, epochs=1, progress=False, **how)
    assert torch.allclose(weights(trained.model), plain, atol=1e-6), "the same samples, labels and order"
    forget, retain = purge.split(data, classes=[1], **how)
    found = as_samples(forget, CPU, "forget")
    assert torch.allclose(found.take(torch.arange(len(found)))[0], X[Y == 1])
    assert found.labels.unique().tolist() == [1]
    result = purge.unlearn(model, forget, retain, test=test, **QUICK, **how)
    assert result.info["forget_classes"] == [1]
    assert result.info["retain_samples"] == int((Y != 1).sum())
    report = purge.audit(result, forget, retain, test, metrics="quick", progress=False, check=False, **how)
    assert report["ta"].value is not None


@pytest.mark.parametrize("keep", [True, False], ids=["kept", "too large to keep"])
def test_a_set_without_a_class_has_the_numbers_of_the_model(
    keep: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sorted among themselves, bees and cats would be 0 and 1."""
    if not keep:
        monkeypatch.setattr("purge.data.backends.RESIDENT_BYTES", 10)
    make = FORMS["names"][0]
    model = purge.train(plain_mlp(), make(X, Y), epochs=20, lr=0.1, progress=False).model
    forget, retain = purge.split(make(X[Y > 0], Y[Y > 0]), classes="cat")
    report = purge.audit(model, forget, retain, make(TEST_X, TEST_Y), metrics="quick", progress=False)
    assert report["fa_train"].value > 0.9
    assert report["ra"].value > 0.9
    assert report["ta"].value > 0.9


@pytest.mark.parametrize(
    "name", ["DataFrame of names", "DataFrame and names", "names", "Hugging Face, names"]
)
def test_names_have_one_order_in_all_sets_and_in_later_ones(name: str) -> None:
    make, how = FORMS[name]
    # The forget set has one class alone, and its number is not 0 in it.
    parts = [make(X[rows], Y[rows]) for rows in (Y == 2, Y != 2)]
    result = purge.unlearn(plain_mlp(), *parts, test=make(TEST_X, TEST_Y), **QUICK, **how)
    assert result.info["forget_classes"] == [2]
    assert result.info["names"] == [*NAMES]
    # Its model knows the order even where a class is missing from all of the data.
    later = [make(X[rows], Y[rows]) for rows in (Y == 1, Y == 0)]
    assert purge.unlearn(result, *later, **QUICK, **how).info["forget_classes"] == [1]
    forget, _ = purge.split(make(X, Y), classes="bee", **how)
    assert as_samples(forget, CPU, "forget").labels.unique().tolist() == [1]


def test_the_order_of_a_model_of_hugging_face_or_of_the_data_counts() -> None:
    class Configured(nn.Linear):
        config = type("Config", (), {"label2id": {"cat": 0, "ant": 1, "bee": 2}})()

    apart = [(X[rows], NAMES[Y[rows]].tolist()) for rows in (Y == 2, Y != 2)]
    cut = purge.split((X, NAMES[Y].tolist()), classes="cat")  # which knows nothing of the model
    for parts in (apart, cut):
        result = purge.unlearn(Configured(6, 3), *parts, test=(TEST_X, NAMES[TEST_Y].tolist()), **QUICK)
        assert (result.info["forget_classes"], result.info["names"]) == ([0], ["cat", "ant", "bee"])
    data = Items(X, Y, lambda x, y: (x, str(NAMES[y])))
    data.classes = ["bee", "cat", "ant"]
    forget, _ = purge.split(data, classes=["cat"])
    assert forget.names == ("bee", "cat", "ant")
    assert set(forget[1].tolist()) == {1}


def test_pictures_of_pillow_are_what_to_tensor_makes_of_them() -> None:
    from torchvision.transforms.functional import to_tensor

    g = np.random.default_rng(0)
    pictures = [Image.fromarray(g.integers(0, 256, (4, 4, 3), dtype=np.uint8)) for _ in range(8)]
    data = datasets.Dataset.from_dict(
        {"image": pictures, "label": [0, 1] * 4}, features=datasets.Features(
            {"image": datasets.Image(), "label": datasets.ClassLabel(names=["no", "yes"])})
    )  # fmt: skip
    found = as_samples(data, CPU, "x").take(torch.arange(8))[0]
    assert torch.allclose(found, torch.stack([to_tensor(p) for p in pictures]))
    forget, _ = purge.split(data, classes=["yes"])
    assert as_samples(forget, CPU, "forget").labels.tolist() == [1] * 4


def test_columns_are_matched_by_name() -> None:
    data, test = frame(X, Y.numpy()), frame(TEST_X, TEST_Y.numpy())
    model = purge.train(nn.Linear(6, 3), data, label="kind", epochs=3, progress=False).model
    parts = purge.split(data, classes=[0], label="kind")
    how = {"metrics": "quick", "progress": False, "label": "kind", "check": False}
    turned = test[["kind", *(f"f{i}" for i in range(5, -1, -1))]]
    found = [purge.audit(model, *parts, one, **how)["ta"].value for one in (test, turned)]
    assert found[0] == found[1]
    with pytest.raises(DataError) as error:
        purge.audit(model, *parts, test.rename(columns={"f2": "g2"}), **how)
    assert_sentence(str(error.value), "the same columns in forget and test, got 'f2'")


def test_only_what_a_sampler_chooses_is_used() -> None:
    chosen = torch.utils.data.SubsetRandomSampler([5, 3, 20])
    for collate in (None, torch.utils.data.default_collate, lambda b: torch.utils.data.default_collate(b)):
        loader = DataLoader(TensorDataset(X, Y), 2, sampler=chosen, collate_fn=collate)
        found = as_samples(loader, CPU, "x")
        assert torch.equal(found.take(torch.arange(3))[0], X[[3, 5, 20]])


def test_ids_of_frames_and_of_adapt_are_recorded() -> None:
    table = frame(X, NAMES[Y], who=range(60))
    parts = table[:3], table[3:]
    result = purge.unlearn(plain_mlp(), *parts, label="kind", id_of="who", **QUICK)
    assert result.info["forget_subjects"] == ["0", "1", "2"]
    forget, retain = purge.split(
        table, ids=[7], adapt=lambda row: ([row[f"f{i}"] for i in range(6)], row["kind"], row["who"])
    )
    result = purge.unlearn(plain_mlp(), forget, retain, **QUICK)
    assert (result.info["forget_subjects"], result.info["names"]) == (["7"], [*NAMES])
    assert (result.info["forget_rows"], result.info["rows_of"]) == ([7], 60)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(["a", "b", "ß", "10", "9"]), min_size=2, max_size=12))
def test_labels_of_every_kind_have_the_same_numbers(words: list[str]) -> None:
    order = sorted(set(words))
    want = [order.index(word) for word in words]
    x, hot = torch.zeros(len(words), 2), np.eye(len(order))[want]
    named = [words, np.array(words), np.array(words, dtype=object), pd.Series(words)]
    numbered = [np.array(want), np.array(want)[:, None], pd.Series(want), want, torch.tensor(want)]
    one_hot = [hot, torch.tensor(hot).bool()] if len(order) > 1 else []
    for y in [*named, pd.Series(pd.Categorical(words, order)), *numbered, *one_hot]:
        assert as_samples((x, y), CPU, "x").labels.tolist() == want
    assert as_samples(pd.DataFrame({"n": 0.0, "y": words}), CPU, "x").labels.tolist() == want


# -- rows of unequal length ---------------------------------------------------------------------


class Bag(nn.Module):
    """Counts tokens that are not masked; padding must not matter."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.head = nn.Embedding(20, 8), nn.Linear(8, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.head((self.words(input_ids) * attention_mask[..., None]).sum(1))


def texts(n: int = 40, longest: int = 9, seed: int = 0) -> list[dict[str, Any]]:
    g = np.random.default_rng(seed)
    found = []
    for i in range(n):
        ids = (g.integers(0, 6, g.integers(2, longest)) + 1 + 6 * (i % 3)).tolist()
        found.append(
            {"input_ids": ids, "attention_mask": [1] * len(ids), "label": i % 3, "who": f"w-{i // 2}"}
        )
    return found


def padded(batch: list[Mapping[str, Any]], side: str = "right") -> dict[str, Tensor]:
    """Pads ids with 19 and masks with 0, as collators of Hugging Face do."""
    longest = max(len(item["input_ids"]) for item in batch)

    def filled(key: str, value: int) -> Tensor:
        more = [[value] * (longest - len(item[key])) for item in batch]
        rows = [m + i[key] if side == "left" else i[key] + m for i, m in zip(batch, more, strict=True)]
        return torch.tensor(rows)

    return {
        "input_ids": filled("input_ids", 19), "attention_mask": filled("attention_mask", 0),
        "labels": torch.tensor([item["label"] for item in batch]),
    }  # fmt: skip


@pytest.mark.parametrize("side", ["right", "left"])
def test_texts_are_padded_by_the_collate_function_to_the_longest_of_all_sets(side: str) -> None:
    def loader(items: list[Any]) -> DataLoader:
        return DataLoader(items, 4, shuffle=True, collate_fn=lambda batch: padded(batch, side))

    rows, test = texts(), texts(15, 14, seed=1)
    forget, retain = purge.split(loader(rows), classes=[0])
    trained = purge.train(Bag(), loader(rows), epochs=2, progress=False).model
    result = purge.unlearn(trained, forget, retain, test=loader(test), **QUICK)
    assert result.info["test_samples"] == 15
    report = purge.audit(result, forget, retain, loader(test), metrics="quick", progress=False, check=False)
    assert report["ta"].value is not None
    # Padded or not, the model says the same.
    together = padded(rows, side)
    (x, y) = as_samples(loader(rows), CPU, "x").take(torch.arange(len(rows)))
    assert y.tolist() == together["labels"].tolist()
    assert all(torch.equal(x[key], together[key]) for key in x)


def test_a_collated_set_too_large_to_keep_is_read_in_every_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, kept = texts(), as_samples(DataLoader(texts(), collate_fn=padded), CPU, "x")
    monkeypatch.setattr("purge.data.backends.RESIDENT_BYTES", 10)
    found = as_samples(DataLoader(rows, collate_fn=padded), CPU, "x")
    assert found.streamed
    index = torch.tensor([3, 0, 39])
    for a, b in zip(found.take(index), kept.take(index), strict=True):
        assert torch.equal(a, b) if isinstance(a, Tensor) else all(torch.equal(a[k], b[k]) for k in b)
    forget, retain = purge.split(DataLoader(rows, collate_fn=padded), classes=[0])
    assert purge.unlearn(Bag(), forget, retain, **QUICK).info["forget_classes"] == [0]


# -- what is refused ----------------------------------------------------------------------------

TABLE = frame(X, Y.numpy(), city="Rome")
REFUSED: dict[str, tuple[str, Callable[[], Any]]] = {
    "a stream of Hugging Face": ("items can be looked up by number, got a stream", lambda: purge.split(
        hugging(X, Y.tolist()).to_iterable_dataset(), classes=[0])),
    "no label named": ("pass label=", lambda: purge.split(TABLE, classes=[0])),
    "no such column": ("did you mean 'kind'", lambda: purge.split(TABLE, classes=[0], label="kid")),
    "text in a column": ("pd.get_dummies(df, columns=['city'])", lambda: purge.split(
        TABLE, classes=[0], label="kind")),
    "a date in a column": ("datetime64", lambda: purge.split(
        TABLE.assign(city=pd.Timestamp("2026-01-01")), classes=[0], label="kind")),
    "nothing but labels": ("columns of inputs", lambda: purge.split(
        TABLE[["kind"]], classes=[0], label="kind")),
    "a label is missing": ("as label of sample 1", lambda: purge.split(
        frame(X, ["a", None] * 30), classes=["a"], label="kind")),
    "a number is missing": ("NaN or infinity in sample 3", lambda: purge.train(
        plain_mlp(), frame(X, Y.numpy()).assign(f1=[np.nan if i == 3 else 0.0 for i in range(60)]),
        label="kind", epochs=1, progress=False)),
    "an unknown name": ("did you mean 'ant'", lambda: purge.split(
        frame(X, NAMES[Y]), classes=["ants"], label="kind")),
    "more names than outputs": ("a model with 3 outputs", lambda: purge.train(
        nn.Linear(6, 4), (X, NAMES[Y].tolist()), epochs=1, progress=False)),
    "adapt is no function": ("correct adapt", lambda: purge.split((X, Y), classes=[0], adapt=3)),
    "adapt returns one thing": ("from adapt", lambda: purge.split((X, Y), classes=[0], adapt=lambda i: i[0])),
    "adapt fails": ("KeyError: 'z'. Fix: correct adapt", lambda: purge.split(
        TABLE, classes=[0], adapt=lambda row: (row["z"], 0))),
    "a key of tuples": ("got 'kind' for tuple", lambda: purge.split(
        Items(X, Y, lambda x, y: (x, y)), classes=[0], label="kind")),
    "a collate function that mixes": ("keeps each item", lambda: purge.split(DataLoader(
        TensorDataset(X, Y), collate_fn=lambda b: (torch.zeros(2, 6), torch.zeros(2).long())), classes=[0])),
    "label is a number": ("as the label, got 3 0 times", lambda: purge.split(TABLE, classes=[0], label=3)),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused_in_a_line(name: str) -> None:
    words, call = REFUSED[name]
    with pytest.raises(purge.PurgeError) as error:
        call()
    assert_sentence(str(error.value), words)
