"""Imports one DAG by its id, for ``airflow zeus check``: its own file here, and any other one
in another process.
"""

# Some of Airflow's functions have no types.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import difflib
import json
import os
import select
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from airflow_provider_zeus.cli.finding import Finding, error, ok, warning
from airflow_provider_zeus.cli.shell import drop_output, no_log
from airflow_provider_zeus.log_guard import guarded_log
from airflow_provider_zeus.training.process.supervisor import die_with_parent
from airflow_provider_zeus.units import counted

IMPORT_S = 60.0  # a first import of torch takes longer than Airflow allows

log = guarded_log(__name__)


class DagFile(NamedTuple):
    """A file that may define DAGs, and its bundle."""

    path: str
    folder: Path
    bundle: str


def import_dag(dag_id: str, file: str | None) -> tuple[Any, Finding]:
    """The DAG of a file or of the DAG bundles, None if there is none; and the finding of its
    import.

    Of the bundles its own file alone is imported in this process: the one that Airflow knows it
    from, or that alone seems to define it. If neither does, other processes find it: a file that
    fails, hangs or prints there harms nothing.
    """
    if file is None:
        files = list(_files())
        certain = _last_read(dag_id, files)
    else:
        files = certain = [DagFile(file, Path(file).resolve().parent, "check")]
    defining, naming = _naming(dag_id, files)
    search = Search()
    own = None
    likely = certain or defining
    # Of several candidates any may fail or hang: they are imported in other processes.
    if len(likely) == 1:
        own = likely[0]
        imported = _imported(dag_id, own)
        if imported.dag is not None:
            return imported.dag, imported.finding
        search.take(own, imported.ids, imported.problem)
    # if Airflow knows its file and that cannot be imported, no other file is the DAG's
    if not certain or not search.errors:
        # those that have its id as a text come first: imports are slow
        others = dict.fromkeys([*naming, *files])
        _search(search, dag_id, [other for other in others if other != own])
        if search.file is not None:
            imported = _imported(dag_id, search.file)
            return imported.dag, imported.finding
    return None, _not_found(dag_id, search, [*filter(None, [own]), *naming])


def _not_found(dag_id: str, search: Search, likely: Sequence[DagFile]) -> Finding:
    """Why there is no such DAG. ``likely``: the files that may be its own."""
    problems = {f.path: search.errors[f.path] for f in likely if f.path in search.errors}
    # A mistake in the file itself is more likely than a wrong id.
    if problems:
        texts = [f"{os.path.basename(path)}: {text}" for path, text in problems.items()]
        remedy = "correct it"
        if any("import timeout" in text for text in texts):
            remedy = (
                "import large modules inside the training function, or raise [core] "
                "dagbag_import_timeout"
            )
        finding = f"{dag_id} is in no file that can be imported; {'; '.join(texts[:3])}"
        return error("import", finding, remedy)
    near = difflib.get_close_matches(dag_id, search.ids, cutoff=0.5) or sorted(search.ids)[:10]
    # A DAG that is generated has its id in no text.
    remedy = "name the file that defines it by --file"
    if near:
        remedy = f"did you mean {', '.join(near)}"
    if search.errors:
        files = counted(len(search.errors), "file")
        remedy += f"; {files} cannot be imported (airflow dags list-import-errors)"
    return error("import", f"there is no DAG {dag_id}", remedy)


def _files() -> Iterator[DagFile]:
    """The files of all bundles, as Airflow lists them. A bundle that cannot be read is left out."""
    from airflow_provider_zeus.airflow_compat import BundleDagBag, DagBundlesManager

    paths: list[str] = []

    class Listing(BundleDagBag):
        """Imports nothing, and notes the path of each file that it should import."""

        def process_file(self, filepath: str, *_: object, **__: object) -> list[Any]:
            paths.append(filepath)
            return []

        # Airflow 3.4 gives a definition of a DAG instead, which names its file
        def _process_definition(self, _importer: object, file: object, **_: object) -> list[Any]:
            paths.append(repr(file))
            return []

    for bundle in DagBundlesManager().get_all_dag_bundles():
        search_path = [*sys.path]
        try:
            bundle.initialize()
            Listing(dag_folder=bundle.path, bundle_path=bundle.path, bundle_name=bundle.name)
        except Exception as problem:
            log.warning("Zeus: the bundle %s cannot be read: %s", bundle.name, problem)
        sys.path[:] = search_path  # a bundle's modules are for its own DAGs
        yield from (DagFile(path, bundle.path, bundle.name) for path in paths)
        paths.clear()


def _last_read(dag_id: str, files: Sequence[DagFile]) -> list[DagFile]:
    """The file from which Airflow has last read the DAG; empty if it has not."""
    from airflow_provider_zeus.airflow_compat import DagModel, create_session

    # A DAG file can be checked before Airflow has a database, or tables in it.
    with suppress(Exception), create_session() as session:
        row: Any = session.get(DagModel, dag_id)
        place = (row.bundle_name, row.relative_fileloc)
        return [f for f in files if (f.bundle, os.path.relpath(f.path, f.folder)) == place]
    return []


