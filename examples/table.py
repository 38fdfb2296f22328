"""A table with numbers and categories, and a customer who asks to be forgotten.

    uv run python examples/table.py

The wine data of scikit-learn has numbers only, so two of its columns are made into categories. The network
takes numbers and categories by name, and gives each category an embedding. Each row belongs to a customer;
two customers ask to be forgotten, one after the other.
"""

from __future__ import annotations

import pandas as pd
import torch
from sklearn.datasets import load_wine
from torch import Tensor, nn

import purge

CATEGORIES = {"hue": ["brick", "ruby", "purple"], "color_intensity": ["pale", "medium", "deep", "opaque"]}


def wines() -> pd.DataFrame:
    """The wines, with two columns of categories, the name of the cultivar and a customer for each row."""
    table = load_wine(as_frame=True).frame
    for column, names in CATEGORIES.items():
        table[column] = pd.qcut(table[column], len(names), labels=names)
    table["cultivar"] = table.pop("target").map({0: "barolo", 1: "grignolino", 2: "barbera"})
    table["customer"] = [f"c-{i % 60}" for i in range(len(table))]
    return table.sample(frac=1, random_state=0, ignore_index=True)


def prepared(table: pd.DataFrame, like: pd.DataFrame) -> tuple[dict[str, Tensor], pd.Series]:
    """Numbers of mean 0 and spread 1 (of the training rows), and the number of each category."""
    columns = [c for c in table if c not in (*CATEGORIES, "cultivar", "customer")]
    numbers = (table[columns] - like[columns].mean()) / like[columns].std()
    kinds = table[list(CATEGORIES)].apply(lambda column: column.cat.codes)
    inputs = {
        "numbers": torch.tensor(numbers.to_numpy("float32")),
        "kinds": torch.tensor(kinds.to_numpy("int64")),
    }
    return inputs, table["cultivar"]


class Network(nn.Module):
    """An MLP on numbers and on an embedding of each category."""

    def __init__(self, numbers: int, sizes: list[int], classes: int, width: int = 4) -> None:
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(size, width) for size in sizes)
        self.body = nn.Sequential(
            nn.Linear(numbers + width * len(sizes), 32), nn.ReLU(), nn.Linear(32, classes)
        )

    def forward(self, numbers: Tensor, kinds: Tensor) -> Tensor:
        """Logits (B, classes) of numbers (B, n) and categories (B, m)."""
        embedded = [embed(kinds[:, i]) for i, embed in enumerate(self.embeddings)]
        return self.body(torch.cat([numbers, *embedded], 1))


def main() -> None:
    """Train, forget one customer after another, and audit."""
    table = wines()
    rows, unseen = table[:140], table[140:]
    train, test = prepared(rows, rows), prepared(unseen, rows)
    torch.manual_seed(0)
    network = Network(11, [len(names) for names in CATEGORIES.values()], 3)
    model = purge.train(network, train, epochs=40, lr=0.1, progress=False).model

    customers = rows["customer"]
    forget, retain = purge.split(train, ids=["c-17"], id_of=customers)
    first = purge.unlearn(model, forget, retain, budget="close", progress=False)
    print("forgotten:", first.info["forget_subjects"], "rows", first.info["forget_rows"])

    # What was forgotten before must not come back: without after=first the next call would be refused.
    forget, retain = purge.split(train, ids=["c-4", "c-30"], id_of=customers, after=first)
    second = purge.unlearn(first, forget, retain, budget="close", progress=False)
    print("forgotten:", second.info["forget_subjects"], "rows", second.info["forget_rows"])

    report = purge.audit(second, forget, retain, test, original=model, metrics="quick", progress=False)
    print(report.table())


if __name__ == "__main__":
    main()
