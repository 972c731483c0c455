"""Doctor's checks of ``[zeus] measure``: the tasks it names, the DAGs it would break, factors
that are not set.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from airflow_provider_zeus.cli.finding import Finding, error, ok, warning
from airflow_provider_zeus.task_patterns import TaskPatterns, matches, names_of
from airflow_provider_zeus.units import counted

MOST_NAMED = 5  # a line of a terminal holds no more
FLAG = "end_from_trigger"
WORLD_MEAN = "458: the world's mean in 2025, by Ember's Global Electricity Review 2026"


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownDag:
    """A DAG as Airflow's database has it."""

    dag_id: str
    tags: Collection[str] = ()
    task_ids: Sequence[str] = ()
    file: str = ""


def known_dags() -> list[KnownDag]:
    """The DAGs of Airflow's database that have not been deleted."""
    from airflow_provider_zeus.airflow_compat import DagModel, SerializedDagModel, create_session

    dags = []
    with create_session() as session:
        for row in session.query(DagModel).filter(DagModel.is_stale.is_(False)):
            dag = KnownDag(
                dag_id=row.dag_id,
                tags=[tag.name for tag in row.tags],
                task_ids=_task_ids(SerializedDagModel.get(row.dag_id, session=session)),
                file=row.fileloc or "",
            )
            dags.append(dag)
    return dags


def _task_ids(serialized: Any) -> list[str]:
    """The ids of the tasks of a serialized DAG; none if there is none, or it is written in
    another way.
    """
    with suppress(AttributeError, KeyError, TypeError):
        return [str(task["__var"]["task_id"]) for task in serialized.data["dag"]["tasks"]]
    return []


def of_patterns(
    task_patterns: TaskPatterns, dags: Sequence[KnownDag], *, in_variables: bool
) -> Finding:
    """How many tasks are named, and which patterns name none.

    :param in_variables: the trial log is in Airflow's Variables.
    """
    # Most sites name none, which is no mistake.
    if not task_patterns.included:
        return ok("measure", "[zeus] measure names no task of a DAG that does not know Zeus")
    # Airflow's database would hold a Variable for each run of each task
    if in_variables:
        finding = "it does nothing, since Airflow's Variables would not hold so many rows"
        remedy = "define Connection zeus_default to a PostgreSQL database"
        return warning("measure", finding, remedy)
    # "matches nothing" would send the reader to patterns that are right.
    if not dags:
        finding = "Airflow's database has no DAG yet, so what it names is not known"
        return warning("measure", finding, "start Airflow, or run 'airflow dags reserialize'")
    counts = Counter[str]()
    for dag in dags:
        named = [t for t in dag.task_ids if task_patterns.name(dag.dag_id, t, dag.tags)]
        counts.update([dag.dag_id] * len(named))
    finding = f"names {counted(counts.total(), 'task')} of {counted(len(counts), 'DAG')}"
    patterns = (*task_patterns.included, *task_patterns.excluded)
    unused = [pattern for pattern in patterns if not _names_any(pattern, dags)]
    if unused:
        verb = "matches" if len(unused) == 1 else "match"
        finding += f"; {', '.join(unused)} {verb} nothing"
        return warning("measure", finding, "compare with 'airflow dags list' and its tags")
    return ok("measure", finding)


def _names_any(pattern: str, dags: Sequence[KnownDag]) -> bool:
    for dag in dags:
        # a DAG without tasks may still match by its id or tag
        for task_id in dag.task_ids or [""]:
            if matches(pattern, names_of(dag.dag_id, task_id, dag.tags)):
                return True
    return False


def of_refused(dags: Sequence[KnownDag], *, is_set: bool) -> Finding:
    """Which DAGs Airflow refuses as soon as any listener is registered, as the texts of their files
    show.

    :param is_set: ``[zeus] measure`` names tasks.
    """
    files = {dag.file for dag in dags}
    # One file may define hundreds of DAGs: it is read once.
    ending = {file for file in files if sets_flag(file)}
    refused = sorted(dag.dag_id for dag in dags if dag.file in ending)
    if not refused:
        return ok(
            "refused DAGs",
            "no file of a DAG sets end_from_trigger, so Airflow refuses none for a listener",
        )
    names = ", ".join(refused[:MOST_NAMED])
    more = len(refused) - MOST_NAMED
    if more > 0:
        names += f" and {more} more"
    finding = (
        f"{FLAG} is set in the file of {names}: Airflow refuses such a DAG while [zeus] measure is "
        "set"
    )
    remedy = f"set {FLAG}=False there, or leave [zeus] measure empty"
    # Nothing is refused yet: it would be once an option is set.
    if not is_set:
        return Finding("refused DAGs", "ok", finding, remedy)
    return error("refused DAGs", finding, remedy)


def sets_flag(file: str) -> bool:
    """Whether a Python file gives ``end_from_trigger`` a value other than False; False if it
    cannot be read.
    """
    with suppress(OSError, ValueError, SyntaxError, RecursionError):
        text = Path(file).read_text(encoding="utf-8")
        # Parsing every file would take seconds; most never name it.
        if FLAG not in text:
            return False
        values = chain.from_iterable(map(_values_of_flag, ast.walk(ast.parse(text))))
        return any(ast.unparse(value) != "False" for value in values)
    return False


def _values_of_flag(node: ast.AST) -> Iterator[ast.expr]:
    """The values of the flag in a call, or in a dictionary, such as ``default_args``."""
    if isinstance(node, ast.keyword) and node.arg == FLAG:
        yield node.value
    if isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and key.value == FLAG:
                yield value


def of_factors(*, has_price: bool, has_carbon: bool) -> Finding:
    """Whether energy can be shown as money and as CO2e, with the remedy if not."""
    lacks = list(_lacks(has_price=has_price, has_carbon=has_carbon))
    if not lacks:
        return ok("factors", "energy is shown as money and as CO2e, too")
    names = " and ".join(what for what, _ in lacks)
    remedy = "; ".join(remedy for _, remedy in lacks)
    return Finding("factors", "ok", f"energy is not shown as {names}", remedy)


def _lacks(*, has_price: bool, has_carbon: bool) -> Iterator[tuple[str, str]]:
    """The factors that are not set, each with its remedy."""
    if not has_price:
        yield "money", "set [zeus] price_per_kwh and currency, as on the site's bill"
    if not has_carbon:
        yield (
            "CO2e",
            f"set [zeus] g_co2e_per_kwh ({WORLD_MEAN}), or ask a service (docs/levers/signals.md)",
        )
