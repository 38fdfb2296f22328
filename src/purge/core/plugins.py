"""Imports by name: ``module:NAME`` of the user, entry points of packages, purge's own on first use.

``module:NAME`` is imported only where the caller or the command line named it; a file may name it only if
:func:`trusted` says so. An installed package was chosen by whoever installed it.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import chdir, contextmanager
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from purge.core.errors import FileError, PurgeError, did_you_mean, first_line


def is_function(name: str) -> bool:
    """Is it ``module:function``, and not a path with a colon?"""
    return bool(re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", name)) and not Path(name).exists()


def trusted(name: str, where: str, trust: bool, *, option: str = "") -> str:
    """A name out of a file, if it imports no code: ``module:name`` needs ``--trust``, or its own option.

    ``option``: what would name it on the command line, such as ``--model``.
    """
    form, colon, _ = name.partition(":")
    if colon and form not in ("timm", "hf") and not trust:
        what = f"{option} on this command line or --trust" if option else "--trust on this command line"
        fix = f"pass {option or '--trust'}" + (f" {name}" if option else "")
        raise FileError(what, f"{name!r} from {where}", f"{fix} if its code may run")
    return name


def named(name: str, error: type[PurgeError]) -> Any:
    """The object that ``module:NAME`` stands for; what goes wrong is an ``error`` of one line."""
    module_name, _, attribute = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as problem:
        raise error(
            f"a module {module_name!r} that can be imported, for {name}",
            first_line(problem),
            f"run purge where {module_name} is, and check that python can import it",
        ) from problem
    if not hasattr(module, attribute):
        own = [n for n in vars(module) if not n.startswith("_")]
        raise error(
            f"{attribute!r} in the module {module_name}", "no such name", did_you_mean(attribute, own)
        )
    return getattr(module, attribute)


def installed(group: str) -> dict[str, EntryPoint]:
    """The entry points of installed packages in a group, by name; nothing is imported yet."""
    return {point.name: point for point in entry_points(group=group)}


def loaded(point: EntryPoint, error: type[PurgeError]) -> Any:
    """What an entry point stands for; what goes wrong is an ``error`` that names the package."""
    try:
        return point.load()
    except (Exception, SystemExit) as problem:
        package = point.dist.name if point.dist else point.module
        fix = f"update or uninstall {package}"
        raise error(f"{point.name} of the package {package} to load", first_line(problem), fix) from problem


def from_extra(package: str, extra: str, purpose: str, error: type[PurgeError]) -> Any:
    """A package that an extra of purge brings; a missing one is an ``error`` that names the extra."""
    try:
        return importlib.import_module(package)
    except ImportError:
        fix = f"pip install 'purge-unlearning[{extra}]'"
        raise error(f"the package {package}, for {purpose}", "no such package", fix) from None


def imported_on_use(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """A ``__getattr__`` of a package, for names that are imported when first used: torch takes seconds.

    ``homes``: the module of each name below purge; ``module:other`` if the module calls it otherwise.
    """

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, _, other = homes[name].partition(":")
        value = getattr(importlib.import_module(f"purge.{module}"), other or name)
        setattr(sys.modules[package], name, value)
        return value

    return find


@contextmanager
def current_folder_importable(named_here: bool = True) -> Iterator[None]:
    """Within the block, modules in the current folder can be imported, if this command line named one."""
    if not named_here:
        yield
        return
    folder = str(Path.cwd())
    importlib.invalidate_caches()  # the module may have been written a moment ago
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        if folder in sys.path:
            sys.path.remove(folder)


@contextmanager
def processes_without_current_folder() -> Iterator[None]:
    """Within the block, new Python processes do not begin with the current folder first on their path.

    They get the path of this process soon after; until then, a file named like a library would be imported.
    """
    before = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        yield
    finally:
        os.environ.pop("PYTHONSAFEPATH")
        os.environ |= {} if before is None else {"PYTHONSAFEPATH": before}


def ignore_matplotlibrc() -> None:
    """Import Matplotlib without the settings in the current folder, which it may evaluate as code."""
    if os.path.lexists("matplotlibrc"):
        with chdir(Path(__file__).parent):
            importlib.import_module("matplotlib")
