"""Every sentence in which a decision says why: ``Why.PINNED.of(b=32, by="a live setting")``.

A sentence that ends without a full stop is the first half of another one,
as ``obstacle`` or ``standing``.
"""

from __future__ import annotations

from enum import Enum


class Why(Enum):
    """A sentence for each reason, with the figures that it takes in braces.

    Those of both policies come first, then the halves for ``which`` and ``standing``, those for
    ``obstacle``, then those of "zeus", of "knowledge_gradient", of starts and of deadlines.
    """

    PINNED = "Batch size {b} is pinned by {by}."
    SMALLER = "Where {b} does not fit into memory: the nearest smaller size."
    SMALLER_KNOWN = (
        "Where {b} does not fit into memory: the nearest smaller size that reached the target."
    )
    RELIEF = "Where {b} fails: {relief}, {which}, so that the run ends with a model."
    AUDIT_ASKED = (
        "Audit, asked for on the page: {b}, the default, runs, so that what the job saves is"
        " measured."
    )
    COMES_FIRST = "{b}, {which}, comes first."
    RUNS = "{obstacle}; {b}, {standing}, runs."
    TAKES = "{obstacle}; this run takes {b}."
    AFTER_TRY = "{tried} was given up; {b}, {standing}, runs to the end."
    AFTER_MISS = "{tried} missed the target; {b}, {standing}, runs."
    TO_ITS_END = "{why}; it runs to its end, since nothing stops a training that opens no ZeusRun."
    NEW_TARGET = (
        "The target changed after run {run}, from {earlier} to {target}: runs to another target"
        " teach what an epoch costs, not how many it takes."
    )

    DEFAULT = "the default"
    BEST_OTHER = "the best known of the others"
    NEAREST = "the nearest to the default that fits"
    CHEAPEST = "the {adjective}est known {condition}"
    MISSES_LESS = "the {adjective}est known {condition}, with what misses cost"

    PAUSED = "Exploration is paused by a live setting"
    RUN_TYPE = "A run of type {run_type} teaches nothing"
    OTHER_RUN = "Another run of this job explores {b} now"
    DIED = "The run before died or taught nothing"
    FAILED_IN_RUN = "{sizes} failed earlier in this run"
    FAILED_LATELY = "{sizes} failed, and no run has kept a model since"
    UNMEASURED = "No cost was measured on this device yet"
    LAST_RUN = "No later run could use what another size would show"
    NOT_WORTH_IT = "No other size is worth trying now"
    NONE_REACHED = "No batch size has reached the target yet"
    NONE_COSTED = "No batch size that reached the target has a known cost here"
    NONE_HERE = "No batch size that has reached the target may run here"
    ALL_MISS = "Every batch size that has reached the target misses it now"
    ALL_MISS_OR_BARRED = (
        "Every batch size that has reached the target misses it now or may not run here"
    )

    NEXT_OF_ROUND = "Pruning exploration, round {round}: {b} is the next batch size."
    FIRST_OF_ROUND = (
        "Pruning exploration, round {round}: {b} was the cheapest of round {before} and comes"
        " first."
    )
    FIRST_OF_ALL = "Pruning exploration, round {round}: {b}, {which}, comes first."
    ONCE_MORE = (
        "{b} has no run on this device among the last {window} converged ones and is tried once."
    )
    DREW = (
        "Thompson sampling: {b} drew {drawn}{of_both}, the lowest of {arms} (believed {mean} from"
        " {runs})."
    )
    BOUNDED = (
        "{why}; it is given up above {bound}, {beta:g} x what {incumbent} is believed to cost."
    )

    MISSED_LEAST = "{obstacle}; {b} is the nearest to {start} of those that missed it least."
    NO_EPOCH_COST = "No EpochCost is known on any device; {b}, which reached the target, runs."
    GIVEN_UP_ABOVE = "{why}; it is given up above {bound}."
    WORTH_IT = (
        "{b} is believed to cost {cost} ({source}), {incumbent} {incumbent_cost}{of_both}; what it"
        " may save in the {later} is worth trying it."
    )
    SECOND_LOOK = (
        "{b}, the default, runs a second time, so that one lucky or unlucky run of it is not"
        " believed."
    )
    AUDIT = (
        "Audit: {b}, the default, runs, so that what the job saves is measured and not only"
        " estimated. It is expected to cost {excess}{of_both} more than {incumbent}; audits may"
        " take {percent:g} % of what the job spends."
    )
    DRIFT = (
        "The data changed at run {since}: {shown_by} needed {factor:.2g} x the epochs predicted."
        " Earlier runs count less from here on."
    )

    NO_MODEL = "It starts cold: there is no earlier model that it could start from."
    NOT_TAKEN = (
        "It starts cold: newer runs could not take the start that was planned, as their rows say."
    )
    KEEPS_RAISING = (
        "Runs from a {starts} start raised an error twice in a row or more, and are not planned for"
        " now."
    )
    SERVES_WORSE = (
        "Models of a {starts} start have served worse than those of cold ones, and are not used for"
        " now."
    )
    NEXT_BEST = "which costs least of the other starts"
    NO_PAIR_SURELY_CHEAPER = "since no other pair of batch size and start is surely cheaper"
    START_BEFORE_SIZE = (
        "No run has reached the target yet; {b}, the default, is tried from a {start} start."
    )
    COLD_EVERY = (
        "A cold run is due: the model is {generations} generations from the last one, "
        "at most {most} are asked."
    )
    COLD_PAID = (
        "A cold run is due, so that the chain of models does not grow too long: what other starts"
        " have saved since the last one pays for it {times:.3g} times. It also shows what they"
        " save."
    )

    TIME_UNKNOWN = "It is not known yet how long a run takes."
    IN_TIME = "95 % of its runs end within {most} at full power; until the deadline it is {left}."
    LATE = (
        "No known batch size ends in time: until the deadline it is {left}. 95 % of its runs end"
        " within {most} at full power; time alone decides."
    )

    def of(self, **figures: object) -> str:
        """The sentence with its figures."""
        return self.value.format(**figures)
