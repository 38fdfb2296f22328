"""Every message on the page on troubleshooting is what purge really says."""

from __future__ import annotations

import json
import logging
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import IterableDataset

import purge
from tests.cli.commands import command
from tests.nets import blobs, plain_mlp

pytestmark = pytest.mark.slow

PAGE = (Path(__file__).parents[2] / "docs" / "troubleshooting.md").read_text()
ENTRIES = dict(re.findall(r"^### (.*)\n\n```text\n(.*)\n```\n\n\*\*Why\.\*\* ", PAGE, re.M))
X, Y = blobs(400)
DATA = (X, Y)
FORGET, RETAIN = purge.split(DATA, classes=[0])
FRAME = pd.DataFrame({"age": X[:, 0].numpy(), "city": "Ulm", "bought": ["no", "yes"] * 200})
QUIET: dict[str, Any] = {"progress": False}
TRAINED: list[Path] = []


class Stream(IterableDataset[Any]):
    """Data without a length."""

    def __iter__(self) -> Iterator[Any]:
        yield from zip(X, Y, strict=True)


class Words(nn.Module):
    """A model that returns something else."""

    def forward(self, x: torch.Tensor) -> str:
        return "three"


def unlearn(model: Any, forget: Any = FORGET, retain: Any = RETAIN, **settings: Any) -> purge.Result:
    return purge.unlearn(model, forget, retain, **{"check": False, **QUIET, **settings})


def guessing() -> None:
    model = plain_mlp()
    nn.init.zeros_(model[2].weight)
    unlearn(model, check=True)


def again() -> None:
    unlearn(unlearn(plain_mlp(), steps=2), *purge.split(DATA, classes=[1]))


def other_checkpoint() -> None:
    torch.save(nn.Linear(3, 2).state_dict(), "other.pt")
    purge.load_weights(plain_mlp(), "other.pt")


def without_timm() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "timm", None)
        purge.build("timm:resnet18", classes=10, channels=3)


def audit(model: nn.Module, **more: Any) -> purge.Report:
    test = blobs(40, seed=9)
    return purge.audit(model, FORGET, RETAIN, test, **{"metrics": ["ta"], "check": False, **QUIET, **more})


def beside_itself() -> None:
    original = plain_mlp()
    audit(plain_mlp(seed=1), original=original, retrained=original, check=True)


def shell(*argv: Any) -> None:
    """Raise what a command says when it refuses."""
    done = command(*argv)
    assert done.code == 2, done
    raise purge.PurgeError(done.err.strip().splitlines()[-1].removeprefix("Error: "))


