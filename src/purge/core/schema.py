"""Types of settings and files: what fits a type, how it is cast, and what it is called in a message.

A frozen dataclass is a schema. Python arguments, ``--set key=value``, the YAML of a bench, run.json and
audit.json are all read by :func:`fit`, field by field. Text is cast to a number, a truth value or a list
unless it comes from a file, which has types of its own. A type may be ``bool``, ``int``, ``float``, ``str``,
``Any``, a ``Literal``, a frozen dataclass, a list, tuple or dict of these, or a union of them.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import numbers
import operator
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, TypeVar

from purge.core.errors import FileError, MethodError, PurgeError, brief, did_you_mean

T = TypeVar("T")
Field = dataclasses.Field[Any]

MOST = 2**32 - 1  # of a setting that is a whole number and has no bound of its own; seeds go up to this
NOTHING = ("none", "None", "auto")  # words for None
TRUTH = dict.fromkeys(("true", "1", "yes", "on"), True) | dict.fromkeys(("false", "0", "no", "off"), False)
WORDS: dict[Any, tuple[str, str]] = {
    int: ("a whole number", "whole numbers"), float: ("a number", "numbers"), str: ("a word", "words"),
    bool: ("true or false", "values of true or false"), Any: ("a value", "values"),
}  # fmt: skip


# -- reading ------------------------------------------------------------------------------------


def build(cls: type[T], content: Any, where: str = "", *, ignore_unknown: bool = False) -> T:
    """A dataclass from keys and values; unknown, missing and mistyped keys are refused in one line.

    ``where`` names the file, or the part of it, that the keys come from.
    """
    error, label = (FileError, where) if where else (MethodError, cls.__name__)
    if not isinstance(content, Mapping):
        raise error(f"keys and values in {label}", brief(content), "write key: value")
    fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    if not ignore_unknown and (unknown := [key for key in content if key not in fields]):
        raise error(f"a key of {label}", brief(unknown[0]), did_you_mean(str(unknown[0]), fields))
    for f in fields.values():
        if f.name not in content and f.default is f.default_factory is dataclasses.MISSING:
            raise error(f"{f.name} in {label}", "none", f"add {f.name}: …")
    return cls(**{name: read(cls, f, content[name], where) for name, f in fields.items() if name in content})


def read(cls: type, f: Field, value: Any, where: str = "") -> Any:
    """The value of a field of ``cls``, cast to its type and within its range."""
    fitted = fit(value, hints_of(cls)[f.name], f.name, where)
    above, low, high = (f.metadata.get(key) for key in ("above", "low", "high"))
    for number in fitted if isinstance(fitted, (list, tuple)) else [fitted]:
        if not isinstance(number, (int, float)):
            continue
        if isinstance(number, int) and f.metadata and high is None and number > MOST:
            high = MOST
        limits: Any = (">", above, operator.gt), (">=", low, operator.ge), ("<=", high, operator.le)
        limits = [limit for limit in limits if limit[1] is not None]
        if not all(holds(number, bound) for _, bound, holds in limits):
            text = " and ".join(f"{sign} {bound}" for sign, bound, _ in limits)
            help = f.metadata.get("help")
            fix = f"{f.name} is {help}" if help else f"correct {f.name}"
            raise _refusal(f"{f.name} {text}", brief(number), fix, where)
    return fitted


def fit(value: Any, hint: Any, name: str, where: str = "") -> Any:
    """``value`` cast to the type ``hint``, or an error that names the key, and the file if there is one.

    >>> fit("5e-4", float, "lr"), fit("none", float | None, "lr"), fit("3, 4", tuple[int, ...], "rows")
    (0.0005, None, (3, 4))
    """
    try:
        return _convert(value, hint, where and f"{name} of {where}")
    except PurgeError:  # it is about a key inside of the value
        raise
    except (TypeError, ValueError, LookupError, OverflowError):
        known = [word for option in options(hint) for word in _literals(option)]
        fix = f"correct {name}" if where else f"pass {name}=<{describe(hint)}>"
        fix = did_you_mean(value, known) if known and isinstance(value, str) else fix
        what = f"{describe(hint)} as {name}" if where else f"{describe(hint)} for {name}"
        raise _refusal(what, brief(value), fix, where) from None


def _refusal(what: str, got: str, fix: str, where: str) -> PurgeError:
    return FileError(f"{what} in {where}", got, fix) if where else MethodError(what, got, fix)


# -- types --------------------------------------------------------------------------------------


def hints_of(cls: type) -> dict[str, Any]:
    """The types of a dataclass's fields."""
    try:
        return _hints(cls)
    except (NameError, TypeError, SyntaxError) as error:
        fix = "import them, or define them at the top of the module"
        raise MethodError(f"types of {cls.__name__} that can be looked up", str(error), fix) from None


