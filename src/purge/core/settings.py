"""Settings are the fields of frozen dataclasses: type, default, help and range on adjacent lines.

A setting arrives as a Python argument, by ``--set key=value`` or from a file. In each case it goes through
:func:`replace` and :func:`normalise`, which cast it to the field's type and check its range.
"""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Mapping
from typing import Any, TypeVar

from purge.core.errors import MethodError, PurgeError, brief, did_you_mean
from purge.core.schema import Field, fit, hints_of, options, read, unsupported

T = TypeVar("T")


def setting(
    default: Any = dataclasses.MISSING,
    help: str = "",
    *,
    above: float | None = None,
    low: float | None = None,
    high: float | None = None,
) -> Any:
    """A field with its help text and its range: above (exclusive), low and high (inclusive)."""
    metadata = {"help": help, "above": above, "low": low, "high": high}
    if isinstance(default, (list, dict)):
        return dataclasses.field(default_factory=default.copy, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def normalise(config: Any) -> None:
    """Cast and check every field of a frozen dataclass in place; call it in ``__post_init__``."""
    for f in dataclasses.fields(config):
        object.__setattr__(config, f.name, read(type(config), f, getattr(config, f.name)))


def replace(config: T, values: Mapping[str, Any]) -> T:
    """A copy of ``config`` with new values; a key of a nested dataclass may be given flat or in a dict.

    An unknown key is answered with the nearest known one.
    """
    hints = hints_of(type(config))
    now = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}  # type: ignore[arg-type]
    nested = [name for name in now if any(map(dataclasses.is_dataclass, options(hints[name])))]
    for key, value in values.items():
        if key in nested:  # whole, or a dict of some of its settings
            if isinstance(value, Mapping) and dataclasses.is_dataclass(now[key]):
                now[key] = replace(now[key], value)
            elif value is not None or type(None) in options(hints[key]):
                now[key] = fit(value, hints[key], key)
        elif key in now:
            now[key] = value
    inner = [name for name in reversed(nested) if dataclasses.is_dataclass(now[name])]
    owners = {f.name: name for name in inner for f, _ in flat_fields(now[name])}  # may be given flat
    flat: dict[str, dict[str, Any]] = {}
    for key in [key for key in values if key not in now]:
        if key not in owners:
            fix = did_you_mean(key, [*now, *owners])
            raise MethodError(f"a setting of {type(config).__name__}", repr(key), fix)
        flat.setdefault(owners[key], {})[key] = values[key]
    now |= {name: replace(now[name], own) for name, own in flat.items()}
    return dataclasses.replace(config, **now)  # type: ignore[type-var]


def flat_fields(config: Any) -> list[tuple[Field, Any]]:
    """Every setting with its value, including those of nested dataclasses."""
    flat: list[tuple[Field, Any]] = []
    for f in dataclasses.fields(config):
        value = getattr(config, f.name)
        if not dataclasses.is_dataclass(value):
            flat.append((f, value))
        else:
            flat += flat_fields(value)
    return flat


def as_dict(config: Any) -> dict[str, Any]:
    """The settings as plain values, nested dataclasses as dicts."""
    return dataclasses.asdict(config)


def in_short(config: Any) -> str:
    """The name of a settings class and those of its settings that are not the default.

    >>> @dataclasses.dataclass(frozen=True)
    ... class Descent:
    ...     lr: float = 0.1
    ...     momentum: float = 0.9
    >>> in_short(Descent(lr=0.5)), in_short(Descent())
    ('Descent(lr=0.5)', 'Descent()')
    """
    changes = []
    for f in dataclasses.fields(config):
        value = getattr(config, f.name)
        usual = f.default if f.default_factory is dataclasses.MISSING else f.default_factory()
        if value != usual:
            changes.append(f"{f.name}={in_short(value) if dataclasses.is_dataclass(value) else brief(value)}")
    return f"{type(config).__name__}({', '.join(changes)})"


def check_settings_class(cls: type) -> None:
    """Refuse a method's class whose fields cannot be settings, naming the class and the field."""
    name = cls.__name__
    if not getattr(vars(cls).get("__dataclass_params__"), "frozen", False):
        got, fix = "a class without it", f"write @dataclass(frozen=True) above class {name}"
        raise MethodError(f"@dataclass(frozen=True) on {name}", got, fix)
    fields, hints = {f.name: f for f in dataclasses.fields(cls)}, hints_of(cls)
    if not dataclasses.is_dataclass(hints.get("stop")) or "stop" not in fields:
        raise MethodError(f"a field stop in {name}", "none", "add stop: Stopping = Stopping()")
    for f in fields.values():
        if f.default is f.default_factory is dataclasses.MISSING:
            raise MethodError(f"a default for {f.name} of {name}", "none", f"write {f.name}: … = setting(…)")
        if wrong := unsupported(hints[f.name]):
            fix = "use bool, int, float, str, a Literal, a list or tuple of them, or a frozen dataclass"
            raise MethodError(f"a type that settings can have for {f.name} of {name}", wrong, fix)


def checked_seed(value: Any) -> int:
    """A seed: a whole number from 0 to 2³² − 1."""
    whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not whole or not 0 <= int(value) < 2**32:
        raise PurgeError("a whole number from 0 to 2^32 - 1 as seed", brief(value), "pass seed=0, say")
    return int(value)
