"""``ZeusJob``: a DAG author's description of a recurring training.

Imported at DAG parse: standard library only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import InitVar, dataclass, fields, replace
from functools import cache, wraps
from typing import Any, Self, get_type_hints

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.model import deadline
from airflow_provider_zeus.model import job_checks as kinds
from airflow_provider_zeus.model.job_checks import (
    JobField,
    Start,
    bad,
    is_deferred,
    is_missing,
    plain,
)
from airflow_provider_zeus.model.target import Target
from airflow_provider_zeus.units import counted

# A job with some of these alone is a mistake: all four choose a batch size.
CHOICE = ("batch_sizes", "default_batch_size", "target", "max_epochs")


@dataclass(frozen=True, kw_only=True)
class ZeusJob:
    """A recurring training and how to weigh its energy against its time.

    Without ``batch_sizes``, ``default_batch_size``, ``target`` and ``max_epochs`` no batch size is
    chosen: its runs train as they are. With ``mode="measure"`` they are only measured; else their
    power limit is tuned, too, by the optimizer steps that torch reports.

    Every field may be a template string or an XComArg. Literals are checked at DAG parse, rendered
    values before the store is asked, by the same checks. Raises JobSpecError that names field,
    value and remedy.

    :param batch_sizes: batch sizes to choose from [samples].
    :param default_batch_size: the batch size used without Zeus: tried first, and the fallback. In
        ``batch_sizes``.
    :param target: condition on an epoch's metric, such as ``"accuracy >= 0.84"``; for ``"rmse <=
        runtime"`` the training sets the value by ``run.set_target()``.
    :param max_epochs: epochs after which a training ends, even below its target.
    :param eta: weight of energy against time in the cost (Eq. 2): 1 is energy alone, 0 is time
        alone.
    :param policy: how the next batch size is chosen: ``"knowledge_gradient"``, or the paper's
        ``"zeus"``.
    :param expected_runs: recurrences that the job will have in all, the first included. A short job
        tries fewer batch sizes: its lessons have to pay in the runs that are left. Default: as
        many as its schedule has until the task's ``end_date``; without one, many.
    :param notify: notifiers of Airflow (or callables that take a context) for the job's events,
        besides those of ``[zeus] notifiers``. They stay with the task and are no part of the job in
        the log.
    :param audit: now and then the default runs on purpose, if it is not known well how much the job
        saves. The cost of these runs beyond the best known batch size may be this share of all that
        the job has spent; 0: never.
    :param window: number of converged recurrences that the bandit remembers (section 4.4, data
        drift); a batch size without a run among them is tried again.
    :param retrain_every: train at least every so many runs, if ``run.still_good()`` lets runs
        keep an earlier model. Default: as long as that model is good.
    :param starts: from which model a training may start: ``"cold"``, from the earlier model
        (``"warm"``) or from a shrunk copy of it (``"shrunk"``). The function calls
        ``run.start(model, state)``; which start is tried and kept is decided with the batch size.
    :param finish_by: when a run has to end: a time of day (``"06:00"``, the next one after the
        run's ``run_after`` in the DAG's time zone), a datetime, or a timedelta from ``run_after``.
        The cheapest batch size and power limit that end in time with 95 % run. Backfills and tests
        have no deadline.
    :param start_within: how long after its ``run_after`` a run may begin: the task waits for the
        start that is cheapest by ``start_signal``, without a worker. A timedelta. Default: it
        starts at once.
    :param start_signal: the signal of the start: ``"carbon"``, ``"price"`` or the id of a *Zeus
        signal*, as ``follow``.
    :param job_id: name of the job in the log, at most 1000 bytes of UTF-8; default
        ``<dag_id>.<task_id>``, with each dot within one of these doubled.
    :param job_version: change it to forget the history, when model or code have changed too much.
    :param data_slice: name of the data of a run; default the partition key, else the end of the
        data interval.
    :param device: ``"auto"`` (an NVIDIA GPU, else the host's device), ``"nvml"`` (a GPU, or an
        error), ``"rapl"`` (the host's processors, or an error), ``"none"``, or
        ``"simulated:<gpu>/<load>"``.
    :param gpus: GPUs of one host that train together; default: those in ``CUDA_VISIBLE_DEVICES``,
        or one if it is not set; one per process if several processes train together.
    :param mode: ``optimize`` sets power limits, ``observe`` sets them only while profiling,
        ``measure`` never sets one, ``off`` measures nothing.
    :param gpu_lock: ``wait`` until no other training of this host uses the GPU, or ``share`` it:
        then no power limit is set, and the bandit does not learn energy and time.
    :param power_limits_w: power limits to try [W]; default every 25 W of the device's range.
    :param follow: choose the power limit again while the run trains, by the present price or carbon
        intensity: ``"carbon"``, ``"price"`` (Connections ``zeus_carbon``, ``zeus_price``) or the id
        of another *Zeus signal*. The energy term of Eq. 7 is multiplied by the present over the
        past week's mean.
    :param max_power_w: MAXPOWER of Eq. 2 [W]; default the device's.
    :param profile_s: seconds of steady training to measure at each power limit (section 5: five
        suffice).
    :param log_to: ``["mlflow"]`` writes the figures of each attempt into the MLflow run that the
        training has open.
    :param learn_from: run types that teach the bandit; others are logged and shown.
    :param require_target: fail the task when the kept model is below the target.
    :param strict: fail the task when the store cannot be reached, or when an exploratory attempt
        raises an error. Default: train and store the cost later; after an error train the best
        known batch size.
    """

    # They have defaults for jobs that choose no size. In a job that does (``chooses_size``) one
    # that is missing must raise JobSpecError with a remedy, and no TypeError of Python.
    batch_sizes: kinds.BatchSizes = ()
    default_batch_size: kinds.DefaultSize = None  # type: ignore[assignment]
    target: kinds.TargetText = None  # type: ignore[assignment]
    max_epochs: kinds.MaxEpochs = None
    eta: kinds.Eta = 0.5
    policy: kinds.Policy = "knowledge_gradient"
    window: kinds.OneOrMore = 250
    expected_runs: kinds.ExpectedRuns | None = None
    retrain_every: kinds.RetrainEvery | None = None
    starts: kinds.Starts = (Start.COLD.value,)
    finish_by: kinds.FinishBy | None = None  # text once the job is made: it has to be JSON
    start_within: kinds.StartWithin | None = None  # text once the job is made: it has to be JSON
    start_signal: kinds.Signal | None = None
    audit: kinds.Audit = 0.02
    notify: InitVar[Callable[[Any], Any] | Sequence[Callable[[Any], Any]]] = ()
    job_id: kinds.JobId | None = None
    job_version: kinds.Name = "1"
    data_slice: kinds.Name | None = None
    device: kinds.Device = "auto"
    gpus: kinds.Gpus | None = None
    mode: kinds.Mode = "optimize"
    gpu_lock: kinds.GpuLock = "wait"
    power_limits_w: kinds.PowerLimits | None = None
    follow: kinds.Signal | None = None
    max_power_w: kinds.MaxPower | None = None
    profile_s: kinds.ProfileS = 5.0
    learn_from: kinds.RunTypes = ("scheduled", "asset_triggered", "manual")
    log_to: kinds.Trackers = ()
    require_target: kinds.Flag = False
    strict: kinds.Flag = False

    def __post_init__(self, notify: Callable[[Any], Any] | Sequence[Callable[[Any], Any]]) -> None:
        notifiers: tuple[Any, ...] = (notify,)
        if isinstance(notify, list | tuple) and not callable(notify):
            notifiers = tuple(notify)
        for notifier in notifiers:
            if not callable(notifier) or isinstance(notifier, type):
                remedy = (
                    "give notifiers of Airflow, such as SmtpNotifier(...), or callables that take "
                    "a context"
                )
                raise bad("notify", notifier, "no notifier", remedy)
        # The class is frozen: jobs are compared and shared.
        object.__setattr__(self, "notify", notifiers)
        for name in job_fields():
            object.__setattr__(self, name, plain(getattr(self, name)))
        for name in ("finish_by", "start_within"):
            object.__setattr__(self, name, deadline.as_text(getattr(self, name)))
        self.check()
        for name, field in job_fields().items():
            value = getattr(self, name)
            is_text = isinstance(value, str)
            if field.is_list and isinstance(value, Sequence) and not is_text:
                # a copy: the caller may change its lists
                object.__setattr__(self, name, tuple(value))

    def check(self, *, rendered: bool = False) -> Self:
        """Check every literal and return self.

        Raises JobSpecError; with ``rendered`` for a template, too.
        """
        self._check_choice()
        for name, field in job_fields().items():
            value = getattr(self, name)
            if not is_deferred(value):
                if self.chooses_size or name not in CHOICE:
                    field.check(name, value)
            elif rendered:
                remedy = "use it in a templated field of the operator"
                raise bad(name, value, "a template that was not rendered", remedy)
        if self.chooses_size and not is_deferred(self.batch_sizes):
            self._check_sizes()
        # The paper's policy knows batch sizes alone.
        if self.chooses_start and self.policy == "zeus":
            remedy = (
                'leave policy out: "knowledge_gradient" chooses the start together with the batch '
                "size"
            )
            raise bad("starts", list(self.starts), 'not known to policy="zeus"', remedy)
        # A wait without a price or an intensity would wait for nothing.
        if self.start_within is not None and self.start_signal is None:
            problem = "needs a signal that says when a start is cheap"
            remedy = 'name a signal: start_signal="carbon" or "price"'
            raise bad("start_within", self.start_within, problem, remedy)
        return self

    def _check_sizes(self) -> None:
        """Raise JobSpecError if the default is not in the list, or the window is too small for
        it.
        """
        default = self.default_batch_size
        sizes = self.batch_sizes
        window = self.window
        if not is_deferred(default) and default not in sizes:
            problem = f"not in batch_sizes {list(sizes)}"
            remedy = "add it there or choose one of them"
            raise bad("default_batch_size", default, problem, remedy)
        if not is_deferred(window) and window < 2 * len(sizes):
            problem = f"too small for {len(sizes)} batch sizes: exploration alone would fill it"
            least = f"{2 * len(sizes)} (two runs that reach the target per batch size)"
            raise bad("window", window, problem, f"use at least {least} or fewer batch sizes")

    @property
    def tries_limits(self) -> bool:
        """Whether its trainings set power limits to measure them; with ``observe`` none of them
        stays.
        """
        return self.mode in ("optimize", "observe")

    @property
    def chooses_start(self) -> bool:
        """Whether its trainings may start from an earlier model."""
        return not is_deferred(self.starts) and len(self.starts) > 1

    @property
    def chooses_size(self) -> bool:
        """Whether a batch size is chosen for its runs; else they are measured as they are."""
        return any(getattr(self, name) not in (None, (), []) for name in CHOICE)

    def _check_choice(self) -> None:
        """Raise JobSpecError for missing fields of a choice of batch sizes; without one, for
        fields that need one.
        """
        missing = [name for name in CHOICE if is_missing(getattr(self, name))]
        if self.chooses_size and missing:
            needs = {
                "batch_sizes": "a list, as in [16, 32, 64]",
                "default_batch_size": "one of batch_sizes",
                "target": 'a text, as "accuracy >= 0.84"',
                "max_epochs": "1 or more",
            }
            remedy = "; ".join(f"{name} to {needs[name]}" for name in missing)
            problem = "is missing" if len(missing) == 1 else "are missing"
            raise bad(", ".join(missing), None, problem, f"set {remedy}")
        if self.chooses_size:
            return
        # Such a job neither chooses nor measures: it would do nothing at all.
        if self.mode == "off":
            remedy = f"name {', '.join(CHOICE)}; or measure the runs as they are: mode='measure'"
            raise bad("batch_sizes", None, "is missing", remedy)
        remedy = f"name {', '.join(CHOICE)} too"
        problem = "needs a job that chooses batch sizes"
        for name in ("expected_runs", "retrain_every", "finish_by", "start_within", "follow"):
            value = getattr(self, name)
            if value is not None:
                raise bad(name, value, problem, remedy)
        if self.chooses_start:
            raise bad("starts", [*self.starts], problem, remedy)
        if self.require_target is True:
            raise bad("require_target", True, "needs a target", remedy)

    @property
    def notifiers(self) -> tuple[Callable[[Any], Any], ...]:
        """``notify`` of this object; empty for a job that was read from the log."""
        notifiers: tuple[Callable[[Any], Any], ...] = vars(self)["notify"]
        return notifiers

    @property
    def parsed_target(self) -> Target:
        """The target, parsed."""
        return Target.parse(self.target)

    def with_settings(self, settings: Mapping[str, Any]) -> Self:
        """The job with the live settings ``eta`` and ``job_version`` applied, checked.

        The version is appended to the job's own, once, so that a later change in the DAG also
        resets the history.
        """
        changes: dict[str, Any] = {}
        if "eta" in settings:
            changes["eta"] = settings["eta"]
        if "job_version" in settings:
            # Appended once: a job that was read from the log may have it already.
            suffix = f"+{settings['job_version']}"
            changes["job_version"] = self.job_version.removesuffix(suffix) + suffix
        if changes:
            return replace(self, **changes)
        return self

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON; templates and XComArgs stay, for Airflow to render."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in values.items()
        }

    @classmethod
    def from_dict(cls, spec: Mapping[str, Any]) -> Self:
        """Build and check a job from a dict: of :meth:`to_dict`, mapped, or rendered (numbers may
        be strings).
        """
        if not isinstance(spec, Mapping):
            problem = "neither a ZeusJob nor a dict"
            if is_deferred(spec):  # a whole job as an XComArg says nothing before the task runs
                problem = "known only when the task runs"
            remedy = "give a ZeusJob or a dict; its fields may be XComArgs"
            raise JobSpecError.of("job", spec, problem, remedy)
        _check_names(spec)
        job_field = job_fields()
        return cls(**{name: job_field[name].read(value) for name, value in spec.items()})


def _check_names(given: Mapping[str, Any], *beside: str) -> None:
    """Raise JobSpecError for a field that a job does not have. ``beside``: other names that there
    may be.
    """
    names = sorted(job_fields())
    for name in given:
        if name not in (*names, *beside):
            from difflib import get_close_matches

            remedy = f"use one of {', '.join(names)}"
            for near in get_close_matches(str(name), job_fields(), 1):
                remedy = f"did you mean {near}? Or {remedy}"
            raise bad(name, given[name], "no such field of a job", remedy)


def _without_names(values: Sequence[Any], given: Collection[str]) -> JobSpecError:
    """The error of values that name no field: the first fields that are not given are probably
    meant.
    """
    free = [name for name in job_fields() if name not in given]
    named = [f"{name}={value!r}" for name, value in zip(free, values, strict=False)]
    problem = "too many positional arguments: each field has a name"
    too_many = len(values) - len(named)
    if too_many > 0:
        problem += f", and {counted(too_many, 'value')} more than there are fields"
    remedy = f"write ZeusJob({', '.join(named)}), if these are meant"
    return JobSpecError.of("ZeusJob", values, problem, remedy)


_made = ZeusJob.__init__  # the dataclass's own, which refuses unknown names without a remedy


@wraps(_made)
def _init(self: ZeusJob, *args: Any, **given: Any) -> None:
    """Refuse an unknown field as :meth:`from_dict` does, and values without a name."""
    _check_names(given, "notify")
    if args:
        raise _without_names(args, given)
    _made(self, **given)


ZeusJob.__init__ = _init  # type: ignore[method-assign]


@cache
def job_fields() -> dict[str, JobField]:
    """The rule of each field of a job."""
    hints = get_type_hints(ZeusJob, include_extras=True)
    return {f.name: JobField.of(hints[f.name]) for f in fields(ZeusJob)}
