"""How a training function is left before its end. Not ``Exception``, which user code may catch."""


class AttemptOver(BaseException):
    """This attempt is given up; the run handle calls the function again with another batch size."""


class TrainingKilled(BaseException):
    """The task is being stopped (``on_kill``); nothing more may run."""


def raise_again(signal: BaseException | None) -> None:
    """Raise a signal that came already, if one did; without its old traceback, which would grow with every call."""
    if signal is not None:
        raise signal.with_traceback(None)
