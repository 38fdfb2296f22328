"""One quick demo, whose run folders the tests of several commands use."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from purge import demo
from tests.cli.commands import FEW_STEPS, Done, command, ran, read

ROWS = ["base", "retrain", "retrain-2", "purge", "purge-paper", "gradient-ascent"]


class Demo(NamedTuple):
    """One run of the demo."""

    folder: Path
    done: Done
    rows: list[demo.ModelRow]
    seconds: float  # of processor time, on one thread: what a machine with nothing else to do takes

    def value(self, name: str, key: str) -> float:
        """A number of an audit.json."""
        return read(self.folder / name / "audit.json")["values"][key]["value"]

    def took(self, name: str) -> float:
        return read(self.folder / name / "run.json")["seconds"]

    @property
    def lines(self) -> list[str]:
        """What was printed: two lines of head, the rows, the sentences, where the runs and the report are."""
        return [line for line in self.done.out.splitlines() if line.strip()]

    @property
    def sentences(self) -> list[str]:
        return self.lines[2 + len(ROWS) : -2]


@pytest.fixture(scope="session")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    """The demo, run once; its rows are kept as they come."""
    folder = tmp_path_factory.mktemp("demo") / "runs"
    rows: list[demo.ModelRow] = []
    run_demo = demo.run_demo

    def keep(*args: Any, **more: Any) -> list[demo.ModelRow]:
        rows.extend(run_demo(*args, **more))
        return rows

    started = time.process_time()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "run_demo", keep)
        patch.chdir(folder.parent)
        done = command("demo", "--quick", "--out", folder)
    return Demo(folder, done, rows, time.process_time() - started)


@pytest.fixture
def run(shown: Demo, tmp_path: Path) -> Path:
    """A copy of the unlearned run, to be audited."""
    return Path(shutil.copytree(shown.folder / "purge", tmp_path / "run"))


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained model, a retrained one, and an unlearned one that was audited."""
    at = tmp_path_factory.mktemp("made")
    data = ("--data", "digits", "--model", "small-resnet", "--set", "epochs=2", "--quiet")
    ran("train", *data, "--out", at / "base")
    ran("train", "--like", at / "base", "--without-class", 3, "--quiet", "--out", at / "retrained")
    ran("unlearn", at / "base", "--forget-class", 3, *FEW_STEPS, "--quiet", "--out", at / "run")
    ran("audit", at / "run", "--metrics", "quick", "--quiet")
    return at
