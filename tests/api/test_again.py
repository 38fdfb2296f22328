"""One request after another: ids go through split, run and record; what was forgotten is not taught again."""

from __future__ import annotations

import copy
import gc
import json
import pickle
import runpy
import weakref
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import purge
from purge.core.errors import DataError, FileError
from purge.models.checkpoint import digest
from purge.report.record import record_of
from tests.api.test_forms import Bag, Items, padded, texts
from tests.nets import blobs, plain_mlp
from tests.refusals import assert_sentence

QUICK = {"steps": 2, "progress": False, "check": False}
X, Y = blobs(60)
WHO = [f"c-{i // 2}" for i in range(60)]  # two rows each


def table() -> pd.DataFrame:
    return pd.DataFrame(X.numpy(), columns=list("abcdef")).assign(kind=Y.numpy(), customer=WHO)


def again(call: Any) -> str:
    with pytest.raises(DataError) as error:
        call()
    assert_sentence(str(error.value), "forgotten before")
    return str(error.value)


FORMS: dict[str, tuple[Any, dict[str, Any]]] = {
    "DataFrame": (table, {"label": "kind", "id_of": "customer"}),
    "dicts": (lambda: Rows({"x": x, "y": y, "customer": w} for x, y, w in rows()), {"id_of": "customer"}),
    "third element": (lambda: Rows(rows()), {}),
    "a list": (lambda: (X, Y), {"id_of": WHO}),
    "adapt": (lambda: Rows(rows()), {"adapt": lambda item: item}),
    "images": (lambda: purge.Images((X.view(60, 1, 2, 3) * 9 + 100).byte(), Y), {"id_of": WHO}),
}


def rows() -> Any:
    return zip(X, Y.tolist(), WHO, strict=True)


class Rows(Dataset):
    def __init__(self, items: Any) -> None:
        self.items = list(items)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, i: int) -> Any:
        return self.items[i]


@pytest.mark.parametrize("name", FORMS)
def test_two_requests_by_id_one_after_the_other(name: str, tmp_path: Path) -> None:
    make, how = FORMS[name]
    data, model = make(), plain_mlp()
    if name == "images":
        model = nn.Sequential(nn.Flatten(), model)
    forget, retain = purge.split(data, ids=["c-3", "c-7"], **how)
    assert forget.owners == ("c-3", "c-3", "c-7", "c-7")
    assert len(retain.owners) == 56
    first = purge.unlearn(model, forget, retain, out=tmp_path / "first", **QUICK)
    assert first.info["forget_subjects"] == ["c-3", "c-7"]
    written = (tmp_path / "first" / "run.json").read_text()
    assert json.loads(written)["forget_subjects"] == ["c-3", "c-7"]
    assert '"c-4"' not in written, "ids of those who stay are in no record"
    assert record_of(first.to_dict(), {})["Ids to forget"] == "c-3, c-7"

    # The natural next request, and what forgets about the first one.
    forget, retain = purge.split(data, ids="c-5", after=first, **how)
    assert len(retain.owners) == 54
    second = purge.unlearn(first, forget, retain, **QUICK)
    assert second.info["forget_subjects"] == ["c-5"]
    careless = purge.split(data, ids="c-5", **how)
    assert "got 4 of them" in again(lambda: purge.unlearn(first, *careless, **QUICK))
    for after in (first, tmp_path / "first"):  # a model without its result knows nothing by itself
        again(lambda after=after: purge.unlearn(first.model, *careless, after=after, **QUICK))
    assert purge.unlearn(model, *careless, **QUICK).steps, "a model that has forgotten nothing may see all"
    again(lambda: purge.split(data, ids=["c-3"], after=second, **how))

    # The model of the second has forgotten both.
    left = second.without(data, **how)
    assert len(left.owners) == 54
    again(lambda: purge.train(second, make(), epochs=1, progress=False, **how))
    assert purge.train(second, left, epochs=1, progress=False).steps


