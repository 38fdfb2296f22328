"""What forgetting costs where images are too many to keep, and what saves memory: results/scale.json.

uv run python benchmarks/scale.py --work DIR                 # needs a GPU and 40 GB in DIR; tens of minutes
uv run python benchmarks/scale.py --work DIR retain forget   # some of it; the other rows stay
uv run python benchmarks/scale.py --quick                    # on a CPU, minutes: results/scale_cpu.json
uv run python benchmarks/scale.py --table                    # print the tables; with --quick those of the CPU
uv run python benchmarks/scale.py --plot                     # draw the figure

Synthetic JPEG files in .tar shards on the disk (POOL different ones, repeated), decoded when they are needed.
Whole calls of `purge.unlearn` with a fixed number of steps; one thing is varied at a time. Weights are
untrained: only the cost is looked at. Median of the runs after a warm-up, whose reads are not counted. On a
CPU the seconds are those of the processor, in one thread: other programs may run beside it.
``memory`` is the most that a call holds beyond the model and the images on the device: as CUDA counts it, and
on a CPU the bytes of all tensors that live at once. ``rss`` is the peak of the whole process.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import statistics
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from base_models import commit
from live_memory import LiveBytes
from matplotlib.figure import Figure
from PIL import Image
from scaling import bars, line
from speed import clocked, peak, training_step
from torch import nn
from torchvision.models import VisionTransformer, vit_b_16

import purge
from purge.core.files import write_json
from purge.engine.seeding import seeded
from purge.report.theme import empty_axes, save
from purge.result import environment
from purge.runs.folder import build_for

ROOT = Path(__file__).parents[1]
OUT = ROOT / "results" / "scale.json"
QUICK_OUT = ROOT / "results" / "scale_cpu.json"
CLASSES, POOL, PER_SHARD = 10, 2048, 10_000
SEED = 0


class Plan(NamedTuple):
    """What is measured: sizes of the data, of requests and of batches, and the models."""

    side: int  # of the images of all axes but the last
    model: str
    retain: tuple[int, ...]
    forget: tuple[int, ...]
    batch: tuple[int, ...]
    models: tuple[str, ...]
    steps: int
    size: int  # samples of a step
    micro: int
    batch_of_models: int  # samples of a step where models are compared
    few: int  # images to forget, where their number is not varied
    checked: int  # samples that the checks of a run look at


FULL = Plan(
    224, "resnet50", (10_000, 100_000, 1_000_000), (100, 1_000, 10_000), (128, 256, 512),
    ("resnet18@32", "resnet50@224", "vit_b_16@224"), steps=40, size=256, micro=32, batch_of_models=256,
    few=50, checked=1024,
)  # fmt: skip
QUICK = Plan(
    32, "small-resnet", (1_000, 10_000, 100_000), (10, 100, 1_000), (16, 32, 64),
    ("small-resnet@32", "small-vit@32"), steps=4, size=32, micro=8, batch_of_models=64, few=5, checked=64,
)  # fmt: skip
AXES = {
    "retain": "retained images",
    "forget": "images to forget",
    "batch": "batch",
    "model": "model",
}


# -- data -----------------------------------------------------------------------------------------


def jpegs(side: int, n: int) -> list[bytes]:
    """Smooth random images, which compress as photographs do."""
    g, found = torch.Generator().manual_seed(SEED), []
    for _ in range(n):
        coarse = torch.rand(1, 3, max(4, side // 8), max(4, side // 8), generator=g)
        fine = F.interpolate(coarse, (side, side), mode="bicubic")[0] + 0.03 * torch.randn(
            3, side, side, generator=g
        )
        pixels = (255 * fine.clamp(0, 1)).byte().permute(1, 2, 0).numpy()
        out = io.BytesIO()
        Image.fromarray(np.ascontiguousarray(pixels)).save(out, "JPEG", quality=85)
        found.append(out.getvalue())
    return found


def write_shard(path: Path, images: list[bytes], start: int, n: int) -> None:
    """A shard of ``n`` images with their labels; renamed when it is whole."""
    part = path.with_suffix(".part")
    with tarfile.open(part, "w") as file:
        for i in range(start, start + n):
            for ending, content in (("jpg", images[i % len(images)]), ("cls", str(i % CLASSES).encode())):
                member = tarfile.TarInfo(f"{i:08d}.{ending}")
                member.size = len(content)
                file.addfile(member, io.BytesIO(content))
    part.replace(path)


def shards(work: Path, side: int, n: int) -> Path:
    """A folder with ``n`` training and 1,000 test images of this side; what is there already is used."""
    at = work / f"{side}-{n}"
    at.mkdir(parents=True, exist_ok=True)
    wanted = [
        (at / f"train-{i:05d}.tar", s, min(PER_SHARD, n - s)) for i, s in enumerate(range(0, n, PER_SHARD))
    ]
    wanted.append((at / "test-00000.tar", 0, 1_000))
    missing = [each for each in wanted if not each[0].is_file()]
    images = jpegs(side, POOL) if missing else []
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(partial(_shard, images), missing))
    return at


def _shard(images: list[bytes], each: tuple[Path, int, int]) -> None:
    write_shard(each[0], images, *each[1:])


# -- models ---------------------------------------------------------------------------------------


def untrained(name: str, images: purge.Images) -> nn.Module:
    with seeded(SEED, torch.device("cpu")):
        if name == "vit_b_16":
            return vit_b_16(num_classes=CLASSES)
        if name == "small-vit":
            return VisionTransformer(32, 4, 4, 3, 96, 192, num_classes=CLASSES)
        return build_for(name, images)


def label(r: dict[str, Any]) -> str:
    known = {"vit_b_16": "ViT-B/16", "small-vit": "small ViT", "small-resnet": "small ResNet"}
    return f"{known.get(r['model'], r['model'].replace('resnet', 'ResNet-'))}, {r['size']}×{r['size']}"


# -- measuring ------------------------------------------------------------------------------------


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """What a call returns, and its seconds: of the clock with a GPU, otherwise of the processor."""
    if torch.cuda.is_available():
        return clocked(call)
    before = time.process_time()
    return call(), time.process_time() - before


def held(call: Callable[[], Any]) -> tuple[Any, int]:
    """What a call returns, and the most bytes that it held."""
    if torch.cuda.is_initialized():
        found, memory = peak(call)
        return found, (memory or {})["allocated"]
    with LiveBytes() as live:
        found = call()
    return found, live.peak


def rss(reset: bool = False) -> int | None:
    """The peak of the process's memory in bytes, since it was reset; None where Linux does not say."""
    with suppress(OSError, StopIteration):
        if reset:
            Path("/proc/self/clear_refs").write_text("5")
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])
    return None


