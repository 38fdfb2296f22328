"""purge.Images: sizes, moves, parts and places, each against a slow and plain reference."""

from __future__ import annotations

import logging
import threading
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import DataLoader

from purge.core.errors import DataError
from purge.data import prefetch
from purge.data.images import Images, draw_moves, enlarged, moved
from purge.data.prefetch import say_once
from tests.data.image_files import sentence


def pixels(n: int = 12, channels: int = 3, height: int = 8, width: int = 8, seed: int = 0) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (n, channels, height, width), generator=g, dtype=torch.uint8)


def images(n: int = 12, height: int = 8, width: int = 8, **options: Any) -> Images:
    return Images(pixels(n, 3, height, width), torch.arange(n) % 3, **options)


EVERY = torch.arange(12)
CONSTANTS = {"mean": (0.1, 0.2, 0.3), "std": (0.5, 1.0, 2.0)}


def normalised(raw: Tensor) -> Tensor:
    mean, std = (torch.tensor(CONSTANTS[c]).view(1, 3, 1, 1) for c in ("mean", "std"))
    return (raw.float() / 255 - mean) / std


# -- sizes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("height", "width", "size", "whole"),
    [
        (8, 8, 4, (4, 4)),
        (8, 8, 8, (8, 8)),
        (8, 8, 12, (12, 12)),
        (8, 16, 8, (8, 16)),
        (16, 8, 4, (8, 4)),
        (8, 16, 12, (12, 24)),
        (10, 15, 20, (20, 30)),
        (9, 13, 6, (6, 9)),
        (6, 10, None, (6, 10)),
    ],
)
def test_the_shorter_side_is_brought_to_size_and_the_centre_cut_out(height, width, size, whole):
    found = images(height=height, width=width, size=size, **CONSTANTS)
    x, _ = found.take(EVERY)
    h, w = (size, size) if size else whole
    assert x.shape[1:] == found.shape == (3, h, w)
    want = normalised(pixels(height=height, width=width))
    if whole != (height, width):
        want = F.interpolate(want, whole, mode="bilinear", antialias=size < min(height, width))
    top, left = (whole[0] - h) // 2, (whole[1] - w) // 2
    assert torch.allclose(x, want[:, :, top : top + h, left : left + w], atol=1e-6)


@pytest.mark.parametrize(("h", "w", "wanted"), [(8, 8, (20, 20)), (8, 6, (12, 9)), (5, 7, (5, 28))])
def test_products_of_matrices_enlarge_as_interpolate_does(h, w, wanted):
    """What is done on a GPU; in full precision, whatever runs around it."""
    x = torch.randn(4, 3, h, w, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", torch.bfloat16):
        found = enlarged(x, wanted)
    assert found.dtype == torch.float32
    assert torch.allclose(found, F.interpolate(x, wanted, mode="bilinear"), atol=1e-6)


def test_grey_is_repeated_for_a_model_of_colour():
    grey = Images(pixels(channels=1), EVERY % 3, channels=3)
    assert (grey.shape, grey.pixel_shape) == ((3, 8, 8), (1, 8, 8))
    want = Images(pixels(channels=1), EVERY % 3).take(EVERY)[0].repeat(1, 3, 1, 1)
    assert torch.equal(grey.take(EVERY)[0], want)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_batches_have_the_type_that_is_asked_for(dtype):
    x, y = images(size=12, **CONSTANTS).to("cpu", dtype).take(EVERY)
    assert (x.dtype, y.dtype) == (dtype, torch.int64)
    assert torch.equal(x, images(size=12, **CONSTANTS).take(EVERY)[0].to(dtype))


# -- moves ------------------------------------------------------------------------------------


def slowly(raw: Tensor, down: int, right: int, flip: int) -> Tensor:
    """Pad by mirroring, cut out, flip: an image (C, H, W) at a time, with numpy."""
    _, h, w = raw.shape
    pad = max(abs(down), abs(right), 1)
    padded = np.pad(raw.numpy(), ((0, 0), (pad, pad), (pad, pad)), mode="reflect")
    cut = padded[:, pad + down : pad + down + h, pad + right : pad + right + w]
    return torch.from_numpy((cut[:, :, ::-1] if flip else cut).copy())


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_moves_are_padding_cropping_and_flipping(data):
    h, w = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 9))
    c, n = data.draw(st.sampled_from([1, 3])), 5
    raw = pixels(n, c, h, w, seed=data.draw(st.integers(0, 9)))
    rows = data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=7))
    move = st.tuples(st.integers(-12, 12), st.integers(-12, 12), st.integers(0, 1))  # also wider than images
    moves = data.draw(st.lists(move, min_size=len(rows), max_size=len(rows)))
    found = moved(raw, torch.tensor(rows), torch.tensor(moves))
    want = torch.stack([slowly(raw[i], *m) for i, m in zip(rows, moves, strict=True)])
    assert found.dtype == torch.uint8
    assert torch.equal(found, want)


