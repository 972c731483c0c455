"""Loggers whose lines never fail a training, even if a handler of the author, or of Airflow,
raises.

:meth:`logging.Handler.handle` may raise: a subclass overrides it, or its filter or its lock fails.
    Then the error comes out of the line that logs. Standard library only.
"""

from __future__ import annotations

import logging


class GuardedLogger(logging.Logger):
    """Hands a record to the handlers; an ``Exception`` that one of them raises is dropped."""

    def callHandlers(self, record: logging.LogRecord) -> None:  # noqa: N802 (the name is the standard library's)
        """Call all handlers of this logger and of those above it."""
        try:
            super().callHandlers(record)
        except Exception:
            return  # there is no place left where it could be said


def level(*, again: bool) -> int:
    """The level of a failure that is tried again: a warning, once while it lasts."""
    return logging.DEBUG if again else logging.WARNING


def guarded_log(name: str) -> logging.Logger:
    """The logger of a module of ours.

    ``logging.setLoggerClass`` would change the loggers of others, too.
    """
    logger = logging.getLogger(name)
    logger.__class__ = GuardedLogger
    return logger
