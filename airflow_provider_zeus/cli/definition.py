"""The commands of ``airflow zeus`` for Airflow's parser. Every ``airflow`` call imports it, so it is cheap."""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from airflow_provider_zeus.airflow_compat import (
    ARG_YES,
    ActionCommand,
    Arg,
    CLICommand,
    GroupCommand,
    lazy_load_command,
    positive_int,
)

_JOB = Arg(("job",), help="name of a job in the trial log, as 'airflow zeus jobs list' shows it", metavar="JOB")
_OUTPUT = Arg(
    ("-o", "--output"),
    help="table, json, yaml or plain (default: table)",
    choices=("table", "json", "yaml", "plain"),
    default="table",
    metavar="FORM",
)


def _command(
    name: str, help_: str, path: str, *args: Arg, description: str | None = None, of_log: bool = True
) -> ActionCommand:
    """``of_log``: whether it reads or writes the trial log of a Connection."""
    func = lazy_load_command(f"airflow_provider_zeus.cli.{path}")
    if of_log:
        what = "Connection of the trial log (default: zeus_default)"
        args = (*args, Arg(("--conn-id",), help=what, default="zeus_default"))
    return ActionCommand(name=name, help=help_, func=func, args=args, description=description)


def get_zeus_cli_commands() -> list[CLICommand]:
    """The commands, which Airflow finds by the key ``cli`` of the provider info."""
    commands = (*_first_steps(), *_of_a_job(), *_of_files(), *_upkeep())
    return [
        GroupCommand(
            name="zeus", help="Energy-aware retraining: jobs, their trials, checks and repair", subcommands=commands
        )
    ]


def _first_steps() -> tuple[CLICommand, ...]:
    number = positive_int(allow_zero=False)
    return (
        _command(
            "demo",
            "Run an example ten times in the Airflow of this host; it needs neither torch nor a GPU",
            "demo.demo",
            Arg(("--runs",), help="how many runs (default: 10)", type=number, default=10, metavar="N"),
            Arg(
                ("--wait",),
                help="seconds to wait for Airflow and its DAG (default: 300)",
                type=positive_int(allow_zero=True),
                default=300,
                metavar="S",
            ),
            description="Trigger runs of the example zeus_demo in the Airflow of this host ('airflow standalone'), "
            "follow them, and name the page that shows them. Runs that are there already are not triggered again.",
            of_log=False,
        ),
        _command(
            "doctor",
            "Check this host and the trial log, and name remedies",
            "doctor.doctor",
            Arg(("--json",), help="print a list of {check, status, finding, remedy}", action="store_true"),
            description="Check what Zeus finds on this host, and the trial log. It changes nothing. Exit "
            "status 1 if a check is an error.",
        ),
        _command(
            "check",
            "Check the Zeus tasks of a DAG without training, and name mistakes",
            "check.check_dag",
            Arg(("dag_id",), help="the DAG", metavar="DAG_ID"),
            Arg(("--file",), help="the file that defines it (default: it is looked for)", metavar="PATH"),
            Arg(("--task",), help="only this task (default: all)", metavar="TASK_ID"),
            Arg(("--json",), help="print a list of {check, status, finding, remedy}", action="store_true"),
            description="Import a DAG and check what is known without training: its file, the fields of its Zeus "
            "tasks, its schedule, the trial log and this host. It changes nothing. Exit status 1 if a check is an "
            "error.",
            of_log=False,
        ),
    )


def _of_a_job() -> tuple[CLICommand, ...]:
    return (
        GroupCommand(name="jobs", help="List jobs, and change what their next runs do", subcommands=_jobs()),
        _command(
            "trials",
            "Show the trials of a job and what each cost",
            "trials.trials",
            _JOB,
            Arg(("--last",), help="only the newest N (default: 20)", type=positive_int(allow_zero=False), metavar="N"),
            Arg(("--run",), help="only those of this DAG run", metavar="RUN_ID"),
            Arg(("--why",), help="show why each batch size was chosen", action="store_true"),
            _OUTPUT,
        ),
    )