def taken(found: Images, rows: Tensor, moves: Tensor | None) -> tuple[Tensor, Tensor]:
    """One batch of images, moved."""
    return next(iter(found.moved([rows], None if moves is None else [moves])))


@pytest.mark.parametrize("move", [(0, 0, 0), (2, -1, 1)])
def test_moves_happen_at_the_stored_size_and_before_resizing(move):
    x, y = taken(images(size=16, **CONSTANTS), EVERY, torch.tensor([move]).repeat(12, 1))
    want = torch.stack([slowly(image, *move) for image in pixels()])
    assert torch.equal(x, Images(want, EVERY % 3, size=16, **CONSTANTS).take(EVERY)[0])
    assert torch.equal(y, EVERY % 3)


def drawn(seed: int, n: int = 500, **options: Any) -> Tensor:
    return draw_moves(n, generator=torch.Generator().manual_seed(seed), **options)


def test_moves_come_from_the_seed_alone_and_reach_every_place_and_no_other():
    state = torch.get_rng_state()
    moves = drawn(0, n=5000, pad=2, flip=True)
    assert torch.equal(moves, drawn(0, n=5000, pad=2, flip=True))
    assert not torch.equal(moves, drawn(1, n=5000, pad=2, flip=True))
    assert torch.equal(torch.get_rng_state(), state)
    places = {(d, r, f) for d in range(-2, 3) for r in range(-2, 3) for f in (0, 1)}
    assert {tuple(m) for m in moves.tolist()} == places
    assert drawn(0, pad=0, flip=True)[:, :2].count_nonzero() == 0
    assert drawn(0, pad=2, flip=False)[:, 2].count_nonzero() == 0


def test_turning_gives_the_eight_ways_in_which_a_square_can_lie_equally_often():
    raw = torch.arange(2 * 3 * 5 * 5).reshape(2, 3, 5, 5).byte()
    ways = torch.cartesian_prod(*[torch.tensor([0, 1])] * 3)  # flip, upside down, swap
    moves = torch.cat([torch.zeros(8, 2, dtype=torch.long), ways], 1)
    found = moved(raw, torch.ones(8, dtype=torch.long), moves)
    for image, (flip, down, swap) in zip(found, ways.tolist(), strict=True):
        want = raw[1].flip(2) if flip else raw[1]
        want = want.flip(1) if down else want
        assert torch.equal(image, want.mT if swap else want)
    assert len({tuple(image.flatten().tolist()) for image in found}) == 8
    _, counts = drawn(0, 8000, pad=0, flip=True, turn=True)[:, 2:].unique(dim=0, return_counts=True)
    assert len(counts) == 8
    assert counts.min() > 900


# -- streams and parts ------------------------------------------------------------------------

