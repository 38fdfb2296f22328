"""BatchNorm in training, purge's kernels beside torch's own: results/batchnorm.json.

uv run python benchmarks/batchnorm.py              # needs a GPU; 20 seconds
uv run python benchmarks/batchnorm.py --sweep      # other sizes of tiles; prints, writes nothing

ResNet-18 for images of 32×32 in bf16 with channels last. ``kernels``: microseconds of each kernel at each
shape of a batch of 512, on data that is not in the cache, and ``floor``, what moving the data takes at the
rate of a copy on this device. ``steps``: milliseconds of a training step, forward and backward, as a CUDA
graph, and as ``purge.train`` takes it, with the optimizer. Without a GPU, one small step shows that the
script runs.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import statistics
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from base_models import commit
from torch import Tensor, nn

from purge.core.files import write_json
from purge.models import batchnorm
from purge.models import batchnorm_kernels as ours
from purge.models.zoo import build
from purge.result import environment

OUT = Path(__file__).parents[1] / "results" / "batchnorm.json"
BATCHES = (512, 128)
COLD = 2**28  # bytes; so much data is gone through before a buffer is used again
TIMES = 7
EPS = 1e-5
MOVED = {"moments": 1, "transform": 2, "backward_sums": 2, "backward_input": 3}  # passes over the data

Call = Callable[[int], Any]


def milliseconds(call: Callable[[], Any], times: int = TIMES) -> float:
    """The median, on the device's clock; the first call does not count."""
    call()
    found = []
    for _ in range(times):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        end.synchronize()
        found.append(start.elapsed_time(end))
    return statistics.median(found)


def recorded(call: Callable[[], Any]) -> Callable[[], None]:
    """The call as a CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def shapes(model: nn.Module, batch: int) -> Counter[tuple[int, ...]]:
    """The shapes that its BatchNorm layers see in one forward pass, and how often."""
    seen: Counter[tuple[int, ...]] = Counter()
    layers = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    handles = [m.register_forward_pre_hook(lambda _m, args: seen.update([args[0].shape])) for m in layers]
    model(torch.zeros(2, 3, 32, 32))
    for handle in handles:
        handle.remove()
    return Counter({(batch, *shape[1:]): n for shape, n in seen.items()})


def calls(shape: tuple[int, ...]) -> tuple[int, dict[str, dict[str, Call]]]:
    """How many buffers there are, and what computes on the i-th of them, by kernel and by whose it is."""
    c = shape[1]
    size = 2 * torch.Size(shape).numel()
    n = max(2, -(-COLD // size))
    x = [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(n)]
    x = [v.contiguous(memory_format=torch.channels_last) for v in x]
    dy = x[n // 2 :] + x[: n // 2]  # what was read lately is not read again
    w, b = torch.rand(c, device="cuda"), torch.rand(c, device="cuda")
    mean, rstd = ours.moments(x[0], EPS)
    sums, _, _ = ours.backward_sums(dy[0], x[0], mean, rstd, w)
    count = torch.full((1,), size // 2 // c, dtype=torch.int32, device="cuda")
    torchs = {
        "moments": lambda i: torch.batch_norm_stats(x[i], EPS),
        "transform": lambda i: torch.batch_norm_elemt(x[i], w, b, mean, rstd, EPS),
        "backward_sums": lambda i: torch.batch_norm_backward_reduce(
            dy[i], x[i], mean, rstd, w, True, True, True
        ),
        "backward_input": lambda i: torch.batch_norm_backward_elemt(dy[i], x[i], mean, rstd, w, *sums, count),
    }
    return n, {"torch": torchs, "purge": own_calls(x, dy, mean, rstd, w, b, sums)}


def own_calls(
    x: list[Tensor], dy: list[Tensor], mean: Tensor, rstd: Tensor, w: Tensor, b: Tensor, sums: Tensor
) -> dict[str, Call]:
    return {
        "moments": lambda i: ours.moments(x[i], EPS),
        "transform": lambda i: ours.transform(x[i], mean, rstd, w, b),
        "backward_sums": lambda i: ours.backward_sums(dy[i], x[i], mean, rstd, w),
        "backward_input": lambda i: ours.backward_input(dy[i], x[i], mean, rstd, w, sums),
    }


def microseconds(call: Call, n: int) -> float:
    """Of one call, when those on n buffers follow each other in a graph."""
    return 1e3 * milliseconds(recorded(lambda: [call(i) for i in range(n)] and None)) / n


def copy_rate() -> float:
    """Bytes per second that a copy reads and writes."""
    a = torch.empty(2**29, device="cuda", dtype=torch.uint8)
    b = torch.empty_like(a)
    return 2 * a.numel() / (1e-3 * milliseconds(lambda: b.copy_(a)))


def kernels(seen: Counter[tuple[int, ...]]) -> list[dict[str, Any]]:
    rate, rows = copy_rate(), []
    for shape, layers in seen.items():
        n, by = calls(shape)
        for kernel, passes in MOVED.items():
            floor = 1e6 * passes * 2 * torch.Size(shape).numel() / rate
            took = {whose: microseconds(found[kernel], n) for whose, found in by.items()}
            rows.append({"kernel": kernel, "shape": list(shape), "layers": layers, **took, "floor": floor})
    return rows


def step_of(model: nn.Module, batch: int, device: str) -> Callable[[], Any]:
    """A training step, forward and backward, that leaves the gradients with the weights."""
    x = torch.randn(batch, 3, 32, 32, device=device).contiguous(memory_format=torch.channels_last)
    y = torch.randint(10, (batch,), device=device)

    def step() -> None:
        model.zero_grad()
        with torch.autocast(device, torch.bfloat16):
            z = model(x)
        F.cross_entropy(z.float(), y).backward()

    return step


def steps(batch: int) -> dict[str, Any]:
    """Milliseconds of a step with torch's BatchNorm and with ours."""
    found: dict[str, Any] = {"batch": batch}
    for whose in ("torch", "purge"):
        torch.manual_seed(0)
        model = network().cuda().to(memory_format=torch.channels_last).train()
        step = step_of(model, batch, "cuda")
        optimizer = torch.optim.SGD(model.parameters(), 0.1, 0.9, nesterov=True, fused=True)

        def eager(step: Callable[[], Any] = step, optimizer: Any = optimizer) -> None:
            for _ in range(10):
                step()
                optimizer.step()

        with ExitStack() as stack:
            if whose == "purge":
                stack.enter_context(batchnorm.statistics(model, "train"))
                stack.enter_context(batchnorm.steps_to_record(model))
            step()  # compiles, and tries the algorithms of convolutions
            found[f"eager_{whose}"] = milliseconds(eager, 3) / 10
            found[f"graph_{whose}"] = milliseconds(recorded(step))
    return found


