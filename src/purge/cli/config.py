"""``--config FILE``: options of a command from a file that purge init wrote.

A section of the file is a command, a key one of its options. What stands on the command line wins. Code that
the file names is imported only with ``--trust`` on the command line.
"""

from __future__ import annotations

import re
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer
from typer import Option

from purge.core.errors import FileError, brief, did_you_mean
from purge.core.files import TextLoader, read_yaml

CODE = re.compile(r"(?!timm:|hf:)[A-Za-z_][\w.]*:[A-Za-z_]\w*")
NAMED = "purge.code"  # in the context: what a file names that would be imported
NEVER = ("config", "trust", "debug", "help")  # options that a file cannot give


def _config(context: typer.Context, value: str | None) -> str | None:
    if value is not None and not context.resilient_parsing:
        file, section = _parts(value, context.info_name or "")
        if not file.is_file():
            raise FileError(f"a file at {file}", "nothing there", "check the path; purge init writes one")
        content = read_yaml(file, TextLoader)
        if section not in content:
            fix = did_you_mean(section, map(str, content))
            raise FileError(f"a section {section} in {file}", "none", f"name one as {file}:SECTION; {fix}")
        where = f"{section} of {file}"
        if not isinstance(content[section], dict):
            raise FileError(f"keys and values in {where}", brief(content[section]), "write key: value")
        context.default_map = _options(context, content[section], where)
    return value


def _parts(value: str, command: str) -> tuple[Path, str]:
    """``FILE`` has a section of the command's name; ``FILE:SECTION`` names another."""
    file, colon, section = value.rpartition(":")
    return (Path(file), section) if colon and not Path(value).exists() else (Path(value), command)


def _options(context: typer.Context, given: dict[Any, Any], where: str) -> dict[str, Any]:
    """The values by the names of the command's parameters."""
    known = {
        name.lstrip("-"): p
        for p in context.command.params
        for name in (p.opts if p.param_type_name == "option" else [p.name or ""])
    }
    found: dict[str, Any] = {}
    for key, value in given.items():
        name = str(key).replace("_", "-")
        if name in NEVER:
            raise FileError(f"--{name} on the command line", f"{name} in {where}", "remove it from the file")
        if name not in known:
            fix = did_you_mean(name, [k for k in known if k not in NEVER])
            raise FileError(f"an option of purge {context.info_name} in {where}", brief(key), fix)
        if value in ("", None):
            continue
        param = known[name]
        found[param.name or name] = _value(name, value, many=param.multiple or param.nargs != 1, where=where)
        context.meta.setdefault(NAMED, []).extend(f"{name}: {code}" for code in _code_in(found[param.name]))
    return found


def _value(key: str, value: Any, *, many: bool, where: str) -> Any:
    """A value as the parser takes it: text, or a list of texts for an option that can be repeated."""
    if key == "set" and isinstance(value, dict):
        value = [f"{k}={','.join(v) if isinstance(v, list) else v}" for k, v in value.items()]
    parts = value if isinstance(value, list) else [value]
    if not all(isinstance(part, str) for part in parts) or (isinstance(value, list) and not many):
        wanted = "text or a list of texts" if many else "one value"
        raise FileError(f"{wanted} for {key} in {where}", brief(value), f"write {key}: …")
    return parts if many else value


def _code_in(value: Any) -> list[str]:
    words = [
        word.strip() for text in (value if isinstance(value, list) else [value]) for word in text.split(",")
    ]
    return [word for word in words if CODE.fullmatch(word) and not Path(word).exists()]


def following(config: str | None, command: str, otherwise: str) -> str:
    """The command that comes next: by the same file, if this one went by one."""
    return otherwise if config is None else f"purge {command} --config {quote(str(_parts(config, '')[0]))}"


def check_code(context: typer.Context, trust: bool) -> bool:
    """Refuse code that a file names, unless ``--trust`` is on the command line."""
    if not trust and (code := context.meta.get(NAMED)):
        raise FileError("--trust on this command line", code[0], "pass --trust if its code may run")
    return trust


Config = Annotated[
    str | None,
    Option(
        "--config",
        metavar="FILE[:SECTION]",
        is_eager=True,
        callback=_config,
        help="Options from a file that purge init wrote; default section: the command's.",
    ),
]
