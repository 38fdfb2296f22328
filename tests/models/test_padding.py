"""Padding must not change what is seen of a sample."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import purge
from purge.models.forward import evaluating, forward, raw_logits
from purge.models.hooks import capture, capture_features, first_tensor
from purge.models.inspect import anatomy
from tests.metrics.overfit import audited
from tests.sequences import bert, distilbert, longer, roberta, sentences, wav2vec2, waves


class Tokenwise(nn.Module):
    """Words → a head for each of them → the mean over the sentence, by torch's mask of padding."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.mix = nn.Embedding(40, width), nn.Linear(width, width)
        self.head = nn.Linear(width, 4)

    def forward(self, input_ids, key_padding_mask):
        h, there = self.mix(self.words(input_ids)).relu(), (~key_padding_mask)[..., None]
        return self.head((h * there).sum(1) / there.sum(1))


@pytest.mark.parametrize("make", [bert, distilbert, roberta])
def test_features_outputs_and_layers_do_not_depend_on_padding(make):
    model, data, test = make().eval(), sentences(40), sentences(40, seed=1)
    short, long = (
        audited(model, *purge.split(one, classes=[0]), other)
        for one, other in ((data, test), (longer(data), longer(test)))
    )
    np.testing.assert_allclose(short.log_probs("test"), long.log_probs("test"), atol=1e-4)
    np.testing.assert_allclose(short.features("test"), long.features("test"), atol=1e-4)
    assert len(short.blocks("test")) == 3
    assert_near(short.blocks("test"), long.blocks("test"))
    layers = short.anatomy().stack
    outputs = []
    model.get_submodule(layers[0]).register_forward_hook(
        lambda _m, _x, out: outputs.append(first_tensor(out))
    )
    _, pooled = seen(model, layers, data[0])
    assert_near(pooled, seen(model, layers, longer(data)[0])[1])
    assert not torch.allclose(outputs[1].mean(1), pooled[layers[0]], atol=1e-2), "the test can tell"


def seen(model, layers, x):
    """The logits, and what capture sees of layers."""
    with evaluating(model), capture(model, layers) as h:
        return forward(model, x), dict(h)


def assert_near(one, other):
    assert one.keys() == other.keys() != set()
    for name, rows in one.items():
        np.testing.assert_allclose(rows, other[name], atol=1e-4, rtol=1e-4, err_msg=name)


@pytest.mark.parametrize("form", ["dict", "tuple", "key_padding_mask"])
def test_the_mean_is_over_the_words_that_are_there(form):
    x, _ = sentences(6)
    words, real = x["input_ids"], x["attention_mask"]
    model, layer, given = bert().eval(), "bert.embeddings", x
    if form == "tuple":  # its second argument is known by the model's signature
        given = (words, real)
    elif form == "key_padding_mask":
        model, layer, given = Tokenwise().eval(), "mix", (words, real == 0)
    with evaluating(model), capture(model, [layer]) as seen:
        forward(model, given)
        h = model.mix(model.words(words)) if layer == "mix" else model.bert.embeddings(words)
    by_hand = [row[: int(mask.sum())].mean(0) for row, mask in zip(h, real, strict=True)]
    torch.testing.assert_close(seen[layer], torch.stack(by_hand))


def test_a_mask_is_forgotten_after_its_pass():
    model, (x, _) = bert().eval(), sentences(6)
    mask, layer = x["attention_mask"], "bert.encoder.layer.0"
    passes = []
    with evaluating(model), capture(model, [layer]) as h:
        for more in ({"attention_mask": mask}, {"attention_mask": torch.ones_like(mask)}, {}):
            forward(model, {"input_ids": x["input_ids"], **more})
            passes.append(h[layer])
    torch.testing.assert_close(passes[1], passes[2])
    assert not torch.allclose(passes[0], passes[1], atol=1e-2)


def test_a_head_that_sees_every_word_is_given_the_mean_of_those_that_are_there():
    head = nn.Linear(6, 4)
    model, (x, _) = Tokenwise(), sentences(6)
    model.head, model.forward = head, lambda input_ids, attention_mask: head(model.words(input_ids)).mean(1)
    with torch.no_grad(), capture_features(model, head) as seen:
        raw_logits(model, x)
    rows = model.words(x["input_ids"]).detach()
    by_hand = [row[: int(m.sum())].mean(0) for row, m in zip(rows, x["attention_mask"], strict=True)]
    torch.testing.assert_close(seen[0], torch.stack(by_hand))


def test_the_mask_of_a_wave_is_shortened_as_the_model_does():
    model, (x, _) = wav2vec2().eval(), waves(6)
    more = {name: torch.cat([t, t.new_zeros(6, 80)], 1) for name, t in x.items()}
    layers = [name for name in anatomy(model, x).stack if "encoder" in name]
    (z, short), (padded, long) = (seen(model, layers, inputs) for inputs in (x, more))
    torch.testing.assert_close(z, padded, atol=1e-4, rtol=1e-4)
    assert_near(short, long)
