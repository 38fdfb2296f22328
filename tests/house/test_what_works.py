"""The table of docs/guides/what-works.md: every line runs, and the model it gives has forgotten something."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import purge
from tests.nets import blobs, plain_mlp
from tests.sequences import TINY, bert, pictures, sentences, vit

PAGE = (Path(__file__).parents[2] / "docs" / "guides" / "what-works.md").read_text()
TABLE = PAGE.partition("| you have | the line |\n|---|---|\n")[2].partition("\n\n")[0]
ROWS = dict(re.fullmatch(r"\| (.*?) \| `(.*)` \|", line).groups() for line in TABLE.splitlines())
TRAINING = {"epochs": 15, "batch_size": 16, "progress": False}
X, Y = blobs(120)
CUSTOMERS = [f"c-{i % 50}" for i in range(len(Y))]


class Thing(NamedTuple):
    """An item of a kind that nobody else has."""

    image: torch.Tensor
    kind: str


def trained(model: nn.Module, data: Any = (X, Y), lr: float = 0.1) -> nn.Module:
    return purge.train(model, data, lr=lr, **TRAINING).model


def parts(data: Any = (X, Y)) -> dict[str, Any]:
    forget, retain = purge.split(data, classes=[0])
    return {"forget": forget, "retain": retain}


def frame() -> pd.DataFrame:
    names = np.array(["no", "perhaps", "yes"])
    columns = {f"f{i}": X[:, i].numpy() for i in range(X.shape[1])}
    return pd.DataFrame(columns | {"bought": names[Y], "customer": CUSTOMERS})


def tensors() -> dict[str, Any]:
    f = Y == 0
    forget, retain = {"x_f": X[f].numpy(), "y_f": Y[f].numpy()}, {"x_r": X[~f], "y_r": Y[~f]}
    return {"model": trained(plain_mlp()), **forget, **retain}


def dataset() -> dict[str, Any]:
    return {"model": trained(plain_mlp()), "dataset": TensorDataset(X, Y, torch.arange(len(Y)))}


def loader() -> dict[str, Any]:
    def collate(rows: list[Any]) -> dict[str, Any]:
        return {"x": torch.stack([x for x, _ in rows]), "label": torch.stack([y for _, y in rows])}

    given = DataLoader(TensorDataset(X, Y), 7, shuffle=True, drop_last=True, collate_fn=collate)
    return {"model": trained(plain_mlp()), "loader": given}


def table() -> dict[str, Any]:
    return {"model": trained(plain_mlp()), "frame": frame()}


def numbers() -> dict[str, Any]:
    return {"model": trained(plain_mlp()), "frame": frame().drop(columns="customer")}


def second() -> dict[str, Any]:
    given, how = table(), {"label": "bought", "id_of": "customer"}
    first = purge.split(given["frame"], ids=["c-17"], **how)
    return {**given, "result": purge.unlearn(given["model"], *first, steps=4, progress=False)}


def tokens() -> dict[str, Any]:
    datasets = pytest.importorskip("datasets")
    x, y = sentences(120)
    given = datasets.Dataset.from_dict({**{k: v.tolist() for k, v in x.items()}, "label": y.tolist()})
    return {"bert": trained(bert(), (x, y), lr=0.03), "tokens": given.with_format("torch")}


def images() -> dict[str, Any]:
    x, y = pictures(120)
    return {"vit": trained(vit(), (x, y), lr=0.03), "x": x["pixel_values"], "y": y}


def adapters() -> dict[str, Any]:
    peft, data = pytest.importorskip("peft"), pictures(120)
    names = ["query", "value", "q_proj", "v_proj"]  # in different versions of transformers
    config = peft.LoraConfig(r=4, target_modules=names, modules_to_save=["classifier"])
    return {"lora": trained(peft.get_peft_model(vit(), config), data), **parts(data)}


def lightning_module() -> dict[str, Any]:
    lightning = pytest.importorskip("lightning")

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = plain_mlp()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(x)

    return {"module": trained(Module()), **parts()}


def mlp() -> dict[str, Any]:
    from sklearn.neural_network import MLPClassifier

    fitted = MLPClassifier((16,), solver="lbfgs", random_state=0).fit(X.numpy(), Y.numpy())
    return {"mlp": fitted, **parts()}


def two_classes() -> dict[str, Any]:
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
    data = (X[Y < 2], Y[Y < 2])
    forget, retain = purge.split(data, indices=range(6))
    return {"one_logit": trained(net, data), "forget": forget, "retain": retain}


def halves() -> dict[str, Any]:
    return {"model": trained(plain_mlp()), **parts()}


def checkpoint() -> dict[str, Any]:
    net = trained(plain_mlp())
    state = {f"model.{k}": v for k, v in net.state_dict().items()}
    torch.save({"epoch": 3, "state_dict": state, "optimizer_states": [{"a": torch.ones(2)}]}, "last.ckpt")
    return {"model": plain_mlp(seed=1)}


def back() -> dict[str, Any]:
    given = {**checkpoint(), **parts()}
    purge.load_weights(given["model"], "last.ckpt")
    return {"result": purge.unlearn(**given, steps=4, progress=False)}


def frozen() -> dict[str, Any]:
    model, _ = purge.heads.of(trained(plain_mlp()), (X, Y))
    return {"model": model, **parts()}


def things() -> dict[str, Any]:
    given = [Thing(x, f"kind {y}") for x, y in zip(X, Y.tolist(), strict=True)]
    return {"model": trained(plain_mlp()), "things": given}


SETTINGS: dict[str, Callable[[], dict[str, Any]]] = {
    "tensors or arrays": tensors,
    "a `Dataset` of `(x, y, …)` or of dicts": dataset,
    "a `DataLoader`; its collate function is used": loader,
    "a DataFrame; classes may have names": numbers,
    "people with ids of your own": table,
    "a second request": second,
    "a Hugging Face dataset and text classifier": tokens,
    "its image or audio classifiers": images,
    "LoRA adapters; nothing else moves": adapters,
    "a Lightning module": lightning_module,
    "scikit-learn's `MLPClassifier`": mlp,
    "one logit for two classes": two_classes,
    "weights in half precision, bf16 or float64": halves,
    "a `.ckpt`, `.pt`, `.safetensors` or `save_pretrained` folder": checkpoint,
    "the same form wanted back": back,
    "a linear head on frozen features: exact": frozen,
    "anything else": things,
}  # fmt: skip


def test_every_row_is_tried() -> None:
    assert set(ROWS) == set(SETTINGS)
    assert TINY["num_labels"] == 4, "small enough for the default run"


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # of peft
@pytest.mark.parametrize("row", ROWS)
def test_the_line_runs(row: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = {"purge": purge, **SETTINGS[row]()}
    models = [m for m in names.values() if isinstance(m, nn.Module)]
    before = [torch.cat([p.detach().flatten().float() for p in m.parameters()]) for m in models]
    found = eval(ROWS[row], names)
    after = [torch.cat([p.detach().flatten().float() for p in m.parameters()]) for m in models]
    untouched = all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    if isinstance(found, purge.Result):
        assert found.info["forget_samples"] > 0
        assert found.steps > 0 or found.info["exact"]
        assert untouched or row == "weights in half precision, bf16 or float64"  # .half() works in place
    elif row == "people with ids of your own":
        forget, retain = found
        assert set(forget.owners) == {"c-17", "c-40"}
        assert not set(forget.owners) & set(retain.owners)
    elif row == "the same form wanted back":
        assert set(torch.load("forgotten.ckpt", weights_only=True)) == {"epoch", "state_dict"}
    elif row.startswith("a `.ckpt`"):
        assert not untouched
    else:
        pytest.fail(f"{row}: gave {found!r}")
