"""``[zeus] enabled``: whether Zeus works on this host. Imports nothing heavy."""

from __future__ import annotations

ON = "True"
MEASURE = "measure"
OFF = "False"


def enabled() -> str:
    """``[zeus] enabled``: :data:`ON`, :data:`MEASURE` or :data:`OFF`.

    Raises JobSpecError for another text.
    """
    from airflow.sdk import conf

    # As Airflow itself reads a boolean of its configuration, any usual word counts.
    text = conf.get("zeus", "enabled", fallback=ON).strip()
    values = {MEASURE: MEASURE, **dict.fromkeys(("true", "t", "1", "yes", "on"), ON)}
    values |= dict.fromkeys(("false", "f", "0", "no", "off"), OFF)
    value = values.get(text.lower())
    # A typing error must not train silently with another mode than its author meant.
    if value is None:
        from airflow_provider_zeus.errors import JobSpecError

        raise JobSpecError.of("[zeus] enabled", text, "none of these", "use True, measure or False")
    return value
