"""Types and settings: what fits, how it is cast and described, what is refused."""

from __future__ import annotations

import json
from dataclasses import MISSING, dataclass, field, make_dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from purge.core.errors import FileError, MethodError
from purge.core.schema import build, fit
from purge.core.settings import as_dict, check_settings_class, flat_fields, normalise, replace, setting
from purge.engine.stopping import Stopping
from purge.methods import PurgePaper
from purge.methods.registry import METHODS, resolve_method


@pytest.mark.parametrize(
    ("hint", "given", "stored"),
    [
        (str | int, "5", 5),
        (str | int, 5, 5),
        (str | int, "layer5", "layer5"),
        (str | None, "none", None),
        (int | float, 2, 2),
        (int | float, 2.5, 2.5),
        (float | int, "2", 2.0),
        (tuple[int, ...], "3, 4", (3, 4)),
        (tuple[int, ...], [3, 4.0], (3, 4)),
        (list[int], (3, "4"), [3, 4]),
        (list[int], np.array([3, 4]), [3, 4]),
        (list[str], "a,b", ["a", "b"]),
        (list[float], "0.5", [0.5]),
        (str | list[str], "a,b", "a,b"),
        (str | list[str], ["a", "b"], ["a", "b"]),
        (tuple[str, ...] | None, "none", None),
        (float | None, None, None),
        (int, 2**53 + 1, 2**53 + 1),
        (int, np.int64(3), 3),
        (Literal["a", "b"], "b", "b"),
        (Literal[8, 16], "16", 16),
        (dict[str, float], {"a": 1}, {"a": 1.0}),
        (list[int | list[int]] | Literal["each"], [0, [1, 2]], [0, [1, 2]]),
        (list[int | list[int]] | Literal["each"], "each", "each"),
        (Any, object, object),
    ],
)
def test_a_value_is_cast_to_its_type(hint: Any, given: Any, stored: Any) -> None:
    found = fit(given, hint, "key")
    assert found == stored
    assert type(found) is type(stored)
    assert fit(found, hint, "key") == stored  # what was read can be read again


@pytest.mark.parametrize(
    ("hint", "given", "words"),
    [
        (int, "x", "a whole number for key"),
        (int, True, "a whole number for key"),
        (int, "1e400", "a whole number for key"),
        (float, 10**400, "a number for key"),
        (float, float("nan"), "a number for key"),
        (str, 5, "a word for key"),
        (bool, "maybe", "true or false for key"),
        (list[int], 3, "a list of whole numbers for key"),
        (list[int], [1, True], "a list of whole numbers for key"),
        (list[int], {"a": 1}, "a list of whole numbers for key"),
        (tuple[str, ...], [1], "a list of words for key"),
        (str | int, 2.5, "a word or a whole number for key"),
        (str | int, None, "a word or a whole number for key"),
        (Literal["left", "right"], "rihgt", "did you mean 'right'"),
        (Literal["left", "right"], ["left"], "one of left, right for key"),
        (dict[str, float], {5: 1.0}, "keys and values, each a number for key"),
        (dict[str, float], [1], "keys and values, each a number for key"),
        (
            list[int | list[int]] | Literal["each"],
            2.5,
            "whole numbers or lists of whole numbers or one of each",
        ),
    ],
)
def test_a_value_that_does_not_fit_is_refused_in_one_line(hint: Any, given: Any, words: str) -> None:
    with pytest.raises(MethodError) as error:
        fit(given, hint, "key")
    assert words in str(error.value)
    assert "\n" not in str(error.value)
    with pytest.raises(FileError, match=r"in a\.yaml, got"):
        fit(given, hint, "key", "a.yaml")


@pytest.mark.parametrize(
    ("hint", "given"),
    [(float, "0.5"), (bool, "true"), (bool, 1), (list[int], "1,2"), (int | None, "none"), (Literal[8], "8")],
)
def test_text_in_a_file_is_text(hint: Any, given: Any) -> None:
    assert fit(given, hint, "key") is not given
    with pytest.raises(FileError, match=r"as key in a\.json"):
        fit(given, hint, "key", "a.json")


@dataclass(frozen=True)
class Masked:
    sharpness: float = setting(1.0, "sharpness of the target", above=0)

    def __post_init__(self) -> None:
        normalise(self)


@dataclass(frozen=True)
class Forgetter:
    """A method's settings with everything that a field may be."""

    target: Masked = setting(Masked(), "what outputs are pulled to")
    start: Masked | None = setting(None, "what to begin with")
    rows: tuple[int, ...] = setting((), "row numbers", low=0)
    groups: list[str] = setting(["a"], "groups")
    layer: str | int = setting("fc", "a layer by name or number")
    rate: float = setting(0.1, "learning rate", above=0)
    stop: Stopping = Stopping()

    def __post_init__(self) -> None:
        normalise(self)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"target": 5}, "a Masked for target"),
        ({"target": {"fresh_share": 0.5}}, "a setting of Masked"),
        ({"target": {"sharpness": 0}}, "sharpness > 0"),
        ({"sharpnes": 1}, "did you mean 'sharpness'"),
        ({"rows": [1, -1]}, "rows >= 0, got -1"),
        ({"stop": {"check_evry": 1}}, "did you mean 'check_every'"),
        ({"stop": "x", "forget_target": 0.1}, "a Stopping for stop"),
    ],
)
def test_a_nested_setting_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(MethodError) as error:
        replace(Forgetter(), given)
    assert words in str(error.value)


