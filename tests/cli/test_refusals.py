"""Bad requests on the command line: exit code 2, one sentence, and every file as it was."""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from torch import nn

from purge.cli import app as cli
from purge.core.errors import FileError
from purge.models.checkpoint import load_weights, save_weights
from purge.models.small_resnet import SmallResNet
from tests.cli.commands import ANY_TARGET, command, ran, refused
from tests.refusals import assert_sentence, tree


@pytest.fixture(scope="session")
def stored_run(tmp_path_factory: pytest.TempPathFactory, base: nn.Module) -> Path:
    """A run folder with a trained model."""
    folder = tmp_path_factory.mktemp("stored") / "base"
    folder.mkdir()
    save_weights(base, folder / "model.safetensors")
    (folder / "run.json").write_text(json.dumps({"model": "small-resnet", "data": "digits", "request": {}}))
    return folder


class Files:
    """Files for the command line in a folder of their own."""

    def __init__(self, tmp: Path, stored_run: Path) -> None:
        self.tmp, self.base, self.out = tmp, tmp / "base", tmp / "out"
        shutil.copytree(stored_run, self.base)

    def unlearn(
        self, *more: Any, of: Path | None = None, what: tuple[Any, ...] = ("--forget-class", 3)
    ) -> Any:
        out = () if "--out" in more else ("--out", self.out)
        return ["unlearn", of or self.base, *what, *out, *more]

    def train(self, *more: Any) -> list[Any]:
        return ["train", "--out", self.out, *more]

    def file(self, name: str, content: str | bytes) -> Path:
        path = self.tmp / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def ids(self, content: str) -> list[Any]:
        return self.unlearn(what=("--forget-ids", self.file("ids.txt", content)))

    def named(self, path: Path) -> list[Any]:
        """A request on a file of weights."""
        return self.unlearn("--model", "small-resnet", "--data", "digits", of=path)

    def saved(self, content: Any) -> list[Any]:
        """A request on a file that torch wrote."""
        torch.save(content, self.tmp / "a.pt")
        return self.named(self.tmp / "a.pt")

    def stored(self, change: Callable[[Path], None]) -> list[Any]:
        """A request on the run folder with its weights changed."""
        change(self.base / "model.safetensors")
        return self.unlearn()

    def facts(self, content: str | bytes | None = None, **facts: Any) -> Path:
        """The run folder with another run.json: this content, or with other facts in it."""
        path = self.base / "run.json"
        if content is None:
            content = json.dumps(json.loads(path.read_text()) | facts)
        self.file("base/run.json", content)
        return self.base

    def report(self, *more: Any, value: Any = 0.5, info: dict[str, Any] | None = None, **facts: Any) -> Any:
        """A request for the page of the run folder, with an audit of one value and other facts."""
        audit = {"values": {"ra": {"value": value}}, "retrained": {}, "original": {}, "info": info or {}}
        self.file("base/audit.json", json.dumps(audit))
        return ["report", self.facts(**facts), *more]

    def limit(self, text: str) -> list[Any]:
        """A request for an audit with a limit; there is no run: the limit is looked at before."""
        return ["audit", self.tmp / "none", "--fail-if", text]

    def pipe(self) -> Path:
        os.mkfifo(self.tmp / "pipe")
        return self.tmp / "pipe"


@pytest.fixture
def files(tmp_path: Path, stored_run: Path) -> Files:
    return Files(tmp_path, stored_run)


def remove(path: Path) -> Path:
    path.unlink()
    return path.parent


def with_file(folder: Path) -> Path:
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    return folder


