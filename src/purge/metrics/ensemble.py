"""Shadow models: trained and unlearned like the audited one, with and without each sample.

An attack that knows how such models answer when they did, and did not, see a sample is far sharper
than one that looks at a single model. The models are trained once, kept on disk and shared: audits of
other models of the same training find them there, and after a crash only what was in the making is
made again.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from purge.core.errors import FileError, MethodError, MetricError, ModelError, RunError
from purge.core.files import atomically
from purge.core.progress import progress_line
from purge.core.settings import as_dict, normalise, setting
from purge.data.cache import cache_folder
from purge.data.identity import fingerprints
from purge.data.images import Images
from purge.data.prefetch import Order
from purge.data.samples import Lazy, Samples, Tensors, batches, part_of
from purge.data.split import Split
from purge.engine.run import Run
from purge.engine.seeding import seeded
from purge.engine.trainer import Recipe, diverged, fit, fit_together
from purge.methods.base import Method
from purge.metrics.bootstrap import Array
from purge.metrics.likelihood import Flags, margins
from purge.metrics.subject import Subject
from purge.models.checkpoint import digest
from purge.models.checks import check_augment, check_batch_size, check_classifier
from purge.models.copies import reinitialised
from purge.models.forward import logits
from purge.models.hooks import training_flags_kept

Kind = Literal["original", "unlearned", "retrained"]
Trained = tuple[int, nn.Module, list[dict[str, float]]]  # its number, itself, its losses

MOST = 5000  # forget samples, and samples of the population, that are looked at
SMALL = 1_000_000  # weights below which models are trained together
AT_ONCE = 32  # models trained together
FORM = 1  # of the files; with another number here, those that there are do not count


@dataclass(frozen=True)
class Shadows:
    """How shadow models are made.

    ``Shadows(recipe=trained.method, method=result.method)`` for what :func:`purge.train` and
    :func:`purge.unlearn` returned.
    """

    number: int = setting(16, "models of each kind, an even number", low=4)
    recipe: Recipe = Recipe()  # how the original was trained
    method: Method | None = None  # how the audited model was unlearned; None: no attack on unlearning
    fresh: nn.Module | None = None  # an untrained model; None: the layers of the audited one drawn anew
    cache: str | os.PathLike[str] | None = None  # folder where they are kept; None: $PURGE_CACHE/shadows
    together: bool | None = None  # train many at once; None: where that is faster

    def __post_init__(self) -> None:
        if isinstance(self.cache, os.PathLike):
            object.__setattr__(self, "cache", os.fspath(self.cache))
        normalise(self)
        if self.number % 2:
            raise MethodError(
                "an even number of shadow models, since half of them see each sample",
                str(self.number),
                f"pass number={self.number + 1}",
            )
        if self.method is not None and (kept := self.method.needs & {"shards", "updates"}):
            raise MethodError(
                "a method that works on any trained model, for shadow models",
                f"{type(self.method).__name__}, which needs a training that kept its {min(kept)}",
                "leave method out",
            )


class Ensemble:
    """The shadow models of one audit, made when first asked for.

    The targets are the forget set and at most as many unseen samples of its classes. *Original* shadow
    models are trained on the retain set and a random half of the targets; of two neighbours one has
    what the other has not, so that every target is in half of the models. *Unlearned* ones are these
    after their half of the targets was unlearned. *Retrained* ones saw the retain set alone.
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
    ) -> None:
        if not isinstance(shadows, Shadows):
            raise MetricError(
                "purge.Shadows for shadows", repr(shadows), "pass shadows=purge.Shadows(number=16)"
            )
        self.shadows, self.split = shadows, split
        self.device, self.seed, self.progress = device, seed, progress
        self._model = copy.deepcopy(model).cpu()
        rng, parts = np.random.default_rng(seed), Subject(model, split)
        same, kept = (
            torch.arange(0) if split.test is None else parts.index(part)
            for part in ("same_class_test", "kept_class_test")
        )
        self.forget = _some(torch.arange(len(split.forget)), MOST, rng)  # targets in the forget set,
        self.unseen = _some(same, len(self.forget), rng)  # and in the test set
        self.population = _some(kept, MOST, rng)  # rows of the test set to compare with
        self.targets = len(self.forget) + len(self.unseen)
        self.inside = _halves(shadows.number, self.targets, seed)
        self._found: dict[Kind, Array | RunError] = {}
        self._check()

    def signals(self, kind: Kind) -> Array:
        """φ of the targets, then of the population, under each model: (number, samples)."""
        if kind not in self._found:
            try:
                self._found[kind] = self._made(kind)
            except RunError as error:
                self._found[kind] = error
        found = self._found[kind]
        if isinstance(found, RunError):
            raise found
        return found

    def of(self, subject: Subject) -> Array:
        """φ of the same samples under the model that is attacked: (samples,)."""
        return self._over_parts(lambda part, at: subject.log_probs(part)[at.numpy()])

    def _over_parts(self, scores: Callable[[Literal["forget", "test"], Tensor], Array]) -> Array:
        test = torch.cat([self.unseen, self.population])
        found = [margins(scores("forget", self.forget), self.split.forget.labels[self.forget].numpy())]
        if self.split.test is not None and len(test):
            found.append(margins(scores("test", test), self.split.test.labels[test].numpy()))
        return np.concatenate(found)

    # -- making them -----------------------------------------------------------------------

    def _made(self, kind: Kind) -> Array:
        """What is in the cache; what is not is made and put there."""
        if kind == "unlearned":
            self.signals("original")
        found = {i: self._read(kind, i) for i in range(self.shadows.number)}
        missing = [i for i, there in found.items() if there is None]
        make = self._unlearned(missing) if kind == "unlearned" else self._trained(kind, missing)
        with progress_line(f"{kind} shadow models", len(missing), self.progress) as advance:
            for i, model in make:
                found[i] = self._write(kind, i, model)
                advance(1, "")
        return np.stack([there for there in found.values() if there is not None])

    def _trained(self, kind: Kind, which: list[int]) -> Iterator[tuple[int, nn.Module]]:
        recipe, kept = self.shadows.recipe, torch.arange(len(self.split.retain))
        sets = dict.fromkeys(which, self.split.retain)
        if kind == "original":
            sets = {i: part_of(self._pool, torch.cat([kept, self._seen_by(i)])) for i in which}
        for n in sorted({len(own) for own in sets.values()}):  # halves of an odd number differ by one
            alike = [i for i in which if len(sets[i]) == n]
            check_augment(sets[alike[0]], recipe.augment, recipe.colour)
            for at in range(0, len(alike), AT_ONCE):
                group = {i: sets[i] for i in alike[at : at + AT_ONCE]}
                make = self._all_at_once if self._together(group) else self._one_by_one
                for i, model, history in make(kind, group):
                    _finite(not diverged(model, group[i], history), i)
                    yield i, model

    def _together(self, group: dict[int, Samples]) -> bool:
        """Train these at once? Small ones: 16 took about a third of the time on an H200, half on a CPU."""
        recipe, wanted = self.shadows.recipe, self.shadows.together
        if len(group) < 2 or recipe.ema > 0 or recipe.compile:  # fit_together has neither of them
            return False
        small = sum(p.numel() for p in self._model.parameters()) < SMALL
        return (small and not isinstance(self.split.retain, Lazy)) if wanted is None else wanted

    def _all_at_once(self, kind: Kind, group: dict[int, Samples]) -> Iterator[Trained]:
        models, seeds = [self._drawn(kind, i) for i in group], [self._seed(kind, i) for i in group]
        try:
            with seeded(seeds[0], self.device):
                told = fit_together(models, [*group.values()], self.shadows.recipe, seeds=seeds)
        except RuntimeError as error:  # a network that cannot be run as many, or no room for them
            if self.shadows.together is None:
                yield from self._one_by_one(kind, group)
                return
            got = f"{type(error).__name__}: {(str(error) or '?').splitlines()[0]}".rstrip(".")
            raise ModelError(
                "a network that can be trained many at once", got, "leave together out"
            ) from error
        yield from zip(group, models, told, strict=True)

    def _one_by_one(self, kind: Kind, group: dict[int, Samples]) -> Iterator[Trained]:
        for i, own in group.items():
            model, seed = self._drawn(kind, i), self._seed(kind, i)
            with seeded(seed, self.device):
                history, _ = fit(model, own, self.shadows.recipe, seed=seed, progress=False, title="")
            yield i, model, history

    def _unlearned(self, which: list[int]) -> Iterator[tuple[int, nn.Module]]:
        """Each original shadow model, brought to forget its own half of the targets."""
        method, split = self.shadows.method, self.split
        assert method is not None
        for i in which:
            model, seed = self._drawn("original", i), self._seed("unlearned", i)
            kept = load_file(self._path("original", i))
            model.load_state_dict({k[2:]: v for k, v in kept.items() if k.startswith("w.")})
            forget = part_of(self._pool, self._seen_by(i))
            gone = set(forget.labels.tolist()) - set(split.retain.labels.tolist())
            own = Split(
                forget, split.retain, self._not_seen_by(i), split.classes, frozenset(gone), split.names
            )
            fresh = self._drawn("unlearned", i)
            run = Run(model, own, device=self.device, stop=method.stop, seed=seed, fresh=fresh)
            with seeded(seed, self.device), training_flags_kept(model):
                model.eval()
                method.run(model, own, run)
            yield i, model

    def _seen_by(self, i: int) -> Tensor:
        """The rows of the pool with the targets that shadow model i was trained on."""
        return len(self.split.retain) + torch.from_numpy(np.flatnonzero(self.inside[i]))

    def _not_seen_by(self, i: int) -> Samples | None:
        """The test set without the targets that shadow model i was trained on."""
        if self.split.test is None:
            return None
        left = torch.ones(len(self.split.test), dtype=torch.bool)
        left[self.unseen[torch.from_numpy(self.inside[i, len(self.forget) :])]] = False
        return part_of(self.split.test, left.nonzero()[:, 0]) if bool(left.any()) else None

    @cached_property
    def _pool(self) -> Samples:
        """The retain set, then the targets."""
        split = self.split
        parts = [(split.retain, torch.arange(len(split.retain))), (split.forget, self.forget)]
        if split.test is not None and len(self.unseen):
            parts.append((split.test, self.unseen))
        return joined(parts, self.device)

    def _drawn(self, kind: Kind, i: int) -> nn.Module:
        """An untrained model of its own, drawn on the CPU; layers that are not trained stay."""
        fresh, model = self.shadows.fresh, self._model
        with seeded(self._seed(kind, i), torch.device("cpu")):
            twin = reinitialised(model) if fresh is None else _redrawn(fresh)
        trains = [p.requires_grad for p in model.parameters()]
        for ours, given in zip(twin.parameters(), model.parameters(), strict=True):
            if not given.requires_grad and any(trains):
                ours.data.copy_(given.data)
            ours.requires_grad_(given.requires_grad or not any(trains))
        return twin.to(self.device)

    def _seed(self, kind: Kind, i: int) -> int:
        return int.from_bytes(hashlib.sha256(f"{self.seed} {kind} {i}".encode()).digest()[:4], "big")

    def _check(self) -> None:
        recipe, fresh, split = self.shadows.recipe, self.shadows.fresh, self.split
        if fresh is not None:
            check_classifier(fresh)
            ours, theirs = ({k: v.shape for k, v in m.state_dict().items()} for m in (self._model, fresh))
            if ours != theirs:
                raise ModelError(
                    "fresh to have the layers of the audited model",
                    "other weights",
                    "pass an untrained model of the same kind",
                )
        self._drawn("original", 0)  # says what cannot be drawn anew
        check_batch_size(self._model, min(recipe.batch_size, len(split.retain)))
        check_augment(split.retain, recipe.augment, recipe.colour)

    # -- keeping them ----------------------------------------------------------------------

    def _write(self, kind: Kind, i: int, model: nn.Module) -> Array:
        phi = self._over_parts(
            lambda part, at: logits(model, getattr(self.split, part), at).double().cpu().numpy()
        )
        _finite(bool(np.isfinite(phi).all()), i)
        held = {"phi": torch.from_numpy(phi)}
        if kind == "original":  # for other methods to unlearn from
            held |= {f"w.{k}": v.detach().cpu().contiguous().clone() for k, v in model.state_dict().items()}
        try:
            atomically(self._path(kind, i), lambda to: save_file(held, to))
        except (OSError, SafetensorError) as error:
            raise self._no_room(error) from None
        return phi

    def _read(self, kind: Kind, i: int) -> Array | None:
        """φ under a model that was made before; None if there is none, or only a damaged file."""
        try:
            with safe_open(self._path(kind, i), "pt") as file:
                phi: Array = file.get_tensor("phi").numpy()
                return phi
        except (SafetensorError, OSError):
            return None

    def _path(self, kind: Kind, i: int) -> Path:
        how = f"unlearned-{self._method_digest}" if kind == "unlearned" else kind
        return self._folder / f"{how}-{i:03}.safetensors"

    @cached_property
    def _method_digest(self) -> str:
        method = self.shadows.method
        return _digest(_code(type(method)), as_dict(method))

    @cached_property
    def _folder(self) -> Path:
        """The folder of all that have this architecture and recipe, data and seed."""
        layers = [(name, _code(type(m)), m.extra_repr()) for name, m in self._model.named_modules()]
        parts = [self.split.forget, self.split.retain, self.split.test]
        name = _digest(
            FORM,
            layers,
            digest(self._drawn("original", 0)),
            as_dict(self.shadows.recipe),
            [None if part is None else _content(part) for part in parts],
            self.seed,
            self.device.type,  # where bf16 is the default or not
        )
        given = self.shadows.cache
        folder = (cache_folder() / "shadows" if given is None else Path(given)) / name
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._no_room(error) from None
        return folder

    def _no_room(self, error: Exception) -> FileError:
        got = getattr(error, "strerror", None) or str(error)
        return FileError("a cache for shadow models", got, "pass cache=…, a folder with room")


