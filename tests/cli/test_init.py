"""purge init and --config: from a folder of images to a report by one file."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from purge.cli.config import CODE
from tests.cli.commands import ANY_TARGET, command, good, names, read, refusal

ODD = ("no", "007", "a: b # c", 'dog\'s "x"', "[1, 2]", "null")  # names that YAML would take for more


@pytest.fixture
def pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of small images, a class for each odd name, in the current folder."""
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    for k, name in enumerate(ODD):
        (tmp_path / "pics" / name).mkdir(parents=True)
        for i in range(15):
            x = draw.integers(0, 60, (12, 12), dtype=np.uint8)
            x[2 * k : 2 * k + 2] += 150
            Image.fromarray(x).save(tmp_path / "pics" / name / f"{i}.png")
    return tmp_path / "pics"


class Keyboard(io.StringIO):
    """A person at a terminal who types these lines."""

    def isatty(self) -> bool:
        return True


@pytest.mark.slow
def test_from_a_folder_to_a_report(pictures: Path) -> None:
    chosen = [arg for name in ODD[:3] for arg in ("--forget-class", name)]
    done = good(command("init", "--data", "pics", "--model", "small-resnet", *chosen))
    assert done.out.startswith(f"Found: 90 images in {len(ODD)} classes: 007 (15), [1, 2] (15), ")
    assert names(pictures.parent) == ["pics", "purge.yaml"]
    content = yaml.safe_load(Path("purge.yaml").read_text())
    assert content["unlearn"]["forget-class"] == list(ODD[:3])
    lines = [line.strip().removeprefix("purge ") for line in done.out.splitlines()[2:]]
    assert lines == [
        "train --config purge.yaml", "train --config purge.yaml:reference", "unlearn --config purge.yaml",
        "audit --config purge.yaml", "report --config purge.yaml",
    ]  # fmt: skip
    few = {"train": ("epochs=2", "batch_size=16"), "unlearn": ("steps=2", "batch_size=16", ANY_TARGET[1])}
    for line in lines:
        more = [arg for pair in few.get(line.split()[0], ()) for arg in ("--set", pair)]
        more += ["--metrics", "quick"] if line.startswith("audit") else []
        more += [] if line.startswith("report") else ["--quiet"]
        shown = good(command(*line.split(), *more))
    assert "file:///" in shown.out
    assert names(pictures.parent) == ["pics", "purge.yaml", "runs"]
    run = Path("runs/pics/unlearned")
    facts = read(run / "run.json")
    assert {facts["names"][c] for c in facts["request"]["forget_classes"]} == set(ODD[:3])
    assert facts["settings"]["steps"] == 2
    assert read(run / "audit.json")["retrained"]["fa_test"]["value"] == 0
    assert "<html" in (run / "report.html").read_text()
    again = good(command("init", "--data", "pics", "--yes", "--forget-class", "no", "--force"))
    assert "purge train" in again.out
    assert yaml.safe_load(Path("purge.yaml").read_text())["train"]["out"] == "runs/pics-2/base"