_hints = functools.cache(typing.get_type_hints)


def options(hint: Any) -> tuple[Any, ...]:
    """The members of a union; any other type is its own only option."""
    return typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)


def unsupported(hint: Any) -> str:
    """The part of a type that a field cannot have, as it is written; empty if all of it is supported."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    inner: Iterable[Any] = ()
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        inner = [hints_of(hint)[f.name] for f in dataclasses.fields(hint)]
    elif len(options(hint)) > 1:
        inner = args
    elif origin in (list, dict) or (origin is tuple and args[1:] == (...,)):
        inner = args[1:] if origin is dict else args[:1]
    elif not (hint in (*WORDS, type(None)) or origin is Literal):
        return hint.__name__ if isinstance(hint, type) and not args else str(hint)
    return next(filter(None, map(unsupported, inner)), "")


def describe(hint: Any, *, plural: bool = False) -> str:
    """A type in words.

    >>> describe(list[int] | None), describe(dict[str, list[float]])
    ('a list of whole numbers', 'keys and values, each a list of numbers')
    """
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if known := _literals(hint):
        return "one of " + ", ".join(known)
    if len(options(hint)) > 1:
        return " or ".join(describe(o, plural=plural) for o in args if o is not type(None))
    if origin in (list, tuple):
        return f"{'lists' if plural else 'a list'} of {describe(args[0], plural=True)}"
    if origin is dict:
        return "keys and values" + ("" if args[1] is Any else f", each {describe(args[1])}")
    return WORDS[hint][plural] if hint in WORDS else f"a {getattr(hint, '__name__', hint)}"


def _literals(hint: Any) -> list[str]:
    return [str(a) for a in typing.get_args(hint)] if typing.get_origin(hint) is Literal else []


# -- casting: a TypeError, ValueError or LookupError says that the value does not fit -----------


def _convert(value: Any, hint: Any, where: str) -> Any:
    if len(options(hint)) > 1:
        return _of_union(value, hint, where)
    kind: Any = typing.get_origin(hint) or hint
    if isinstance(value, Mapping) and isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return build(kind, value, where)
    if isinstance(value, Mapping) and kind is dict:
        keys, values = typing.get_args(hint)
        inside = {key: where and f"{key} of {where}" for key in value}
        return {_convert(k, keys, where): _convert(v, values, inside[k]) for k, v in value.items()}
    if kind in CASTS:
        return CASTS[kind](value, hint, where)
    if hint is not Any and not isinstance(value, kind):
        raise TypeError
    return value


def _of_union(value: Any, hint: Any, where: str) -> Any:
    """The first option that fits; text is cast to a number if it can be, and is split only if it must be."""
    rest = [o for o in options(hint) if o is not type(None)]
    text = isinstance(value, str) and not where
    if len(rest) < len(options(hint)) and (value is None or (text and value in NOTHING)):
        return None
    if text and str in rest:
        rest = [o for o in rest if o is not str and typing.get_origin(o) not in (list, tuple)] + [str]
    else:
        rest = [o for o in rest if (typing.get_origin(o) or o) is type(value)] or rest
    for option in rest[:-1]:
        with suppress(TypeError, ValueError, LookupError, OverflowError):
            return _convert(value, option, where)
    return _convert(value, rest[-1], where)


def _literal(value: Any, hint: Any, where: str) -> Any:
    text = isinstance(value, str) and not where
    words = typing.get_args(hint)
    return words[_literals(hint).index(value) if text else words.index(value)]


def _items(value: Any, hint: Any, where: str) -> Any:
    """A list or tuple, from one, from an array, or from text with commas."""
    if isinstance(value, str) and not where:
        parts: Any = [part.strip() for part in value.split(",") if part.strip()]
    else:
        parts = value.tolist() if hasattr(value, "tolist") else value
    if not isinstance(parts, Sequence) or isinstance(parts, str):
        raise TypeError
    kind: Any = typing.get_origin(hint)
    return kind(_convert(part, typing.get_args(hint)[0], where) for part in parts)


def _number(value: Any, hint: Any, where: str) -> int | float:
    text = isinstance(value, str) and not where
    if not text and (isinstance(value, bool) or not isinstance(value, numbers.Real)):
        raise TypeError
    number = float(value)
    if not math.isfinite(number) or (hint is int and number != int(number)):
        raise ValueError
    if hint is int:  # not by way of a float, which has 53 bits
        return int(value) if isinstance(value, numbers.Integral) else int(number)
    return number


def _truth(value: Any, hint: Any, where: str) -> bool:
    if where and not isinstance(value, bool):
        raise TypeError
    return TRUTH[str(value).lower()]


CASTS: dict[Any, Callable[[Any, Any, str], Any]] = {
    Literal: _literal, list: _items, tuple: _items, int: _number, float: _number, bool: _truth,
}  # fmt: skip
