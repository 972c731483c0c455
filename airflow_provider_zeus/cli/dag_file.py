"""Imports one DAG by its id, for ``airflow zeus check``: its own file here, and any other one in another process."""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import difflib
import json
import logging
import os
import select
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from airflow_provider_zeus.cli.finding import Finding, error, ok, warning
from airflow_provider_zeus.cli.shell import drop_output
from airflow_provider_zeus.log_guard import guarded_log
from airflow_provider_zeus.training.process.supervisor import die_with_parent

IMPORT_S = 60.0  # that the import of a file may take, if Airflow allows less

log = guarded_log(__name__)


class DagFile(NamedTuple):
    """A file that may define DAGs, and its bundle."""

    path: str
    folder: Path
    bundle: str


def import_dag(dag_id: str, file: str | None) -> tuple[Any, Finding]:
    """The DAG of a file or of the DAG bundles, None where there is none; and what its import showed.

    Of the bundles its own file alone is imported in this process: the one that Airflow knows it from, or that alone
    seems to define it. Where neither does, other processes find it: what fails, hangs or prints there harms nothing.
    """
    files = [DagFile(file, Path(file).resolve().parent, "check")] if file is not None else list(_files())
    known = files if file is not None else _known_of(dag_id, files)
    defining, naming = _naming(dag_id, files)
    likely = known or defining
    ids: list[str] = []
    problems: dict[str, str] = {}  # of the files that may be its own
    failed = 0  # of the others
    own = likely[0] if len(likely) == 1 else None
    if own is not None:
        dag, ids, finding = _imported(dag_id, own)
        if dag is not None:
            return dag, finding
        problems = {own.path: finding.finding} if finding.status == "error" else {}
    if not known or not problems:
        others = [*naming, *(each for each in files if each not in naming)]
        found, more, errors = _searched(dag_id, [each for each in others if each != own])
        if found is not None:
            dag, _, finding = _imported(dag_id, found)
            return dag, finding
        ids += more
        problems |= {each.path: errors[each.path] for each in naming if each.path in errors}
        failed = len(errors.keys() - problems.keys())
    if problems:
        texts = [f"{os.path.basename(path)}: {text}" for path, text in problems.items()]
        late = "import large modules inside the training function, or allow more time by --timeout"
        remedy = late if any("import timeout" in text for text in texts) else "correct it"
        return None, error("import", f"{dag_id} is in no file that can be imported; {'; '.join(texts[:3])}", remedy)
    near = difflib.get_close_matches(dag_id, ids, cutoff=0.5) or sorted(ids)[:10]
    remedy = f"did you mean {', '.join(near)}" if near else "name the file that defines it by --file"
    remedy += f"; {failed} files cannot be imported (airflow dags list-import-errors)" if failed else ""
    return None, error("import", f"there is no DAG {dag_id}", remedy)


def _files() -> Iterator[DagFile]:
    """The files of all bundles, as Airflow lists them. A bundle that cannot be read is left out."""
    from airflow_provider_zeus.airflow_compat import BundleDagBag, DagBundlesManager

    paths: list[str] = []

    def note(_: object, path: str, **__: object) -> list[object]:
        paths.append(path)
        return []

    listing: Any = type("Listing", (BundleDagBag,), {"process_file": note})
    for bundle in DagBundlesManager().get_all_dag_bundles():
        search_path = [*sys.path]
        try:
            bundle.initialize()
            listing(dag_folder=bundle.path, bundle_path=bundle.path, bundle_name=bundle.name)
        except Exception as problem:
            log.warning("Zeus: the bundle %s cannot be read: %s", bundle.name, problem)
        sys.path[:] = search_path  # a bundle's modules are for its own DAGs
        yield from (DagFile(path, bundle.path, bundle.name) for path in paths)
        paths.clear()


def _known_of(dag_id: str, files: Sequence[DagFile]) -> list[DagFile]:
    """The file from which Airflow has last read the DAG, where it has; else an empty list."""
    from airflow_provider_zeus.airflow_compat import DagModel, create_session

    with suppress(Exception), create_session() as session:  # of a database that is not there, or has no tables yet
        row: Any = session.get(DagModel, dag_id)
        place = (row.bundle_name, row.relative_fileloc)
        return [f for f in files if (f.bundle, os.path.relpath(f.path, f.folder)) == place]
    return []


