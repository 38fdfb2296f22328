"""Methods from outside of the package: by object, by module:Class and by entry point."""

from __future__ import annotations

import sys

import pytest
import torch

import purge
from purge.methods import registry

CLEAR = """
from dataclasses import dataclass
import torch
from purge import Method, Stopping
from purge.core.settings import setting

@dataclass(frozen=True)
class Clear(Method):
    scale: float = setting(0.0, "what is left of the last layer", low=0)
    layers: tuple[int, ...] = (1, 2)
    names: list[str] | None = None
    seed: str | int = "auto"
    stop: Stopping = Stopping(early=False)

    def run(self, model, split, run):
        for _ in run.steps(1, epoch=1):
            with torch.no_grad():
                list(model.parameters())[-1].mul_(self.scale)
            run.log(loss=torch.zeros(()))
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A function that writes a module and makes it importable."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(name: str, text: str) -> str:
        (tmp_path / f"{name}.py").write_text(text)
        sys.modules.pop(name, None)
        return name

    return write


def test_a_class_is_found_by_its_module_and_takes_settings(module, toy):
    name = module("clearing", CLEAR)
    model, forget, retain, _ = toy
    result = purge.unlearn(model, forget, retain, method=f"{name}:Clear", scale="0.5", progress=False)
    assert torch.equal(result.model[-1].bias, 0.5 * model[-1].bias)
    assert result.info["preset"] == "clearing:Clear"
    assert result.method.layers == (1, 2)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("@dataclass(frozen=True)\n", "", "dataclass"),
        ("    stop: Stopping = Stopping(early=False)\n", "", "stop"),
        ("layers: tuple[int, ...] = (1, 2)", "layers: complex = 1j", "layers"),
        ("class Clear(Method)", "class Clear", "purge.Method"),
        ("    def run(", "    def runs(", "run"),
    ],
)
def test_what_is_wrong_with_a_class_is_one_line(old, new, message, module):
    assert old in CLEAR
    name = module("wrong", CLEAR.replace(old, new))
    with pytest.raises(purge.PurgeError, match=message) as error:
        registry.resolve_method(f"{name}:Clear", {})
    assert str(error.value).startswith("Expected ")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["nowhere:Clear", "clearing:Other"])
def test_a_class_that_is_not_there_is_one_line(name, module):
    module("clearing", CLEAR)
    with pytest.raises(purge.PurgeError, match=r"nowhere|Other"):
        registry.resolve_method(name, {})


def test_an_installed_package_brings_methods(module, tmp_path, toy):
    module("forgetful", CLEAR)
    info = tmp_path / "forgetful-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: forgetful\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[purge.methods]\nclear = forgetful:Clear\n")
    assert "forgetful" in purge.list_methods()["clear"]
    model, forget, retain, _ = toy
    result = purge.unlearn(model, forget, retain, method="clear", progress=False)
    assert not result.model[-1].bias.any()
