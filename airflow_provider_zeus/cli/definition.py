"""The commands of ``airflow zeus`` for Airflow's parser.

Every ``airflow`` call imports it, so it is cheap.
"""

# Some of Airflow's functions have no types.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from typing import Any

from airflow_provider_zeus.airflow_compat import (
    ARG_YES,
    ActionCommand,
    Arg,
    CLICommand,
    GroupCommand,
    lazy_load_command,
    positive_int,
)

_NUMBER = positive_int(allow_zero=False)


def _arg(name: str, metavar: str, help_: str, **options: Any) -> Arg:
    return Arg((name,), metavar=metavar, help=help_, **options)


def _flag(name: str, help_: str) -> Arg:
    return Arg((name,), help=help_, action="store_true")


_JOB = _arg("job", "JOB", "a job, as 'airflow zeus jobs list' shows it, or a DAG that has one job")
_JSON = _flag("--json", "print a list of {check, status, finding, remedy}")


def _output(*forms: str) -> Arg:
    """How a command prints its figures, by default as a table."""
    help_ = f"{', '.join(forms[:-1])} or {forms[-1]} (default: table)"
    names = ("-o", "--output")
    return Arg(names, help=help_, choices=forms, default="table", metavar="FORM")


_OUTPUT = _output("table", "json", "yaml", "plain")


def _command(
    name: str,
    help_: str,
    path: str,
    *args: Arg,
    description: str | None = None,
    of_log: bool = True,
) -> ActionCommand:
    """``of_log``: whether it reads or writes the trial log of a Connection."""
    func = lazy_load_command(f"airflow_provider_zeus.cli.{path}")
    if of_log:
        what = "Connection of the run log (default: zeus_default)"
        args = (*args, Arg(("--conn-id",), help=what, default="zeus_default"))
    return ActionCommand(name=name, help=help_, func=func, args=args, description=description)


def get_zeus_cli_commands() -> list[CLICommand]:
    """The commands, which Airflow finds by the key ``cli`` of the provider info."""
    commands = (*_first_steps(), *_of_a_job(), *_of_files(), *_upkeep())
    return [
        GroupCommand(
            name="zeus",
            help="Energy-aware retraining: jobs, their runs, checks and repair",
            subcommands=commands,
        )
    ]


def _first_steps() -> tuple[CLICommand, ...]:
    return (
        _command(
            "demo",
            "Run an example ten times in the Airflow of this host; it needs neither torch nor a "
            "GPU",
            "demo.demo",
            _arg("--runs", "N", "how many runs (default: 10)", type=_NUMBER, default=10),
            _arg(
                "--wait",
                "S",
                "seconds to wait for Airflow and its DAG (default: 300)",
                type=positive_int(allow_zero=True),
                default=300,
            ),
            description="Trigger runs of the example zeus_demo in the Airflow of this host "
            "('airflow standalone'), follow them, and name the page that shows them. Runs that "
            "are there already are not triggered again.",
            of_log=False,
        ),
        _command(
            "doctor",
            "Check this host and the run log, and name remedies",
            "doctor.doctor",
            _JSON,
            _arg(
                "--measure",
                "PATTERNS",
                "look what these would name, before they are set as the option measure",
            ),
            description="Check what Zeus finds on this host, and the run log. It changes nothing. "
            "Exit status 1 if a check is an error.",
        ),
        _command(
            "check",
            "Check the Zeus tasks of a DAG without training, and name mistakes",
            "check.check_dag",
            _arg("dag_id", "DAG_ID", "the DAG"),
            _arg("--file", "PATH", "the file that defines it (default: it is looked for)"),
            _arg("--task", "TASK_ID", "only this task (default: all)"),
            _JSON,
            description="Import a DAG and check what is known without training: its file, the "
            "fields of its Zeus tasks, its schedule, the run log and this host. It changes "
            "nothing. Exit status 1 if a check is an error.",
            of_log=False,
        ),
    )


def _of_a_job() -> tuple[CLICommand, ...]:
    return (
        GroupCommand(
            name="jobs", help="List jobs, and change what their next runs do", subcommands=_jobs()
        ),
        _command(
            "runs",
            "Show the runs of a job and what each attempt cost",
            "runs.runs",
            _JOB,
            _arg(
                "--last",
                "N",
                "only the newest N (default: 20)",
                type=_NUMBER,
            ),
            _arg("--run", "RUN", "only this one: its number, or the id of its DAG run"),
            _flag("--why", "show why each batch size was chosen"),
            _OUTPUT,
        ),
    )


