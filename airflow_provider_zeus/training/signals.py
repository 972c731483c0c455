"""Exceptions that end a training function early. They are no ``Exception``, so user code does not catch them."""


class AttemptOver(BaseException):
    """This attempt is given up; the run handle calls the function again with another batch size."""


class TrainingKilled(BaseException):
    """The task is being stopped (``on_kill``); the training must end."""


def raise_again(signal: BaseException | None) -> None:
    """Raise a signal that is set, without its old traceback, which would grow with every call."""
    if signal is not None:
        raise signal.with_traceback(None)
