"""The errors that a user can correct. Each message names the field, its value and the remedy."""

from airflow_provider_zeus.printable import visible


class ZeusError(Exception):
    """Base of all errors of this package. Its text is one line, with control characters escaped."""

    def __str__(self) -> str:
        return visible(super().__str__())


class JobSpecError(ZeusError, ValueError):
    """A job, a setting or a Connection holds a value that cannot be used.

    :param without_value: the message without the value, for who may not see the fields of a
        Connection.
    """

    def __init__(self, message: str, *, without_value: str = "a value cannot be used") -> None:
        super().__init__(message)
        self.without_value = visible(without_value)

    @classmethod
    def of(cls, field: str, value: object, problem: str, remedy: str) -> "JobSpecError":
        """Build a message of field, value, problem and remedy."""
        return cls(
            f"{field} = {value!r}: {problem}. {remedy}.",
            without_value=f"{field}: {problem}. {remedy}.",
        )


class StoreError(ZeusError, RuntimeError):
    """The store cannot be reached, has another schema, or refuses this use of it.

    :param passing: whether the same call may succeed some seconds later: no connection, a lock, no
        answer in time.
    :param unsure: whether the write may have been stored although it failed: the answer was lost,
        or has not come in time.
    """

    def __init__(self, message: str, *, passing: bool = False, unsure: bool = False) -> None:
        super().__init__(message)
        self.passing = passing
        self.unsure = unsure


class ConnectionLookupError(StoreError):
    """Airflow could not say whether a Connection is defined."""


class UndefinedConnectionError(StoreError):
    """A Connection other than the default one is not defined.

    The text names no address: every reader may see it.
    """


class DamagedLogError(StoreError):
    """The Variable of a job does not hold a text of this version."""


class UnknownTrialError(StoreError):
    """The trial log does not hold this trial: the store was not asked for it, or the log was
    replaced.
    """

    @classmethod
    def of(cls, ti_id: str, attempt: int) -> "UnknownTrialError":
        """Build a message of a trial's key and the remedy."""
        return cls(
            f"Attempt {attempt} of task instance {ti_id} is not in the log: ask for it before "
            "reporting to it."
        )


class SignalError(ZeusError, RuntimeError):
    """A price or a carbon intensity cannot be read; the training goes on without it."""

    @classmethod
    def of(cls, signal: str, problem: str) -> "SignalError":
        """Build a message of signal, problem and remedy."""
        return cls(
            f"Signal {signal!r}: {problem}. Correct or define its Connection "
            "(docs/levers/signals.md)."
        )


class NoSignalError(SignalError):
    """No Connection of a signal is defined."""


class DeviceError(ZeusError, RuntimeError):
    """A device refuses a call or cannot be found; the training continues with the figures that
    can be measured.
    """


class ReportError(ZeusError, ValueError):
    """The training loop reported a value that cannot be compared with the target."""


class BelowTargetError(ZeusError):
    """The kept model is below its target and the job has ``require_target=True``."""

    @classmethod
    def of(
        cls, batch_size: object, reason: object, target: object, *, reported: bool = True
    ) -> "BelowTargetError":
        """Build a message of batch size, reason, target and remedy.

        ``reported``: the metric was.
        """
        remedy = "a larger max_epochs, a nearer target" if reported else "report the metric"
        return cls(
            f"The model of batch size {batch_size} is kept, but {reason} ({target}). "
            f"Remedy: {remedy}, or require_target=False to accept it."
        )
