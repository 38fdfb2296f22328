"""Where the channels of a map are: told by the layers that made it, not by its shape."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from purge.models.hooks import capture, channels_first, fed_to, pooled


def seen(model: nn.Module, name: str, x: Tensor) -> tuple[Tensor, Tensor]:
    """The output of a layer, and what capture makes of it."""
    kept: list[Tensor] = []
    handle = model.get_submodule(name).register_forward_hook(lambda _m, _a, out: kept.append(out))
    with torch.no_grad(), capture(model, [name]) as h:
        model(x)
    handle.remove()
    return kept[0], h[name]


MAPS = {  # the sizes of the positions; the first equals the number of channels, 6
    "1-D": (1, (9,)),
    "1-D, as many positions as channels": (1, (6,)),
    "as high as there are channels": (2, (6, 9)),
    "as wide as there are channels": (2, (9, 6)),
    "a cube": (2, (6, 6)),
    "video": (3, (6, 6, 4)),
}


@pytest.mark.parametrize("layer", ["0", "0.0", "0.1", "0.2", "1"])
@pytest.mark.parametrize("case", MAPS)
def test_maps_of_convolutions_are_averaged_over_their_positions(case, layer):
    dims, size = MAPS[case]
    conv, norm = getattr(nn, f"Conv{dims}d"), getattr(nn, f"BatchNorm{dims}d")
    block = nn.Sequential(conv(2, 6, 3, padding=1), norm(6), nn.ReLU())
    raw, h = seen(nn.Sequential(block, nn.Dropout(0.0)).eval(), layer, torch.randn(3, 2, *size))
    assert torch.equal(h, raw.mean(tuple(range(2, raw.ndim))))


class Swin(nn.Module):
    """Patches as a map with the channels last."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.patch = nn.Conv2d(2, width, 1)
        self.norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.patch(x).permute(0, 2, 3, 1))
        return h + self.mlp(h)


class ConvNeXt(nn.Module):
    """Linear layers over channels that are last for a moment, in a map that has them first."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.stem, self.deep = nn.Conv2d(2, width, 1), nn.Conv2d(width, width, 3, padding=1, groups=width)
        self.norm, self.mlp = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        return h + self.mlp(self.norm(self.deep(h).permute(0, 2, 3, 1))).permute(0, 3, 1, 2)


class Patches(nn.Module):
    """Tokens (B, N, C) straight from a convolution."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x).flatten(2).transpose(1, 2)


@pytest.mark.parametrize("size", [(6, 6), (6, 9), (9, 6), (9, 9), (4, 9)])
def test_channels_that_were_moved_are_found(size):
    x = torch.randn(3, 2, *size)
    for net, axis in ((Swin(6), 3), (ConvNeXt(6), 1), (Patches(6), 2)):
        model = nn.Sequential(net, nn.Identity())
        for name in ("0", "1"):
            if isinstance(net, ConvNeXt) and name == "1" and 6 in size:
                continue  # nothing before it tells
            raw, found = seen(model, name, x)
            positions = tuple(d for d in range(1, raw.ndim) if d != axis)
            torch.testing.assert_close(found, raw.mean(positions))


class Dense(nn.Module):
    """Its layer makes fewer channels than the block, and as many as the map is wide."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 6, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.conv(x)], 1)


def test_dense_blocks_are_not_taken_for_tokens():
    raw, h = seen(nn.Sequential(Dense()), "0", torch.randn(3, 2, 6, 6))
    assert torch.equal(h, raw.mean((2, 3)))


def test_recurrent_layers_and_embeddings_have_tokens():
    model = nn.Sequential(nn.Embedding(20, 5), nn.LSTM(5, 4, batch_first=True, bidirectional=True))
    with torch.no_grad(), capture(model, ["0", "1"]) as h:
        model(torch.randint(20, (3, 8)))
    assert (h["0"].shape, h["1"].shape) == ((3, 5), (3, 8))


def test_the_input_of_the_head_is_read_as_the_head_reads_it():
    tokens, maps = torch.randn(3, 5, 5), torch.randn(3, 5, 5, 9)
    assert torch.equal(pooled(fed_to(nn.Linear(5, 2), tokens)), tokens.mean(1))
    assert torch.equal(pooled(fed_to(nn.Conv2d(5, 2, 1), maps)), maps.mean((2, 3)))
    assert torch.equal(pooled(fed_to(nn.Conv1d(5, 2, 1), tokens)), tokens.mean(2))


@pytest.mark.parametrize(
    ("shape", "wanted"),
    [((2, 7, 7, 16), (2, 16, 7, 7)), ((2, 7, 3), (2, 3, 7)), ((2, 3, 4, 5, 6),) * 2, ((2, 3),) * 2],
    ids=str,
)
def test_without_any_evidence_the_shape_decides(shape, wanted):
    assert channels_first(torch.ones(shape)).shape == wanted