def _jobs() -> tuple[CLICommand, ...]:
    batch_size = Arg(("batch_size",), help="one of the job's batch_sizes", type=int, metavar="BATCH_SIZE")
    return (
        _command("list", "List the jobs of the trial log with their newest trial", "jobs.list_jobs", _OUTPUT),
        _command("pin", "Train with one batch size from the next run on", "jobs.pin", _JOB, batch_size),
        _command("pause", "Explore no other batch size from the next run on", "jobs.pause", _JOB),
        _command(
            "exclude",
            "Let one run teach nothing: the policy forgets it, costs and savings keep it",
            "jobs.exclude",
            _JOB,
            Arg(
                ("number",),
                help="of a trial of the run, as 'airflow zeus trials JOB' shows it",
                type=positive_int(allow_zero=False),
                metavar="NUMBER",
            ),
            Arg(("--undo",), help="let the run teach again", action="store_true"),
            description="Let one run teach nothing, for example one that was paused or whose data were wrong. From the "
            "next run on the policy decides as if it had not been. Its costs and savings stay, and its page marks it.",
        ),
        _command("resume", "Let Zeus choose the batch size again: end a pin and a pause", "jobs.resume", _JOB),
        _command(
            "reset",
            "Forget what a job has learned; its trials stay in the log",
            "jobs.reset",
            _JOB,
            ARG_YES,
            description="Forget what a job has learned: its trials stay in the trial log, but teach nothing more.",
        ),
        _command(
            "rename",
            "Give the history of a job to another name",
            "jobs.rename",
            Arg(("old",), help="the name in the log", metavar="OLD"),
            Arg(("new",), help="a free name, such as DAG_ID.TASK_ID", metavar="NEW"),
            description="Give the trials of a job, all that they measured and its live settings to another name, for "
            "example after its DAG or task was renamed. It can be run again safely.",
        ),
    )


def _of_files() -> tuple[CLICommand, ...]:
    return (
        _command(
            "export",
            "Write the trials as CSV for people, or all of the log as JSON",
            "export.export",
            Arg(("job",), help="name of a job (default: all jobs)", metavar="JOB", nargs="?"),
            Arg(
                ("--format",),
                help="csv or json (default: json for FILE.json or FILE.jsonl, else csv)",
                choices=("csv", "json"),
            ),
            Arg(("--output",), help="file to write (default: standard output)", metavar="FILE"),
        ),
        _command(
            "import",
            "Take the JSON export of another log into the log",
            "import_log.import_",
            Arg(("file",), help="what 'airflow zeus export --format json' wrote", metavar="FILE"),
            description="Take all that a JSON export holds into the trial log. Trials that it holds are not written "
            "again; nothing is written unless the whole file is good.",
        ),
        _command(
            "report",
            "Print what all jobs spent and saved in a month",
            "report.report",
            Arg(("--month",), help="calendar month in UTC, as 2026-11 (default: the present one)", metavar="MONTH"),
            Arg(
                ("--by",),
                help="a line for each job, owner or tag (default: job)",
                choices=("job", "owner", "tag"),
                default="job",
            ),
            Arg(
                ("-o", "--output"),
                help="table, csv or json (default: table)",
                choices=("table", "csv", "json"),
                default="table",
                metavar="FORM",
            ),
            description="Print what each job, owner or tag spent in a month, by kind of source, and what each job "
            "saved.",
        ),
    )


def _upkeep() -> tuple[CLICommand, ...]:
    file = Arg(("file",), help="the backup", metavar="FILE")
    database = (
        _command("upgrade", "Create or migrate the tables of the trial log", "upkeep.upgrade"),
        _command(
            "backup",
            "Copy the trial log to a file, while tasks run",
            "upkeep.backup",
            file,
            description="Copy a trial log in SQLite to a file, whole, while tasks run. A file of that name is "
            "replaced. For PostgreSQL it names the command of PostgreSQL.",
        ),
        _command(
            "restore",
            "Replace the trial log by a backup",
            "upkeep.restore",
            file,
            ARG_YES,
            description="Replace a trial log in SQLite by a backup. It asks first, and refuses while another process "
            "has the log open. For PostgreSQL it names the command of PostgreSQL.",
        ),
    )
    return (
        _command(
            "repair",
            "Clean up after processes that died: power limits, costs, trials",
            "repair.repair",
            Arg(
                ("--close",),
                help="do nothing but close this trial, even if its lease still runs; it asks first",
                nargs=2,
                metavar=("JOB", "TRIAL"),
            ),
            ARG_YES,
            description="Restore power limits that dead trainings of this host left behind, store costs that were kept "
            "while the trial log could not be reached, and close trials whose lease expired. Each step says what it "
            "did, and one that fails does not stop the others. Exit status 1 if one failed. To run it again is safe.",
        ),
        _command(
            "prune",
            "Delete power over time and decisions of old trials; their costs stay",
            "upkeep.prune",
            Arg(("--older-than",), help="how long ago the trials ended: 12h, 90d, 2w", required=True, metavar="AGE"),
            Arg(("--job",), help="only this job (default: all jobs)", metavar="NAME"),
            Arg(("--keep-trials",), help="delete only power over time", action="store_true"),
            Arg(("--dry-run",), help="only report what would be deleted", action="store_true"),
            description="Delete power over time and decisions of old trials. Costs, savings and sums stay. Open trials "
            "and those in the policy's window are not touched.",
        ),
        GroupCommand(name="db", help="The database of the trial log", subcommands=database),
    )