def _jobs() -> tuple[CLICommand, ...]:
    batch_size = _arg("batch_size", "BATCH_SIZE", "one of the job's batch_sizes", type=int)
    return (
        _command(
            "list",
            "List the jobs of the run log with their newest run",
            "jobs.list_jobs",
            _flag("--measured", "the tasks measured from outside, which are left out otherwise"),
            _OUTPUT,
        ),
        _command(
            "pin", "Train with one batch size from the next run on", "jobs.pin", _JOB, batch_size
        ),
        _command("pause", "Explore no other batch size from the next run on", "jobs.pause", _JOB),
        _command(
            "exclude",
            "Let one run teach nothing: the policy forgets it, costs and savings keep it",
            "jobs.exclude",
            _JOB,
            _arg(
                "number",
                "NUMBER",
                "of the run, as 'airflow zeus runs JOB' shows it: 12 of attempt 12.2",
                type=_NUMBER,
            ),
            _flag("--undo", "let the run teach again"),
            description="Let one run teach nothing, for example one that was paused or whose data "
            "were wrong. From the next run on the policy decides as if it had not been. Its costs "
            "and savings stay, and its page marks it.",
        ),
        _command(
            "resume",
            "Let Zeus choose the batch size again: end a pin and a pause",
            "jobs.resume",
            _JOB,
        ),
        _command(
            "reset",
            "Forget what a job has learned; its runs stay in the log",
            "jobs.reset",
            _JOB,
            ARG_YES,
            description="Forget what a job has learned: its runs stay in the run log, but teach "
            "nothing more.",
        ),
        _command(
            "rename",
            "Give the history of a job to another name",
            "jobs.rename",
            _arg("old", "OLD", "its name in the log, or a DAG that has one job"),
            _arg("new", "NEW", "a free name, such as DAG_ID.TASK_ID"),
            description="Give the runs of a job, all that they measured and its live settings to "
            "another name, for example after its DAG or task was renamed. It can be run again "
            "safely.",
        ),
    )


def _of_files() -> tuple[CLICommand, ...]:
    return (
        _command(
            "export",
            "Write the runs as CSV for people, or all of the log as JSON",
            "export.export",
            _arg("job", "JOB", "a job, or a DAG that has one job (default: all jobs)", nargs="?"),
            Arg(
                ("--format",),
                help="csv or json (default: json for FILE.json or FILE.jsonl, else csv)",
                choices=("csv", "json"),
            ),
            _arg("--output", "FILE", "file to write (default: standard output)"),
        ),
        _command(
            "import",
            "Take the JSON export of another log into the log",
            "import_log.import_",
            _arg("file", "FILE", "what 'airflow zeus export --format json' wrote"),
            description="Take all that a JSON export holds into the run log. Runs that it holds "
            "are not written again; nothing is written unless the whole file is good.",
        ),
        _command(
            "report",
            "Print what all jobs spent and saved in a month",
            "report.report",
            _arg(
                "--month", "MONTH", "calendar month in UTC, as 2026-11 (default: the present one)"
            ),
            Arg(
                ("--by",),
                help="a line for each job, owner or tag (default: job)",
                choices=("job", "owner", "tag"),
                default="job",
            ),
            _output("table", "csv", "json"),
            description="Print what each job, owner or tag spent in a month, by kind of source, "
            "and what each job saved.",
        ),
    )


def _upkeep() -> tuple[CLICommand, ...]:
    file = _arg("file", "FILE", "the backup")
    database = (
        _command("upgrade", "Create or migrate the tables of the run log", "upkeep.upgrade"),
        _command(
            "backup",
            "Copy the run log to a file, while tasks run",
            "upkeep.backup",
            file,
            description="Copy a run log in SQLite to a file, whole, while tasks run. A file of "
            "that name is replaced. For PostgreSQL it names the command of PostgreSQL.",
        ),
        _command(
            "restore",
            "Replace the run log by a backup",
            "upkeep.restore",
            file,
            ARG_YES,
            description="Replace a run log in SQLite by a backup. It asks first, and refuses "
            "while another process has the log open. For PostgreSQL it names the command of "
            "PostgreSQL.",
        ),
    )
    return (
        _command(
            "repair",
            "Clean up after processes that died: power limits, costs, attempts",
            "repair.repair",
            Arg(
                ("--close",),
                help="do nothing but close this attempt (12.2), even if its lease still runs; it "
                "asks first",
                nargs=2,
                metavar=("JOB", "ATTEMPT"),
            ),
            ARG_YES,
            description="Restore power limits that dead trainings of this host left behind, store "
            "costs that were kept while the run log could not be reached, and close attempts "
            "whose lease expired. Each step says what it did, and one that fails does not stop "
            "the others. Exit status 1 if one failed. To run it again is safe.",
        ),
        _command(
            "prune",
            "Delete power over time and decisions of old runs; their costs stay",
            "upkeep.prune",
            _arg(
                "--older-than",
                "AGE",
                "how long ago the attempts ended: 12h, 90d, 2w",
                required=True,
            ),
            _arg("--job", "JOB", "only this job, or that of this DAG (default: all jobs)"),
            _flag("--keep-decisions", "delete only power over time"),
            _flag("--dry-run", "only report what would be deleted"),
            description="Delete power over time and decisions of old runs. Costs, savings and "
            "sums stay. Open attempts and those in the policy's window are not touched.",
        ),
        GroupCommand(name="db", help="The database of the run log", subcommands=database),
    )
