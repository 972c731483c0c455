"""The learning rate of the run before, beside that of a run with another batch size."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_zeus.model.target import remark
from airflow_provider_zeus.model.wire import AnyNumber, Size


@dataclass(frozen=True, slots=True)
class EarlierRate:
    """The batch size and the learning rate that the attempt before began with."""

    batch_size: Size
    learning_rate: AnyNumber

    def remark(self, batch_size: int | None, learning_rate: float | None) -> str | None:
        """That the rate stayed the same at another batch size, and the remedy; None if it did
        not.
        """
        if batch_size is None or batch_size == self.batch_size:
            return None
        if learning_rate != self.learning_rate:
            return None
        return remark(
            (
                f"batch sizes {self.batch_size} and {batch_size} trained with the same learning "
                "rate "
                f"{learning_rate:g}",
                "take it from run.scale_lr(rate), or from "
                'run.scale_lr(rate, "none") if one is meant for all',
            )
        )
