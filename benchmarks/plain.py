"""A plain implementation of PURGE: Algorithm 1 of the paper as one would first write it.

PIL images through torchvision's transforms in the workers of a DataLoader, a teacher forward in every
step, two forward and two backward passes, and a projection that reads each parameter's share. It has
the paper's target ``kl_retain``, looks at its stopping rules at the end of every epoch, and leaves out
what is off in ``purge-paper``: gate and cap. benchmarks/speed.py measures it.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

import purge
from purge.methods import PurgePaper

LAYERS = ("layer3", "layer4", "avgpool")  # that the paper erases


class Pictures(Dataset):
    """Images as torchvision gives them: a PIL image from an array, then the transforms."""

    def __init__(self, images: purge.Images) -> None:
        self.pixels, self.labels = images.pixels.permute(0, 2, 3, 1).numpy(), images.labels.tolist()
        enlarge = [transforms.Resize(images.shape[1:])] if images.shape != images.pixel_shape else []
        self.transform = transforms.Compose(
            [*enlarge, transforms.ToTensor(), transforms.Normalize(images.mean, images.std)]
        )

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        return self.transform(Image.fromarray(self.pixels[i].squeeze())), self.labels[i]


class Plain(NamedTuple):
    """What the plain implementation did, and where its time went."""

    model: nn.Module
    steps: int
    of: int  # steps of the whole schedule
    stopped_by: str
    seconds_teacher_pass: float
    seconds_checks: float


def plain(
    model: nn.Module, forget: Dataset, retain: Dataset, s: PurgePaper, *, device: torch.device,
    workers: int = 4, most: int | None = None,
) -> Plain:  # fmt: skip
    """PURGE with the target ``kl_retain``; ``most``: take no more steps than this."""

    def loader(data: Dataset, shuffle: bool) -> DataLoader:
        return DataLoader(
            data, s.batch_size, shuffle=shuffle, num_workers=workers, persistent_workers=workers > 0,
            pin_memory=device.type == "cuda",
        )  # fmt: skip

    def moved(batches: DataLoader) -> Iterator[tuple[Tensor, Tensor]]:
        for x, y in batches:
            yield x.to(device, non_blocking=True), y.to(device, non_blocking=True)

    def forever(batches: DataLoader) -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            yield from moved(batches)

    @torch.no_grad()
    def accuracy_and_loss(batches: DataLoader) -> tuple[float, float]:
        right = loss = n = 0
        for x, y in moved(batches):
            z = model(x)
            right += (z.argmax(1) == y).sum().item()
            loss += F.cross_entropy(z, y, reduction="sum").item()
            n += len(y)
        return right / n, loss / n

    model = copy.deepcopy(model).to(device).eval()  # BatchNorm stays frozen
    teacher = copy.deepcopy(model).requires_grad_(False)
    params = list(model.parameters())
    optimizer = torch.optim.SGD(params, s.lr, momentum=s.momentum, weight_decay=s.weight_decay)
    forget_steps, forget_check = loader(forget, True), loader(forget, False)
    retain_check, retain_steps = loader(retain, False), forever(loader(retain, True))

    started = time.perf_counter()
    p_r, loss, n, means = 0.0, 0.0, 0, dict.fromkeys(LAYERS, 0.0)
    with torch.no_grad(), watched(teacher) as h:
        for x, y in moved(retain_check):
            z = teacher(x)
            p_r = p_r + z.softmax(1).sum(0)
            means = {name: means[name] + h[name].sum(0) for name in LAYERS}
            loss += F.cross_entropy(z, y, reduction="sum").item()
            n += len(y)
    p_r, means = p_r / n, {name: total / n for name, total in means.items()}
    stop = s.stop
    budget = stop.budget(loss / n)
    target = 1 / len(p_r) if stop.forget_target is None else stop.forget_target
    seconds = [time.perf_counter() - started, 0.0]

    steps, of, stopped_by = 0, s.epochs * len(forget_steps), "schedule"
    with watched(model) as h:
        for _ in range(s.epochs):
            for xf, _yf in moved(forget_steps):
                xr, yr = next(retain_steps)
                with torch.no_grad():
                    soft = (teacher(xr) / s.temperature).softmax(1)
                z = model(xr)
                kd = F.kl_div((z / s.temperature).log_softmax(1), soft, reduction="batchmean")
                retain_loss = F.cross_entropy(z, yr) + s.kd * s.temperature**2 * kd
                g_r = torch.autograd.grad(retain_loss, params)

                z = model(xf)
                lose = F.kl_div(z.log_softmax(1), p_r.expand_as(z), reduction="batchmean")
                erasure = sum(F.mse_loss(h[k], means[k].expand_as(h[k])) for k in LAYERS) / len(LAYERS)
                g_f = torch.autograd.grad(lose + s.erasure * erasure, params)

                dot = sum((f * r).sum().item() for f, r in zip(g_f, g_r, strict=True))
                square = sum((r * r).sum().item() for r in g_r)
                for p, f, r in zip(params, g_f, g_r, strict=True):
                    p.grad = f - dot / square * r if dot < 0 < square else f
                nn.utils.clip_grad_norm_(params, s.clip)
                optimizer.step()
                steps += 1
                if steps == most:
                    return Plain(model, steps, of, "limit", *seconds)
            started = time.perf_counter()
            reached = accuracy_and_loss(forget_check)[0] <= target
            over = not reached and budget is not None and accuracy_and_loss(retain_check)[1] > budget
            seconds[1] += time.perf_counter() - started
            if reached or over:
                stopped_by = "forget_target" if reached else "retain_budget"
                break
    return Plain(model, steps, of, stopped_by, *seconds)


@contextmanager
def watched(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """The latest outputs of LAYERS, averaged over positions."""
    seen: dict[str, Tensor] = {}

    def keep(name: str) -> Callable:
        return lambda _module, _args, h: seen.update({name: h.mean((2, 3))})

    hooks = [model.get_submodule(name).register_forward_hook(keep(name)) for name in LAYERS]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()
