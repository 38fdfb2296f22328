"""A small world to attack: data, run folders, a bench, and bait that must never be taken."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml
from sklearn.datasets import load_digits

from tests.hostile.shell import Ending, counted, run, tree

PLAN: dict[str, Any] = {
    "about": "two methods on three digits",
    "data": "digits",
    "model": "small-resnet",
    "recipe": {"epochs": 1},
    "forget": [0],
    "seeds": [0],
    "retrains": 1,
    "metrics": ["ta", "fa_test", "ra"],
    "methods": [{"method": "purge", "set": {"steps": 2}}, {"method": "finetune", "set": {"epochs": 1}}],
    "tables": [{"name": "methods", "title": "Digits", "columns": ["ta", "fa_test"], "also": ["original"]}],
    "figures": [{"name": "bars", "table": "methods", "columns": ["ta"]}],
}


class World(NamedTuple):
    """Folders with everything that commands read."""

    root: Path  # commands run in root/here/now; nothing outside of it may change

    @property
    def here(self) -> Path:
        return self.root / "here" / "now"

    def json(self, *parts: str) -> Any:
        return json.loads(self.here.joinpath(*parts).read_text())

    def expect(self, kind: str, *argv: Any) -> Ending:
        """Run a command on the files as they are now, and see that it behaves, whatever is in them.

        It ends in time with 0, 1, or 2 and one line; a refusal leaves every file as it was; no code that a
        file names has run; nothing outside of the folder has changed.
        """
        before = tree(self.root)
        ending = run(*argv, cwd=self.here)
        after = tree(self.root)
        for path in map(Path, after.keys() - before.keys()):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        counted(kind, f"exit {ending.code}")
        told = f"purge {' '.join(map(str, argv))}\n{ending.out}\n{ending.err}"
        assert not ending.fault, f"{ending.fault}: {told}"
        assert not any("bait-taken" in path for path in after), f"code from a file has run: {told}"
        for stream in (ending.out, ending.err):
            assert "\x1b]" not in stream, f"an escape sequence from a file reaches the terminal: {told}"
        changed = {p for p in before.keys() | after.keys() if before.get(p, b"?") != after.get(p, b"?")}
        for path in [p for p in changed if p.endswith(".html")]:
            assert b"<script>alert(1)" not in (after.get(path) or b""), f"a script in {path}: {told}"
        if ending.code == 2:
            assert not changed, f"a refusal changed {sorted(changed)}: {told}"
        outside = [p for p in changed if not Path(p).is_relative_to(self.here)]
        assert not outside, f"{outside} changed: {told}"
        return ending


def build(root: Path) -> World:
    """Train, unlearn, audit and bench once, on 360 digits of three classes."""
    world = World(root)
    here = world.here
    here.mkdir(parents=True)
    x, y = load_digits(n_class=3, return_X_y=True)
    np.savez(here / "three.npz", images=(x * 15).astype(np.uint8).reshape(-1, 8, 8), labels=y)
    bait = "import pathlib\npathlib.Path('bait-taken').touch()\ndef build(**_): ...\n"
    (here / "helpers.py").write_text(bait)
    model = ("--data", "three.npz", "--model", "small-resnet")
    commands = [
        ["train", *model, "--set", "epochs=6", "--out", "base"],
        ["train", "--like", "base", "--without-class", 1, "--out", "retrained"],
        ["unlearn", "base", "--forget-class", 1, "--set", "steps=8", "--out", "run"],
        ["audit", "run", "--retrained", "retrained", "--metrics", "quick"],
    ]
    for argv in commands:
        ending = run(*argv, "--quiet", cwd=here)
        assert ending.code in (0, 1), ending
    (here / "plan.yaml").write_text(yaml.safe_dump(PLAN))
    assert run("bench", "plan.yaml", "--out", "bench", "--quiet", cwd=here).code == 0
    return world
