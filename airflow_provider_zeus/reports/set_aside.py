"""Costs of failed and cleared tries: shown wherever a run is, and compared with nothing. Pure.

``RunTrials`` of ``dataset.py`` says which attempts these are.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Self

from airflow_provider_zeus.model.trial import Trial, timed
from airflow_provider_zeus.reports.dataset import RunTrials, total
from airflow_provider_zeus.units import counted, energy_text, time_text


@dataclass(frozen=True, slots=True, kw_only=True)
class SetAside:
    """Attempts of failed and cleared tries of some runs."""

    failed: int = 0
    cleared: int = 0
    energy_j: float | None = 0.0  # None: a sum that lacks one would be told as the whole
    time_s: float | None = 0.0

    @classmethod
    def of(cls, runs: Iterable[RunTrials]) -> Self:
        """Those of ``runs``.

        An attempt that failed before it reported anything took nothing that could be measured.
        """
        failed = list[Trial]()
        cleared = list[Trial]()
        for run in runs:
            failed += run.failed_tries
            cleared += run.cleared
        # One that failed before it reported anything has no figures: the sums would be None.
        measured = [trial.observation for trial in timed(failed + cleared)]
        return cls(
            failed=len(failed),
            cleared=len(cleared),
            energy_j=total(o.energy_j for o in measured),
            time_s=total(o.time_s for o in measured),
        )

    def plus(self, other: Self) -> Self:
        """The sum of two."""
        return replace(
            self,
            failed=self.failed + other.failed,
            cleared=self.cleared + other.cleared,
            energy_j=total([self.energy_j, other.energy_j]),
            time_s=total([self.time_s, other.time_s]),
        )

    def __bool__(self) -> bool:
        return self.failed > 0 or self.cleared > 0

    @property
    def text(self) -> str:
        """ "1 failed attempt took 12.1 Wh and 30 s: compared with nothing"; empty if there is
        none.
        """
        if not self:
            return ""
        return f"{self.named} took {self.took}: compared with nothing"

    @property
    def named(self) -> str:
        """ "1 failed attempt and 2 cleared attempts"."""
        counts = ((self.failed, "failed"), (self.cleared, "cleared"))
        return " and ".join(counted(count, f"{kind} attempt") for count, kind in counts if count)

    @property
    def took(self) -> str:
        """ "12.1 Wh and 30 s"; what is not known is left out."""
        if not self.time_s:
            return "nothing that could be measured"
        if not self.energy_j:
            return time_text(self.time_s)
        return f"{energy_text(self.energy_j)} and {time_text(self.time_s)}"
