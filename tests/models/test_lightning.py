"""Lightning modules are models; their trainer stays with the caller."""

from __future__ import annotations

import copy
import logging

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import purge
from purge.models.checkpoint import digest
from tests.nets import blobs

QUIET = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False,
         "enable_model_summary": False, "accelerator": "cpu"}  # fmt: skip
pytestmark = pytest.mark.filterwarnings("ignore:.*num_workers.*", "ignore:.*LeafSpec.*", "ignore:.*srun.*")


def batches(data):
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*data), batch_size=32)


def test_a_lightning_module_is_unlearned_audited_and_trained_again():
    import lightning

    class Blobs(lightning.LightningModule):
        def __init__(self, width=16, lr=0.01):
            super().__init__()
            self.save_hyperparameters()
            self.example_input_array = torch.zeros(2, 6)
            self.body = nn.Sequential(nn.Linear(6, width), nn.BatchNorm1d(width), nn.ReLU())
            self.head = nn.Linear(width, 3)

        def forward(self, x):
            return self.head(self.body(x))

        def training_step(self, batch, _):
            x, y = batch
            loss = F.cross_entropy(self(x), y)
            self.log("loss", loss)
            return loss

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), self.hparams.lr)

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.manual_seed(0)
    trainer = lightning.Trainer(max_epochs=20, log_every_n_steps=1, **QUIET)
    model = Blobs()
    trainer.fit(model, batches(blobs()))

    before, (forget, retain) = digest(model), purge.split(blobs(), classes=[0])
    retrained = purge.train(Blobs(), retain, epochs=10, batch_size=32, lr=0.05, progress=False).model
    result = purge.unlearn(model, forget, retain, progress=False)
    report = purge.audit(
        result, forget, retain, blobs(seed=1), original=model, retrained=retrained, progress=False,
        metrics=["fa_test", "ra", "feature_cosine", "cka", "zrf", "bn_recal", "relearn_few"],
    )  # fmt: skip
    assert report["fa_test"].value == 0
    assert report["ra"].value >= 0.95
    assert all(value.value is not None for value in report.values.values())
    assert digest(model) == before
    assert model.trainer is trainer, "the caller's module keeps its trainer"

    new = result.model
    assert type(new) is Blobs
    assert new._trainer is None, "the copy does not drag it along"
    assert dict(new.hparams) == dict(model.hparams) == {"width": 16, "lr": 0.01}
    assert copy.deepcopy(new).hparams.lr == 0.01
    unlearned = digest(new)
    lightning.Trainer(max_epochs=1, **QUIET).fit(new, batches(retain))
    assert digest(new) != unlearned
