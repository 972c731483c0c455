"""Train on one slice: how the temperature changes within six hours.

A small network, seconds on one CPU core.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.utils.data import BatchSampler, RandomSampler, TensorDataset

from . import samples

if TYPE_CHECKING:
    from airflow_provider_zeus import ZeusRun

log = logging.getLogger(__name__)

# of the trivial forecast's error: every slice gets there at batch size 256 within 60 epochs
TARGET_SHARE = 0.55
LEARNING_RATE = 2e-3  # at batch size 256; Adam takes the square root rule to other batch sizes
REFERENCE_BATCH_SIZE = 256
WIDTH = 128


def retrain(run: ZeusRun, key: str) -> nn.Module:
    """Train on the slice ``key`` until the run's target or its last epoch; returns the model.

    Builds model and optimizer: this function is called again for each attempt.
    """
    torch.set_num_threads(1)  # the work is too small for more threads
    # the same decision trains the same model
    torch.manual_seed((run.plan.seed + run.attempt) % 2**63)
    data = samples.of_slice(key)
    run.set_target(TARGET_SHARE * data.trivial_rmse_f)
    log.info("slice %s: the trivial forecast is off by %.2f degrees F", key, data.trivial_rmse_f)
    model = network(data.x.shape[1])
    optimizer = torch.optim.Adam(
        model.parameters(),
        lr=run.scale_lr(LEARNING_RATE, "sqrt", reference_batch_size=REFERENCE_BATCH_SIZE),
    )
    known = TensorDataset(torch.from_numpy(data.x), torch.from_numpy(data.y))
    # whole batches: one look-up each
    order = BatchSampler(RandomSampler(known), run.batch_size, drop_last=False)
    loader = run.data_loader(known, sampler=order)
    for _ in run.epochs():
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x).squeeze(1), y).backward()
            optimizer.step()
        run.report(rmse=holdout_rmse_f(model, data))
    return model


def network(features: int) -> nn.Module:
    """Return a new network from features to the standardised change."""
    return nn.Sequential(
        nn.Linear(features, WIDTH),
        nn.ReLU(),
        nn.Linear(WIDTH, WIDTH),
        nn.ReLU(),
        nn.Linear(WIDTH, 1),
    )


def holdout_rmse_f(model: nn.Module, data: samples.Samples) -> float:
    """Return the error on the hold-out [degrees F]."""
    with torch.no_grad():
        error = model(torch.from_numpy(data.x_holdout)).squeeze(1) - torch.from_numpy(
            data.y_holdout
        )
    return float(error.square().mean().sqrt()) * data.spread_f
