"""Whether a deletion is exact by construction: what a run has verified, and what it takes on trust."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from purge.report.numbers import Numbers
from purge.report.rules import Finding


def exact_words(run: Mapping[str, Any]) -> str:
    """What a run has verified about an exact deletion; empty if it was not found to be one."""
    claim = run.get("exact") or {}
    off, kept, gone = claim.get("off"), run.get("retain_samples"), run.get("forget_samples")
    if not (isinstance(off, float) and isinstance(kept, int) and isinstance(gone, int)):
        return ""
    if claim.get("same_before") is not True or claim.get("rest_kept") is not True:
        return ""
    if not claim.get("weights") or claim["weights"] != run.get("digest"):  # edited after the run
        return ""
    declared = "The user declares that they were not" if claim.get("frozen") is True else "That is not known"
    return (
        f"Verified in the run: its head {claim.get('head')!r} was the {claim.get('kind')} head of all "
        f"{kept + gone:,} samples (relative distance {off:.1e}), is now that of the {kept:,} retained ones "
        "alone, and every other weight is bit-identical. So the deletion is exact if the features were never "
        f"trained on the forgotten samples. {declared}, and no audit can verify it."
    )


def exact(of: Numbers) -> list[Finding]:
    """The finding about a head that was solved for again, if the audited weights are those of that run."""
    run, digests = of.info.get("run") or {}, of.info.get("digests") or {}
    told = exact_words(run)
    if not told or digests.get("audited") != run.get("digest"):
        return []
    if run["exact"].get("frozen") is True:
        title = "The deletion is exact, on features that were declared frozen"
        return [Finding("shown", "forgetting", title, told)]
    title = "The head forgot exactly; whether the features know the samples is open"
    fix = "unlearn with frozen=True if the features were never trained on this data"
    return [Finding("unknown", "forgetting", title, told, fix)]
