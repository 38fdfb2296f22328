"""purge audit."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated

import typer
from typer import Argument, Option

import purge.runs
from purge.cli import options as opt
from purge.cli.ending import running_in
from purge.cli.printing import complain, say, show
from purge.core.errors import Exit
from purge.report import audit_table, broken_words


@opt.with_data
def audit(
    context: typer.Context,
    run: Annotated[Path, Argument(help="The run folder of an unlearned model.")],
    options: opt.Given,
    model: opt.ModelName = None,
    retrained: Annotated[
        list[Path] | None,
        Option(help="Run folder of the retrained model; further ones show how far apart they are."),
    ] = None,
    original: Annotated[
        Path | None, Option(help="Default: the model that the first request began with.")
    ] = None,
    metrics: Annotated[str, Option(help="A panel, or names or module:NAME, with commas.")] = "standard",
    shadows: Annotated[int, Option(help="Shadow models of each kind, for full.", min=4)] = 16,
    fail_if: Annotated[
        list[str] | None,
        Option(help="Exit 1 if 'fa_test>2' holds, say, or any finding 'failed'; repeatable."),
    ] = None,
    forget_class: Annotated[list[str] | None, Option(help="Default: the run's request.")] = None,
    forget_ids: Annotated[Path | None, Option(help="Default: the run's request.")] = None,
    truth: Annotated[
        Path | None,
        Option(help="The right labels of mislabelled forget samples, one per line, or a .npy file."),
    ] = None,
    seed: opt.Seed = 0,
    device: opt.Device = None,
    trust: opt.Trust = False,
    ledger: opt.SuppressedBy = None,
    key: opt.KeyAt = None,
    no_cache: opt.NoCache = False,
    json_: opt.Json = False,
    quiet: opt.Quiet = False,
    debug: opt.Debug = False,
) -> None:
    """Measure what a model still knows.

    For example: purge audit runs/demo/purge --retrained runs/demo/retrain

    The panels of --metrics are quick, standard and full, which trains shadow models.

    Every number is shown beside the retrained and the original model's. A panel is also written into the
    run folder, as audit.json.

    Lines of --truth are labels in the order of the training data, or SAMPLE,LABEL.

    In a pipeline: purge audit RUN --fail-if failed --fail-if "ra<99"
    """
    running = running_in(context)
    running.kept = lambda: "Nothing was written."
    audited = purge.runs.audit_folder(
        run, options, model=model, original=original, retrained=retrained or [], metrics=metrics,
        shadows=shadows, fail_if=fail_if or [], forget_classes=forget_class or [], forget_ids=forget_ids,
        truth=truth, seed=seed, device=opt.pick_device(device), trust=trust, progress=not quiet,
        left_out=opt.left_out(ledger, key),
    )  # fmt: skip
    report, shown, kept = audited.report, quote(str(run)), run.is_dir() and audited.panel
    content = report.to_dict()
    try:
        if kept:
            report.to_json(run / "audit.json")
            running.kept = lambda: f"The audit is written: {run / 'audit.json'}."
    finally:  # show what was measured even if it cannot be written
        show({**content, "verdict": report.verdict.to_dict()}, audit_table(content), json_)
        if not json_:
            say("\n".join([report.headline, "", *report.sentences()]))
        if not json_ and not retrained:
            say(f"\nFor a reference to compare with: {audited.reference} --out {shown}-retrained")
            say(f"Then: purge audit {shown} --retrained {shown}-retrained")
        elif not json_ and kept:
            say(f"\nNext: purge report {shown}")
    if missed := audited.broken():
        complain("\n".join(map(broken_words, missed)))
        raise typer.Exit(Exit.MISSED)
