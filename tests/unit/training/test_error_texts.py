"""The whole text of errors that the author of a training function may see: field, value, remedy."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider_zeus.errors import ZeusError
from airflow_provider_zeus.training.protocol.environment import plan_of
from airflow_provider_zeus.training.ranks import Ranks
from airflow_provider_zeus.training.run import ZeusRun
from tests.golden import Table
from tests.unit.training.conftest import Kit, loop, steps


def reports(**metrics: float) -> Callable[[ZeusRun], None]:
    def train(run: ZeusRun) -> None:
        for _ in run.epochs():
            steps(run)
            run.report(**metrics)

    return train


def resumes_late(run: ZeusRun) -> None:
    for _ in run.epochs():
        run.resumed(epochs=1)


def never_reports(run: ZeusRun) -> None:
    for _ in run.epochs():
        steps(run)


def test_errors_name_field_value_and_remedy(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    for framework in (
        "transformers.trainer",
        "lightning.pytorch",
        "pytorch_lightning",
    ):
        monkeypatch.delitem(sys.modules, framework, raising=False)
    ranks = Ranks(0, 2, 0, 2)
    calls: list[Callable[[], object]] = [
        lambda: plan_of({}),
        lambda: Ranks.of({"WORLD_SIZE": "2", "RANK": "2"}),
        lambda: Ranks(0, 32).check([16, 32]),
        lambda: ZeusRun.from_plan(kit.plan(), ranks=ranks).train(reports(acc=0.1)),
        lambda: kit.run().train(never_reports),
        lambda: kit.run().train(lambda run: None),
        lambda: kit.run().train(reports(loss=0.1)),
        lambda: kit.run().train(reports(acc=float("nan"))),
        lambda: kit.run().train(lambda run: run.report(acc=0.1)),
        lambda: kit.run().train(lambda run: run.step(0)),
        lambda: kit.run().train(resumes_late),
        lambda: kit.run().train(lambda run: run.resumed(epochs=10)),
        lambda: kit.run(target="acc >= runtime").train(loop),
        lambda: kit.run(target="acc >= runtime").train(lambda run: run.set_target(float("inf"))),
        lambda: kit.run(target="acc >= 0.9").train(lambda run: run.set_target(0.1)),
        lambda: kit.run().train(lambda run: run.scale_lr(0.1, "cubic")),
        lambda: kit.run().train(lambda run: run.data_loader([1, 2], batch_size=64)),
        lambda: kit.run().train(lambda run: run.data_loader("data.csv")),
        lambda: kit.run().train(lambda run: run.data_loader(Path("data.csv"))),
        lambda: kit.run().train(lambda run: run.report({"acc": 0.1})),  # type: ignore[arg-type]
        lambda: kit.run().train(reports(acc="0.5")),  # type: ignore[arg-type]
    ]
    texts = []
    for call in calls:
        with pytest.raises(ZeusError) as error:
            call()
        texts.append(str(error.value))
    Table("training_errors").check("what a training function does wrong", "\n".join(texts))