def _naming(dag_id: str, files: Sequence[DagFile]) -> tuple[list[DagFile], list[DagFile]]:
    """(The files that seem to define the DAG; they and those that have its id as a text)."""
    quoted = [f'"{dag_id}"'.encode(), f"'{dag_id}'".encode()]
    defined = [f"def{dag_id}(".encode(), *(before + name for before in (b"DAG(", b"dag_id=") for name in quoted)]
    defining, naming = [], []
    for each in files:
        with suppress(OSError):
            text = Path(each.path).read_bytes()
            compact = b"".join(text.split())
            if any(sign in compact for sign in defined):
                defining.append(each)
            elif any(name in text for name in quoted):
                naming.append(each)
    return defining, defining + naming


def _imported(dag_id: str, file: DagFile) -> tuple[Any, list[str], Finding]:
    """(The DAG, None where it is not there; the ids of all DAGs of the file; what its import showed)."""
    from airflow.sdk import conf

    from airflow_provider_zeus.airflow_compat import BundleDagBag

    option, allowed_s = "AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT", conf.getfloat("core", "dagbag_import_timeout")
    before, begun_s = os.environ.get(option), time.monotonic()
    os.environ[option] = str(max(allowed_s, IMPORT_S) if allowed_s > 0 else 0)
    logging.disable(logging.CRITICAL)  # the finding says it
    try:
        bag = BundleDagBag(dag_folder=file.path, bundle_path=file.folder, bundle_name=file.bundle)
    finally:
        logging.disable(logging.NOTSET)
        os.environ.pop(option) if before is None else os.environ.update({option: before})
    took_s = time.monotonic() - begun_s
    dag, ids = bag.dags.get(dag_id), list(bag.dags)
    if dag is None:
        texts = [text.strip().splitlines()[-1] for text in bag.import_errors.values() if text.strip()]
        return None, ids, error("import", texts[0]) if texts else ok("import", "no such DAG")
    what = f"{dag_id} in {dag.fileloc}"
    if took_s <= allowed_s or allowed_s <= 0:
        return dag, ids, ok("import", what)
    limit = f"Airflow stops it after {allowed_s:g} s ([core] dagbag_import_timeout)"
    remedy = "import large modules, such as torch, inside the training function"
    return dag, ids, warning("import", f"{what}: its import took {took_s:.0f} s, and {limit}", remedy)


def _searched(dag_id: str, files: Sequence[DagFile]) -> tuple[DagFile | None, list[str], dict[str, str]]:
    """(The file that defines the DAG; the ids of all DAGs on the way; errors by file), found by other processes.

    Each goes from file to file until one fails, which may leave modules half imported; the next one goes on behind it.
    """
    ids: list[str] = []
    errors: dict[str, str] = {}
    left = [*files]
    while left:
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            os.close(reader)
            _be_importer(left, writer)
        os.close(writer)
        at, failed = 0, False
        try:
            with open(reader, "rb", buffering=0) as lines:
                while not failed and select.select([lines], [], [], IMPORT_S + 60.0)[0] and (line := lines.readline()):
                    found, problem = json.loads(line)
                    ids += found
                    if dag_id in found:
                        return left[at], ids, errors
                    errors |= {left[at].path: problem} if problem else {}
                    at, failed = at + 1, bool(problem)
        finally:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        if not failed and at < len(left):
            errors[left[at].path] = "its import ends the process, or does not end"
            at += 1
        left = left[at:]
    return None, ids, errors


def _be_importer(files: Sequence[DagFile], writer: int) -> NoReturn:
    """Import files in this forked process, write ids and error of each, and leave after the first one that fails."""
    try:
        die_with_parent()
        drop_output()
        for file in files:
            _, ids, finding = _imported("", file)
            problem = finding.finding if finding.status == "error" else ""
            os.write(writer, json.dumps([ids, problem[:500]]).encode() + b"\n")
            if problem:
                break
    finally:
        os._exit(0)
