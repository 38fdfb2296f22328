"""purge report."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

import purge.runs
from purge.cli import options as opt
from purge.cli.printing import show
from purge.core.errors import FileError
from purge.core.files import out_folder


def report(
    run: Annotated[list[Path], Argument(help="Audited run folders; several are compared.")],
    out: Annotated[Path | None, opt.place("The page; default, for one run: RUN/report.html.")] = None,
    figures: Annotated[Path | None, opt.place("Folder for the figures, as PNG and SVG.")] = None,
    force: Annotated[bool, Option("--force", help="Overwrite existing files.")] = False,
    json_: opt.Json = False,
    debug: opt.Debug = False,
) -> None:
    """Write an audit as one HTML page.

    For example: purge report runs/demo/purge

    The page needs no other file and no network. Several runs become a comparison:
    purge report runs/demo/purge runs/demo/gradient-ascent --out compared.html
    """
    if out is None and len(run) > 1:
        raise FileError("--out for several runs", "none", "add --out FILE.html")
    folders = _by_name(run)
    file = out or run[0] / "report.html"
    if out is not None and out.exists() and not force:
        got, fix = "one", "choose another, or overwrite with --force"
        if out.is_dir():
            got, fix = "a folder", "name a file"
        raise FileError(f"no file yet at {out}", got, fix)
    if out is not None and not out.parent.is_dir():
        raise FileError(f"a folder at {out.parent}", "none", "make it first")
    if figures is not None:
        out_folder(figures, force=force)
    reports = purge.runs.write_report(folders, file)
    size, written = file.stat().st_size, list[Path]()
    text = f"Report of {', '.join(reports)}: {file} ({size / 1e6:.1f} MB, for any browser)."
    text += f"\nTo open it: {file.absolute().as_uri()}"
    if figures is not None:
        written = purge.runs.save_figures(reports, figures)
        text += f"\n{len(written)} figures written to {figures}."
    warnings = [warning for one in reports.values() if (warning := one["info"]["warning"])]
    for warning in warnings:
        print(f"Warning: {warning}.", file=sys.stderr)
    facts = {"file": str(file), "bytes": size, "figures": [str(p) for p in written], "warnings": warnings}
    show(facts, text, json_)


def _by_name(folders: list[Path]) -> dict[str, Path]:
    """Run folders by name, with as many folders above as tell them apart."""
    if twice := [f for i, f in enumerate(folders) if f.resolve() in {o.resolve() for o in folders[:i]}]:
        raise FileError("runs that differ", f"{twice[0]} twice", "name each run once")
    parts = [folder.resolve().parts for folder in folders]
    for n in range(1, max(map(len, parts)) + 1):
        short = ["/".join(part[-n:]) for part in parts]
        if len(set(short)) == len(short):
            break
    return dict(zip(short, folders, strict=True))
