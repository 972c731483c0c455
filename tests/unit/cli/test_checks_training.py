"""What is concluded from two steps: sizes that only look wrong are not accused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

from airflow_provider_zeus import ZeusJob
from airflow_provider_zeus.cli import checks_host
from airflow_provider_zeus.cli.check import of_command
from airflow_provider_zeus.cli.checks_training import batch_size, metric, of_training, starts, steps
from airflow_provider_zeus.cli.rehearsal import Ended, Outcome, Stage
from airflow_provider_zeus.errors import ConnectionLookupError
from airflow_provider_zeus.training.protocol.plan import RehearsalResult
from airflow_provider_zeus.training.run import ZeusRun

JOB = ZeusJob(batch_sizes=[16, 32, 64], default_batch_size=32, target="loss <= 0.1", max_epochs=3)


def outcome(**seen: object) -> Outcome:
    plan = Stage().plan(JOB, Path("/nowhere"))
    return Outcome(plan=plan, ended=Ended(), seen=RehearsalResult(**seen))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("seen", "status"),
    [
        ({"told": (16, 16), "optimizer_steps": 2, "sizes": ((16, 16),)}, "ok"),
        ({"told": (16, 16), "optimizer_steps": 2, "sizes": ((32, 16),)}, "ok"),  # the loader is one batch ahead
        ({"told": (16, 16), "optimizer_steps": 4, "sizes": ((16, 16), (0, 16))}, "ok"),  # two optimizers
        ({"told": (16, 16), "optimizer_steps": 2, "sizes": ((32, 32),)}, "error"),
        ({"told": (16,) * 8, "optimizer_steps": 2, "sizes": ((64, 64),)}, "error"),  # accumulated on top
        ({"told": (16, 16), "optimizer_steps": 2, "sizes": ((16, 16), (32, 32))}, "ok"),  # a second loader beside it
        ({"told": (8,), "optimizer_steps": 1, "sizes": ((8,),), "short": True}, "undecided"),  # eight samples in all
        ({"told": (8,), "optimizer_steps": 1, "sizes": ((8,),)}, "undecided"),  # a stream of eight
        ({"told": (4,) * 8, "optimizer_steps": 2}, "ok"),  # parts of a batch, from slices of a tensor
        ({"told": (16, 16)}, "ok"),
        ({"told": (32, 32)}, "error"),
        ({"shown": (16, 16), "optimizer_steps": 2}, "ok"),  # nothing told, and torch shows it
        ({"shown": (32, 32), "optimizer_steps": 2}, "error"),
        ({"told": (9, 23)}, "undecided"),  # sizes that vary
        ({"told": (9,)}, "undecided"),
        ({}, "undecided"),
    ],
)
def test_whether_the_batch_size_is_used(seen: dict[str, object], status: str) -> None:
    assert batch_size(outcome(**seen)).status == status


def test_whether_steps_are_told() -> None:
    assert steps(outcome(told=(16,))).status == "ok"
    assert steps(outcome(optimizer_steps=2)).status == "error"
    assert steps(outcome(optimizer_steps=2, shown=(16, 16))).status == "ok"
    assert steps(outcome(metric=0.5)).status == "error", "an epoch of another framework"
    assert steps(outcome()).status == "undecided"


@pytest.mark.parametrize(("found", "status"), [(0.5, "ok"), (0.05, "warning"), (50.0, "ok"), (None, "undecided")])
def test_a_loss_is_compared_with_its_target(found: float | None, status: str) -> None:
    finding = metric(outcome(metric=found))
    assert finding.status == status
    assert "meant" not in str(finding.remedy).replace("if that is not meant", ""), "a loss never has to rise"


@pytest.mark.parametrize(
    ("error", "seen", "check", "what", "remedy"),
    [
        (
            "run.report(loss=nan): not a finite number. The training may have diverged. (train.py:12)",
            {"names": ("acc", "loss")},
            "metric",
            "not a finite number (train.py:12)",
            "the training may have diverged",
        ),
        ('target "loss <= runtime" has no value yet. Call run.set_target(value) first.', {}, "metric", "no value yet",
         "call run.set_target(value) first"),
        ("run.report() got ['l']. Report it, as in run.report(loss=value).", {"names": ("l",)}, "metric", "got ['l']",
         "call run.report(loss=value) at the end of each epoch in run.epochs(); or name l in"),
        ("run.still_good(): run.previous is None. Check it.", {}, "training", "run.previous is None", "check it"),
        ("run.epochs(): this training is over. Use a task each.", {"metric": 0.5}, "training", "is over", "use a task"),
    ],
)  # fmt: skip
def test_the_remedy_of_an_error_is_its_own(
    error: str, seen: dict[str, object], check: str, what: str, remedy: str
) -> None:
    ended = replace(outcome(**seen), ended=Ended(error=f"ReportError: {error}", kind="report"))
    found = {f.check: f for f in of_training(ended, timeout_s=1.0) if f.status == "error"}
    assert what in found[check].finding
    assert str(found[check].remedy).startswith(remedy)
    assert (check == "metric") == ("see its metric" in str(found["training"].remedy))


@pytest.mark.parametrize(("epochs", "left"), [(3, True), (1, False)])
def test_a_loop_that_is_left_after_its_first_epoch(epochs: int, left: bool) -> None:
    def train(run: ZeusRun) -> int:
        for _ in run.epochs():
            run.step()
            run.report(loss=0.5)
            return 1
        return 2

    found = Stage().function(replace(JOB, max_epochs=epochs), train)
    assert found.seen is not None
    assert found.seen.left == left


@pytest.mark.parametrize(
    ("target", "metric", "status", "remedy"),
    [
        ("accuracy >= 0.9", 95.0, "error", "report it as a share"),
        ("accuracy >= 90", 0.95, "warning", "report it in the unit of the target"),
        ("accuracy <= 0.9", 95.0, "error", 'write "accuracy >= 0.9"'),
        ("reward >= 20", 0.95, "ok", "None"),
    ],
)
def test_what_a_command_prints(target: str, metric: float, status: str, remedy: str) -> None:
    plan = Stage().plan(replace(JOB, target=target), Path("/nowhere"))
    printed = Outcome(plan=plan, ended=Ended(), last_output=f'{{"{target.split()[0]}": {metric}}}')
    (finding,) = [f for f in of_command(printed, names_zeus=True, timeout_s=1.0) if f.check == "metric"]
    assert finding.status == status
    assert str(finding.remedy).startswith(remedy)


def looks_back(data: object) -> object:
    def part() -> object:
        return torch.utils.data.random_split(data, [0.8, 0.2])  # type: ignore[arg-type]

    return part()


@pytest.mark.parametrize(
    ("seen", "train", "found"),
    [
        ({"started": True}, len, [("ok", "the model is given its start")]),
        ({}, len, [("warning", "the start is not seen to be used")]),
        ({"started": True, "sharded": True}, len, [("error", "every run would start cold")]),
        ({"started": True}, looks_back, [("ok", "given its start"), ("warning", "random_split draws a hold-out")]),
    ],
)
def test_a_job_with_several_starts_gives_its_model_one_and_looks_forward(
    seen: dict[str, object], train: object, found: list[tuple[str, str]]
) -> None:
    of_job = replace(outcome(**seen), plan=Stage().plan(replace(JOB, starts=["cold", "warm"]), Path("/nowhere")))
    findings = list(starts(of_job, train))
    assert [finding.status for finding in findings] == [status for status, _ in found]
    assert all(said in finding.finding for finding, (_, said) in zip(findings, found, strict=True))
    assert all(finding.remedy for finding in findings if finding.status != "ok")
    assert list(starts(outcome(**seen), train)) == [], "a job that asks for no starts"


def test_the_size_is_another_one_than_the_default() -> None:
    sizes = {"target": "a >= 1", "max_epochs": 1}

    def size_of(job: ZeusJob) -> int:
        return Stage().plan(job, Path("/nowhere")).attempts[0].batch_size

    assert size_of(JOB) == 16
    assert size_of(ZeusJob(batch_sizes=[32, 64, 128], default_batch_size=32, **sizes)) == 64  # type: ignore[arg-type]
    assert size_of(ZeusJob(batch_sizes=[32], default_batch_size=32, **sizes)) == 32  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"v": 2}', '{"v": 1, "told": "x"}', '{"v": 1, "other": 1}'])
def test_what_a_training_left_instead_is_ignored(tmp_path: Path, text: str) -> None:
    path = tmp_path / "seen.json"
    path.write_text(text)
    assert RehearsalResult.read(path) is None
    assert RehearsalResult.read(tmp_path / "nowhere") is None
    seen = RehearsalResult(told=(16, 16), optimizer_steps=2, sizes=((16, 16), ()), cut=True, metric=0.5)
    seen.write(path)
    assert RehearsalResult.read(path) == seen


@pytest.mark.parametrize(
    ("least", "before", "error"), [(48, True, None), (48, False, None), (49, True, "AssertionError")]
)
def test_a_training_that_counts_its_batches_is_called_for_a_whole_epoch(
    least: int, before: bool, error: str | None
) -> None:
    def train(run: ZeusRun) -> None:
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in run.epochs():
            batches = 0
            for x in DataLoader(torch.zeros(16 * 48, 1), batch_size=run.batch_size):  # type: ignore[arg-type]
                model(x).mean().backward()
                optimizer.step()
                batches += 1
            if not before:
                run.report(loss=0.5)
            assert batches >= least
            if before:
                run.report(loss=0.5)

    ended = Stage().function(JOB, train).ended
    assert ended is not None
    assert (ended.error or "").partition(":")[0] == (error or "")


@pytest.mark.parametrize("both", [True, False])
def test_a_report_that_comes_late_in_the_epoch_is_found(both: bool) -> None:
    def train(run: ZeusRun) -> None:
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for epoch in run.epochs():
            for i, x in enumerate(DataLoader(torch.zeros(16 * 48, 1), batch_size=run.batch_size)):  # type: ignore[arg-type]
                model(x).mean().backward()
                optimizer.step()
                if both and i == 20:
                    run.report(loss=0.6)
            if epoch % 2:
                run.report(loss=0.5)
            else:
                run.report(loss=0.4)

    found = Stage().function(JOB, train, train)
    assert found.seen is not None
    assert found.seen.after == ("step" if both else "")


def test_a_signal_that_cannot_be_looked_up_is_one_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(conn_id: str) -> None:
        raise ConnectionLookupError("no database")

    monkeypatch.setattr("airflow_provider_zeus.store.open.find_connection", find)
    found = checks_host.signal("price")
    assert (found.status, found.check, found.finding) == ("error", "Connection zeus_price", "no database")
