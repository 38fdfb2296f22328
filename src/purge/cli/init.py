"""purge init: a commented file of options for the user's own data, after three questions."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar

import yaml
from typer import Option

from purge.cli import completion
from purge.cli import options as opt
from purge.cli.printing import complain, show
from purge.core.errors import DataError, FileError, PurgeError, brief, did_you_mean, printable
from purge.core.files import told, write_text

if TYPE_CHECKING:
    from purge.data.look import Look

T = TypeVar("T")
SMALL = 32  # pixels per side up to which the embedded ResNet is proposed


class Answers(NamedTuple):
    """What the file is about."""

    data: dict[str, str]  # options that say where it is and how to read it
    found: str  # what was found there, in words
    model: str | None  # an architecture
    checkpoint: Path | None  # a model that is trained already
    classes: list[str]  # to forget
    ids: Path | None


def init(
    data: Annotated[
        str | None,
        Option(help="Your data: a folder, a file, or a name.", autocompletion=completion.datasets),
    ] = None,
    label: opt.Label = None,
    text: opt.Text = None,
    id_: opt.Id = None,
    model: Annotated[
        str | None, Option(help="An architecture; see purge list models.", autocompletion=completion.models)
    ] = None,
    checkpoint: Annotated[
        Path | None, Option(help="A trained model: a run folder, or a file of weights with --model.")
    ] = None,
    forget_class: Annotated[
        list[str] | None, Option(help="A class to forget, by number or name; repeatable.")
    ] = None,
    forget_ids: Annotated[Path | None, Option(help="A file with the samples to forget.")] = None,
    out: Annotated[Path, opt.place("The file to write.")] = Path("purge.yaml"),
    yes: Annotated[bool, Option("--yes", help="Ask nothing; take what is proposed.")] = False,
    force: Annotated[bool, Option("--force", help="Overwrite an existing file.")] = False,
    json_: opt.Json = False,
    debug: opt.Debug = False,
) -> None:
    """Write a commented file of options for your own data.

    For example: purge init --data photos --model resnet18 --forget-class cat

    Asks for the data, the model and what to forget, unless options say so. The commands that come next read
    the file: purge unlearn --config purge.yaml
    """
    if out.exists() and (not force or not out.is_file()):
        fix = "name a file" if out.is_dir() else "choose another with --out, or overwrite with --force"
        raise FileError(f"no file yet at {out}", "one", fix)
    if not out.absolute().parent.is_dir():
        raise FileError(f"a folder at {out.absolute().parent}", "none", "make it first")
    if forget_class and forget_ids is not None:
        raise DataError("either --forget-class or --forget-ids", "both", "leave one of them out")
    person = Person(not yes and sys.stdin.isatty() and sys.stderr.isatty(), yes)
    columns = {key: value for key, value in {"label": label, "text": text, "id": id_}.items() if value}
    given, seen = _data(person, data, columns)
    pictures = "small-resnet" if (seen.side or 0) <= SMALL else "resnet18"
    proposed = pictures if seen.kind == "images" else None if text else "mlp"
    model, checkpoint = _model(person, model, checkpoint, proposed)
    classes, ids = _what(person, forget_class or [], forget_ids, list(seen.classes))
    answers = Answers(given, str(seen), model, checkpoint, classes, ids)
    sections = _sections(answers)
    with told(out):
        write_text(out, _file(answers, sections, out))
    commands = _commands(sections, out)
    words = [f"Found: {answers.found}.", f"Written to {out}. Next:", *(f"  {c}" for c in commands)]
    show({"file": str(out), "found": answers.found, "commands": commands}, "\n".join(words), json_)


# -- questions ------------------------------------------------------------------------------------


class Person(NamedTuple):
    """Who is asked what no option says: nobody, unless there is a terminal."""

    there: bool
    agrees: bool  # to all that is proposed

    def asked(self, question: str, option: str, check: Callable[[str], T], proposed: str | None = None) -> T:
        """The answer as ``check`` returns it; a wrong one is told, and asked for again."""
        if self.agrees and proposed is not None:
            return check(proposed)
        if not self.there:
            fix = f"pass {option}; purge init -h"
            raise PurgeError(f"{option}, since nobody can be asked here", "none", fix)
        while True:
            default = f" [{proposed}]" if proposed else ""
            print(printable(f"{question}{default}: "), end="", file=sys.stderr, flush=True)
            if not (line := sys.stdin.readline()):
                complain("")
                raise PurgeError("an answer", "the end of the input", f"pass {option}")
            try:
                if answer := line.strip() or proposed:
                    return check(answer)
            except PurgeError as error:
                complain(f"     {error}")


def _data(person: Person, data: str | None, columns: dict[str, str]) -> tuple[dict[str, str], Look]:
    """The options that say where the data is and how to read it, and what was found there."""
    from purge.data.look import has_columns, look

    def there(answer: str) -> str:
        if not has_columns(answer):
            look(answer, columns.get("label"))
        return answer

    def column(answer: str) -> str:
        look(data or "", answer)
        return answer

    question = "1/3  Your data: a folder with a folder of images per class, a table, or a name"
    data = person.asked(question, "--data", there) if data is None else there(data)
    if "label" not in columns and has_columns(data):
        columns["label"] = person.asked("     The column of the classes", "--label", column)
    seen = look(data, columns.get("label"))
    if person.there:
        complain(f"     Found: {seen}.")
    if len(seen.classes) == 1:
        raise DataError(f"at least two classes in {data}", "one", "add the others")
    return {"data": data, **columns}, seen


def _model(
    person: Person, model: str | None, checkpoint: Path | None, proposed: str | None
) -> tuple[str | None, Path | None]:
    """An architecture to train, or a trained model, with its architecture if it does not say so itself."""
    from purge.models.zoo import known_name

    def named(answer: str) -> str:
        known_name(answer)
        return answer

    def either(answer: str) -> tuple[str | None, Path | None]:
        return (None, Path(answer)) if Path(answer).exists() else (named(answer), None)

    if checkpoint is None and model is None:
        question = "2/3  The model: a name to train (purge list models), or the path of a trained one"
        model, checkpoint = person.asked(question, "--model or --checkpoint", either, proposed)
    if model is not None:
        named(model)
    if checkpoint is not None and not checkpoint.exists():
        fix = "check the path, or leave it out to train one"
        raise FileError(f"a trained model at {checkpoint}", "nothing there", fix)
    if checkpoint is not None and model is None and checkpoint.is_file():
        model = person.asked("     Its architecture (purge list models)", "--model with --checkpoint", named)
    return model, checkpoint


def _what(
    person: Person, classes: list[str], ids: Path | None, names: list[str]
) -> tuple[list[str], Path | None]:
    """The classes to forget, or a file of samples."""
    if not classes and ids is None:
        question = "3/3  To forget: a class (several with commas), or a file of ids or paths, one a line"
        option = "--forget-class or --forget-ids"
        classes, ids = person.asked(question, option, lambda answer: _forgotten(answer, names))
    found = list(dict.fromkeys(_class_name(name, names) for name in classes))
    if ids is not None and not (ids.is_file() and ids.read_bytes().strip()):
        got = "nothing there" if not ids.exists() else "no line in it"
        raise FileError(f"a file of samples at {ids}", got, "write one id, path or number a line")
    if names and len(found) >= len(names):
        raise DataError("some class that stays", "all to be forgotten", "name fewer")
    return found, ids


def _forgotten(answer: str, names: list[str]) -> tuple[list[str], Path | None]:
    """Classes, or a file of samples."""
    if answer not in names and Path(answer).is_file():
        return [], Path(answer)
    words = [answer] if answer in names else [w.strip() for w in answer.split(",") if w.strip()]
    return [_class_name(word, names) for word in words], None


def _class_name(given: str, names: list[str]) -> str:
    """A class by its name or its number; where no names are known, what is given."""
    if given in names or not names:
        return given
    if given.isascii() and given.isdecimal() and int(given[:9]) < len(names):
        return names[int(given)]
    raise DataError("the number or the name of a class", brief(given), did_you_mean(given, names))


# -- the file -------------------------------------------------------------------------------------

Lines = list[tuple[str, Any, str]]  # keys, values and remarks; a key that begins with # is a proposal


def _sections(a: Answers) -> dict[str, tuple[str, Lines]]:
    """The sections of the file by name: what each is for, and its lines."""
    from purge.core.folders import free_folder

    runs = free_folder(Path("runs") / (Path(a.data["data"]).absolute().stem or "own"))
    base = a.checkpoint or runs / "base"
    how: Lines = [(key, value, "") for key, value in a.data.items()]
    net: Lines = [("model", a.model, "others: purge list models")] if a.model else []
    gone = [("class", a.classes)] if a.classes else [("ids", str(a.ids))]
    recipe: Lines = [("# set", {"epochs": 30}, "others: purge list recipe")]
    found: dict[str, tuple[str, Lines]] = {}
    trained = a.checkpoint is not None and (a.checkpoint / "run.json").is_file()
    if a.checkpoint is None:
        found["train"] = "a model of your data", [*how, *net, *recipe, ("out", str(base), "")]
    if a.checkpoint is not None and not trained:  # which of its samples are unseen, only the user knows
        how += [("# test", "FILE", "a table that it was not trained on"),
                ("# all-trained", "true", "if it was trained on all of the data")]  # fmt: skip
    like: Lines = [("like", str(base), "")] if trained or a.checkpoint is None else [*how, *net, *recipe]
    if a.checkpoint is not None and not trained and not a.model:
        like += [("model", f"hf:{a.checkpoint}", "the folder of the trained model")]
    without: Lines = [(f"without-{kind}", what, "") for kind, what in gone]
    about = "the same without what must be forgotten, to compare with"
    found["reference"] = about, [*like, *without, ("out", str(runs / "retrained"), "")]
    found["unlearn"] = "a new model that has forgotten", [
        ("checkpoint", str(base), ""), *([] if a.checkpoint is None or trained else [*how, *net]),
        *((f"forget-{kind}", what, "") for kind, what in gone),
        ("method", "purge", "others: purge list methods"),
        ("# set", {"budget": "close"}, "slower, and nearer to a retrained model"),
        ("out", str(runs / "unlearned"), ""),
    ]  # fmt: skip
    found["audit"] = (
        "what it still knows, beside the reference",
        [
            ("run", str(runs / "unlearned"), ""),
            ("retrained", [str(runs / "retrained")], "leave it out if you have none"),
            ("metrics", "standard", "or quick, or full"),
            ("# fail-if", ["failed"], "exit 1 if any finding failed"),
        ],
    )
    found["report"] = "the page", [("run", [str(runs / "unlearned")], "")]
    return found


def _file(a: Answers, sections: dict[str, tuple[str, Lines]], out: Path) -> str:
    commands = [f"#   {command}" for command in _commands(sections, out)]
    parts = [
        "# What purge shall do with your data. Written by purge init; change what you like.",
        "# A section is a command, a key one of its options; purge unlearn -h has all of them.",
        "# Paths are as on the command line, from the folder where you are.",
        f"#\n# Found: {' '.join(printable(a.found).split())}.\n#",
        *commands,
    ]
    for name, (about, lines) in sections.items():
        parts += ["", f"{name}:  # {about}"]
        for key, value, remark in lines:
            parts.append(f"  {key}: {_written(value)}" + (f"  # {remark}" if remark else ""))
    return "\n".join(parts) + "\n"


def _written(value: Any) -> str:
    """A value as YAML in one line; what other readers would take for a number or a truth value is quoted."""
    text: str = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=1 << 30)
    return text.strip().removesuffix("\n...")


def _commands(sections: dict[str, Any], out: Path) -> list[str]:
    """The commands that carry the sections out, in their order."""
    file = quote(str(out))
    return [
        f"purge train --config {file}:reference" if name == "reference" else f"purge {name} --config {file}"
        for name in sections
    ]