def _naming(dag_id: str, files: Sequence[DagFile]) -> tuple[list[DagFile], list[DagFile]]:
    """(The files that seem to define the DAG; they and those that have its id as a text)."""
    # The id as a text: a DAG's file mostly holds it.
    quoted = [f'"{dag_id}"'.encode(), f"'{dag_id}'".encode()]
    # A decorated function gives its own name to the DAG.
    defined = [f"def{dag_id}(".encode()]
    for name in quoted:
        defined += [b"DAG(" + name, b"dag_id=" + name]
    defining = []
    naming = []
    for file in files:
        with suppress(OSError):
            text = Path(file.path).read_bytes()
            # a formatter may break the line after the bracket
            compact = b"".join(text.split())
            # one that triggers or awaits the DAG: trigger_dag_id=, external_dag_id=
            compact = compact.replace(b"_dag_id=", b"")
            if any(sign in compact for sign in defined):
                defining.append(file)
            elif any(name in text for name in quoted):
                naming.append(file)
    return defining, defining + naming


class Imported(NamedTuple):
    """The result of the import of a file."""

    dag: Any
    ids: list[str]  # a mistyped id gets the names that there are
    finding: Finding

    @property
    def problem(self) -> str:
        """Why the file cannot be imported; empty if it can."""
        if self.finding.status != "error":
            return ""
        return self.finding.finding


def _imported(dag_id: str, file: DagFile) -> Imported:
    """Import a file in this process."""
    from airflow.sdk import conf

    from airflow_provider_zeus.airflow_compat import BundleDagBag

    option = "AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT"
    allowed_s = conf.getfloat("core", "dagbag_import_timeout")
    before = os.environ.get(option)
    begun_s = time.monotonic()
    option_s = 0.0
    if allowed_s > 0:
        option_s = max(allowed_s, IMPORT_S)
    # torch alone may take longer than Airflow allows: that is a warning, no error
    os.environ[option] = str(option_s)
    try:
        with no_log():  # the finding says it once, in words of ours
            bag = BundleDagBag(
                dag_folder=file.path, bundle_path=file.folder, bundle_name=file.bundle
            )
    finally:
        # A setting of the caller must not stay changed.
        os.environ.pop(option)
        if before is not None:
            os.environ[option] = before
    took_s = time.monotonic() - begun_s
    dag = bag.dags.get(dag_id)
    ids = list(bag.dags)
    if dag is None:
        finding = ok("import", "no such DAG")
        # The text of an error may be empty, and has no last line then.
        for text in bag.import_errors.values():
            if text.strip():
                finding = error("import", text.strip().splitlines()[-1])
                break
        return Imported(None, ids, finding)
    what = f"{dag_id} in {dag.fileloc}"
    # 0 means that Airflow sets no limit.
    if took_s <= allowed_s or allowed_s <= 0:
        return Imported(dag, ids, ok("import", what))
    limit = f"Airflow stops it after {allowed_s:g} s ([core] dagbag_import_timeout)"
    remedy = "import large modules, such as torch, inside the training function"
    late = warning("import", f"{what}: its import took {took_s:.0f} s, and {limit}", remedy)
    return Imported(dag, ids, late)


@dataclass(slots=True)
class Search:
    """The result of imports of files by other processes."""

    file: DagFile | None = None
    ids: list[str] = field(default_factory=list)  # a mistyped id gets the names that there are
    # the error of another file may be why the DAG is missing
    errors: dict[str, str] = field(default_factory=dict)

    def take(self, file: DagFile, ids: Sequence[str], problem: str) -> None:
        """Take the result of the import of a file."""
        self.ids += ids
        if problem:
            self.errors[file.path] = problem


def _search(search: Search, dag_id: str, files: Sequence[DagFile]) -> None:
    """Search the file that defines a DAG by other processes.

    Each goes from file to file until one fails, which may leave modules half imported; the next one
    goes on behind it.
    """
    while files and search.file is None:
        # A pipe ends with its process, so that a crash is seen.
        reader, writer = os.pipe()
        # a fork has Airflow imported already: a new process would take seconds for each file
        child = os.fork()
        if not child:
            os.close(reader)
            _be_importer(files, writer)
        # Else the pipe would not end with the child.
        os.close(writer)
        try:
            with open(reader, "rb", buffering=0) as lines:
                count = _follow(search, dag_id, files, lines)
        finally:
            with suppress(ProcessLookupError):
                # its import may hang, and hold on to anything
                os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        # The file that ended this process would end the next one, too.
        files = files[count:]


def _follow(search: Search, dag_id: str, files: Sequence[DagFile], lines: FileIO) -> int:
    """Take the results of one process, up to the first file that fails; return how many they
    are.
    """
    for count, file in enumerate(files, start=1):
        line = b""
        # Airflow's own limit comes first, but cannot end an import that hangs in C.
        if select.select([lines], [], [], IMPORT_S + 60.0)[0]:
            line = lines.readline()
        if not line:
            search.take(file, (), "its import ends the process, or does not end")
            return count
        ids, problem = json.loads(line)
        search.take(file, ids, problem)
        if dag_id in ids:
            search.file = file
        if problem or dag_id in ids:
            return count
    return len(files)


def _be_importer(files: Sequence[DagFile], writer: int) -> NoReturn:
    """Import files in this forked process, write ids and error of each, and leave after the
    first one that fails.
    """
    try:
        die_with_parent()
        drop_output()
        for file in files:
            imported = _imported("", file)
            # the last line of an error may be of any length
            problem = imported.problem[:500]
            os.write(writer, json.dumps([imported.ids, problem]).encode() + b"\n")
            if problem:
                break
    finally:
        # no handler of the parent may run in the child
        os._exit(0)