def test_settings_are_written_and_read_again() -> None:
    config = replace(Forgetter(), {"sharpness": 3, "rows": "1,2", "layer": "4", "start": {"sharpness": 2}})
    written = as_dict(config)
    assert written["target"] == {"sharpness": 3.0}
    assert written["start"] == {"sharpness": 2.0}
    assert replace(Forgetter(), json.loads(json.dumps(written))) == config
    assert next((f.name, value) for f, value in flat_fields(config)) == ("sharpness", 3.0)
    config.groups.append("b")
    assert Forgetter().groups == ["a"], "a default that is a list is not shared"
    assert replace(config, {"start": None, "stop": None}) == replace(config, {"start": "none"})


# -- classes of users -----------------------------------------------------------------------------


def made(name: str, *fields: Any, frozen: bool = True, stop: bool = True) -> type:
    """A class of settings, as a user may write it."""
    own = [(key, hint, field(default=default)) for key, hint, default in fields]
    if stop:
        own.append(("stop", Stopping, field(default=Stopping())))
    return make_dataclass(name, own, frozen=frozen)


class Plain:
    stop: Stopping = Stopping()


class Extended(Forgetter):
    more: int = 3


INNER = made("Inner", ("where", Path, Path()), stop=False)


@pytest.mark.parametrize(
    ("cls", "words"),
    [
        (Plain, "@dataclass(frozen=True) on Plain, got a class without it"),
        (Extended, "@dataclass(frozen=True) on Extended"),
        (made("NotFrozen", frozen=False), "@dataclass(frozen=True) on NotFrozen"),
        (made("NoStop", ("rate", float, 0.1), stop=False), "a field stop in NoStop"),
        (made("NoDefault", ("rate", float, MISSING)), "a default for rate of NoDefault"),
        (made("WithPath", ("inner", INNER, INNER())), "for inner of WithPath, got Path"),
        (made("WithPair", ("pair", tuple[int, str], (1, "a"))), "for pair of WithPair, got tuple[int, str]"),
        (made("Lost", ("rate", "Missing", 1)), "types of Lost that can be looked up, got name 'Missing'"),
    ],
)
def test_what_is_wrong_with_a_class_is_said_in_one_line(cls: type, words: str) -> None:
    with pytest.raises(MethodError) as error:
        check_settings_class(cls)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("cls", [Forgetter, *dict.fromkeys(type(entry.method) for entry in METHODS.values())])
def test_classes_whose_fields_are_settings_are_accepted(cls: type) -> None:
    check_settings_class(cls)


# -- files ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Page:
    title: str
    size: int = setting(8, low=1, high=64)
    words: list[str] = field(default_factory=list)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"size": 4}, "Expected title in a.yaml, got none"),
        ({"title": "a", "sise": 4}, "did you mean 'size'"),
        ({"title": "a", 5: 4}, "a key of a.yaml, got 5"),
        ({"title": "a", "size": 100}, "size >= 1 and <= 64 in a.yaml, got 100"),
        ({"title": ["a"]}, "a word as title in a.yaml"),
        ("text", "keys and values in a.yaml, got 'text'"),
    ],
)
def test_a_wrong_file_is_refused_with_its_name_and_key(given: Any, words: str) -> None:
    with pytest.raises(FileError) as error:
        build(Page, given, "a.yaml")
    assert words in str(error.value)
    assert build(Page, {"title": "a", "more": 1}, "a.yaml", ignore_unknown=True) == Page("a")


# -- settings of methods ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "accepted", "rejected"),
    [
        ("lr", 1e-9, 0.0), ("epochs", 1, 0), ("batch_size", 1, 0), ("erasure", 0.0, -0.1), ("kd", 0.0, -1),
        ("temperature", 0.1, 0), ("gate", 0.0, -0.1), ("clip", 0.0, -1), ("momentum", 0.999, 1.0),
        ("weight_decay", 0.0, -1e-9), ("forget_target", 0.0, -0.1), ("forget_target", 1.0, 1.1),
        ("retain_budget", 0.1, 0.0), ("retain_floor", 0.0, -1.0), ("check_every", 0, -1),
        ("check_samples", 1, 0), ("optimizer", "adamw", "adam"), ("objective", "ga", "gaa"),
        ("norm", "train", "frozn"), ("space", "update", "updates"), ("lr", 0.5, float("nan")),
        ("epochs", 3, 2.5), ("epochs", 3, True), ("early", True, "maybe"), ("layers", ("a",), 3),
    ],
)  # fmt: skip
def test_one_value_is_accepted_and_one_rejected(key: str, accepted: Any, rejected: Any) -> None:
    replace(PurgePaper(), {key: accepted})
    with pytest.raises(MethodError, match=r"^Expected .*, got .*\. Fix: "):
        replace(PurgePaper(), {key: rejected})


@pytest.mark.parametrize("name", METHODS)
def test_settings_of_a_method_can_be_read_again(name: str) -> None:
    method = resolve_method(name, {"stop": Stopping(check_every=7), "forget_target": 0.25})
    assert (method.stop.check_every, method.stop.forget_target) == (7, 0.25)
    written = json.loads(json.dumps(as_dict(method)))
    assert resolve_method(name, written) == method
