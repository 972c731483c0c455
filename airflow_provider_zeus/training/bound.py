"""When an exploratory attempt is given up: the bounds of its plan against what it cost so far (section 4.4)."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.model.trial import Observation, PlannedAttempt


@dataclass(frozen=True, slots=True)
class Bound:
    """The bounds of one attempt, in epochs and in cost [J]. Cost bounds scale with the size of this data slice."""

    planned: PlannedAttempt
    weights: Weights

    def passed(self, so_far: Observation, *, epoch_cost: float | None, at_end_of_epoch: bool) -> str | None:
        """Return why the attempt must be given up now; None while it may go on.

        At the end of an epoch the next one is counted as spent already, so that it does not begin if it cannot be
        finished.

        :param epoch_cost: EpochCost(b) [J] from a complete profile; None while there is none.
        """
        planned, text = self.planned, self.weights.text
        epochs, size, assumed_size = so_far.epochs or 0.0, so_far.samples_per_epoch, planned.bound_samples_per_epoch
        scale = size / assumed_size if size and assumed_size else 1.0
        highest = None if planned.max_epoch_cost is None else planned.max_epoch_cost * scale
        if planned.bound_epochs is not None and epochs + at_end_of_epoch > planned.bound_epochs + 1e-9:
            return f"{epochs:.3g} epochs without reaching the target; the bound is {planned.bound_epochs:.3g}"
        if epoch_cost is not None and highest is not None and epoch_cost > highest:
            return f"an epoch costs {text(epoch_cost)}; above {text(highest)} it is not worth trying"
        if planned.bound_cost is None or so_far.time_s is None or (self.weights.eta > 0 and so_far.energy_j is None):
            return None
        # The excess of profiling is not the batch size's fault.
        energy_j = None if so_far.energy_j is None else so_far.energy_j - (so_far.excess_j or 0.0)
        spent = self.weights.cost(energy_j, so_far.time_s - (so_far.excess_s or 0.0))
        next_epoch = spent / epochs if at_end_of_epoch and epochs else 0.0
        bound = planned.bound_cost * scale
        if spent + next_epoch <= bound:
            return None
        return f"{text(spent)} spent without reaching the target; the bound is {text(bound)}"