def row(
    about: dict[str, Any],
    model: nn.Module,
    data: purge.Images,
    forget: int,
    asked: argparse.Namespace,
    **more: Any,
) -> dict[str, Any]:
    """Seconds, reads and memory of calls that forget the first images of some data."""
    plan: Plan = asked.plan
    settings = {"steps": plan.steps, "batch_size": plan.size, "check_samples": plan.checked, **more}
    gone, kept = purge.split(data, indices=range(forget))
    model = model.to(asked.device).eval()
    facts = {
        **about, "forget": len(gone), "retain": len(kept), "batch_size": settings["batch_size"],
        "parameters": sum(p.numel() for p in model.parameters()), "commit": asked.commit,
    }  # fmt: skip

    def call() -> purge.Result:
        return purge.unlearn(model, gone, kept, device=asked.device, check=False, progress=False, **settings)

    try:
        warm_up, before = timed(call)[1], getattr(data, "reads", 0)
        rss(reset=True)
        seconds = [timed(call)[1] for _ in range(asked.runs)]
        process, reads = rss(), (getattr(data, "reads", 0) - before) // asked.runs
        result, memory = held(call)
    except (purge.PurgeError, torch.OutOfMemoryError) as error:
        return {**facts, "error": str(error).splitlines()[0]}
    return {
        **facts, "seconds": statistics.median(seconds), "seconds_all": seconds, "seconds_warm_up": warm_up,
        "steps": result.steps, "reads": reads, "memory": memory, "rss": process,
    }  # fmt: skip


