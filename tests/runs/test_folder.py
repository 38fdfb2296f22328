"""Run folders: what run.json may say, and that no code is imported because a file names it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from purge.core.errors import FileError, PurgeError
from purge.core.plugins import trusted
from purge.data.load import load
from purge.models.checkpoint import save_weights
from purge.runs.folder import RunFile, choose_model, read_facts, read_model


def run_with(folder: Path, **facts: Any) -> Path:
    (folder / "run.json").write_text(json.dumps(facts))
    return folder


def test_known_keys_have_types_and_all_others_are_kept(tmp_path: Path) -> None:
    facts = read_facts(run_with(tmp_path, model="small-resnet", seconds=3, size=None, digest="abc"))
    assert (facts.model, facts.seconds, facts.size) == ("small-resnet", 3.0, None)
    assert dict(facts) == {"model": "small-resnet", "seconds": 3, "size": None, "digest": "abc"}
    assert facts.request == facts.gone == {}


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"model": 5}, "a word as model"),
        ({"size": "8"}, "a whole number as size"),
        ({"skip_bad": 1}, "true or false as skip_bad"),
        ({"shards": 2.5}, "a whole number as shards"),
        ({"settings": []}, "keys and values as settings"),
        ({"seconds": "long"}, "a number as seconds"),
        ({"forget_samples": [1]}, "a whole number as forget_samples"),
        ({"test_samples": {"a": 1}}, "a whole number as test_samples"),
        ({"forget_classes": "abc"}, "a list of whole numbers as forget_classes"),
        ({"request": {"forget": [3]}}, "as request"),
        ({"request": {"forget_ids": [True]}}, "as request"),
        ({"gone": {"forget_classes": 3}}, "as gone"),
        ({"gone": "all"}, "as gone"),
    ],
)
def test_a_wrong_value_is_refused_with_the_file_and_the_key(
    tmp_path: Path, facts: dict[str, Any], words: str
) -> None:
    with pytest.raises(FileError) as error:
        read_facts(run_with(tmp_path, **facts))
    assert f"{words} in {tmp_path / 'run.json'}" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Somebody else's run folder, which names code that lies in the current folder."""
    (tmp_path / "helpers_of_a_stranger.py").write_text(
        "from pathlib import Path\nfrom torch import nn\nPath('executed').touch()\n"
        "def build(classes):\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "helpers_of_a_stranger", raising=False)
    return run_with(tmp_path, model="helpers_of_a_stranger:build", data="digits")


def test_code_that_a_run_folder_names_is_not_imported(stranger: Path) -> None:
    images, _ = load("digits")
    with pytest.raises(FileError) as error:
        read_model(stranger, None, images)
    assert str(error.value) == (
        "Expected --model on this command line or --trust, got 'helpers_of_a_stranger:build' from run.json. "
        "Fix: pass --model helpers_of_a_stranger:build if its code may run."
    )
    assert not (stranger / "executed").exists()
    assert "helpers_of_a_stranger" not in sys.modules


@pytest.mark.parametrize(("name", "trust"), [("helpers_of_a_stranger:build", False), (None, True)])
def test_code_is_imported_if_the_user_names_it_or_trusts_the_file(
    stranger: Path, name: str | None, trust: bool
) -> None:
    images, _ = load("digits")
    save_weights(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), stranger / "model.safetensors")
    read_model(stranger, name, images, trust)
    assert (stranger / "executed").exists()


def test_only_names_of_code_need_trust() -> None:
    for name in ("small-resnet", "timm:vit_tiny_patch16_224", "hf:google/vit", "purge"):
        assert trusted(name, "run.json", False) == name
    with pytest.raises(PurgeError, match=r"Expected --trust on this command line, got 'm:C' from a\.yaml"):
        trusted("m:C", "a.yaml", False)
    assert choose_model(RunFile(model="small-resnet"), None) == "small-resnet"