def network() -> nn.Module:
    return build("resnet18", classes=10, channels=3, size=32)


def table(rows: list[dict[str, Any]]) -> str:
    lines = [f"{'µs':<16}{'shape':<20}{'layers':>7}{'torch':>9}{'purge':>9}{'floor':>9}"]
    for r in rows:
        numbers = "".join(f"{r[k]:9.1f}" for k in ("torch", "purge", "floor"))
        lines.append(f"{r['kernel']:<16}{'×'.join(map(str, r['shape'])):<20}{r['layers']:>7}{numbers}")
    for kernel, total in totals(rows).items():
        lines.append(f"{kernel + ', ms':<43}" + "".join(f"{v:9.3f}" for v in total.values()))
    return "\n".join(lines)


def totals(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Milliseconds over all layers, by kernel and in all."""
    return {
        kernel: {
            k: sum(r["layers"] * r[k] for r in rows if kernel in (r["kernel"], "all")) / 1e3
            for k in ("torch", "purge", "floor")
        }
        for kernel in (*MOVED, "all")
    }


def sweep(seen: Counter[tuple[int, ...]]) -> None:
    """Milliseconds over all layers with tiles of other sizes than those in batchnorm_kernels."""
    prepared = {shape: calls(shape) for shape in seen}

    def total(kernel: str) -> float:
        took = ((seen[s], microseconds(by["purge"][kernel], n)) for s, (n, by) in prepared.items())
        return sum(layers * each for layers, each in took) / 1e3

    for ours.REDUCE, ours.STAGES, ours.PROGRAMS in itertools.product((2048, 4096, 8192), (2, 3), (2, 3, 4)):
        print(
            f"REDUCE {ours.REDUCE}, STAGES {ours.STAGES}, PROGRAMS {ours.PROGRAMS}: "
            f"moments {total('moments'):.3f}, backward_sums {total('backward_sums'):.3f} ms",
            flush=True,
        )
    for ours.ELEMENTWISE in (2048, 4096, 8192, 16384):
        print(
            f"ELEMENTWISE {ours.ELEMENTWISE}: transform {total('transform'):.3f}, "
            f"backward_input {total('backward_input'):.3f} ms",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--sweep", action="store_true", help="try other sizes of tiles")
    asked = parser.parse_args()
    seen = shapes(network(), BATCHES[0])
    if not torch.cuda.is_available():
        step_of(network().train(), 4, "cpu")()
        print(f"No GPU: kernels for {sum(seen.values())} layers of {len(seen)} shapes are not measured.")
        return
    torch.backends.cudnn.benchmark = True
    logging.basicConfig()
    logging.getLogger("purge").setLevel("INFO")  # says why, if the kernels do not compile
    if not ours.usable(images_of(next(iter(seen)))):
        raise SystemExit("The kernels cannot be used here.")
    if asked.sweep:
        sweep(seen)
        return
    rows = kernels(seen)
    print(table(rows), flush=True)
    found = [steps(batch) for batch in BATCHES]
    for row in found:
        print(", ".join(f"{k} {v:.2f} ms" if k != "batch" else f"batch {v}" for k, v in row.items()))
    facts = {"model": "resnet18", "size": 32, "precision": "bf16", "triton": ours.triton.__version__}
    facts |= {"commit": commit(), **environment()}
    write_json(asked.out, {**facts, "kernels": rows, "totals_ms": totals(rows), "steps": found})


def images_of(shape: tuple[int, ...]) -> Tensor:
    x = torch.zeros(shape, device="cuda", dtype=torch.bfloat16)
    return x.contiguous(memory_format=torch.channels_last)


if __name__ == "__main__":
    main()
