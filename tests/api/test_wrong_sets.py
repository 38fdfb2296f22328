"""Sets and models that would make an audit look good: refused, or counted and told."""

from __future__ import annotations

import copy
import logging
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import Subset, TensorDataset

import purge
from purge.auditor import Auditor
from purge.core.errors import DataError, ModelError, PurgeError
from tests.api.test_refusals import Change, good, refused
from tests.nets import small_mlp


def joined(a: tuple[Any, Any], b: tuple[Any, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.cat([a[0], b[0]]), torch.cat([a[1], b[1]])


def first(data: tuple[Any, Any], n: int) -> tuple[torch.Tensor, torch.Tensor]:
    return data[0][:n], data[1][:n]


def subsets(t: SimpleNamespace, test: range | list[int]) -> dict[str, Any]:
    whole = TensorDataset(t.x, t.y)
    gone = len(t.forget[1])
    rows = {"forget": range(gone), "retain": range(gone, 80), "test": test}
    return {name: Subset(whole, at) for name, at in rows.items()}


SETS: list[tuple[str, str, Change]] = [
    ("test is forget", "without samples of forget", lambda t: {"test": t.forget}),
    ("test is retain", "without samples of retain", lambda t: {"test": t.retain}),
    ("forget in test", "without samples of forget", lambda t: {"test": joined(t.test, t.forget)}),
    ("part of retain in test", "got 2 in both", lambda t: {"test": joined(t.test, first(t.retain, 2))}),
    ("one row of forget in test", "got 1 in both (first: 0)", lambda t: subsets(t, [0])),
    ("one row of retain in test", "got 1 in both (first: 79)", lambda t: subsets(t, [79, 80, 81])),
]  # fmt: skip


@pytest.mark.parametrize(("words", "change"), [r[1:] for r in SETS], ids=[r[0] for r in SETS])
@pytest.mark.parametrize("door", ["unlearn", "audit"])
def test_test_data_that_was_trained_on_is_refused(
    given: SimpleNamespace, door: str, words: str, change: Change
) -> None:
    refused(door, good(door, given) | change(given), DataError, words, given.tmp)


def test_test_data_of_one_source_without_common_rows_is_taken(given: SimpleNamespace) -> None:
    request = good("audit", given) | subsets(given, range(80, 96)) | {"metrics": "ta"}
    assert purge.audit(**request)["ta"].n == 16


def test_one_copy_in_a_hundred_is_tolerated_counted_and_told(given: SimpleNamespace, caplog: Any) -> None:
    test = joined(given.test, first(given.retain, 1))
    request = good("audit", given) | {"test": test}
    report = purge.audit(**request, metrics="ta")
    assert (report.info["copies"]["test_forget"], report.info["copies"]["test_retain"]) == (0, 1)
    words = f"1 of {len(test[1])} test samples is also among the retained ones"
    assert words in " ".join(report.table().split())
    assert any(words in " ".join(text.split()) for text in report.sentences())
    with caplog.at_level(logging.WARNING, "purge"):
        result = purge.unlearn(**request, steps=2)
    assert words in caplog.text
    assert result.info["copies"] == report.info["copies"]
    caplog.clear()
    alone = purge.audit(**good("audit", given), metrics="ta")
    assert not alone.info["copies"]["test_retain"]
    assert not [text for text in (*alone.sentences(), caplog.text) if "among the retained" in text]


# -- copies of forgotten samples -----------------------------------------------------------------


def pictures(*, copies: int, near: bool, relabel: bool = False) -> SimpleNamespace:
    """Forty of 120 images to forget, some of which have a copy among the retained ones."""
    g = torch.Generator().manual_seed(0)
    pixels = torch.randint(20, 220, (120, 1, 8, 8), generator=g, dtype=torch.uint8)
    labels = torch.arange(120) % 3
    pixels[60 : 60 + copies], labels[60 : 60 + copies] = pixels[:copies] + 10 * near, labels[:copies]
    if relabel:
        labels[60] = (labels[60] + 1) % 3
    forget, retain = purge.split(purge.Images(pixels, labels), indices=range(40))
    test = purge.Images(torch.randint(20, 220, (30, 1, 8, 8), generator=g, dtype=torch.uint8), labels[:30])
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    return SimpleNamespace(model=model, sets=(forget, retain, test))


@pytest.mark.parametrize(("near", "relabel", "more"), [
    (False, False, ""), (True, True, ", 2 of them with the same label"),
])  # fmt: skip
def test_copies_that_stay_are_counted_and_told(
    near: bool, relabel: bool, more: str, caplog: Any, tmp_path: Any
) -> None:
    case = pictures(copies=3, near=near, relabel=relabel)
    words = f"3 of 40 forgotten samples have a near-identical copy among the retained ones{more}"
    with caplog.at_level(logging.WARNING, "purge"):
        result = purge.unlearn(case.model, *case.sets[:2], steps=2, check=False, progress=False)
    assert words in caplog.text
    counts = {"exact": 0 if near else 3, "near": 3, "near_same_label": 2 if relabel else 3, "compared": 40}
    assert result.info["copies"] == counts
    report = purge.audit(
        result, *case.sets, original=case.model, metrics="quick", check=False, progress=False
    )
    assert report.info["copies"] == counts | {"test_forget": 0, "test_retain": 0}
    told = [text for text in report.sentences() if "Copies of forgotten samples were retained" in text]
    assert len(told) == 1
    assert told[0].startswith("? Not known")
    assert words in told[0]
    page = report.html(tmp_path / "report.html").read_text(encoding="utf-8")
    assert words in " ".join(page.split())
    report.to_json(tmp_path / "audit.json")
    assert purge.Report.from_json(tmp_path / "audit.json").sentences() == report.sentences()


def test_the_parts_of_a_mixed_request_do_not_repeat_the_copies() -> None:
    case = pictures(copies=3, near=True)
    forget, retain, test = case.sets
    mixed = purge.split(purge.Images(
        torch.cat([forget.pixels, retain.pixels]), torch.cat([forget.labels, retain.labels])
    ), indices=[*range(40), *(40 + (retain.labels == 0).nonzero()[:, 0]).tolist()])  # fmt: skip
    report = purge.audit(case.model, *mixed, test, metrics="quick", check=False, progress=False)
    assert set(report.parts) == {"classes", "samples"}
    assert report.info["copies"]["near"] == 2, "the copy of a sample of class 0 is forgotten as well"
    assert all(part.info["copies"] == {} for part in report.parts.values())


# -- retrained models that are none ----------------------------------------------------------------

REFERENCES: list[tuple[str, str, Change]] = [
    ("the original", "the original's own weights as retrained", lambda t: {
        "original": t.model, "retrained": copy.deepcopy(t.model), "model": small_mlp(1)}),
    ("the audited model", "the audited model's own weights as retrained", lambda t: {"retrained": t.model}),
    ("the same twice", "the weights of another retrained model as retrained 1", lambda t: {
        "retrained": [small_mlp(1), small_mlp(1)]}),
    ("the original in a wrapper", "the original's own weights", lambda t: {
        "original": t.model, "retrained": nn.DataParallel(t.model), "model": small_mlp(1)}),
]  # fmt: skip


@pytest.mark.parametrize(("words", "change"), [r[1:] for r in REFERENCES], ids=[r[0] for r in REFERENCES])
def test_a_retrained_model_that_is_none_is_refused(
    given: SimpleNamespace, words: str, change: Change
) -> None:
    request = good("audit", given) | {"metrics": "ra"} | change(given)
    refused("audit", request, ModelError, words, given.tmp)
    assert purge.audit(**request, check=False)["ra"].value is not None, "unless it is asked for"


def test_an_auditor_looks_at_each_model(given: SimpleNamespace) -> None:
    auditor = Auditor(given.forget, given.retain, given.test, retrained=small_mlp(1))
    assert auditor.audit(given.model, metrics="ra", progress=False)["ra"].value is not None
    with pytest.raises(PurgeError, match="the audited model's own weights"):
        auditor.audit(small_mlp(1), metrics="ra", progress=False)
    assert auditor.audit(small_mlp(2), metrics="ra", progress=False)["ra"].value is not None


def test_models_without_weights_are_not_taken_for_the_same(given: SimpleNamespace) -> None:
    class Constant(nn.Module):
        def __init__(self, label: int) -> None:
            super().__init__()
            self.label = label

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.eye(3)[self.label].expand(len(x), 3)

    request = good("audit", given) | {"model": Constant(0), "retrained": Constant(1), "metrics": "ta"}
    report = purge.audit(**request)
    assert report["ta"].value != report.retrained["ta"].value
