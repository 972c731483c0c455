"""The numbers by which people name runs and attempts: run 12, attempt 12.2. Pure.

A run has the number of its first trial in the log of its job. So the numbers of runs rise and have
gaps: run 12 with two attempts is followed by run 14. Attempts count from 1 through all tries of a
run.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from airflow_provider_zeus.model import wire
from airflow_provider_zeus.model.groups import grouped
from airflow_provider_zeus.model.trial import Trial


@dataclass(frozen=True, slots=True)
class TryNumbers:
    """The numbers of the attempts of one task instance."""

    run: wire.Ordinal = 0  # 0: without the log, the run has no number yet
    earlier: wire.Ordinal = 0  # or each try of a run would have an attempt 12.1

    def attempt(self, number: int) -> str:
        """The number of an attempt as text, for example "12.2"; "2" if its run is in no log yet.

        :param number: of the attempt within its try, as :attr:`.TrialKey.attempt` has it.
        """
        of_run = self.earlier + number
        if self.run:
            return f"{self.run}.{of_run}"
        return str(of_run)


class RunNumbers:
    """The numbers of runs and attempts, from the trials of whole runs of one job or several."""

    def __init__(self, trials: Iterable[Trial]) -> None:
        in_order = sorted(trials, key=lambda trial: trial.number)
        runs = grouped(in_order, lambda trial: (trial.job_id, *trial.recurrence))
        self._tries: dict[str, TryNumbers] = {}
        self._runs: dict[tuple[str, int], int] = {}
        for run in runs.values():
            self._number(run)

    def _number(self, run: list[Trial]) -> None:
        """Number the tries of one run, whose trials are in order."""
        first = next((trial.number for trial in run if trial.number), 0)
        attempts: dict[str, int] = {}
        for trial in run:
            ti_id = trial.key.ti_id
            attempts[ti_id] = max(trial.key.attempt, attempts.get(ti_id, 0))
            self._runs[trial.job_id, trial.number] = first
        earlier = 0
        for ti_id, count in attempts.items():
            self._tries[ti_id] = TryNumbers(first, earlier)
            earlier += count

    def run(self, trial: Trial) -> int:
        """The number of the run of a trial."""
        return self.run_with(trial.job_id, trial.number)

    def run_with(self, job_id: str, number: int) -> int:
        """The number of the run that has the trial of this number; of a trial not among the given
        ones, its own.
        """
        return self._runs.get((job_id, number), number)

    def attempt(self, trial: Trial) -> str:
        """The number of a trial's attempt, for example "12.2"."""
        numbers = self._tries.get(trial.key.ti_id) or TryNumbers(trial.number)
        return numbers.attempt(trial.key.attempt)
