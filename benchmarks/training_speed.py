"""Training throughput, images on the device against a DataLoader: results/training_speed.json.

uv run python benchmarks/training_speed.py --data-dir DIR         # needs a GPU; about a minute

The same recipe (CIFAR-10, ResNet-18 at 32×32, bf16, channels last, pad-crop and flip) twice:
``purge.train`` with images on the device, and the usual loop fed by torchvision transforms in the
worker processes of a DataLoader. Median of three measurements after one warm-up each.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from base_models import commit
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

import purge
from purge.core.files import write_json
from purge.data.catalog import DATASETS
from purge.engine.trainer import one_cycle
from purge.result import environment
from purge.runs.folder import build_for

ROOT = Path(__file__).parents[1]
OUT = ROOT / "results" / "training_speed.json"
TIMES = 3


class Pictures(Dataset):
    """CIFAR-10 as torchvision gives it: a PIL image from an array, then the transform."""

    def __init__(self, images: purge.Images) -> None:
        self.pixels, self.labels = images.pixels.permute(0, 2, 3, 1).numpy(), images.labels.tolist()
        self.transform = transforms.Compose(
            [
                transforms.RandomCrop(32, padding=4),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
                transforms.Normalize(images.mean, images.std),
            ]
        )

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        return self.transform(Image.fromarray(self.pixels[i])), self.labels[i]


def on_device(train: purge.Images, epochs: int) -> float:
    """Images per second of purge.train."""
    recipe = {**DATASETS["cifar10"].recipe, "epochs": epochs}
    result = purge.train(build_for("resnet18", train), train, device="cuda", progress=False, **recipe)
    return result.steps * result.method.batch_size / result.seconds


def with_loader(train: purge.Images, epochs: int, workers: int) -> float:
    """Images per second of the usual loop; the workers stay alive between epochs."""
    recipe = DATASETS["cifar10"].recipe
    loader = DataLoader(
        Pictures(train), recipe["batch_size"], shuffle=True, drop_last=True, num_workers=workers,
        pin_memory=True, persistent_workers=workers > 0,
    )  # fmt: skip
    model = build_for("resnet18", train).cuda().to(memory_format=torch.channels_last).train()
    optimizer = torch.optim.SGD(
        model.parameters(), recipe["lr"], momentum=0.9, weight_decay=5e-4, nesterov=True, fused=True
    )
    torch.backends.cudnn.benchmark = True
    step, total = 0, epochs * len(loader)
    for epoch in range(epochs + 1):
        if epoch == 1:  # the first one starts the workers
            torch.cuda.synchronize()
            started = time.perf_counter()
        for x, y in loader:
            x, y = x.cuda(non_blocking=True), y.cuda(non_blocking=True)
            optimizer.param_groups[0]["lr"] = recipe["lr"] * one_cycle(min(step, total - 1), total)
            with torch.autocast("cuda", torch.bfloat16):
                z = model(x)
            loss = F.cross_entropy(z.float(), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
    torch.cuda.synchronize()
    return epochs * len(loader) * recipe["batch_size"] / (time.perf_counter() - started)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir")
    parser.add_argument("--out", type=Path, default=OUT)
    asked = parser.parse_args()
    train, _ = purge.load("cifar10", data_dir=asked.data_dir)
    resident, workers = train.to("cuda"), min(16, os.cpu_count() or 1)
    cold = on_device(resident, 1)
    ours = [on_device(resident, 5) for _ in range(TIMES)]
    plain = [with_loader(train, 2, workers) for _ in range(TIMES)]
    found = {
        "images_per_second": statistics.median(ours),
        "images_per_second_all": ours,
        "images_per_second_first_epoch_of_process": cold,
        "images_per_second_dataloader": statistics.median(plain),
        "images_per_second_dataloader_all": plain,
        "dataloader_workers": workers,
        "ratio": statistics.median(ours) / statistics.median(plain),
    }
    print(found)
    write_json(
        asked.out, {"data": "cifar10", "model": "resnet18", "commit": commit(), **environment(), **found}
    )


if __name__ == "__main__":
    main()