ORDERS = [
    torch.tensor([[3, 1, 2, 0], [11, 5, 5, 4]]),
    [torch.tensor([7, 2]), torch.tensor([1]), torch.tensor([9, 8, 3])],
]


@pytest.mark.parametrize("order", ORDERS, ids=["tensor", "list"])
@pytest.mark.parametrize("moving", [False, True])
@pytest.mark.parametrize("part", [False, True])
def test_a_stream_is_a_sequence_of_takes(order, moving, part):
    found = images(size=12, **CONSTANTS)
    found = found.select(EVERY.flip(0)) if part else found
    moves = [drawn(i, n=len(index), pad=2, flip=True) for i, index in enumerate(order)] if moving else None
    streamed = list(found.moved(order, moves))
    assert len(streamed) == len(order)
    for i, (x, y) in enumerate(streamed):
        want = taken(found, order[i], moves[i] if moves else None)
        assert torch.equal(x, want[0])
        assert torch.equal(y, want[1])
    with pytest.raises(ValueError, match="shorter"):
        list(found.moved(order, [drawn(0, n=len(order[0]), pad=1, flip=True)]))


def test_parts_share_the_pixels_and_parts_of_parts_too():
    raw = pixels()
    whole = Images(raw, EVERY % 3, names=("a", "b", "c"), paths=[f"{i}.png" for i in range(12)], source="s")
    part = whole.select(torch.tensor([10, 4, 7, 1]))
    nested = part.select(torch.tensor([3, 0])).to("cpu")
    for found, rows in ((whole, range(12)), (part, [10, 4, 7, 1]), (nested, [1, 10])):
        assert found.backend.store.data_ptr() == raw.data_ptr()
        assert torch.equal(found.pixels, raw[list(rows)])
        assert found.labels.tolist() == [i % 3 for i in rows]
        assert found.ids.tolist() == list(rows)
        assert (found.source, found.names, len(found)) == ("s", ("a", "b", "c"), len(rows))
        assert torch.equal(found.take(torch.arange(len(rows)))[0], whole.take(torch.tensor(rows))[0])
        assert found[0][1] == rows[0] % 3
    moves = drawn(0, n=2, pad=2, flip=True)
    want = taken(whole, torch.tensor([10, 1]), moves)[0]
    assert torch.equal(taken(nested, torch.tensor([1, 0]), moves)[0], want)
    assert len(part.select(torch.tensor([], dtype=torch.long))) == 0
    assert images().source != images().source


def test_images_work_with_a_data_loader():
    found = images(size=12, **CONSTANTS)
    batches = list(DataLoader(found, batch_size=5))
    assert torch.equal(torch.cat([x for x, _ in batches]), found.take(EVERY)[0])
    assert torch.cat([y for _, y in batches]).tolist() == found.labels.tolist()
    assert torch.equal(torch.stack([x for x, _ in found]), found.take(EVERY)[0])  # and can be gone through
    for i in (12, -13):
        with pytest.raises(IndexError):
            found[i]


# -- bad input --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "got"),
    [
        *(({"size": size}, str(size)) for size in (0, -3, 4097, 12.5)),
        *(({"channels": channels}, str(channels)) for channels in (1, 4, 0)),
        *(({"mean": mean}, str(mean)) for mean in ((0.1, 0.2), 0.1, ())),
        *(({"std": std}, str(std)) for std in ((1.0,) * 4, (1.0, 0.0, 1.0), (-1.0,), (float("nan"),))),
        *(({"pixels": pixels(channels=1), "channels": channels}, str(channels)) for channels in (0, -1)),
        ({"ids": torch.arange(5)}, "(5,)"),
        ({"pixels": pixels().float()}, "(12, 3, 8, 8) of torch.float32"),
        ({"pixels": pixels()[0]}, "(3, 8, 8)"),
        ({"pixels": pixels().numpy()}, "ndarray"),
        ({"labels": EVERY[:5]}, "(5,)"),
        ({"labels": 1 - torch.eye(12).long()}, "other rows of 12"),
        ({"labels": EVERY.float()}, "torch.float32"),
        ({"labels": EVERY - 3}, "-3"),
        ({"labels": ["a"] * 12}, "str"),
    ],
)
def test_pixels_labels_and_options_that_cannot_be_are_refused(options, got):
    given = {"pixels": pixels(), "labels": EVERY % 3, **options}
    with pytest.raises(DataError) as error:
        Images(**given)
    assert f"got {got}" in sentence(error)


