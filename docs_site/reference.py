"""The pages of the site that are read off the code, by their paths."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from importlib import import_module

from docs_site import commands, data, options, paper, routes

PACKAGE = "airflow_provider_zeus"
Named = Sequence[tuple[str, Iterable[str]]]  # titles, and the public names below each

OPERATORS: Named = (
    ("`@task.zeus`", ["decorators.zeus.zeus_task"]),
    ("Operators", ["ZeusTrainOperator", "ZeusCommandOperator", "ZeusTrial"]),
)
OTHERS: Named = (
    ("Hooks", ["ZeusHook", "hooks.zeus_signal.ZeusSignalHook"]),
    (
        "Errors",
        [
            "ZeusError",
            "JobSpecError",
            "StoreError",
            "UnknownTrialError",
            "DeviceError",
            "ReportError",
            "BelowTargetError",
        ],
    ),
    ("What ends a training function", ["AttemptOver", "TrainingKilled"]),
    (
        "Frameworks",
        [
            "integrations.huggingface.ZeusTrainerCallback",
            "integrations.huggingface.arguments",
            "integrations.lightning.ZeusCallback",
        ],
    ),
)


def job() -> str:
    """The job with all its fields."""
    return _api(
        "ZeusJob",
        "A job is written in the DAG file. How its fields are used: [three ways](../operators.md).",
        (("", ["ZeusJob"]),),
    )


def run() -> str:
    """The handle of a run."""
    words = "The handle of a run, which a training function gets. How often it is called: "
    words += "[three ways](../operators.md)."
    return _api("ZeusRun", words, (("", ["ZeusRun"]),))


def operators() -> str:
    """The decorator, the operators and the context manager."""
    words = "Three places where a training may run. With examples: [three ways](../operators.md)."
    return _api("Operators", words, OPERATORS)


def others() -> str:
    """All other public names."""
    version = import_module(PACKAGE).__version__
    words = (
        "Everything else that the package exports. `airflow_provider_zeus.__version__` here is"
        f" `{version}`."
    )
    return _api("Hooks, errors", words, OTHERS)


def _api(title: str, words: str, named: Named) -> str:
    """A page of directives, which mkdocstrings replaces by the docstrings of public names."""
    lines = [f"# {title}", "", words, ""]
    for heading, names in named:
        lines += [f"## {heading}", ""] if heading else []
        for name in names:
            lines += [
                f"::: {PACKAGE}.{name}",
                "    options:",
                f"      heading_level: {3 if heading else 2}",
                "",
            ]
    return "\n".join(lines)


GENERATED: dict[str, Callable[[], str]] = {
    "concepts/paper.md": paper.page,
    "reference/job.md": job,
    "reference/run.md": run,
    "reference/operators.md": operators,
    "reference/python.md": others,
    "reference/options.md": options.page,
    "reference/commands.md": commands.page,
    "reference/xcoms.md": data.xcoms,
    "reference/metrics.md": data.metrics,
    "reference/facets.md": data.facets,
    "reference/schema.md": data.schema,
    "reference/routes.md": routes.page,
}
