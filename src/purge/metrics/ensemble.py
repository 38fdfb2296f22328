"""Shadow models: trained and unlearned like the audited one, with and without each sample.

An attack that knows how such models answer when they did, and did not, see a sample is far sharper
than one that looks at a single model. The models are trained once and kept on disk: audits of other
models of the same training find them there, and after a crash only what was unfinished is made again.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor, nn

from purge import __version__
from purge.core.errors import RunError
from purge.core.progress import progress_line
from purge.core.settings import as_dict
from purge.core.store import Store, digest_of
from purge.data.cache import cache_folder, name_in_cache
from purge.data.joined import joined
from purge.data.samples import Samples
from purge.data.split import Split
from purge.engine.context import Context
from purge.engine.precision import Precision, choose_precision, laid_out
from purge.engine.resume import data_digest
from purge.engine.run import Run
from purge.engine.seeding import seeded
from purge.engine.trainer import diverged, fit
from purge.metrics.audited import AuditedModel
from purge.metrics.bootstrap import Array, Classes, some_rows
from purge.metrics.likelihood import Flags, margins
from purge.metrics.value import Missing
from purge.models.checkpoint import digest, read_tensors, tensors_of, write_tensors
from purge.models.checks import check_augment, check_batch_size, check_classifier, check_same_shapes
from purge.models.copies import copied, keep_frozen, reinitialised
from purge.models.forward import logits
from purge.models.hooks import training_flags_kept

if TYPE_CHECKING:
    from purge.metrics.shadow import Shadows

Kind = Literal["original", "unlearned", "retrained"]

MOST = 5000  # forget samples, and samples of the population, that are looked at
SMALL = 1_000_000  # models with fewer weights than this are trained together
AT_ONCE = 32  # models trained together
FORM = 4  # of the files; a change of this number invalidates the cache, as other versions of these two do
MADE_BY = (__version__, str(torch.__version__))
NO_METHOD = "no unlearning method was given to the shadow models (Shadows(method=…))"
FIX = "pass cache=…, a folder with space that can be written"


class Ensemble:
    """The shadow models of one audit, made when first asked for.

    The targets are the forget set and at most as many unseen samples of each of its classes. *Original*
    shadow models are trained on the retain set and a random half of the targets. They come in pairs: one has
    the targets that the other lacks, so every target is in half of the models. *Unlearned* ones are
    these after unlearning their half of the targets. *Retrained* ones saw the retain set alone.
    """

    def __init__(
        self,
        shadows: Shadows,
        model: nn.Module,
        split: Split,
        *,
        device: torch.device,
        seed: int,
        progress: bool,
        precision: Precision | None = None,  # of the run that made the audited model, if it is known
    ) -> None:
        self.shadows, self.split = shadows, split
        self.device, self.seed, self.progress, self._of_run = device, seed, progress, precision
        self._model = copied(model, torch.device("cpu"))
        fresh = None if shadows.fresh is None else check_classifier(shadows.fresh)
        self._fresh = None if fresh is None else copied(fresh, torch.device("cpu"))
        self._test = split.forget.select(torch.arange(0)) if split.test is None else split.test
        rng, parts = np.random.default_rng(seed), AuditedModel(model, replace(split, test=self._test))
        same, kept = parts.index("same_class_test"), parts.index("kept_class_test")
        self.forget = _some(torch.arange(len(split.forget)), MOST, rng)  # targets in the forget set,
        labels, wanted = self._test.labels[same], split.forget.labels[self.forget]
        alike = [_some(same[labels == k], int((wanted == k).sum()), rng) for k in wanted.unique()]
        self.unseen = torch.cat(alike).sort().values  # and in the test set
        self.target_classes: Classes = wanted.numpy(), self._test.labels[self.unseen].numpy()
        self.population = _some(kept, MOST, rng)  # rows of the test set to compare with
        self.targets = len(self.forget) + len(self.unseen)
        self.inside = _halves(shadows.number, self.targets, seed)
        self._found: dict[Kind, Array | str] = {}
        if fresh is not None:
            check_same_shapes(self._model, fresh)
        self._drawn("original", 0)  # refuses layers that cannot be drawn anew
        check_batch_size(self._model, min(shadows.recipe.batch_size, len(split.retain)))
        check_augment(split.retain, shadows.recipe.augment, shadows.recipe.colour)

    def signals(self, kind: Kind) -> Array:
        """φ of the targets, then of the population, under each model: (number, samples)."""
        if kind == "unlearned":
            if self.shadows.method is None:
                raise Missing(NO_METHOD)
            self.signals("original")  # which they start from
        if kind not in self._found:
            try:
                self._found[kind] = Store(self._folder, FIX).get(
                    self._name(kind), lambda _: self._read_all(kind), lambda _: self._make_missing(kind)
                )
            except RunError as error:
                self._found[kind] = str(error)
        phi = self._found[kind]
        if isinstance(phi, str):
            raise Missing(phi)
        return phi

    def of(self, audited: AuditedModel) -> Array:
        """φ of the same samples under the model that is attacked: (samples,)."""
        return self._over_parts(lambda part, at: audited.log_probs(part)[at.numpy()])

    def _over_parts(self, scores: Callable[[Literal["forget", "test"], Tensor], Array]) -> Array:
        test = torch.cat([self.unseen, self.population])
        phi = [margins(scores("forget", self.forget), self.split.forget.labels[self.forget].numpy())]
        if len(test):
            phi.append(margins(scores("test", test), self._test.labels[test].numpy()))
        return np.concatenate(phi)

    # -- training and unlearning -----------------------------------------------------------

    def _trained(self, kind: Kind, which: list[int]) -> Iterator[tuple[int, nn.Module]]:
        recipe, kept = self.shadows.recipe, torch.arange(len(self.split.retain))
        sets = dict.fromkeys(which, self.split.retain)
        if kind == "original":
            sets = {i: self._pool.select(torch.cat([kept, self._seen_by(i)])) for i in which}
        # Small ones together: 16 took a third of the time on an H200, half on a CPU. Compiling is for one.
        small = sum(p.numel() for p in self._model.parameters()) < SMALL and not recipe.compile
        size = AT_ONCE if small and not self.split.retain.streamed else 1
        for n in sorted({len(own) for own in sets.values()}):  # halves of an odd number differ by one
            alike = [i for i in which if len(sets[i]) == n]
            check_augment(sets[alike[0]], recipe.augment, recipe.colour)
            for at in range(0, len(alike), size):
                yield from self._fitted(kind, {i: sets[i] for i in alike[at : at + size]})

    def _fitted(self, kind: Kind, group: dict[int, Samples]) -> Iterator[tuple[int, nn.Module]]:
        models, seeds = [self._drawn(kind, i) for i in group], [self._seed(kind, i) for i in group]
        try:
            with seeded(seeds[0], self.device):
                histories, _ = fit(models, [*group.values()], self.shadows.recipe, seeds=seeds)
        except RuntimeError:  # vmap does not support the network, or memory is short
            if len(group) == 1:
                raise
            for i, own in group.items():
                yield from self._fitted(kind, {i: own})
            return
        for (i, own), model, history in zip(group.items(), models, histories, strict=True):
            _finite(not diverged(model, own, history), i)
            yield i, model

    def _unlearned(self, which: list[int]) -> Iterator[tuple[int, nn.Module]]:
        """Each original shadow model after it has unlearned its own half of the targets."""
        method, split = self.shadows.method, self.split
        assert method is not None
        for i in which:
            seed = self._seed("unlearned", i)
            if (weights := read_tensors(self._path("original", i, "-weights"))) is None:  # damaged
                ((_, model),) = self._trained("original", [i])
            else:
                model = self._drawn("original", i)
                model.load_state_dict({**model.state_dict(), **weights})
            forget = self._pool.select(self._seen_by(i))
            new = torch.ones(len(self._test), dtype=torch.bool)  # of the test set, what it has not seen
            new[self.unseen[torch.from_numpy(self.inside[i, len(self.forget) :])]] = False
            test = self._test.select(new.nonzero()[:, 0]) if bool(new.any()) else None
            forgotten = frozenset(forget.labels.tolist()) - set(split.retain.labels.tolist())
            own = Split(forget, split.retain, test, split.classes, forgotten, split.names)
            fresh = self._drawn("unlearned", i)
            run = Run(
                model, own, Context(self.device, seed, self._precision), stop=method.stop, fresh=fresh,
                augment=self.shadows.recipe.augmentation if method.augments else None,
            )  # fmt: skip
            kept_flags, laid = training_flags_kept(model), laid_out(model, own.retain)
            with seeded(seed, self.device), kept_flags, laid, run.autocast():
                model.eval()
                method.run(model, own, run)
            yield i, model

    @property
    def _precision(self) -> Precision:
        """That of :func:`purge.unlearn`."""
        method, wanted = self.shadows.method, self.shadows.precision or self._of_run
        return choose_precision(wanted, self.device, full=method is not None and method.full_precision)

    def _seen_by(self, i: int) -> Tensor:
        """The rows of the pool with the targets that shadow model i was trained on."""
        return len(self.split.retain) + torch.from_numpy(np.flatnonzero(self.inside[i]))

    @cached_property
    def _pool(self) -> Samples:
        """The retain set, then the targets."""
        retain = self.split.retain
        parts = [(retain, torch.arange(len(retain))), (self.split.forget, self.forget)]
        if len(self.unseen):
            parts.append((self._test, self.unseen))
        return joined(parts, self.device)

    def _drawn(self, kind: Kind, i: int) -> nn.Module:
        """An untrained model, drawn on the CPU; layers that are not trained keep their weights."""
        fresh, model = self._fresh, self._model
        with seeded(self._seed(kind, i), torch.device("cpu")):
            twin = reinitialised(model if fresh is None else fresh, partly=fresh is not None)
        trained = any(p.requires_grad for p in model.parameters())  # otherwise it was frozen for use
        return (keep_frozen(twin, model) if trained else twin.requires_grad_(True)).to(self.device)

    def _seed(self, kind: Kind, i: int) -> int:
        return int.from_bytes(hashlib.sha256(f"{self.seed} {kind} {i}".encode()).digest()[:4], "big")

    # -- the cache -------------------------------------------------------------------------

    @property
    def cached(self) -> str:
        """Where in the user's cache they are kept; empty if they are not."""
        return name_in_cache(self._folder) if self._folder.is_dir() else ""

    def _make_missing(self, kind: Kind) -> None:
        which = [i for i in range(self.shadows.number) if self._read(kind, i) is None]
        make = self._unlearned(which) if kind == "unlearned" else self._trained(kind, which)
        with progress_line(f"{kind} shadow models", len(which), self.progress) as advance:
            for i, model in make:
                self._write(kind, i, model)
                advance(1, "")

    def _write(self, kind: Kind, i: int, model: nn.Module) -> None:
        phi = self._over_parts(
            lambda part, at: logits(model, getattr(self.split, part), at).double().cpu().numpy()
        )
        _finite(bool(np.isfinite(phi).all()), i)
        if kind == "original":  # for methods to start from
            write_tensors(self._path(kind, i, "-weights"), tensors_of(model), fix=FIX)
        write_tensors(self._path(kind, i), {"phi": torch.from_numpy(phi)}, fix=FIX)

    def _read_all(self, kind: Kind) -> Array | None:
        each = [self._read(kind, i) for i in range(self.shadows.number)]
        whole = [phi for phi in each if phi is not None]
        return np.stack(whole) if len(whole) == len(each) else None

    def _read(self, kind: Kind, i: int) -> Array | None:
        """φ under a model that was made before; None if there is none, or only a damaged file."""
        kept = read_tensors(self._path(kind, i))
        return None if kept is None else np.asarray(kept["phi"].numpy())

    def _path(self, kind: Kind, i: int, what: str = "") -> Path:
        return self._folder / f"{self._name(kind)}-{i:03}{what}.safetensors"

    def _name(self, kind: Kind) -> str:
        return f"{kind}-{self._method_digest}" if kind == "unlearned" else kind

    @cached_property
    def _method_digest(self) -> str:
        method = self.shadows.method
        return digest_of(_code(type(method)), as_dict(method), self._precision)

    @cached_property
    def _folder(self) -> Path:
        """The folder of all shadow models of this architecture, recipe, data and seed."""
        parts = [self.split.forget, self.split.retain, self.split.test]
        name = digest_of(
            FORM,
            MADE_BY,
            [(name, _code(type(m)), m.extra_repr()) for name, m in self._model.named_modules()],
            digest(self._drawn("original", 0)),
            as_dict(self.shadows.recipe),
            [data_digest(p, 64 if p.streamed else None) for p in parts if p is not None],
            self.seed,
            self.device.type,  # decides whether bf16 is the default
        )
        cache = self.shadows.cache
        return (cache_folder() / "shadows" if cache is None else Path(cache)) / name


def _some(rows: Tensor, most: int, rng: np.random.Generator) -> Tensor:
    """A random choice of at most so many of the rows, in order."""
    return rows[torch.from_numpy(some_rows(len(rows), most, rng))]


def _halves(number: int, targets: int, seed: int) -> Flags:
    """Which model has which target; a larger number starts with the models of a smaller one."""
    inside = np.zeros((number, targets), dtype=bool)
    for i in range(0, number, 2):
        order = np.random.default_rng([seed, i]).permutation(targets)
        inside[i, order[: targets // 2]] = True
        inside[i + 1] = ~inside[i]
    return inside


def _finite(sound: bool, i: int) -> None:
    if not sound:
        raise RunError(
            "finite losses and logits from all shadow models",
            f"NaN or infinity from number {i}",
            "pass the recipe and the method that made the audited model",
        )


def _code(kind: type) -> str:
    """The name of a class and, unless it is torch's, its source where that can be read."""
    name = f"{kind.__module__}.{kind.__qualname__}"
    try:
        return name if name.startswith("torch.") else name + inspect.getsource(kind)
    except (OSError, TypeError):  # defined in an interpreter
        return name
