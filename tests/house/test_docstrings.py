"""Every public name is documented as it is: each parameter, nothing that is not there, and an example."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest

import purge

SECTION = re.compile(r"^(Args|Attributes|Returns|Raises|Example):$")
ENTRY = re.compile(r"^    (\*{0,2}\w+): \S")


def sections(doc: str) -> dict[str, list[str]]:
    """The sections of a docstring in Google's style, as lines; what comes before them is named ''."""
    found: dict[str, list[str]] = {"": []}
    name = ""
    for line in inspect.cleandoc(doc).splitlines():
        if begins := SECTION.match(line):
            name = begins[1]
            found[name] = []
        else:
            found[name].append(line)
    return found


def named_in(doc: str, *which: str) -> list[str]:
    """The names that sections explain, one to an entry."""
    lines = [line for name in which for line in sections(doc).get(name, [])]
    return [entry[1] for line in lines if (entry := ENTRY.match(line))]


def parameters(of: Any) -> list[str]:
    """What a function takes, as its docstring writes it."""
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    taken = inspect.signature(of).parameters.values()
    return [stars.get(p.kind, "") + p.name for p in taken if p.name not in ("self", "cls")]


def public() -> dict[str, Any]:
    """Every name of purge that is no module, and every public class of purge.callbacks."""
    names = {name: getattr(purge, name) for name in purge.__all__}
    named = {name: one for name, one in names.items() if not inspect.ismodule(one)}
    return named | {f"callbacks.{n}": getattr(purge.callbacks, n) for n in purge.callbacks.__all__}


def methods(cls: type) -> Iterator[tuple[str, Any]]:
    """The public methods that a class has from purge, its own and inherited ones."""
    for name in dir(cls):
        if name.startswith("_") or cls is purge.PurgeError:
            continue
        one = inspect.getattr_static(cls, name)
        one = one.__func__ if isinstance(one, (classmethod, staticmethod)) else one
        if inspect.isfunction(one) and one.__module__.startswith("purge"):
            yield name, one


PUBLIC = public()
FUNCTIONS = {name: one for name, one in PUBLIC.items() if inspect.isroutine(one)}
CLASSES = {name: one for name, one in PUBLIC.items() if inspect.isclass(one)}
METHODS = {f"{name}.{called}": one for name, cls in CLASSES.items() for called, one in methods(cls)}


def test_nothing_is_left_out() -> None:
    assert set(PUBLIC) == set(FUNCTIONS) | set(CLASSES)
    assert {"unlearn", "audit", "train", "split"} <= set(FUNCTIONS)
    assert {"Report.plot", "Ledger.verify", "callbacks.Callback.on_check"} <= set(METHODS)


@pytest.mark.parametrize("name", [*FUNCTIONS, *METHODS])
def test_every_parameter_is_explained_and_no_other(name: str) -> None:
    one = {**FUNCTIONS, **METHODS}[name]
    assert named_in(one.__doc__, "Args") == parameters(one)


@pytest.mark.parametrize("name", CLASSES)
def test_every_field_is_explained_and_no_other(name: str) -> None:
    cls = CLASSES[name]
    if cls is purge.Method or name == "callbacks.Callback":
        assert not dataclasses.is_dataclass(cls)  # made by subclasses, whose fields are their own
        return
    assert named_in(cls.__doc__, "Args", "Attributes") == parameters(cls.__init__)


@pytest.mark.parametrize("name", [*FUNCTIONS, *METHODS])
def test_what_is_returned_is_said(name: str) -> None:
    one = {**FUNCTIONS, **METHODS}[name]
    if parameters(one) or name in FUNCTIONS:
        nothing = inspect.signature(one).return_annotation in ("None", None)
        assert ("Returns" in sections(one.__doc__)) is not nothing


@pytest.mark.parametrize("name", [*FUNCTIONS, *CLASSES])
def test_there_is_an_example(name: str) -> None:
    example = "\n".join(sections(PUBLIC[name].__doc__).get("Example", []))
    assert ">>> " in example or "```python" in example


@pytest.mark.parametrize("name", [*FUNCTIONS, *CLASSES, *METHODS])
def test_the_first_line_is_a_sentence(name: str) -> None:
    first = inspect.cleandoc({**PUBLIC, **METHODS}[name].__doc__).splitlines()[0]
    assert first[0].isupper()
    assert first.endswith((".", "?"))
