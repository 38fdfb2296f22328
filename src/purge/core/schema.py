"""YAML files as frozen dataclasses: what is unknown, missing or of another type is refused in one line."""

from __future__ import annotations

import dataclasses
import math
import re
import types
import typing
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml

from purge.core.errors import FileError, did_you_mean

T = TypeVar("T")


class Loader(yaml.SafeLoader):  # type: ignore[misc]
    """YAML as people mean it: 5e-4 is a number, and a key that stands twice is a mistake."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """A mapping; a key may not stand twice, but one that came with ``<<: *other`` may be changed."""
        own = [key for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
        keys = [self.construct_object(key, deep=True) for key in own]
        if twice := [key for key in keys if keys.count(key) > 1]:
            raise yaml.constructor.ConstructorError(None, None, f"{twice[0]!r} stands twice", node.start_mark)
        found: dict[Any, Any] = super().construct_mapping(node, deep)
        return found


Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file, or a word about what is wrong with it."""
    if not path.is_file():
        raise FileError(f"a file at {path}", "nothing there", "check the path")
    try:
        found = yaml.load(path.read_text(encoding="utf-8"), Loader)
    except (yaml.YAMLError, ValueError) as error:  # ValueError: other letters, or a date that is none
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark is not None else ""
        got = f"{getattr(error, 'problem', None) or error}{where}"
        raise FileError(f"YAML in {path}", got, "correct the file") from None
    if not isinstance(found, dict):
        raise FileError(f"keys and values in {path}", type(found).__name__, "see configs/smoke.yaml")
    return found


def record(cls: type[T], given: Any, where: str) -> T:
    """A dataclass of what a file says; unknown, missing and mistyped keys are refused."""
    if not isinstance(given, dict):
        raise FileError(f"keys and values in {where}", repr(given), "write key: value")
    fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    hints = typing.get_type_hints(cls)
    for key, value in given.items():
        if key not in fields:
            raise FileError(f"a key of {where}", repr(key), did_you_mean(str(key), fields))
        if not fits(value, hints[key]):
            raise FileError(f"{_words(hints[key])} as {key} in {where}", repr(value), "change it")
    for name, f in fields.items():
        if name not in given and f.default is f.default_factory is dataclasses.MISSING:
            raise FileError(f"{name} in {where}", "none", f"add {name}: …")
    return cls(**given)


def fits(value: Any, hint: Any) -> bool:
    """Is a value of YAML of the type of a field? A whole number will do for a number."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return True
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, a) for a in args)
    if origin is Literal:
        return isinstance(value, str) and value in args
    if origin is list:
        return isinstance(value, list) and all(fits(v, args[0]) for v in value)
    if origin is dict:
        return isinstance(value, dict) and all(
            fits(k, args[0]) and fits(v, args[1]) for k, v in value.items()
        )
    if isinstance(value, bool) or hint is bool:
        return isinstance(value, bool) and hint is bool
    if hint is float:
        return isinstance(value, (int, float)) and -math.inf < value < math.inf
    return isinstance(value, hint)


def _words(hint: Any) -> str:
    """A type in words.

    >>> _words(list[int] | None)
    'a list, each a whole number'
    """
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_words(a) for a in args if a is not type(None))
    if origin is Literal:
        return "one of " + ", ".join(args)
    if origin is list:
        return f"a list, each {_words(args[0])}"
    if origin is dict:
        return f"names, each with {_words(args[1])}"
    plain = {int: "a whole number", float: "a number", bool: "true or false", str: "a word"}
    return plain.get(hint, "a value")
