"""A checkpoint from elsewhere: nothing that it was trained on is called unseen, and nobody is missed."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch import nn

import purge
from tests.cli.commands import ran, read, refused
from tests.refusals import tree

N, SIDE = 300, 8
SHADES = {"dark": 40, "grey": 120, "white": 220}
COLUMNS = ("--label", "bought", "--id", "who", "--model", "mlp", "--mean", "0", "--std", "1")
FEW = ("--set", "steps=2", "--set", "batch_size=16", "--set", "forget_target=1", "--quiet")


def people(n: int, seed: int) -> pd.DataFrame:
    x = np.random.default_rng(seed).normal(size=(n, 4)).astype(np.float32)
    frame = pd.DataFrame(x, columns=[*"abcd"])
    frame["bought"] = np.where(x[:, 0] + x[:, 1] > 0, "yes", "no")
    frame["who"] = [f"p{seed}-{i}" for i in range(n)]
    return frame


def pictures(folder: Path, each: int, seed: int) -> Path:
    rng = np.random.default_rng(seed)
    for name, shade in SHADES.items():
        (folder / name).mkdir(parents=True)
        for i in range(each):
            noise = rng.integers(-20, 20, (SIDE, SIDE)) + shade
            Image.fromarray(noise.astype(np.uint8)).save(folder / name / f"{i}.png")
    return folder


def trained(model: nn.Module, x: torch.Tensor, y: torch.Tensor, file: Path) -> None:
    """Train on everything in a loop of one's own, and keep the weights alone."""
    torch.manual_seed(0)
    steps = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(60):
        steps.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        steps.step()
    torch.save({"state_dict": model.state_dict()}, file)


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of people, pictures in folders and in one file, and models trained on all of each."""
    at = tmp_path_factory.mktemp("there")
    frame = people(N, 1)
    frame.to_csv(at / "people.csv", index=False)
    people(80, 2).to_csv(at / "later.csv", index=False)
    x, y = (
        torch.tensor(frame[[*"abcd"]].to_numpy()),
        torch.tensor((frame.bought == "yes").to_numpy().astype(int)),
    )
    trained(purge.build("mlp", classes=2, channels=4), x, y, at / "people.pt")
    pictures(at / "photos", 20, 1)
    pictures(at / "parted" / "train", 20, 1)
    pictures(at / "parted" / "test", 8, 2)
    files = sorted((at / "photos").rglob("*.png"))
    pixels = np.stack([np.asarray(Image.open(f)) for f in files])
    labels = np.array([[*SHADES].index(f.parent.name) for f in files])
    np.savez(at / "photos.npz", images=pixels, labels=labels)
    encoded = [{"bytes": f.read_bytes(), "path": f.name} for f in files]
    pd.DataFrame({"image": encoded, "label": labels}).to_parquet(at / "photos.parquet")
    model = purge.build("mlp", classes=3, channels=1, size=SIDE)
    trained(model, torch.tensor(pixels[:, None] / 255.0).float(), torch.tensor(labels), at / "photos.pt")
    return at


PICTURES = ("--model", "mlp", "--mean", "0", "--std", "1")


def asked(there: Path, kind: str) -> tuple[object, ...]:
    """A checkpoint, its data and how to read that."""
    if kind == "table":
        return (there / "people.pt", "--data", there / "people.csv", *COLUMNS, "--forget-class", "yes")
    data = {"folder": "photos", "npz": "photos.npz", "Parquet": "photos.parquet"}[kind]
    return (there / "photos.pt", "--data", there / data, *PICTURES, "--forget-class", 2)


KINDS = ["table", "folder", "npz", "Parquet"]


@pytest.mark.parametrize("kind", KINDS)
def test_no_part_of_the_training_data_is_called_unseen(there: Path, tmp_path: Path, kind: str) -> None:
    before = tree(there)
    said = refused("unlearn", *asked(there, kind), *FEW, "--out", tmp_path / "out")
    assert "--all-trained" in said
    assert ("--test FILE" in said) == (kind == "table")
    assert "--all-trained" in refused("audit", *asked(there, kind), "--metrics", "quick", "--quiet")
    assert tree(tmp_path) == {}
    assert tree(there) == before


@pytest.mark.parametrize("kind", KINDS)
def test_if_all_was_trained_on_nothing_is_unseen(there: Path, tmp_path: Path, kind: str) -> None:
    run = tmp_path / "run"
    ran("unlearn", *asked(there, kind), "--all-trained", *FEW, "--out", run)
    facts = read(run / "run.json")
    total = N if kind == "table" else 60
    assert (facts["forget_samples"] + facts["retain_samples"], facts["test_samples"]) == (total, None)
    for audited in ((run,), (*asked(there, kind), "--all-trained")):  # the run remembers it
        found = ran("audit", *audited, "--metrics", "fa_train,ra,ta,mia", "--json", "--quiet").json
        values = found["values"]
        assert values["ra"]["value"] is not None
        assert all(values[name]["value"] is None for name in ("ta", "mia"))
        assert all("test data" in values[name]["why"] for name in ("ta", "mia"))


def test_everybody_in_the_file_is_found_and_forgotten(there: Path, tmp_path: Path) -> None:
    everyone = pd.read_csv(there / "people.csv").who
    ids = tmp_path / "ids.txt"
    ids.write_text("\n".join(everyone[::2]))
    how = (there / "people.pt", "--data", there / "people.csv", *COLUMNS, "--forget-ids", ids, *FEW)
    for name, unseen in {"all": ("--all-trained",), "tested": ("--test", there / "later.csv")}.items():
        ran("unlearn", *how, *unseen, "--out", tmp_path / name)
        facts = read(tmp_path / name / "run.json")
        assert facts["forget_samples"] == facts["retain_samples"] == N // 2
        assert facts["test_samples"] == (None if name == "all" else 80)
    found = ran("audit", tmp_path / "tested", "--metrics", "ta,mia", "--json", "--quiet").json
    assert found["values"]["mia"]["value"] is not None


def test_rows_by_number_are_rows_of_the_file(there: Path, tmp_path: Path) -> None:
    """Not of the four fifths of it that were left, whose row 3 is another."""
    numbers, frame = [0, 3, 299], pd.read_csv(there / "people.csv")
    ids = tmp_path / "rows.txt"
    ids.write_text("\n".join(map(str, numbers)))
    plain = [word for word in COLUMNS if word not in ("--id", "who")]
    frame.drop(columns="who").to_csv(tmp_path / "rows.csv", index=False)
    ran("unlearn", there / "people.pt", "--data", tmp_path / "rows.csv", *plain, "--forget-ids", ids,
         "--all-trained", *FEW, "--out", tmp_path / "run")  # fmt: skip
    facts = read(tmp_path / "run" / "run.json")
    x = torch.tensor(frame[[*"abcd"]].to_numpy()).float()
    y = torch.tensor((frame.bought == "yes").tolist()).long()
    model = purge.build("mlp", classes=2, channels=4)
    by_hand = purge.unlearn(
        purge.load_weights(model, there / "people.pt") or model,
        *purge.split((x, y), indices=numbers), steps=2, progress=False, out=tmp_path / "by-hand",
    )  # fmt: skip
    assert by_hand.info["forget_samples"] == 3
    same = read(tmp_path / "by-hand" / "run.json")
    assert facts["forget_content"] == same["forget_content"]
    assert facts["retain_content"] == same["retain_content"]


def test_the_reference_that_is_advised_is_trained_on_all_that_stays(there: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    for name, unseen in {"all": ("--all-trained",), "tested": ("--test", there / "later.csv")}.items():
        told = ran("unlearn", *asked(there, "table"), *unseen, *FEW, "--out", run / name)
        advised = next(line for line in told.out.splitlines() if line.startswith("The reference: "))
        words = shlex.split(advised.removeprefix("The reference: "))
        ran(*words[1:], "--mean", 0, "--std", 1, "--set", "epochs=2", "--quiet")
        other = words[words.index("--out") + 1]
        report = ran("audit", run / name, "--retrained", other, "--metrics", "ra", "--json", "--quiet")
        assert report.json["retrained"]["ra"]["value"] is not None
        facts = read(Path(other) / "run.json")
        assert facts["samples"] == int((pd.read_csv(there / "people.csv").bought == "no").sum())
    said = refused(
        "audit", run / "all", "--retrained", f"{run}/tested-retrained", "--metrics", "ra", "--quiet"
    )
    assert "retrained" in said


def test_a_folder_with_a_test_part_says_what_is_unseen(there: Path, tmp_path: Path) -> None:
    how = (there / "photos.pt", "--data", there / "parted", *PICTURES, "--forget-class", "white", *FEW)
    ran("unlearn", *how, "--out", tmp_path / "run")
    assert read(tmp_path / "run" / "run.json")["test_samples"] == 24
    assert "--all-trained" in refused("unlearn", *how, "--all-trained", "--out", tmp_path / "other")
    assert "--all-trained" in refused("unlearn", *asked(there, "folder"), *FEW, "--out", tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_one_says_it_in_one_way(there: Path, tmp_path: Path) -> None:
    both = ("--all-trained", "--test", there / "later.csv", "--out", tmp_path / "run")
    assert "both" in refused("unlearn", *asked(there, "table"), *FEW, *both)


@pytest.fixture
def own(there: Path, tmp_path: Path) -> Callable[..., Any]:
    """A run of ``purge train`` on the table; what options change is told."""

    def run(name: str, *options: object) -> Any:
        data = ("--data", there / "people.csv", *COLUMNS, "--set", "epochs=20", "--quiet")
        ran("train", *data, *options, "--out", tmp_path / name)
        return read(tmp_path / name / "run.json")

    return run


def test_a_run_of_purge_knows_its_split(there: Path, tmp_path: Path, own: Callable[..., Any]) -> None:
    assert own("base")["samples"] == N * 4 // 5
    asks = ("--forget-class", "yes", *FEW)
    ran("unlearn", tmp_path / "base", *asks, "--out", tmp_path / "run")
    facts = read(tmp_path / "run" / "run.json")
    assert facts["test_samples"] == N // 5
    assert "knows" in refused("unlearn", tmp_path / "base", *asks, "--all-trained", "--out", tmp_path / "no")
    # Its weights alone know nothing, but who trained it may say by which seed purge held a fifth out.
    weights = (tmp_path / "base" / "model.safetensors", "--data", there / "people.csv", *COLUMNS, *asks)
    assert "--split-seed" in refused("unlearn", *weights, "--out", tmp_path / "no")
    ran("unlearn", *weights, "--split-seed", 0, "--out", tmp_path / "again")
    again = read(tmp_path / "again" / "run.json")
    assert again["retain_content"] == facts["retain_content"]


def test_a_training_of_all_of_it_holds_nothing_out(tmp_path: Path, own: Callable[..., Any]) -> None:
    facts = own("base", "--all-trained")
    assert facts["samples"] == N
    assert facts.get("test_accuracy") is None
    ran("unlearn", tmp_path / "base", "--forget-class", "yes", *FEW, "--out", tmp_path / "run")
    assert read(tmp_path / "run" / "run.json")["test_samples"] is None
    said = refused("request", "init", tmp_path / "base", "--ledger", tmp_path / "requests.db")
    assert "--all-trained" in said  # a ledger's audits need unseen data


def test_a_run_made_in_python_says_nothing_of_the_shells_split(there: Path, tmp_path: Path) -> None:
    frame = pd.read_csv(there / "people.csv").drop(columns="who")
    x, y = (
        torch.tensor(frame[[*"abcd"]].to_numpy()).float(),
        torch.tensor((frame.bought == "yes").tolist()).long(),
    )
    model = purge.build("mlp", classes=2, channels=4)
    purge.train(model, (x, y), epochs=20, out=tmp_path / "python", progress=False)
    how = ("--data", there / "people.csv", *COLUMNS, "--forget-class", "yes", *FEW)
    assert "--all-trained" in refused("unlearn", tmp_path / "python", *how, "--out", tmp_path / "run")
    ran("unlearn", tmp_path / "python", *how, "--all-trained", "--out", tmp_path / "run")
