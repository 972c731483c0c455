"""Each command on the pages is one that Airflow's parser takes;
those that need nothing else are run, in order.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
import tomllib
from collections.abc import Iterator
from configparser import ConfigParser
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from airflow_provider_zeus.cli import report
from airflow_provider_zeus.get_provider_info import get_provider_info
from airflow_provider_zeus.store.open import open_store
from tests.docs.blocks import PAGES, blocks
from tests.docs.shell import Shell, header
from tests.unit.cli.conftest import home, recur  # noqa: F401 - a fixture

# test_tutorials.py runs these from their first block to their last
WHOLE = ("docs/tutorials/", "docs/quick-start.md")
WITH_COMMANDS = [
    page
    for page in PAGES
    if not page.startswith(WHOLE)
    and any(b.kind == "commands" and not b.reason for b in blocks(page))
]
DAG_FILE = Path(__file__).parents[1] / "unit" / "cli" / "checked_dags.py"
DAG_TEXT = DAG_FILE.read_text(encoding="utf-8")

SYSTEMD = {"Unit", "Service", "Install"}  # sections of a unit file

ONLY_PARSED = {
    "airflow standalone": "starts servers; tests/system/test_from_nothing.py",
    "airflow zeus demo": "waits for those servers; tests/system/test_from_nothing.py",
    "airflow zeus jobs rename": "a trial of the job runs here; tests/unit/cli/test_jobs.py",
    "airflow connections add zeus_default": (
        "would change the run log of this Airflow; the other one is added"
    ),
}
ENDS_WITH = {  # exit status, where it is not 0
    "airflow zeus jobs pin nightly.train 48": 1,
}


@pytest.fixture
def _no_connection_stays(airflow_home: Path) -> Iterator[None]:
    """The metadata database serves many tests."""
    yield
    from airflow.models import Connection
    from airflow.utils.session import create_session

    with create_session() as session:
        session.query(Connection).filter(Connection.conn_id.like("zeus_%")).delete()


@pytest.mark.usefixtures("_no_connection_stays")
@pytest.mark.parametrize("page", WITH_COMMANDS)
def test_the_commands_of_a_page(
    page: str,
    home: Path,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(home)
    monkeypatch.setenv("PASSWORD", "of these tests")
    monkeypatch.setenv(
        "AIRFLOW_CONN_ZEUS_NEW", json.dumps({"conn_type": "sqlite", "host": str(home / "new.db")})
    )
    shell = Shell(home, capsys, _dags(home), ENDS_WITH, ONLY_PARSED)
    now_s = time.time()
    monkeypatch.setattr(report, "time", SimpleNamespace(time=lambda: now_s))  # no month ends
    _log()
    if page == "docs/cli.md":  # docs/store.md makes the other log itself
        shell.take("airflow zeus db upgrade --conn-id zeus_new")
    for block in blocks(page):
        if block.kind != "commands" or block.reason:
            continue
        _files(block.text, home)
        for command in block.commands:
            out = shell.take(command)
            shown = header(block.text)
            if out and shown and len(block.commands) == 1:
                assert header(out) == shown, f"{block.name} shows other columns"
    with capsys.disabled():
        print("\n".join(["", *(f"{page}: not run: {each}" for each in shell.not_run)]), end="")


def _log() -> None:
    """Some runs of the job that the pages speak of, the newest still open."""
    store = open_store()
    for number in (1, 2, 3):
        recur(store, number, job_id="nightly.train")
    from tests.unit.store.store_kit import request

    store.ask(request(4, job_id="nightly.train", ti_id="nightly.train-4"))


def _dags(folder: Path) -> dict[str, Path]:
    """DAG files for ``airflow zeus check``: a training without a mistake,
    by the names on the pages.
    """
    found = {}
    for dag_id in ("nightly", "my_dag"):
        found[dag_id] = folder / f"{dag_id}_file.py"
        found[dag_id].write_text(DAG_TEXT.replace('"right"', f'"{dag_id}"'), encoding="utf-8")
    return found


def _files(text: str, folder: Path) -> None:
    """Files that a block shows by ``cat``, written as shown."""
    for name, inside in re.findall(r"^\$ cat (\S+)\n(.*?)(?=^\$ |\Z)", text, re.M | re.S):
        (folder / name).write_text(inside, encoding="utf-8")
    if "runs.jsonl" in text and not (folder / "runs.jsonl").exists():
        from airflow.cli.cli_parser import get_parser

        args = get_parser().parse_args(["zeus", "export", "--output", str(folder / "runs.jsonl")])
        args.func(args)


@pytest.mark.parametrize(
    "page", [page for page in PAGES if any(b.kind == "ini" for b in blocks(page))]
)
def test_the_settings_of_a_page_exist(page: str) -> None:
    from airflow.sdk import conf

    ours = get_provider_info()["config"]["zeus"]["options"]
    for block in blocks(page):
        if block.kind == "ini":
            parser = ConfigParser(interpolation=None)
            parser.read_string(block.text)
            for section in set(parser.sections()) - SYSTEMD:
                for option, value in parser[section].items():
                    assert (
                        option in ours if section == "zeus" else conf.has_option(section, option)
                    ), f"{block.name} {option}"
                    assert value, f"{block.name} {option}"


def test_documents_are_well_formed() -> None:
    """JSON, manifests of Kubernetes, image files and scripts:
    no cluster and no engine is here to run them.
    """
    for block in (block for page in PAGES for block in blocks(page)):
        if block.language == "json":
            json.loads(block.text)
        elif block.kind == "toml":
            tomllib.loads(block.text)
        elif block.kind == "yaml":
            for part in yaml.safe_load_all(block.text):
                # of Prometheus: tests/integration/test_dashboard.py reads them
                is_rules = "groups" in part
                assert is_rules or {"apiVersion", "kind", "metadata"} <= set(part), block.name
        elif block.kind == "dockerfile":
            lines = block.text.replace("\\\n", " ").splitlines()
            assert {line.split()[0] for line in lines if line} <= {
                "FROM",
                "RUN",
                "COPY",
                "ENV",
                "USER",
            }, block.name
        elif block.kind == "script":
            subprocess.run(["bash", "-n"], input=block.text, text=True, check=True)


def test_every_block_is_executed_or_says_why_not(capsys: pytest.CaptureFixture[str]) -> None:
    """The list of what nothing runs, with the reasons;
    a kind of block that no test knows fails here.
    """
    found = [block for page in PAGES for block in blocks(page)]
    kinds = {"python", "commands", "script", "ini", "json", "toml", "yaml", "dockerfile"}
    kinds |= {"sql", "shown"}
    assert {block.kind for block in found} <= kinds
    assert len(found) > 80
    marked = [f"{b.name}: not run: {b.reason}" for b in found if b.reason]
    shown = [b.name for b in found if b.kind == "shown" and not b.reason]
    executed = len(found) - len(marked) - len(shown)
    with capsys.disabled():
        print(
            f"\n{len(found)} code blocks: {executed} run or parsed, {len(marked)} marked,"
            f" {len(shown)} only shown"
        )
        print("\n".join([*marked, f"output or drawings: {', '.join(shown)}"]))
    assert executed / len(found) > 0.8
    for block in found:
        if block.kind == "shown":
            assert not re.search(
                r"^(from \w+ import|import \w+|docker |python3? )", block.text, re.M
            ), block.name