def rows(asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """What is to be measured, in order."""
    plan: Plan = asked.plan

    os.environ["PURGE_CACHE"] = str(asked.work / "cache")
    shutil.rmtree(asked.work / "cache", ignore_errors=True)  # so that the first load makes the index

    def streamed(n: int) -> tuple[purge.Images, float]:
        at = shards(asked.work, plan.side, n)
        (train, _), seconds = timed(
            lambda: purge.load(at, stream=True, size=plan.side, mean=(0.5,), std=(0.25,))
        )
        return train, seconds

    for n in plan.retain if "retain" in asked.axes else ():
        train, first = streamed(n)
        again = streamed(n)[1]
        about = {"axis": "retain", "value": n, "model": plan.model, "size": plan.side}
        about |= {"seconds_load_first": first, "seconds_load": again}
        yield row(about, untrained(plan.model, train), train, plan.few, asked)
    middle = streamed(plan.retain[1])[0] if {"forget", "batch"} & set(asked.axes) else None
    for n in plan.forget if "forget" in asked.axes and middle is not None else ():
        about = {"axis": "forget", "value": n, "model": plan.model, "size": plan.side}
        yield row(about, untrained(plan.model, middle), middle, n, asked)
    for n in plan.batch if "batch" in asked.axes and middle is not None else ():
        about = {"axis": "batch", "value": n, "model": plan.model, "size": plan.side}
        yield row(about, untrained(plan.model, middle), middle, plan.few, asked, batch_size=n)
    for name in plan.models if "model" in asked.axes else ():
        yield from of_model(name, asked)


def of_model(name: str, asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A model plainly and with what saves memory, beside a training step of the same batch."""
    plan, (kind, _, size) = asked.plan, name.rpartition("@")
    g = torch.Generator().manual_seed(SEED)
    pixels = torch.randint(
        0, 256, (4 * plan.batch_of_models, 3, int(size), int(size)), generator=g, dtype=torch.uint8
    )
    data = purge.Images(
        pixels, torch.arange(len(pixels)) % CLASSES, mean=(0.5,), std=(0.25,),
        names=[str(c) for c in range(CLASSES)],
    ).to(asked.device)  # fmt: skip
    model = untrained(kind, data).to(asked.device)
    some = data.select(torch.arange(plan.batch_of_models))
    training_step(model, some)
    step = held(lambda: training_step(model, some))[1]
    ways: dict[str, dict[str, Any]] = {"plain": {}, "checkpoint": {"checkpoint_activations": True}}
    if not any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules()):
        ways["micro_batch"] = {"micro_batch": plan.micro}
        ways["both"] = {**ways["checkpoint"], **ways["micro_batch"]}
    for way, chosen in ways.items():
        about = {"axis": "model", "value": name, "way": way, "model": kind, "size": int(size)}
        about |= {"settings": chosen, "training_step": step}
        yield row(about, model, data, plan.few, asked, batch_size=plan.batch_of_models, **chosen)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("axes", nargs="*", help=f"what to vary: {', '.join(AXES)}; default: each of them")
    parser.add_argument("--quick", action="store_true", help="smaller, on a CPU")
    parser.add_argument("--work", type=Path, help="where the images are written, and left for the next call")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--device")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--most", type=int, help="leave out sets of more images")
    parser.add_argument("--table", action="store_true", help="print the tables of what was measured")
    parser.add_argument("--plot", action="store_true", help="draw what was measured")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs", help="where the figure goes")
    asked = parser.parse_args()
    if wrong := set(asked.axes) - set(AXES):
        parser.error(f"expected any of {', '.join(AXES)} but got {', '.join(sorted(wrong))}")
    asked.axes = asked.axes or list(AXES)
    asked.commit = commit()  # of the code that runs, whatever is committed meanwhile
    asked.out = asked.out or (QUICK_OUT if asked.quick else OUT)
    asked.device = asked.device or ("cpu" if asked.quick else "cuda")
    plan = QUICK if asked.quick else FULL
    if asked.quick:
        torch.set_num_threads(1)
    asked.plan = plan._replace(retain=tuple(n for n in plan.retain if n <= (asked.most or n)))
    if not (asked.table or asked.plot):
        with tempfile.TemporaryDirectory() as folder:
            asked.work = asked.work or Path(folder)
            measure(asked)
    content = json.loads(asked.out.read_text())
    if asked.plot:
        print(*save(figure(content), asked.docs, asked.out.stem), sep="\n")
    else:
        print(table(content))


def measure(asked: argparse.Namespace) -> None:
    old = json.loads(asked.out.read_text())["rows"] if asked.out.is_file() else []
    found = [r for r in old if r["axis"] not in asked.axes]
    about = {"steps": asked.plan.steps, "seed": SEED, "images": f"{POOL} different JPEG files, repeated"}
    for one in rows(asked):
        found.append(one)
        print({k: v for k, v in one.items() if k != "seconds_all"}, flush=True)
        ordered = sorted(found, key=lambda r: list(AXES).index(r["axis"]))
        write_json(asked.out, {**about, "commit": asked.commit, **environment(), "rows": ordered})


# -- tables and the figure ------------------------------------------------------------------------


def table(content: dict) -> str:
    """A Markdown table per thing that was varied."""
    parts = [_of_axis(content, axis) for axis in AXES if axis != "model"] + [_of_models(content)]
    on = content["hardware"]
    where = on["gpu"] or f"{on['machine']}, {on['cpus']} cores"
    commits = ", ".join(dict.fromkeys(r["commit"] for r in content["rows"]))
    return "\n\n".join([*filter(None, parts), f"{where}, {content['steps']} steps, commit {commits}."])


def _of_axis(content: dict, axis: str) -> str:
    load = axis == "retain"
    head = [AXES[axis], _seconds(content), "range", "images read", "memory (MB)", "process (MB)"]
    head += ["load, first (s)", "load, again (s)"] * load
    lines = []
    for r in (r for r in content["rows"] if r["axis"] == axis):
        cells = [f"{r['value']:,}", *_cost(r)]
        cells += [f"{r[key]:.1f}" for key in ("seconds_load_first", "seconds_load") if load]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([f"| {' | '.join(head)} |", "|---" * len(head) + "|", *lines]) if lines else ""


def _seconds(content: dict) -> str:
    return "seconds" if content["hardware"]["gpu"] else "CPU seconds"


def _cost(r: dict[str, Any]) -> list[str]:
    if "error" in r:
        return [r["error"], *["–"] * 4]
    each = r["seconds_all"]
    megabytes = ["–" if r[key] is None else f"{r[key] / 1e6:,.0f}" for key in ("memory", "rss")]
    return [f"{r['seconds']:.2f}", f"{min(each):.2f}–{max(each):.2f}", f"{r['reads']:,}", *megabytes]


def _of_models(content: dict) -> str:
    lines = []
    for r in (r for r in content["rows"] if r["axis"] == "model"):
        seconds, _, _, memory, _ = _cost(r)
        ratio = "–" if "error" in r else f"{r['memory'] / r['training_step']:.2f} ×"
        named = {"checkpoint": "`checkpoint_activations`", "plain": "plain", "both": "both"}
        way = named.get(r["way"], f"`{r['way']}`")
        cells = [label(r), way, str(r["batch_size"]), seconds, memory, ratio]
        lines.append(f"| {' | '.join(cells)} |")
    head = (
        f"| model | how | batch | {_seconds(content)} | memory (MB) | beside a training step |\n"
        + "|---" * 6
        + "|\n"
    )
    return head + "\n".join(lines) if lines else ""


def figure(content: dict) -> Figure:
    """Four panels: seconds against each thing that was varied; models as bars, plainly."""
    fig, axes = empty_axes(2, 2, height=4.6)
    for ax, axis in zip(axes, AXES, strict=True):
        found = [r for r in content["rows"] if r["axis"] == axis and "error" not in r]
        if axis == "model":
            plain = [r for r in found if r["way"] == "plain"]
            bars(ax, axis, plain)
            ax.set_yticks(range(len(plain)), [label(r) for r in plain])
        else:
            line(ax, axis, found)
            ax.set_xlabel(AXES[axis])
    return fig


if __name__ == "__main__":
    main()
