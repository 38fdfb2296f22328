"""purge audit."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated

import typer
from typer import Argument, Option

from purge.cli import ending
from purge.cli import options as opt
from purge.cli.printing import complain, say, show
from purge.core.errors import Exit


def audit(
    run: Annotated[Path, Argument(help="The run folder of an unlearned model.")],
    retrained: Annotated[
        list[Path] | None,
        Option(help="Run folder of the retrained model; further ones show how far apart they are."),
    ] = None,
    original: Annotated[
        Path | None, Option(help="Default: the model that the first request began with.")
    ] = None,
    data: opt.DataName = None,
    model: opt.ModelName = None,
    data_dir: opt.DataDir = None,
    size: opt.Size = None,
    split_seed: opt.SplitSeed = None,
    skip_bad: opt.SkipBad = False,
    stream: opt.Stream = None,
    mean: opt.Mean = None,
    std: opt.Std = None,
    label: opt.Label = None,
    text: opt.Text = None,
    id_: opt.Id = None,
    test_: opt.Test = None,
    all_trained: opt.AllTrained = False,
    transform: opt.Transform = None,
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
    from purge.core.plugins import current_folder_importable
    from purge.metrics.registry import PANELS, read_conditions, resolve_metrics
    from purge.report.findings import broken_words
    from purge.report.tables import audit_table
    from purge.runs.folder import both, choose_data, choose_model, facts_of, gone_of, request_of
    from purge.runs.make import audit_run, like_first, reference_command
    from purge.verdict.compare import broken

    ending.keeps(lambda: "Nothing was written.")
    names = metrics if metrics in PANELS else [m.strip() for m in metrics.split(",") if m.strip()]
    with current_folder_importable(":" in metrics):
        wanted = resolve_metrics(names, [] if truth is None else ["truth"])
    conditions = read_conditions(fail_if or [], wanted)
    facts = facts_of(run)
    name = choose_model(facts, model, trust)
    choice = choose_data(
        facts, data=data, data_dir=data_dir, size=size, split_seed=split_seed, skip_bad=skip_bad,
        mean=opt.numbers_from(mean, "--mean"), std=opt.numbers_from(std, "--std"), trust=trust,
        label=label, text=text, id=id_, test=test_, transform=transform, model=name, stream=stream,
        all_trained=all_trained,
    )  # fmt: skip
    images, test = choice.load(progress=not quiet)
    for condition in conditions:
        condition.check_class(len(images.names))
    request = request_of(images, forget_class or [], forget_ids, words="forget")
    report = audit_run(
        run, facts, choice, images, test, request, model=model, original=original, retrained=retrained or [],
        metrics=wanted, shadows=shadows, seed=seed, device=opt.pick_device(device), progress=not quiet,
        trust=trust, truth=truth,
    )  # fmt: skip
    found, shown = report.to_dict(), quote(str(run))
    try:
        if run.is_dir() and metrics in PANELS:
            report.to_json(run / "audit.json")
            ending.keeps(lambda: f"The audit is written: {run / 'audit.json'}.")
    finally:  # show what was measured even if it cannot be written
        show({**found, "verdict": report.verdict.to_dict()}, audit_table(found), json_)
        if not json_:
            say("\n".join([report.headline, "", *report.sentences()]))
            if not retrained:
                like = like_first(run, facts, choice, name)
                command = reference_command(like, both(gone_of(facts), request))
                say(f"\nFor a reference to compare with: {command} --out {shown}-retrained")
                say(f"Then: purge audit {shown} --retrained {shown}-retrained")
            elif run.is_dir() and metrics in PANELS:
                say(f"\nNext: purge report {shown}")
    if missed := broken(conditions, found, report.verdict):
        complain("\n".join(map(broken_words, missed)))
        raise typer.Exit(Exit.MISSED)
