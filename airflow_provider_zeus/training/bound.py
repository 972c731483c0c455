"""When an exploratory attempt is given up: the bound of its plan against what it drew so far (section 4.4)."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_zeus.optimizer.cost import Weights
from airflow_provider_zeus.optimizer.trial import Attempt, Observation


@dataclass(frozen=True, slots=True)
class Bound:
    """The bounds of one attempt, in epochs and in cost [J]; cost bounds scale with the size of this slice."""

    planned: Attempt
    weights: Weights

    def passed(self, so_far: Observation, *, epoch_cost: float | None, at_end_of_epoch: bool) -> str | None:
        """Why the attempt must be given up now; None while it may go on.

        At an epoch's end the next epoch is counted as spent already, so that it is not begun in vain.
        ``epoch_cost`` [J] is EpochCost(b) from a complete profile, None while there is none.
        """
        return (
            self._epochs(so_far.epochs or 0.0, at_end_of_epoch)
            or self._epoch_cost(so_far, epoch_cost)
            or self._cost(so_far, at_end_of_epoch)
        )

    def _epochs(self, epochs: float, at_end_of_epoch: bool) -> str | None:
        bound = self.planned.bound_epochs
        if bound is None or epochs + at_end_of_epoch <= bound + 1e-9:
            return None
        return f"{epochs:.3g} epochs without reaching the target; the bound is {bound:.3g}"

    def _epoch_cost(self, so_far: Observation, epoch_cost: float | None) -> str | None:
        highest = self.planned.max_epoch_cost
        if epoch_cost is None or highest is None or epoch_cost <= highest * self._scale(so_far):
            return None
        text = self.weights.text
        return f"an epoch costs {text(epoch_cost)}; above {text(highest * self._scale(so_far))} it is not worth trying"

    def _cost(self, so_far: Observation, at_end_of_epoch: bool) -> str | None:
        bound, spent = self.planned.bound_cost, self._spent(so_far)
        if bound is None or spent is None:
            return None
        bound *= self._scale(so_far)
        following = spent / so_far.epochs if at_end_of_epoch and so_far.epochs else 0.0
        if spent + following <= bound:
            return None
        text = self.weights.text
        return f"{text(spent)} spent without reaching the target; the bound is {text(bound)}"

    def _scale(self, so_far: Observation) -> float:
        assumed, actual = self.planned.bound_samples_per_epoch, so_far.samples_per_epoch
        return actual / assumed if assumed and actual else 1.0

    def _spent(self, o: Observation) -> float | None:
        """Cost so far without the excess of profiling, which is not the batch size's fault [J]."""
        if o.time_s is None or (self.weights.eta > 0 and o.energy_j is None):
            return None
        energy_j = None if o.energy_j is None else o.energy_j - (o.excess_j or 0.0)
        return self.weights.cost(energy_j, o.time_s - (o.excess_s or 0.0))