class RunsCode:
    """A pickle that makes a folder when it is read."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.marker),)


DIGITS = ("--data", "digits", "--model", "small-resnet")
COMMANDS: list[tuple[str, str, Callable[[Files], list[Any]]]] = [
    # what must be forgotten
    ("neither class nor ids", "neither", lambda s: s.unlearn(what=())),
    ("out is the model itself", "an audit compares with it", lambda s: s.unlearn("--out", s.base, "--force")),
    ("class and ids", "both", lambda s: s.unlearn("--forget-ids", s.file("ids.txt", "1"))),
    ("class by a wrong name", "got 'three'", lambda s: s.unlearn(what=("--forget-class", "three"))),
    ("class not there", "got 10", lambda s: s.unlearn(what=("--forget-class", 10))),
    ("ids missing", "nothing there", lambda s: s.unlearn(what=("--forget-ids", s.tmp / "none.txt"))),
    ("ids empty", "ids.txt", lambda s: s.ids("\n")),
    ("ids are words", "'seven'", lambda s: s.ids("5\nseven\n")),
    ("ids out of range", "got 1437", lambda s: s.ids("0, 1437")),
    ("ids with a superscript", "²", lambda s: s.ids("2²")),
    # names
    ("unknown method", "did you mean 'purge'", lambda s: s.unlearn("--method", "purg")),
    ("unknown data", "did you mean 'digits'", lambda s: s.unlearn("--data", "digit")),
    ("unknown model", "did you mean 'small-resnet'", lambda s: s.unlearn("--model", "smal-resnet")),
    ("set without =", "--set key=value", lambda s: s.unlearn("--set", "rate")),
    ("set, a typo", "did you mean 'forget_target'", lambda s: s.unlearn(
        "--method", "purge-paper", "--set", "forget_tagret=0.1")),
    ("set, not a number", "nan", lambda s: s.unlearn("--set", "rate=nan")),
    ("unknown metric", "did you mean 'fa_test'", lambda s: ["audit", s.base, "--metrics", "ra,fa_tst"]),
    ("limit on a part of a plain metric", "'mia.loss'", lambda s: s.limit("mia.loss>0.1")),
    ("limit on a metric of parts", "did you mean 'bn_recal.delta'", lambda s: s.limit("bn_recal>2")),
    ("limit in percent of what is not", "leave out the %", lambda s: s.limit("mia>40%")),
    ("limit of infinity", "'fa_test>inf'", lambda s: s.limit("fa_test>inf")),
    ("limit on what is not measured", "add lira to --metrics", lambda s: s.limit("lira.auroc>0.6")),
    ("limit on a class not there", "name one of 0 to 9", lambda s: [
        "audit", s.base, "--forget-class", 3, "--fail-if", "class_accuracy.10<50"]),
    ("no metric", "got none", lambda s: ["audit", s.base, "--metrics", ","]),
    ("settings of a data set", "'digits'", lambda s: ["list", "datasets", "digits"]),
    ("metric, typo", "did you mean 'ra'", lambda s: ["list", "metrics", "raa"]),
    ("unknown shelf", "did you mean 'methods'", lambda s: ["list", "method"]),
    # what to train
    ("train, no model", "--model", lambda s: s.train("--data", "digits")),
    ("train, no data", "--data", lambda s: s.train("--model", "small-resnet")),
    ("train, a model not known", "did you mean 'small-resnet'", lambda s: s.train(
        "--data", "digits", "--model", "small-resnt")),
    ("train, a model of timm not known", "did you", lambda s: s.train(
        "--data", "digits", "--model", "timm:vit_tiny_patch16_22")),
    ("train, a typo in the recipe", "did you mean 'epochs'", lambda s: s.train(*DIGITS, "--set", "epoch=3")),
    ("train, augmentation not known", "augment", lambda s: s.train(*DIGITS, "--set", "augment=rotate")),
    ("train, a class not there", "got 12", lambda s: s.train(*DIGITS, "--without-class", 12)),
    ("train, no file of samples", "nowhere.txt", lambda s: s.train(*DIGITS, "--without-ids", "nowhere.txt")),
    ("train, a size of nothing", "got 0", lambda s: s.train(*DIGITS, "--size", 0)),
    ("train, no published weights", "published weights", lambda s: s.train(*DIGITS, "--pretrained")),
    ("train, like nothing", "nothing there", lambda s: s.train("--like", "nowhere")),
    ("train, a vote without shards", "Expected --vote with --shards, got --vote alone", lambda s: s.train(
        *DIGITS, "--vote", "majority")),
    ("train, slices without shards", "--shards", lambda s: s.train(*DIGITS, "--slices", 2)),
    # device and seed
    ("audit device not there", "'cuda:99'", lambda s: [
        "audit", s.base, "--forget-class", 3, "--device", "cuda:99"]),
    ("seed negative", "got -1", lambda s: s.unlearn("--seed", -1)),
    # where to write
    ("out has files", "an empty folder", lambda s: s.unlearn("--out", with_file(s.out))),
    ("out is a file, with force", "got a file", lambda s: s.unlearn(
        "--out", s.file("file", "mine"), "--force")),
    ("out below a file", "got a file", lambda s: s.unlearn("--out", s.file("file", "mine") / "run")),
    ("demo out has files", "overwrite with --force", lambda s: ["demo", "--out", with_file(s.out)]),
    ("report out is a pipe", "something else", lambda s: s.report("--out", s.pipe(), "--force")),
    ("report out is a folder", "got a folder", lambda s: s.report("--out", with_file(s.out), "--force")),
    ("report of a run twice", "name each run once", lambda s: s.report(
        s.base / ".." / "base", "--out", s.tmp / "a.html")),
    ("export is the checkpoint", "another place for the export", lambda s: [
        *s.saved(SmallResNet().state_dict()), "--export", s.tmp / "a.pt"]),
    ("export into a run folder", "a run folder", lambda s: s.unlearn("--export", s.base / "w.safetensors")),
    ("export into no folder", "a folder at", lambda s: [
        *s.saved(SmallResNet().state_dict()), "--export", s.tmp / "none" / "new.pt"]),
    # checkpoints
    ("checkpoint missing", "nothing there", lambda s: s.unlearn(of=s.tmp / "none")),
    ("weights missing", "no such file", lambda s: s.unlearn(of=remove(s.base / "model.safetensors"))),
    ("weights of another architecture", "another architecture", lambda s: s.stored(
        lambda p: save_weights(nn.Linear(2, 2), p))),
    ("weights of another size", "0 missing, 0 unexpected, 56 of another shape", lambda s: s.stored(
        lambda p: save_weights(SmallResNet(width=8), p))),
    ("pt is text", "damaged", lambda s: s.named(s.file("a.pt", "0.5\n"))),
    ("pt of a whole model", "plain weights", lambda s: s.saved(nn.Linear(2, 2))),
    ("pt without a model's name", "--model", lambda s: [
        w for w in s.saved(SmallResNet().state_dict()) if w not in ("--model", "small-resnet")]),
    ("pt without a data set's name", "--data", lambda s: [
        w for w in s.saved(SmallResNet().state_dict()) if w not in ("--data", "digits")]),
    # run folders
    ("no run.json", "run.json", lambda s: s.unlearn(of=remove(s.base / "run.json"))),
    ("run.json not JSON", "JSON", lambda s: s.unlearn(of=s.facts("{'model': "))),
    ("run.json not text", "bytes that are not UTF-8", lambda s: s.unlearn(of=s.facts(b"\xff\xfe"))),
    ("run.json without model", "architecture", lambda s: s.unlearn(of=s.facts("{}"))),
    ("run.json with a model by number", "model", lambda s: s.unlearn(of=s.facts(model=5))),
    ("run.json with data as a list", "data", lambda s: s.unlearn(of=s.facts(data=["digits"]))),
    ("report, steps in words", "a whole number as steps", lambda s: s.report(steps="many")),
    ("report, target in words", "a number as forget_target", lambda s: s.report(forget_target="low")),
    ("report, finished yesterday", "got 'yesterday'", lambda s: s.report(finished="yesterday")),
    ("report, audited yesterday", "audit.json", lambda s: s.report(info={"finished": "yesterday"})),
    ("report, a value in words", "a number as value in ra of values of", lambda s: s.report(value="0.5")),
    ("report, names in one word", "a list of words as names in info of", lambda s: s.report(
        info={"names": "abc"})),
    ("audit, no run", "nothing there", lambda s: ["audit", s.tmp / "none"]),
    ("audit, a file of weights", "--model", lambda s: ["audit", s.base / "model.safetensors"]),
    ("audit, nothing to forget", "neither", lambda s: ["audit", s.base]),
    ("audit, another request", "request", lambda s: ["audit", s.facts(request={"forget": [3]})]),
    ("audit, original by number", "original", lambda s: [
        "audit", s.facts(original=5), "--forget-class", 3]),
    ("audit, no such retrained run", "nothing there", lambda s: [
        "audit", s.base, "--forget-class", 3, "--retrained", s.tmp / "none"]),
]  # fmt: skip

PARSED: list[tuple[str, str, Callable[[Files], list[Any]]]] = [
    ("unknown command", "'forget'", lambda s: ["forget"]),
    ("mistyped command", "Did you mean 'list'? Fix", lambda s: ["lisst"]),
    ("unknown option", "--frobnicate", lambda s: s.unlearn("--frobnicate")),
    ("no out", "--out", lambda s: ["unlearn", s.base, "--forget-class", 3]),
    ("no checkpoint", "checkpoint", lambda s: ["unlearn", "--out", s.out]),
    ("a seed as a word", "--seed", lambda s: s.unlearn("--seed", "one")),
    ("a demo's seed with none after it", "'--seed'", lambda s: ["demo", "--out", s.out, "--seed", 2**32 - 2]),
    ("an option without its value", "--set", lambda s: s.unlearn("--set")),
    ("one argument too many", "extra", lambda s: s.unlearn("extra")),
]


def said(argv: list[Any]) -> str:
    """The message of the one line that the command ends with."""
    return refused(*argv).removeprefix("Error: ").rstrip("\n")


def options_of(command: str) -> set[str]:
    group: Any = typer.main.get_command(cli.app)
    return {option for p in group.commands[command].params for option in p.opts}


@pytest.mark.parametrize(("words", "argv"), [c[1:] for c in COMMANDS], ids=[c[0] for c in COMMANDS])
def test_the_command_refuses(files: Files, words: str, argv: Callable[[Files], list[Any]]) -> None:
    request = argv(files)
    before = tree(files.tmp)
    message = said(request)
    assert_sentence(message, words)
    assert tree(files.tmp) == before
    _, fix = message.split(". Fix: ", 1)
    advice, *commands = re.split(r"\bpurge (?=(?:train|unlearn|audit) )", fix)  # commands that it names
    for name, text in ((request[0], advice), *((c.split()[0], c) for c in commands)):
        assert set(re.findall(r"--[a-z-]+", text)) <= options_of(name), "an option that it does not have"


@pytest.mark.parametrize(("words", "argv"), [c[1:] for c in PARSED], ids=[c[0] for c in PARSED])
def test_the_parser_refuses(files: Files, words: str, argv: Callable[[Files], list[Any]]) -> None:
    done = command(*argv(files))  # in the parser's own words
    message = done.err
    assert (done.code, done.out, len(message.splitlines())) == (2, "", 1)
    assert words in message
    assert re.search(r"[^.?][.?] Fix: see purge( [a-z]+)? --help\.\n$", message), message
    assert not files.out.exists()


@pytest.mark.parametrize("name", ["torch.pt", "old.pt", "plain.pt", "plain.bin", "model.safetensors"])
def test_a_pickle_is_never_run(files: Files, name: str) -> None:
    marker, path = files.tmp / "marker", files.tmp / name
    content = {**SmallResNet().state_dict(), "extra": RunsCode(marker)}
    if name in ("torch.pt", "old.pt"):
        torch.save(content, path, _use_new_zipfile_serialization=name == "torch.pt")
        torch.load(path, weights_only=False)
    else:
        path.write_bytes(pickle.dumps(RunsCode(marker)))
        pickle.loads(path.read_bytes())
    assert marker.exists()  # it does run code where it is let
    marker.rmdir()

    message = said(files.named(path))
    assert_sentence(message, name)
    assert not marker.exists()
    assert not files.out.exists()


@pytest.mark.parametrize("form", ["safetensors", "pt", "old pt"])
def test_a_checkpoint_cut_anywhere_is_refused(tmp_path: Path, form: str) -> None:
    model = SmallResNet(width=2)
    path = tmp_path / f"a.{form.split()[-1]}"
    if form == "safetensors":
        save_weights(model, path)
    else:
        torch.save(model.state_dict(), path, _use_new_zipfile_serialization=form == "pt")
    whole = path.read_bytes()
    load_weights(model, path)
    for size in [*range(0, 4000, 61), *range(4000, len(whole) - 1, len(whole) // 20), len(whole) - 1]:
        path.write_bytes(whole[:size])
        with pytest.raises(FileError) as caught:
            load_weights(model, path)
        assert_sentence(str(caught.value), path.name)


def test_a_refused_audit_leaves_the_old_one(files: Files) -> None:
    (files.base / "audit.json").write_text("{}")
    said(["audit", files.base, "--forget-class", 11])
    assert (files.base / "audit.json").read_text() == "{}"


def test_the_requests_that_the_cases_spoil_are_accepted(files: Files, base: nn.Module) -> None:
    """The requests that the cases above spoil are accepted as they are."""
    few = ("--set", "epochs=1", "--method", "gradient-ascent", *ANY_TARGET, "--quiet")
    for argv in (files.unlearn(*few), [*files.saved(base.state_dict()), *few, "--force"]):
        assert ran(*argv).err == ""
        assert (files.out / "run.json").exists()


def test_a_report_copes_with_fewer_names_than_classes(files: Files) -> None:
    info = {"names": ["cat"], "forget_classes": [0, 3], "forget_samples": 3, "retain_samples": 4}
    argv = files.report(info=info, request={"forget_classes": [0, 3]})
    assert ran(*argv).err == ""
    assert "class 0 (cat), class 3" in (files.base / "report.html").read_text(encoding="utf-8")
