"""Small data and classifiers of Hugging Face: sentences, pictures and waves, as dicts of tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

K, LENGTH, WORDS = 4, 12, 40
TINY = {"num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32, "num_labels": K}
WIDE = {"initializer_range": 0.2}  # or a net of this size takes hundreds of epochs to begin to learn

Pair = tuple[dict[str, Tensor], Tensor]


def sentences(n: int = 240, seed: int = 0, classes: int = K) -> Pair:
    """Sentences of 5 to 12 words: half of them are words of their class, the rest is padding."""
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(classes, (n,), generator=g)
    own = 3 + 4 * y[:, None] + torch.randint(4, (n, LENGTH), generator=g)
    any_word = torch.randint(20, WORDS, (n, LENGTH), generator=g)
    ids = torch.where(torch.rand(n, LENGTH, generator=g) < 0.5, own, any_word)
    ids[:, 0] = 1
    mask = (torch.arange(LENGTH) < torch.randint(5, LENGTH + 1, (n, 1), generator=g)).long()
    return {"input_ids": ids * mask, "attention_mask": mask}, y


def longer(data: Pair, more: int = 4) -> Pair:
    """The same sentences with more padding."""
    x, y = data
    return {name: torch.cat([t, t.new_zeros(len(t), more)], 1) for name, t in x.items()}, y


def pictures(n: int = 200, seed: int = 0) -> Pair:
    """Noisy pictures of 8×8 pixels."""
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(K, (n,), generator=g)
    centres = torch.randn(K, 3, 8, 8, generator=torch.Generator().manual_seed(7))
    return {"pixel_values": centres[y] + torch.randn(n, 3, 8, 8, generator=g)}, y


def waves(n: int = 120, seed: int = 0) -> Pair:
    """Noisy tones of different pitch and length."""
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(K, (n,), generator=g)
    phase, time = 6 * torch.rand(n, 1, generator=g), torch.arange(160) / 160
    x = torch.sin(6.28 * (3 + 6 * y[:, None]) * time + phase) + 0.3 * torch.randn(n, 160, generator=g)
    mask = (torch.arange(160) < torch.randint(100, 161, (n, 1), generator=g)).long()
    return {"input_values": x * mask, "attention_mask": mask}, y


def bert(seed: int = 0, **config: Any) -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(seed)
    given = {**TINY, **WIDE, "vocab_size": WORDS, "hidden_size": 16, "max_position_embeddings": 16, **config}
    return BertForSequenceClassification(BertConfig(**given))


def distilbert(seed: int = 0) -> nn.Module:
    from transformers import DistilBertConfig, DistilBertForSequenceClassification

    torch.manual_seed(seed)
    config = DistilBertConfig(
        vocab_size=WORDS, dim=16, n_layers=2, n_heads=2, hidden_dim=32, max_position_embeddings=16,
        num_labels=K, **WIDE,
    )  # fmt: skip
    return DistilBertForSequenceClassification(config)


def roberta(seed: int = 0) -> nn.Module:
    from transformers import RobertaConfig, RobertaForSequenceClassification

    torch.manual_seed(seed)
    sizes = {"vocab_size": WORDS, "hidden_size": 16, "max_position_embeddings": 20, "pad_token_id": 0}
    return RobertaForSequenceClassification(RobertaConfig(**TINY, **WIDE, **sizes))


def vit(seed: int = 0) -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(seed)
    config = ViTConfig(**TINY, **WIDE, hidden_size=16, image_size=8, patch_size=4)
    return ViTForImageClassification(config)


def resnet(seed: int = 0) -> nn.Module:
    from transformers import ResNetConfig, ResNetForImageClassification

    torch.manual_seed(seed)
    config = ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", num_labels=K
    )
    return ResNetForImageClassification(config)


def wav2vec2(seed: int = 0) -> nn.Module:
    from transformers import Wav2Vec2Config, Wav2Vec2ForSequenceClassification

    torch.manual_seed(seed)
    config = Wav2Vec2Config(
        **TINY, **WIDE, hidden_size=16, conv_dim=(16, 16), conv_stride=(4, 2), conv_kernel=(8, 3),
        num_feat_extract_layers=2, num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2,
        classifier_proj_size=16, feat_extract_norm="layer", do_stable_layer_norm=True, mask_time_prob=0.0,
    )  # fmt: skip
    return Wav2Vec2ForSequenceClassification(config)