def _some(rows: Tensor, most: int, rng: np.random.Generator) -> Tensor:
    """At most so many of the rows, in order."""
    chosen = rng.permutation(len(rows))[:most]
    return rows[torch.from_numpy(np.sort(chosen))]


def _halves(number: int, targets: int, seed: int) -> Flags:
    """Which model has which target; a larger number begins with the models of a smaller one."""
    found = np.zeros((number, targets), dtype=bool)
    for i in range(0, number, 2):
        order = np.random.default_rng([seed, i]).permutation(targets)
        found[i, order[: targets // 2]] = True
        found[i + 1] = ~found[i]
    return found


def _finite(sound: bool, i: int) -> None:
    if not sound:
        raise RunError(
            "finite losses and logits from all shadow models",
            f"NaN or infinity from number {i}",
            "give the recipe and the method that the audited model was made by",
        )


def _redrawn(fresh: nn.Module) -> nn.Module:
    """A copy whose layers drew their weights anew; what cannot be drawn is as untrained as given."""
    twin = copy.deepcopy(fresh).cpu()
    for module in twin.modules():
        if callable(reset := getattr(module, "reset_parameters", None)):
            reset()
    return twin


def _digest(*facts: Any) -> str:
    text = re.sub(r" at 0x[0-9a-f]+", "", json.dumps(facts, sort_keys=True, default=repr))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _code(kind: type) -> str:
    """The name of a class and, where it is not torch's and can be had, what is written there."""
    name = f"{kind.__module__}.{kind.__qualname__}"
    try:
        return name if name.startswith("torch.") else name + inspect.getsource(kind)
    except (OSError, TypeError):  # typed in by hand
        return name


def _content(samples: Samples) -> str:
    """A digest of all samples; of those that are too many to be read, of some."""
    h = hashlib.sha256(samples.labels.numpy().tobytes())
    if isinstance(samples, Lazy):
        n, few = len(samples), min(len(samples), 64)
        with seeded(0, torch.device("cpu")):  # they may draw random numbers
            x, _ = samples.take(torch.arange(few) * n // few)
        h.update(x.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    else:
        h.update(fingerprints(samples).numpy().tobytes())
    return h.hexdigest()


# -- samples of several sets as one -----------------------------------------------------------


def joined(parts: Sequence[tuple[Samples, Tensor]], device: torch.device) -> Samples:
    """The given rows of several sets, one after the other, as one set.

    Images that are prepared in the same way stay images, which can be augmented.
    """
    images = [s.select(rows) for s, rows in parts if isinstance(s, Images)]
    forms = {(s.mean, s.std, s.size, s.channels, s.dtype, s.pixel_shape) for s in images}
    if len(images) == len(parts) and len(forms) == 1:
        first, pixels = images[0], [s.pixels for s in images]
        if len({p.device for p in pixels}) > 1:  # some did not fit
            pixels = [p.cpu() for p in pixels]
        whole = Images(
            torch.cat(pixels),
            torch.cat([s.labels for s in images]),
            mean=first.mean,
            std=first.std,
            size=first.size,
            channels=first.channels,
            names=first.names,
            device_fraction=first.device_fraction,
        )
        return whole.to(device, first.dtype)
    if any(isinstance(s, Lazy) for s, _ in parts):
        return Joined([part_of(s, rows) for s, rows in parts])
    x = torch.cat([x.cpu() for s, rows in parts for x, _ in batches(s, 4096, rows)])
    return Tensors(x, torch.cat([s.labels[rows] for s, rows in parts]), device)


class Joined:
    """Several sets as one, each read in its own way; for those too large to keep."""

    def __init__(self, parts: Sequence[Samples]) -> None:
        self.labels = torch.cat([part.labels for part in parts])
        self._parts = parts
        self._ends = torch.tensor([len(part) for part in parts]).cumsum(0)

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """The samples at ``index``."""
        return next(self.stream([index]))

    def stream(self, order: Order) -> Iterator[tuple[Tensor, Tensor]]:
        """The samples at each index tensor of ``order``; every set reads its own ahead."""
        order = [index.cpu() for index in order]
        owners = [torch.bucketize(index, self._ends, right=True) for index in order]
        streams = []
        for n, (part, end) in enumerate(zip(self._parts, self._ends, strict=True)):
            own = [index[owner == n] - (end - len(part)) for index, owner in zip(order, owners, strict=True)]
            streams.append(iter(part.stream([index for index in own if len(index)])))
        for owner in owners:
            xs, ys = zip(*(next(streams[n]) for n in owner.unique().tolist()), strict=True)
            back = owner.argsort(stable=True).argsort()
            y = torch.cat(ys)
            yield torch.cat(xs)[back.to(y.device)], y[back.to(y.device)]
