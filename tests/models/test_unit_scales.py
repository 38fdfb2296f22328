"""The size of units, by hand."""

from __future__ import annotations

import torch
from torch import nn

from purge.models.unit_scales import unit_scales


def scales(model: nn.Module, *batches: tuple[torch.Tensor, float], head: str | None = None) -> list:
    found = unit_scales(model, batches, head)
    return [s.times(torch.ones_like(p)) for s, p in zip(found, model.parameters(), strict=True)]


def test_a_linear_layer_is_measured_by_deviation_out_over_size_in():
    x = torch.tensor([[1.0, 0.0, 3.0], [-1.0, 0.0, 4.0], [1.0, 0.0, 0.0], [-1.0, 0.0, 5.0]])
    layer = nn.Linear(3, 2)
    weight, bias = scales(layer, (x, 1.0))
    out = layer(x).std(0, correction=0)
    torch.testing.assert_close(bias, out)
    torch.testing.assert_close(weight, out[:, None] * torch.tensor([1.0, 0.0, (50 / 4) ** -0.5]))
    last, _ = scales(layer, (x, 1.0), head="")
    torch.testing.assert_close(last, torch.tensor([1.0, 0.0, (50 / 4) ** -0.5]).expand(2, 3))


def test_each_output_of_a_grouped_convolution_is_measured_by_the_inputs_that_it_reads():
    x = torch.randn(6, 4, 5, 5) * torch.tensor([1.0, 2.0, 3.0, 4.0]).view(1, 4, 1, 1)
    layer = nn.Conv2d(4, 6, 3, groups=2)
    weight, bias = scales(layer, (x, 1.0))
    inside = x.square().mean((0, 2, 3)).sqrt()
    out = layer(x).movedim(1, 0).flatten(1).std(1, correction=0)
    torch.testing.assert_close(bias, out)
    for i in range(6):
        read = inside[:2] if i < 3 else inside[2:]
        torch.testing.assert_close(weight[i, :, 1, 2], out[i] / read)


def test_batches_count_by_their_weight():
    a, b = torch.randn(50, 3), 10 * torch.randn(50, 3)
    heavy, _ = scales(nn.Linear(3, 1), (a, 1.0), (b, 1.0), head="")
    light, _ = scales(nn.Linear(3, 1), (a, 1.0), (b, 1e-9), head="")
    torch.testing.assert_close(light[0], a.square().mean(0).rsqrt())
    torch.testing.assert_close(heavy[0], ((a.square().mean(0) + b.square().mean(0)) / 2).rsqrt())


class Bare(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.tensor([[0.5, -0.5, 0.0, 0.5], [0.5, 0.5, 9.0, -0.5]]))
        self.zeros = nn.Parameter(torch.zeros(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.matrix.T + self.zeros


def test_a_bare_tensor_of_weights_is_measured_as_a_whole():
    matrix, zeros = scales(Bare(), (torch.randn(5, 4), 1.0))
    assert matrix.unique().tolist() == [1.0]  # .5 · √4
    assert zeros.tolist() == [0.0, 0.0]