def test_equal_rows_of_other_people_stay_where_rows_are_known() -> None:
    x = torch.zeros(20, 6)
    x[10:] = 1
    data, who = (x, torch.arange(20) // 10), [str(i) for i in range(20)]
    forget, retain = purge.split(data, ids=[3], id_of=who)
    result = purge.unlearn(plain_mlp(), forget, retain, **QUICK)
    assert len(purge.split(data, ids=[4], id_of=who, after=result)[1]) == 18
    # In data that came from elsewhere, a copy of a forgotten sample is one.
    assert "got 10 of them" in again(lambda: purge.train(
        result, (x.clone(), data[1]), epochs=1, progress=False))  # fmt: skip


def test_it_is_known_by_content_in_another_process(tmp_path: Path) -> None:
    forget, retain = purge.split((X, Y), indices=[4, 9])
    first = purge.unlearn(plain_mlp(), forget, retain, out=tmp_path / "first", **QUICK)
    other = copy.deepcopy(first.model)  # as if it had been loaded
    parts = purge.split((X.clone(), Y), indices=[5])
    assert purge.unlearn(other, *parts, **QUICK).steps
    again(lambda: purge.unlearn(other, *parts, after=str(tmp_path / "first"), **QUICK))
    again(lambda: purge.unlearn(other, *parts, after=pickle.loads(pickle.dumps(first)), **QUICK))
    _, retain = purge.split(TensorDataset(X.clone(), Y), indices=[5], after=tmp_path / "first")
    assert sorted(retain.ids.tolist()) == sorted(set(range(60)) - {4, 5, 9})
    second = purge.unlearn(
        other, parts[0], retain, after=tmp_path / "first", out=tmp_path / "second", **QUICK
    )
    known = json.loads((tmp_path / "second" / "run.json").read_text())["forgotten"]
    assert len(known["digests"]) == 3
    assert second.forgotten.to_dict() == known


def test_texts_are_known_whatever_they_are_padded_to(tmp_path: Path) -> None:
    items = texts()
    longest = max(range(40), key=lambda i: len(items[i]["input_ids"]))
    forget, retain = purge.split(
        DataLoader(items, collate_fn=padded), ids=[items[longest]["who"]], id_of="who"
    )
    first = purge.unlearn(Bag(), forget, retain, out=tmp_path / "first", **QUICK)
    shorter = [item for item in texts() if item["who"] != items[longest]["who"]]
    assert purge.train(first, DataLoader(shorter, collate_fn=padded), epochs=1, progress=False).steps
    one = min((i for i in items if i["who"] == items[longest]["who"]), key=lambda i: len(i["input_ids"]))
    assert "got 1 of them" in again(lambda: purge.train(
        first, DataLoader([*shorter, one], collate_fn=padded), epochs=1, progress=False))  # fmt: skip


def test_ids_that_are_only_partly_forgotten_are_not_called_forgotten() -> None:
    forget, retain = purge.split(table(), indices=[0, 2, 3], label="kind", id_of="customer")
    result = purge.unlearn(plain_mlp(), forget, retain, **QUICK)
    assert result.info["forget_subjects"] == ["c-1"]
    assert result.info["forget_rows"] == [0, 2, 3]


def test_nothing_of_the_samples_is_kept_and_the_model_is_as_it_would_be() -> None:
    x, y = blobs(60)
    forget, retain = purge.split((x, y), indices=[1, 2])
    result = purge.unlearn(plain_mlp(), forget, retain, **QUICK)
    model, known, alive = result.model, result.forgotten, weakref.ref(x)
    assert {k for k in vars(model) if "purge" in k or "forgot" in k} == set()
    assert digest(pickle.loads(pickle.dumps(model))) == digest(model)
    del result, forget, retain, x
    gc.collect()
    assert alive() is None, "the forgotten samples are gone"
    assert len(known.to_dict()["digests"]) == 2


def test_sets_too_large_to_keep_are_digested_when_somebody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("purge.data.backends.RESIDENT_BYTES", 10)
    data = Items(X, Y, lambda x, y: (x, y))
    result = purge.unlearn(plain_mlp(), *purge.split(data, indices=[1, 2]), **QUICK)
    result = purge.unlearn(result, *purge.split(data, indices=[3], after=result), **QUICK)
    assert [piece.known for piece in result.forgotten.pieces] == [None, None], "row numbers say enough"
    assert len(result.forgotten.to_dict()["digests"]) == 3
    assert [piece.samples for piece in result.forgotten.pieces] == [None, None]


def test_random_items_are_known_by_their_rows() -> None:
    noisy = Items(X, Y, lambda x, y: (x + torch.rand(6), y))
    forget, retain = purge.split(noisy, indices=[0, 1])
    result = purge.unlearn(plain_mlp(), forget, retain, **QUICK)
    assert "got 2 of them (first: 0)" in again(
        lambda: purge.unlearn(result, *purge.split(noisy, indices=[9]), **QUICK)
    )


def test_what_is_no_earlier_result_and_folders_without_one_are_refused(tmp_path: Path) -> None:
    for after in (3, {"a": 1}):
        with pytest.raises(DataError) as wrong:
            purge.split((X, Y), indices=[1], after=after)
        assert_sentence(str(wrong.value), "an earlier result as after")
    with pytest.raises(FileError) as error:
        purge.split((X, Y), indices=[1], after=tmp_path)
    assert_sentence(str(error.value), "the folder of a run")
    for content in ({"digests": ["xyz"], "ids": []}, {"digests": ["ab"], "ids": []}, {"ids": 3}, [], None):
        (tmp_path / "run.json").write_text(json.dumps({"forgotten": content}))
        with pytest.raises(FileError) as error:
            purge.split((X, Y), indices=[1], after=tmp_path)
        assert_sentence(str(error.value), "digests and ids as forgotten")


def test_the_example_of_a_table_forgets_two_requests(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(Path(__file__).parents[2] / "examples" / "table.py"), run_name="__main__")
    said = capsys.readouterr().out
    assert "forgotten: ['c-17'] rows" in said
    assert "forgotten: ['c-30', 'c-4'] rows" in said
    assert "class_accuracy.1 (barolo)" in said