@pytest.fixture(scope="module", autouse=True)
def _trained(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A small trained model, which cases copy."""
    out = tmp_path_factory.mktemp("runs") / "base"
    argv = ("train", "--data", "digits", "--model", "mlp", "--set", "epochs=1", "--out", out, "--quiet")
    assert command(*argv).code == 0
    TRAINED.append(out)


def base(**changed: Any) -> str:
    """The folder of a trained model, whose run.json may say something else."""
    shutil.copytree(TRAINED[0], "base")
    file = Path("base/run.json")
    file.write_text(json.dumps({**json.loads(file.read_text()), **changed}))
    return "base"


def without_a_class(*argv: Any, **changed: Any) -> None:
    shell("unlearn", base(**changed), "--out", "new", "--quiet", *argv)


def reference_of_everything() -> None:
    done = command("unlearn", base(), "--forget-class", 3, "--set", "steps=2", "--out", "new", "--quiet")
    assert done.code in (0, 1)
    shell("audit", "new", "--retrained", "base", "--metrics", "ta", "--quiet")


def folder_of_images(**files: bytes) -> None:
    Path("photos").mkdir()
    for name, content in files.items():
        for label in "ab":
            Path("photos", label).mkdir(exist_ok=True)
            Image.new("L", (8, 8)).save(f"photos/{label}/good.png")
        Path("photos/a", f"{name}.png").write_bytes(content)
    shell("train", "--data", "photos", "--model", "mlp", "--out", "new", "--quiet")


def checkpoint_alone() -> None:
    torch.save(nn.Linear(1, 2).state_dict(), "own.pt")
    FRAME.to_csv("own.csv", index=False)
    columns = ("--label", "bought", "--id", "city", "--model", "mlp")
    shell(
        "unlearn", "own.pt", "--data", "own.csv", *columns, "--forget-class", "no", "--out", "new", "--quiet"
    )


def ledger(*argv: Any) -> None:
    Path("ids.txt").write_text("c-17\n")
    added = command("request", "add", "--ids", "ids.txt", "--received", "2026-11-01", "--ledger", "asked.db")
    assert added.code == 0
    if "add" in argv:
        Path("asked.db.key").unlink()
    shell("request", *argv, "--ledger", "asked.db")


def unknown_version() -> None:
    assert command("request", "init", base(), "--ledger", "asked.db").code == 0
    added = command("request", "add", "--class", 3, "--received", "2026-11-01", "--ledger", "asked.db")
    assert added.code == 0
    shutil.copytree("base", "versions/version-0002")
    shell("request", "run", "--all", "--ledger", "asked.db", "--quiet")


CASES: dict[str, Callable[[], Any]] = {
    "Nothing, or too much, was named to forget": lambda: purge.split(DATA),
    "A row that is not there": lambda: purge.split(DATA, indices=[9999]),
    "Positions in a DataFrame with names of its own": lambda: purge.split(
        FRAME[["age", "bought"]][::-1], label="bought", indices=[3]
    ),
    "A row name that is not there": lambda: purge.split(
        FRAME[["age", "bought"]], label="bought", index=["3", 4]
    ),
    "No ids in the data": lambda: purge.split(DATA, ids=["c-17"]),
    "An id that is not there": lambda: purge.split(FRAME, label="bought", id_of="city", ids=["c-17"]),
    "Samples that were forgotten before": again,
    "The same sample on both sides": lambda: unlearn(plain_mlp(), FORGET, DATA),
    "A stream": lambda: purge.split(Stream(), classes=[0]),
    "A DataFrame without a label": lambda: purge.split(FRAME, classes=["no"]),
    "Columns that are not numbers": lambda: purge.split(FRAME, label="bought", classes=["no"]),
    "Labels that are not whole numbers": lambda: purge.split((X, Y.float()), classes=[0]),
    "Items of different sizes": lambda: unlearn(
        plain_mlp(), *purge.split([(torch.zeros(6 - i // 7), i % 3) for i in range(9)], indices=[0])
    ),
    "NaN in the inputs": lambda: unlearn(plain_mlp(), (X[:5] * float("nan"), Y[:5])),
    "Test data that was trained on": lambda: unlearn(plain_mlp(), test=DATA),
    "A checkpoint, and no word of what it was not trained on": checkpoint_alone,
    "A folder without images": folder_of_images,
    "Images that cannot be read": lambda: folder_of_images(bad=b"no image"),
    "Not a model": lambda: unlearn(plain_mlp().forward),
    "A model that does not take the data": lambda: unlearn(nn.Linear(9, 3)),
    "Something else than logits": lambda: unlearn(nn.Sequential(nn.Linear(6, 3), Words())),
    "Outputs of another shape": lambda: unlearn(nn.Sequential(nn.Linear(6, 3), nn.Flatten(0))),
    "More classes in the data than in the model": lambda: unlearn(nn.Linear(6, 2)),
    "A model that knows nothing": guessing,
    "Everything is frozen": lambda: unlearn(plain_mlp().requires_grad_(False)),
    "A checkpoint of another model": other_checkpoint,
    "A package is missing": without_timm,
    "An unknown setting": lambda: unlearn(plain_mlp(), method="salun", learning_rate=0.1),
    "Single samples, but the method forgets classes": lambda: unlearn(
        plain_mlp(), *purge.split(DATA, indices=[0, 1]), method="unsir"
    ),
    "Inputs that cannot be changed": lambda: unlearn(
        nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(24, 3)),
        *purge.split((torch.randint(9, X.shape), Y), classes=[0]),
        method="amun",
    ),
    "SISA needs its own training": lambda: unlearn(plain_mlp(), method="sisa"),
    "The loss ran away": lambda: purge.train(plain_mlp(), DATA, epochs=1, lr=1e30, **QUIET),
    "A device that is not here": lambda: unlearn(plain_mlp(), device="cuda:63"),
    "The reference is no retrained model": beside_itself,
    "The reference was trained on everything": reference_of_everything,
    "A condition on something that was not measured": lambda: audit(plain_mlp()).check("mia_loss > 0.6"),
    "The folder is not empty": lambda: shell("train", "--data", "digits", "--model", "mlp", "--out", base()),
    "Nothing named to forget": without_a_class,
    "Other weights than recorded": lambda: without_a_class("--forget-class", 3, digest="0" * 64),
    "Code in a run folder": lambda: without_a_class("--forget-class", 3, model="mine:net"),
    "No ledger there": lambda: shell("request", "list", "--ledger", "none.db"),
    "A ledger without a model": lambda: ledger("run", "--all"),
    "A version that the ledger does not know": unknown_version,
    "The key is gone": lambda: ledger("add", "--ids", "ids.txt", "--received", "2026-11-01"),
}


def as_pattern(message: str) -> str:
    return ".+".join(map(re.escape, message.split("…")))


def test_every_entry_is_tried() -> None:
    assert {*CASES, "What stays has suffered", "SSD does nothing"} == set(ENTRIES)


@pytest.mark.parametrize("entry", CASES)
def test_the_message_is_what_purge_says(entry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(purge.PurgeError) as refused:
        CASES[entry]()
    assert re.fullmatch(as_pattern(ENTRIES[entry]), str(refused.value)), str(refused.value)


def test_ssd_warns_as_the_page_says(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="purge"):
        unlearn(plain_mlp(), method="ssd")
    pattern = as_pattern(ENTRIES["SSD does nothing"])
    assert any(re.fullmatch(pattern, record.getMessage()) for record in caplog.records)


def test_a_rate_that_is_too_high_is_told_as_the_page_says(caplog: pytest.LogCaptureFixture) -> None:
    model = purge.train(plain_mlp(), DATA, epochs=15, batch_size=16, lr=0.1, **QUIET).model
    with caplog.at_level(logging.WARNING, logger="purge"):
        unlearn(model, rate=1.0, steps=2, weight_decay=100, momentum=0)
    pattern = as_pattern(ENTRIES["What stays has suffered"])
    assert any(re.fullmatch(pattern, record.getMessage()) for record in caplog.records)
