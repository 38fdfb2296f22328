"""Settings are the fields of frozen dataclasses: type, default, help and range on adjacent lines.

Everything that reads a setting (Python arguments, ``--set key=value``, JSON) goes through
:func:`normalise`, which casts by the field's type and checks its range.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
import types
import typing
from typing import Any, Literal, TypeVar

from purge.core.errors import MethodError, PurgeError, did_you_mean

T = TypeVar("T")


def setting(
    default: Any,
    help: str,
    *,
    above: float | None = None,
    low: float | None = None,
    high: float | None = None,
) -> Any:
    """A field with its help text and its range: above (exclusive), low and high (inclusive)."""
    return dataclasses.field(
        default=default, metadata={"help": help, "above": above, "low": low, "high": high}
    )


def normalise(config: Any) -> None:
    """Cast and check every field of a frozen dataclass in place; call it in ``__post_init__``."""
    hints = typing.get_type_hints(type(config))
    for f in dataclasses.fields(config):
        value = cast(f.name, getattr(config, f.name), hints[f.name])
        _in_range(f, value)
        object.__setattr__(config, f.name, value)


def replace(config: T, values: dict[str, Any]) -> T:
    """A copy of ``config`` with new values; a key of a nested dataclass may be given flat or in a dict.

    An unknown key is answered with the nearest known one.
    """
    fields = {f.name: f for f in dataclasses.fields(config)}  # type: ignore[arg-type]
    nested = [n for n in fields if dataclasses.is_dataclass(getattr(config, n))]
    changes: dict[str, Any] = {n: values[n] for n in values if n in fields and values[n] is not None}
    changes |= {n: None for n in values if n in fields and n not in nested and values[n] is None}
    for n in nested:  # as as_dict() writes it
        if isinstance(changes.get(n), dict):
            changes[n] = replace(getattr(config, n), changes[n])
    for key in [k for k in values if k not in fields]:
        owner = next((n for n in nested if key in _names(getattr(config, n))), None)
        if owner is None:
            known = [*fields, *(k for n in nested for k in _names(getattr(config, n)))]
            raise MethodError(f"a setting of {type(config).__name__}", repr(key), did_you_mean(key, known))
        inner = cast(owner, changes.get(owner, getattr(config, owner)), type(getattr(config, owner)))
        changes[owner] = dataclasses.replace(inner, **{key: values[key]})
    return dataclasses.replace(config, **changes)  # type: ignore[type-var]


def flat_fields(config: Any) -> list[tuple[dataclasses.Field[Any], Any]]:
    """Every setting with its value, those of nested dataclasses among them."""
    found: list[tuple[dataclasses.Field[Any], Any]] = []
    for f in dataclasses.fields(config):
        value = getattr(config, f.name)
        found += flat_fields(value) if dataclasses.is_dataclass(value) else [(f, value)]
    return found


def checked_seed(value: Any) -> int:
    """A seed: a whole number from 0 to 2³² − 1."""
    whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not whole or not 0 <= int(value) < 2**32:
        raise PurgeError("a whole number from 0 to 2^32 - 1 as seed", repr(value), "pass seed=0, say")
    return int(value)


def as_dict(config: Any) -> dict[str, Any]:
    """The settings as plain JSON values, nested dataclasses as nested dicts."""
    return dataclasses.asdict(config)


def cast(name: str, value: Any, hint: Any) -> Any:
    """``value`` as the type of the field: "5e-4" becomes a float, "a,b" a tuple, "none" None."""
    options = typing.get_args(hint) if _is_union(hint) else (hint,)
    if isinstance(value, str) and value in ("none", "None", "auto") and type(None) in options:
        return None
    if value is None and type(None) in options:
        return None
    wanted = next(o for o in options if o is not type(None))
    try:
        return _cast_to(wanted, value)
    except (TypeError, ValueError, OverflowError):
        kind = _describe(wanted)
        if typing.get_origin(wanted) is Literal and isinstance(value, str):
            fix = did_you_mean(value, [str(o) for o in typing.get_args(wanted)])
        else:
            fix = f"pass {name}=<{kind}>"
        raise MethodError(f"{kind} for {name}", repr(value), fix) from None


def _cast_to(wanted: Any, value: Any) -> Any:
    if typing.get_origin(wanted) is Literal:
        if value not in typing.get_args(wanted):
            raise ValueError
        return value
    if typing.get_origin(wanted) is tuple:
        if isinstance(value, str):
            value = [part.strip() for part in value.split(",") if part.strip()]
        if not all(isinstance(part, str) for part in value):
            raise TypeError
        return tuple(value)
    if wanted is bool:
        text = str(value).lower()
        if text not in ("true", "false", "1", "0", "yes", "no", "on", "off"):
            raise ValueError
        return text in ("true", "1", "yes", "on")
    if wanted in (int, float):
        if isinstance(value, bool) or not isinstance(value, (numbers.Real, str)):
            raise TypeError
        number = float(value)
        if not math.isfinite(number) or (wanted is int and number != int(number)):
            raise ValueError
        return wanted(number)
    if not isinstance(value, wanted):
        raise TypeError
    return value


def _in_range(f: dataclasses.Field[Any], value: Any) -> None:
    above, low, high = (f.metadata.get(k) for k in ("above", "low", "high"))
    if value is None or not isinstance(value, (int, float)):
        return
    if (above is None or value > above) and (low is None or value >= low) and (high is None or value <= high):
        return
    bounds = [
        text
        for text, bound in ((f"> {above}", above), (f">= {low}", low), (f"<= {high}", high))
        if bound is not None
    ]
    raise MethodError(f"{f.name} {' and '.join(bounds)}", str(value), f"{f.name} is {f.metadata['help']}")


def _is_union(hint: Any) -> bool:
    return typing.get_origin(hint) in (typing.Union, types.UnionType)


def _names(config: Any) -> list[str]:
    return [f.name for f in dataclasses.fields(config)]


def _describe(wanted: Any) -> str:
    if typing.get_origin(wanted) is Literal:
        return "one of " + ", ".join(str(o) for o in typing.get_args(wanted))
    if typing.get_origin(wanted) is tuple:
        return "a list of names"
    plain = {int: "a whole number", float: "a number", bool: "true or false", str: "a word"}
    return plain.get(wanted, f"a {getattr(wanted, '__name__', wanted)}")
