"""Are the weights in a run folder those that its run.json recorded? No model is built to find out."""

from __future__ import annotations

from pathlib import Path

from purge.core.errors import FileError
from purge.models.checkpoint import file_digest

WEIGHTS = "model.safetensors"


def check_weights(folder: Path, recorded: str | None, *, whole: bool = True) -> None:
    """Refuse weights with another digest than the recorded one; None: run.json is older than digests.

    ``whole``: the file is all that a command needs of the folder, so it can be named itself.
    """
    if recorded is None or (digest := file_digest(folder / WEIGHTS)) == recorded:
        return
    fix = (
        "restore that file"
        + ", or name it itself with --model and --data to go on without the record" * whole
    )
    raise FileError(
        f"the weights that {folder / 'run.json'} recorded (digest {recorded[:12]}…)",
        f"others in {WEIGHTS} ({digest[:12]}…)",
        fix,
    )


def other_than_audited(folder: Path, recorded: str | None, audited: str | None) -> str:
    """A sentence if an audit looked at other weights than those in the folder; empty if they are the same.

    Where the weights are gone, run.json tells what they were.
    """
    file = folder / WEIGHTS
    if file.is_file():
        check_weights(folder, recorded, whole=False)
    here = file_digest(file) if file.is_file() else recorded
    if here is None or audited is None or here == audited:
        return ""
    return (
        f"The audit of {folder.absolute().name} is of other weights than those in the folder: their digest "
        f"is {here[:12]}…, that of the audited ones {audited[:12]}…. To report on these: purge audit {folder}"
    )
