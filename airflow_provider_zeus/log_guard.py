"""A log line of ours never fails a training, even if a handler of the author, or of Airflow, raises.

:meth:`logging.Handler.handle` may raise: a subclass overrides it, or its lock or its filter fails. Then the error comes
out of the line that logs. So the handlers behind our loggers are called by one that catches it. Standard library only.
"""

from __future__ import annotations

import logging

OURS = "airflow_provider_zeus"  # the logger above those of all our modules


class GuardedHandlers(logging.Handler):
    """Hands a record to the handlers of the root logger; an ``Exception`` that they raise is dropped."""

    def handle(self, record: logging.LogRecord) -> bool:
        """Hand over one record. Not ``emit``: no lock of ours is held while other handlers work."""
        try:
            logging.getLogger().callHandlers(record)
        except Exception:  # where could it be logged?
            return False
        return True


def guard_log_lines() -> None:
    """Put the guard between our loggers and the root logger; once in a process."""
    ours = logging.getLogger(OURS)
    if not any(isinstance(handler, GuardedHandlers) for handler in ours.handlers):
        ours.addHandler(GuardedHandlers())
        ours.propagate = False