def test_three_questions_and_wrong_answers(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    typed = ["nowhere", "pics", "resnet1", "", "non", "no, 2", ""]
    monkeypatch.setattr(sys, "stdin", Keyboard("\n".join(typed)))
    done = good(command("init", "--out", "mine.yaml", terminal=True))
    assert [f"{i}/3" in done.err for i in (1, 2, 3)] == [True] * 3
    assert done.err.count("Expected") == 3
    assert "did you mean 'resnet18'" in done.err
    assert "did you mean 'no'" in done.err
    content = yaml.safe_load(Path("mine.yaml").read_text())
    assert content["train"]["model"] == "small-resnet"  # what is proposed for small images
    assert content["unlearn"]["forget-class"] == ["no", "a: b # c"]
    monkeypatch.setattr(sys, "stdin", Keyboard("pics\n"))
    ended = command("init", terminal=True)
    assert ended.code == 2
    assert ended.err.splitlines()[-1].startswith("Error: Expected an answer, got the end of the input.")
    assert names(pictures.parent) == ["mine.yaml", "pics"]


def test_what_is_refused_writes_nothing(pictures: Path) -> None:
    here = pictures.parent
    (here / "empty").mkdir()
    (here / "one" / "cat").mkdir(parents=True)
    Image.new("L", (12, 12)).save(here / "one" / "cat" / "0.png")
    (here / "none.txt").write_text("\n")
    (here / "t.csv").write_text("a,kind\n1,x\n2,y\n")
    before = names(here)
    net, what = ("--model", "small-resnet"), ("--forget-class", "no")
    for argv, said in {
        (*net, *what): "--data, since nobody can be asked here",
        ("--data", "pics", *what): "--model or --checkpoint, since nobody",
        ("--data", "pics", *net): "--forget-class or --forget-ids, since nobody",
        ("--data", "empty", *net, *what): "a folder without them",
        ("--data", "one", *net, "--forget-class", "cat"): "at least two classes",
        ("--data", "nowhere", *net, *what): "purge list datasets",
        ("--data", "pics", "--model", "smal-resnet", *what): "did you mean 'small-resnet'",
        ("--data", "pics", *net, "--forget-class", "6"): "the name of a class, got '6'",
        ("--data", "pics", *net, *(a for n in ODD for a in ("--forget-class", n))): "some class that stays",
        ("--data", "pics", *net, *what, "--forget-ids", "none.txt"): "got both",
        ("--data", "pics", *net, "--forget-ids", "none.txt"): "no line in it",
        ("--data", "pics", *net, "--forget-ids", "gone.txt"): "nothing there",
        ("--data", "pics", "--checkpoint", "gone", *what): "nothing there",
        ("--data", "pics", "--checkpoint", "none.txt", *what): "--model with --checkpoint, since",
        ("--data", "pics", *net, *what, "--out", "pics"): "name a file",
        ("--data", "pics", *net, *what, "--out", "t.csv"): "overwrite with --force",
        ("--data", "pics", *net, *what, "--out", "no/where.yaml"): "make it first",
        ("--data", "t.csv", *net, *what): "--label, since nobody",
        ("--data", "t.csv", "--label", "knd", *net, *what): "knd",
    }.items():
        assert said in refusal(command("init", *argv)), argv
    assert names(here) == before


def test_tables_ids_and_checkpoints(pictures: Path) -> None:
    here = pictures.parent
    (here / "t.csv").write_text("a,kind,who\n" + "".join(f"{i},{'xy'[i % 2]},p{i}\n" for i in range(20)))
    (here / "ids.txt").write_text("p1\np2\n")
    (here / "w.pt").write_bytes(b"weights")
    (here / "run").mkdir()
    (here / "run" / "run.json").write_text("{}")
    table = ("--data", "t.csv", "--label", "kind", "--id", "who")

    def written(*argv: str) -> dict[str, dict[str, object]]:
        good(command("init", *argv, "--force"))
        found: dict[str, dict[str, object]] = yaml.safe_load((here / "purge.yaml").read_text())
        return found

    found = written(*table, "--yes", "--forget-ids", "ids.txt")
    assert found["train"] == {
        "data": "t.csv", "label": "kind", "id": "who", "model": "mlp", "out": "runs/t/base",
    }  # fmt: skip
    assert found["reference"]["without-ids"] == found["unlearn"]["forget-ids"] == "ids.txt"
    found = written(*table, "--model", "mlp", "--checkpoint", "w.pt", "--forget-class", "x")
    assert [*found] == ["reference", "unlearn", "audit", "report"]
    assert found["unlearn"]["checkpoint"] == "w.pt"
    assert found["unlearn"]["label"] == found["reference"]["label"] == "kind"
    found = written(*table, "--checkpoint", "run", "--forget-class", "x")
    assert found["reference"]["like"] == found["unlearn"]["checkpoint"] == "run"
    assert "data" not in found["unlearn"]
    known = good(command("init", "--data", "cifar10", "--yes", "--forget-class", "3", "--force")).out
    assert "images in 10 classes: airplane, automobile, bird, cat" in known
    unknown = good(command("init", "--data", "cifar100", "--yes", "--forget-class", "apple", "--force")).out
    assert "once they are downloaded" in unknown


# -- --config -------------------------------------------------------------------------------------


def test_files_that_are_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for content, said in {
        "": "keys and values",
        "unlearn: 3": "keys and values in unlearn of c.yaml, got '3'",
        "unlearning: {}": "did you mean 'unlearning'",
        "unlearn: {chekpoint: x}": "did you mean 'checkpoint'",
        "unlearn: {trust: true}": "--trust on the command line",
        "unlearn: {config: c.yaml}": "--config on the command line",
        "unlearn: {seed: [1, 2]}": "one value for seed",
        "unlearn: {forget-class: {a: b}}": "text or a list of texts for forget-class",
        "unlearn: {checkpoint: x, out: y, method: 'evil:Method'}": "--trust on this command line, got method",
        "unlearn: {checkpoint: x, out: y, data: 'evil:data'}": "--trust on this command line, got data",
        "unlearn: {checkpoint: x, out: y}": "a run folder or a file at x",
        "unlearn: [": "YAML in c.yaml",
    }.items():
        Path("c.yaml").write_text(content)
        assert said in refusal(command("unlearn", "--config", "c.yaml")), content
    assert "purge init writes one" in refusal(command("unlearn", "--config", "none.yaml"))
    Path("c.yaml").write_text("audit: {run: x, metrics: 'ra,evil:M'}\nother: {run: y, seed: x}")
    assert "got metrics: evil:M" in refusal(command("audit", "--config", "c.yaml"))
    wrong = command("audit", "--config", "c.yaml:other")
    assert (wrong.code, "--seed" in wrong.err) == (2, True)
    assert names(tmp_path) == ["c.yaml"]


def test_the_command_line_wins_and_all_values_are_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("c.yaml").write_text("unlearn: {checkpoint: no, out: y, seed: , quiet: true}\n")
    assert "a run folder or a file at no" in refusal(command("unlearn", "--config", "c.yaml"))
    assert "a run folder or a file at yes" in refusal(command("unlearn", "yes", "--config", "c.yaml"))


def test_names_that_are_code() -> None:
    assert all(CODE.fullmatch(name) for name in ("a:b", "a.b:C", "_x:y"))
    assert not any(CODE.fullmatch(name) for name in ("timm:vit", "hf:bert", "/a:b", "a b:c", "C:\\x", "a"))
