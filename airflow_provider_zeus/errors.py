"""Every exception that this package raises on purpose. Each message names the field, its value and the remedy."""

from airflow_provider_zeus.visible import visible


class ZeusError(Exception):
    """Base of all errors of this package. Its text is one line: names in it may come from a training."""

    def __str__(self) -> str:
        return visible(super().__str__())


class JobSpecError(ZeusError, ValueError):
    """A job, a setting or a Connection holds a value that cannot be used."""

    @classmethod
    def of(cls, field: str, value: object, problem: str, remedy: str) -> "JobSpecError":
        """Build the one message form that all checks share: field, value, problem, remedy."""
        return cls(f"{field} = {value!r}: {problem}. {remedy}.")


class StoreError(ZeusError, RuntimeError):
    """The store cannot be reached, has another schema, or refuses this use of it.

    :param passing: whether the same call may succeed some seconds later: no connection, a lock, no answer in time.
    :param unsure: whether what was to be written may be stored all the same: the answer to a commit was lost.
    """

    def __init__(self, message: str, *, passing: bool = False, unsure: bool = False) -> None:
        super().__init__(message)
        self.passing, self.unsure = passing, unsure


class UnknownTrialError(StoreError):
    """The log does not hold this trial: it was never asked for, or the log was replaced since."""


class DeviceError(ZeusError, RuntimeError):
    """A device refuses a call or cannot be found; training goes on with what can be measured."""


class ReportError(ZeusError, ValueError):
    """The training loop reported something that cannot be compared with the target."""


class BelowTargetError(ZeusError):
    """The kept model is below its target and the job has ``require_target=True``."""

    @classmethod
    def of(cls, batch_size: object, reason: object, target: object) -> "BelowTargetError":
        """The one message form: batch size, why it ended, target, remedy."""
        return cls(
            f"The model of batch size {batch_size} is kept, but {reason} ({target}). "
            f"Remedy: a larger max_epochs, a nearer target, or require_target=False to accept it."
        )
