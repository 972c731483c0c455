"""The page of what is set: the section ``[zeus]``, Connections, Variables,
and a training's environment.
"""

from __future__ import annotations

import re
from typing import Any

from airflow_provider_zeus.get_provider_info import get_provider_info
from airflow_provider_zeus.store import live_settings
from airflow_provider_zeus.store.variables.airflow import SETTINGS
from airflow_provider_zeus.training.protocol import environment
from docs_site.tables import code, sentence, table

HEAD = """# Options

What is set outside of a DAG file. Fields of a job: [ZeusJob](job.md).

## `[zeus]` in airflow.cfg

Each option is also a variable of the environment, as `AIRFLOW__ZEUS__HEARTBEAT_S` is for `heartbeat_s`.
"""


def page() -> str:
    """All options with their defaults."""
    info = get_provider_info()
    parts = [HEAD]
    for name, option in info["config"]["zeus"]["options"].items():
        parts.append(_option(name, option))
    parts.append("## Connections\n")
    parts += [_connection(kind) for kind in info["connection-types"]]
    parts += [
        "## Live settings\n",
        LIVE,
        "## Environment of a training\n",
        ENVIRONMENT,
        _environment(),
    ]
    return "\n".join(parts)


def _option(name: str, option: dict[str, Any]) -> str:
    default = code(option["default"]) or "empty"
    facts = f"- Default: {default} ({option['type']})\n- Example: {code(option['example'])}\n"
    return f"### {name}\n\n{sentence(option['description'])}\n\n{facts}"


def _connection(kind: dict[str, Any]) -> str:
    form = kind["ui-field-behaviour"]
    names = form["relabeling"]
    rows = [
        [code(field), names.get(field, field), text] for field, text in form["placeholders"].items()
    ]
    rows += [
        [code(field), names[field], ""] for field in names if field not in form["placeholders"]
    ]
    for field, shape in kind.get("conn-fields", {}).items():
        values = ", ".join(code(value) for value in shape["schema"].get("enum", ()))
        rows.append(
            [
                f"`extra`: {code(field)}",
                shape["label"],
                f"{sentence(shape['description'])} One of {values}.",
            ]
        )
    title = f"### {kind['hook-name']}: type `{kind['connection-type']}`\n"
    return f"{title}\n{table(['field', 'label in the form', 'what to write, or an example'], rows)}"


_CHANGES = [[code(name), "; ".join(words)] for name, (_, *words) in live_settings._CHANGES.items()]
LIVE = f"""A Variable `{SETTINGS}:<job>` changes a job from its next run on, without a deployment. It
holds a JSON object of these; the buttons of the page *Zeus* and `airflow zeus jobs` write the same Variable.

{table(["setting", "recorded as, when it is set or removed"], _CHANGES)}"""

ENVIRONMENT = """Where a training runs in a process or on a host of its own, it is started with these:
"""


def _environment() -> str:
    """The variables, from the text at the head of the module that reads them."""
    found = re.findall(r"^- ``(\w+)``: (.*?)(?=^- |\Z)", environment.__doc__ or "", re.M | re.S)
    return table(["variable", "meaning"], [[code(name), sentence(text)] for name, text in found])