def test_options_at_the_edges_are_taken():
    assert images(size=1).take(EVERY)[0].shape == (12, 3, 1, 1)
    assert images(channels=3).shape == (3, 8, 8)
    assert images(mean=[0.5], std=[2]).take(EVERY)[0].isfinite().all()
    assert Images(pixels(0), EVERY[:0]).take(EVERY[:0])[0].shape == (0, 3, 8, 8)


# -- on a GPU ---------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("size", [None, 12])
@pytest.mark.parametrize("part", [False, True])
def test_images_kept_in_host_memory_are_the_same_images(size, part, caplog, monkeypatch):
    """Where nothing fits, batches are copied ahead; the results are those on the device."""
    say_once.cache_clear()
    monkeypatch.setattr(prefetch, "DEVICE_FRACTION", 0.0)
    whole = images(n=60, size=size, **CONSTANTS)
    whole = whole.select(torch.arange(60).flip(0)[:40]) if part else whole
    with caplog.at_level(logging.WARNING, logger="purge"):
        host = whole.to("cuda")
        again = whole.to("cuda:0")
    assert [r.getMessage().count("stay in host memory") for r in caplog.records] == [1]
    monkeypatch.setattr(prefetch, "DEVICE_FRACTION", 0.5)
    there = whole.to("cuda")
    assert len(caplog.records) == 1
    assert there.backend.resident
    assert there.pixels.device.type == there.device.type == host.device.type == "cuda"
    for far in (host, again):
        assert not far.backend.resident
        assert far.pixels.device.type == "cpu"
        assert far.backend.store.data_ptr() == whole.backend.store.data_ptr()
    g = torch.Generator().manual_seed(1)
    order = torch.stack([torch.randperm(40, generator=g)[:16] for _ in range(9)])
    moves = drawn(2, n=order.numel(), pad=3, flip=True).view(9, 16, 3)
    for given_order in (order, list(order), order.cuda()):
        for given_moves in (None, moves, moves.cuda()):
            streamed = zip(
                host.moved(given_order, given_moves), there.moved(given_order, given_moves), strict=True
            )
            for i, (a, b) in enumerate(streamed):
                plain, far = (
                    taken(one, order[i], None if given_moves is None else moves[i]) for one in (whole, host)
                )
                for x, y in (a, b, far):
                    assert x.device.type == y.device.type == "cuda"
                    assert torch.equal(x, b[0])
                    assert torch.equal(y.cpu(), plain[1])
                    assert torch.allclose(x.cpu(), plain[0], atol=1e-5)


@pytest.mark.gpu
def test_images_come_back_from_the_device():
    whole = images(size=12, **CONSTANTS)
    back = whole.to("cuda").select(torch.tensor([3, 1]).cuda()).to("cpu")
    assert torch.equal(back.pixels, whole.pixels[[3, 1]])
    assert torch.equal(back.take(torch.tensor([1, 0]))[0], whole.take(torch.tensor([1, 3]))[0])


@pytest.mark.gpu
def test_a_stream_that_is_left_early_ends_its_thread(monkeypatch):
    monkeypatch.setattr(prefetch, "DEVICE_FRACTION", 0.0)
    whole = images(n=60)
    stream = whole.to("cuda").stream(torch.arange(60).view(10, 6))
    next(stream)
    stream.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("ThreadPoolExecutor")]
