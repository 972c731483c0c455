"""Several processes that train together, here as threads: what they agree on,
and which mistakes are refused.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from airflow_provider_zeus.errors import BelowTargetError, JobSpecError, ReportError
from airflow_provider_zeus.model.trial import Observation, PlannedAttempt, State
from airflow_provider_zeus.training.protocol.events import AUTHORS, ResultLine
from airflow_provider_zeus.training.ranks import ALONE, RankReport, Ranks, gathered
from airflow_provider_zeus.training.run import ZeusRun
from tests.unit.training.conftest import SAMPLES, Kit, explore, incumbent, steps

TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}


class TestFromTheEnvironment:
    @pytest.mark.parametrize(
        ("environ", "ranks"),
        [
            ({}, ALONE),
            ({"WORLD_SIZE": "1", "RANK": "0"}, ALONE),
            ({"WORLD_SIZE": " "}, ALONE),
            (TORCHRUN, Ranks(5, 8, 1, 4)),
            ({"RANK": "1", "WORLD_SIZE": "2"}, Ranks(1, 2, 0, 1)),  # one process for each host
        ],
    )
    def test_who_this_is(self, environ: dict[str, str], ranks: Ranks) -> None:
        assert Ranks.of(environ) == ranks

    def test_hosts_and_who_measures_them(self) -> None:
        assert [Ranks(r, 8, r % 4, 4).measures for r in range(8)] == [True, False, False, False] * 2
        assert [
            Ranks(0, size, 0, local).hosts for size, local in ((8, 4), (8, 8), (6, 4), (1, 1))
        ] == [2, 1, 2, 1]

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            ({"RANK": ""}, "RANK = ''"),
            ({"RANK": "8"}, "RANK = 8: there are 8 processes, from 0"),
            ({"LOCAL_RANK": "4"}, "LOCAL_RANK = 4: there are 4 processes, from 0"),
            ({"LOCAL_WORLD_SIZE": "x"}, "LOCAL_WORLD_SIZE = 'x': not the number of a process"),
            ({"LOCAL_WORLD_SIZE": ""}, "LOCAL_WORLD_SIZE = ''"),
            ({"WORLD_SIZE": "two"}, "WORLD_SIZE = 'two'"),
        ],
    )
    def test_what_does_not_fit(self, change: dict[str, str], said: str) -> None:
        with pytest.raises(JobSpecError) as error:
            Ranks.of({**TORCHRUN, **change})
        assert said in str(error.value)
        assert "torchrun" in str(error.value)

    def test_a_remainder_is_refused_with_the_remedy(self, kit: Kit) -> None:
        Ranks(0, 4).check([16, 32])
        with pytest.raises(JobSpecError, match=r"\[16, 32, 40\]: 16, 40 .* 32"):
            Ranks(0, 32).check([16, 32, 40])
        with pytest.raises(JobSpecError, match=r"batch_sizes = \[256, 1024\]: .* 3 processes"):
            ZeusRun.from_plan(kit.plan(), ranks=Ranks(0, 3, 0, 3))


class AllReduce:
    """A stand-in for the process group: each process waits for all rows,
    or for the end of another process.
    """

    def __init__(self, size: int) -> None:
        self._size, self._changed, self.gone = size, threading.Condition(), False
        self._rows: list[dict[int, list[float | None]]] = [{}]  # of each exchange

    @property
    def count(self) -> int:
        return len(self._rows) - 1

    def exchange(self, rank: int, row: list[float | None]) -> list[list[float | None]]:
        with self._changed:
            rows = self._rows[-1]
            rows[rank] = [
                None if figure is None or math.isnan(figure) else float(figure) for figure in row
            ]
            if len(rows) == self._size:
                self._rows.append({})
                self._changed.notify_all()
            self._changed.wait_for(lambda: len(rows) == self._size or self.gone, 20.0)
            if len(rows) < self._size:
                raise ConnectionError("closed by peer")
            return [rows[r] for r in sorted(rows)]

    def leave(self) -> None:
        with self._changed:
            self.gone = True
            self._changed.notify_all()


@dataclass(frozen=True)
class Thread(Ranks):
    group: AllReduce = field(default_factory=lambda: AllReduce(1))

    ready = True  # type: ignore[assignment]

    def exchange(self, row: Any) -> list[list[float | None]]:
        return self.group.exchange(self.rank, list(row))


class Together:
    """Runs a function as two processes of one host would; ``lines`` is what was written,
    by whichever rank.
    """

    def __init__(self, kit: Kit) -> None:
        self.kit, self.group = kit, AllReduce(2)
        self.written: dict[int, list[ResultLine]] = {0: [], 1: []}
        self.outcomes: dict[int, Any] = {}
        self.runs: dict[int, ZeusRun] = {}

    def train(
        self,
        fn: Callable[[ZeusRun], Any],
        *attempts: PlannedAttempt,
        local_size: int = 2,
        **changes: Any,
    ) -> list[Any]:
        plans = [
            self.kit.plan(
                *attempts, **{"state_dir": str(self.kit.tmp / str(rank // local_size)), **changes}
            )
            for rank in (0, 1)
        ]
        threads = [
            threading.Thread(target=self._one, args=(rank, plans[rank], fn, local_size))
            for rank in (0, 1)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120.0)
            assert not thread.is_alive(), "one waits for the other"
        return [self.outcomes[0], self.outcomes[1]]

    def _one(self, rank: int, plan: Any, fn: Callable[[ZeusRun], Any], local_size: int) -> None:
        ranks = Thread(rank, 2, rank % local_size, local_size, group=self.group)
        try:
            run = self.runs[rank] = ZeusRun.from_plan(
                plan, sink=self.written[rank].append, ranks=ranks
            )
            self.outcomes[rank] = run.train(fn)
        except BaseException as error:
            self.outcomes[rank] = error
            self.group.leave()  # as a process group does when a member is gone

    def ends(self) -> list[tuple[int | None, State | None]]:
        return [(line.batch_size, line.state) for line in self.written[0] if line.kind == "end"]

    def last(self) -> Observation:
        observation = [line for line in self.written[0] if line.kind == "end"][-1].observation
        assert observation is not None
        return observation


@pytest.fixture
def together(kit: Kit) -> Together:
    return Together(kit)


def share(run: ZeusRun) -> None:
    """One epoch's steps of one of two processes."""
    for _ in range(SAMPLES // run.batch_size):
        run.step()


def reach(epochs: int, *, on: tuple[int, ...] = (0, 1)) -> Callable[[ZeusRun], Any]:
    """A training that reaches its target in that epoch; the ranks ``on`` report."""

    def train(run: ZeusRun) -> Any:
        seen = []
        for epoch in run.epochs():
            share(run)
            seen.append(epoch)
            if run.ranks.rank in on:
                run.report(acc=0.9 if epoch + 1 >= epochs else 0.5)
        return run.batch_size, run.local_batch_size, seen

    return train


class TestAgreement:
    @pytest.mark.parametrize("on", [(0, 1), (0,)], ids=["all report", "rank 0 reports"])
    def test_all_leave_the_loop_in_the_same_epoch(
        self, together: Together, on: tuple[int, ...]
    ) -> None:
        assert together.train(reach(3, on=on)) == [(256, 128, [0, 1, 2])] * 2
        assert together.ends() == [(256, State.CONVERGED)]
        assert together.group.count == 4, "one exchange as each epoch begins, and one at the end"

    def test_what_rank_0_reports_counts(self, together: Together) -> None:
        def train(run: ZeusRun) -> int:
            for epoch in run.epochs():
                share(run)
                run.report(acc=0.95 if run.ranks.rank else 0.5 + 0.2 * epoch)
            return epoch

        assert together.train(train) == [2, 2]
        assert together.last().metric == pytest.approx(0.9)

    def test_an_attempt_is_given_up_by_all_and_the_next_one_follows(
        self, together: Together
    ) -> None:
        attempts = (explore(1024, bound_epochs=2.0), incumbent(256))
        assert together.train(reach(4), *attempts) == [(256, 128, [0, 1, 2, 3])] * 2
        assert together.ends() == [(1024, State.GIVEN_UP), (256, State.CONVERGED)]
        assert [run.progress.killed for run in together.runs.values()] == [None, None]

    @pytest.mark.parametrize("bound", [{"bound_cost": 15_000.0}, {"max_epoch_cost": 1.0}])
    def test_bounds_in_cost_hold_at_ends_of_epochs(
        self, together: Together, bound: dict[str, float]
    ) -> None:
        together.train(reach(9), explore(1024, **bound), incumbent(256), mode="measure")
        assert together.ends()[0] == (1024, State.GIVEN_UP)
        end = next(line for line in together.written[0] if line.kind == "end")
        assert end.observation is not None
        assert end.observation.epochs == int(end.observation.epochs or 0), "not in the midst of one"

    def test_a_profile_tells_all_that_an_epoch_is_too_dear(self, together: Together) -> None:
        """Which rank 0 alone measures."""
        attempts = (explore(1024, max_epoch_cost=1.0), incumbent(256))
        together.train(reach(9), *attempts, power_limits_w=[250.0, 150.0], profile_s=1.0)
        assert together.ends()[0] == (1024, State.GIVEN_UP)
        assert together.written[0][2].profile

    def test_a_share_of_which_no_batch_is_left_fails_in_all(self, together: Together) -> None:
        def train(run: ZeusRun) -> None:
            for _ in run.epochs():
                for _ in run.data_loader(range(300), drop_last=True):
                    pass
                if not run.ranks.rank:
                    run.report(acc=1.0)

        outcomes = together.train(train, explore(1024), incumbent(256))
        assert [type(outcome) for outcome in outcomes] == [JobSpecError] * 2
        assert all(
            "batch size 512 leaves no batch of 150 samples" in str(outcome) for outcome in outcomes
        )
        assert together.ends() == [(1024, State.FAILED)]

    def test_a_loop_after_one_that_has_ended_by_itself_is_an_error(
        self, together: Together
    ) -> None:
        outcomes = together.train(lambda run: [reach(2)(run) for _ in range(2)])
        assert [type(outcome) for outcome in outcomes] == [ReportError] * 2
        assert together.ends() == [(256, State.FAILED)]

    def test_exhausted_everywhere(self, together: Together) -> None:
        outcomes = together.train(reach(99), max_epochs=2, require_target=True)
        assert [type(outcome) for outcome in outcomes] == [BelowTargetError] * 2
        assert together.ends() == [(256, State.EXHAUSTED)]

    def test_a_target_set_at_run_time_by_rank_0_alone(self, together: Together) -> None:
        def train(run: ZeusRun) -> int:
            if run.ranks.rank == 0:
                run.set_target(0.7)
            for epoch in run.epochs():
                share(run)
                run.report(acc=0.5 + 0.1 * epoch)
            return epoch

        assert together.train(train, target="acc >= runtime") == [2, 2]
        assert together.last().target_value == 0.7

    def test_what_rank_0_resumed_counts_for_all(self, together: Together) -> None:
        def train(run: ZeusRun) -> list[int]:
            if run.ranks.rank == 0:
                run.resumed(epochs=5)
            seen = []
            for epoch in run.epochs():
                seen.append(epoch)
                share(run)
                run.report(acc=0.1)
            return seen

        assert together.train(train, max_epochs=7) == [[5, 6], [5, 6]]
        assert together.last().epochs is None

    def test_only_rank_0_writes_measures_and_sets(self, together: Together) -> None:
        together.train(reach(3))
        assert [line.kind for line in together.written[0]] == ["start", "attempt", "end", "final"]
        assert together.runs[1].device.info.energy_source is None
        assert together.runs[1].progress.limits.found_w is None
        assert together.runs[0].progress.limits.found_w is not None
        assert together.kit.gpu.limit_w() == 250.0

    def test_the_loop_alone(self, together: Together, kit: Kit) -> None:
        done: dict[int, list[int]] = {}

        def one(rank: int) -> None:
            run = ZeusRun.from_plan(
                kit.plan(),
                sink=together.written[rank].append,
                ranks=Thread(rank, 2, rank, 2, group=together.group),
            )
            done[rank] = []
            for epoch in run.epochs():
                share(run)
                done[rank].append(epoch)
                run.report(acc=0.9)

        threads = [threading.Thread(target=one, args=(rank,)) for rank in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120.0)
        assert done == {0: [0], 1: [0]}
        assert together.ends() == [(256, State.CONVERGED)]


class TestSums:
    def test_samples_are_those_of_all(self, together: Together) -> None:
        def train(run: ZeusRun) -> None:
            for _ in run.epochs():
                for _ in range(10):
                    run.step(100)
                run.report(acc=0.9)

        together.train(train)
        assert (together.last().samples, together.last().samples_per_epoch) == (2000, 2000.0)

    def test_energy_of_a_host_is_that_of_all_its_gpus(self, together: Together, kit: Kit) -> None:
        together.train(reach(2), mode="measure")
        seen = together.last()
        gpu = kit.run(mode="measure", state_dir=str(kit.tmp / "alone")).device
        for _ in range(2 * SAMPLES // 256):
            gpu.on_step(128)
        alone_j = gpu.energy_j()
        assert alone_j is not None
        assert seen.time_s == pytest.approx(gpu.now_s(), rel=1e-6)
        assert seen.energy_j == pytest.approx(2 * alone_j, rel=0.02)
        assert (seen.device_count, seen.max_power_w) == (2, 500.0)
        assert seen.gpu_energy_j == pytest.approx((alone_j, alone_j), rel=0.02)
        assert sum(seen.gpu_energy_j or ()) == pytest.approx(seen.energy_j)

    def test_across_hosts_a_died_epoch_is_not_guessed(self, together: Together) -> None:
        def train(run: ZeusRun) -> None:
            for epoch in run.epochs():
                share(run)
                if epoch == 1:
                    raise ValueError("bad data")
                run.report(acc=0.5)

        together.train(train, local_size=1)
        seen = together.last()
        assert (seen.epochs, seen.samples) == (1.0, SAMPLES), "as of the last exchange"
        assert seen.energy_j
        assert together.ends() == [(256, State.FAILED)]

    def test_across_hosts_a_first_epoch_that_dies_has_no_energy_and_says_why(
        self, together: Together
    ) -> None:
        def train(run: ZeusRun) -> None:
            for _ in run.epochs():
                share(run)
                raise ValueError("bad data")

        together.train(train, local_size=1)
        assert together.last().energy_j is None
        assert "other hosts" in together.last().reasons["energy_j"]

    def test_across_hosts_no_limit_is_set(
        self, together: Together, caplog: pytest.LogCaptureFixture
    ) -> None:
        together.train(reach(2), local_size=1)
        assert [run.progress.limits.found_w for run in together.runs.values()] == [None, None]
        assert "on 2 hosts" in caplog.text
        seen = together.last()
        assert (seen.device_count, seen.max_power_w, seen.excess_j) == (2, 500.0, 0.0)
        assert (seen.gpu_energy_j, "several hosts" in seen.reasons["gpu_energy_j"]) == (None, True)


REPORT = RankReport(*[0.0] * len(RankReport._fields))


def report(**figures: float | None) -> RankReport:
    known = {
        "measures": 1.0,
        "source": 1.0,
        "devices": 4.0,
        "max_power_w": 1000.0,
        "epochs": 2.0,
        "samples": 10.0,
    }
    return REPORT._replace(**{**known, "energy_j": 100.0, "time_s": 10.0, "rest_s": 1.0, **figures})


class TestGathered:
    OWN = Observation(time_s=1.0, device_model="V100")

    def test_energy_summed_time_the_longest(self) -> None:
        other = report(energy_j=50.0, time_s=12.0, rest_s=2.0, rest_j=5.0)
        idle = report(measures=0.0, source=0.0, energy_j=None, time_s=13.0, rest_s=2.0)
        seen = gathered(self.OWN, [report(rest_j=10.0), idle, other])
        assert (seen.energy_j, seen.rest_j, seen.time_s, seen.rest_s) == (150.0, 15.0, 13.0, 2.0)
        assert (seen.device_count, seen.max_power_w, seen.energy_source) == (
            8,
            2000.0,
            "nvml_counter",
        )
        assert seen.device_model == "V100"

    def test_a_host_that_does_not_tell_makes_it_unknown(self) -> None:
        seen = gathered(self.OWN, [report(), report(energy_j=None)])
        assert seen.energy_j is None
        assert seen.reasons["energy_j"]

    def test_sources_are_never_mixed(self) -> None:
        seen = gathered(self.OWN, [report(), report(source=2.0)])
        assert (seen.energy_j, seen.energy_source) == (None, None)


class TestMistakes:
    def test_one_that_leaves_the_loop_early_is_named_by_all(self, together: Together) -> None:
        def train(run: ZeusRun) -> None:
            for epoch in run.epochs():
                share(run)
                run.report(acc=0.5)
                if epoch == 1 and run.ranks.rank == 1:
                    break

        outcomes = together.train(train)
        assert all("rank 1 of 2" in str(outcome) for outcome in outcomes)
        assert together.ends() == [(256, State.FAILED)]

    def test_all_that_leave_in_the_same_epoch_keep_their_model(self, together: Together) -> None:
        def train(run: ZeusRun) -> str:
            for epoch in run.epochs():
                share(run)
                if run.ranks.rank == 0:
                    run.report(acc=0.5)
                if epoch == 1:
                    break
            return "model"

        assert together.train(train) == ["model", "model"]
        assert together.ends() == [(256, State.EXHAUSTED)]
        assert together.last().epochs == 2

    def test_a_model_is_kept_where_another_process_is_gone_once_the_function_returned(
        self, together: Together
    ) -> None:
        def train(run: ZeusRun) -> str:
            for epoch in run.epochs():
                share(run)
                run.report(acc=0.5)
                if epoch == 1:
                    break
            if run.ranks.rank == 1:
                raise SystemExit(1)
            return "model"

        assert together.train(train)[0] == "model"
        assert together.ends() == [(256, State.EXHAUSTED)]

    def test_ranks_in_different_epochs(self, together: Together) -> None:
        def train(run: ZeusRun) -> None:
            epochs = run.epochs()
            next(epochs)
            share(run)
            run.report(acc=0.5)
            if run.ranks.rank == 1:
                run.progress.present.names.clear()  # as after another epoch of its own
                steps(run)
                run.report(acc=0.5)
            next(epochs)

        outcomes = together.train(train)
        assert all(
            "(attempt, epochs done) = [(1, 1), (1, 2)]" in str(outcome) for outcome in outcomes
        )

    def test_an_epoch_without_a_report_of_rank_0(self, together: Together) -> None:
        outcomes = together.train(reach(3, on=(1,)))
        assert [type(outcome) for outcome in outcomes] == [ReportError] * 2
        assert all("run.report(acc=...)" in str(outcome) for outcome in outcomes)

    def test_out_of_memory_in_one_of_them_ends_it(self, together: Together) -> None:
        """Whoever started the processes starts them again for the next attempt."""

        def train(run: ZeusRun) -> None:
            for _ in run.epochs():
                if run.batch_size == 1024:
                    raise MemoryError

        outcomes = together.train(train, explore(1024), incumbent(256))
        assert {type(outcome) for outcome in outcomes} == {MemoryError}
        assert together.ends() == [(1024, State.FAILED)]
        assert together.last().out_of_memory

    def test_an_error_after_the_loop_has_ended_is_none_of_the_batch_size(
        self, together: Together
    ) -> None:
        def train(run: ZeusRun) -> None:
            reach(2)(run)
            raise ValueError("the model cannot be saved")

        outcomes = together.train(train, explore(1024), incumbent(256))
        assert {type(outcome) for outcome in outcomes} == {ValueError}
        assert together.ends() == [(1024, State.FAILED)]
        end = next(line for line in together.written[0] if line.kind == "end")
        assert AUTHORS in end.notes, "so no other one is started in its place"

    def test_no_process_group(self, kit: Kit) -> None:
        with pytest.raises(JobSpecError, match=r"torch\.distributed = None"):
            kit.rank(0).train(reach(2))


class TestLoader:
    def test_shares_are_disjoint_and_counted_as_a_whole(self, together: Together) -> None:
        torch = pytest.importorskip("torch")
        seen: dict[int, list[list[int]]] = {0: [], 1: []}

        def train(run: ZeusRun) -> None:
            for _ in run.epochs():
                data = torch.utils.data.TensorDataset(torch.arange(1030))
                seen[run.ranks.rank].append([])
                for (batch,) in run.data_loader(data, shuffle=True):
                    assert len(batch) <= 128
                    seen[run.ranks.rank][-1] += batch.tolist()
                run.report(acc=0.9 if len(seen[run.ranks.rank]) == 2 else 0.1)

        assert together.train(train) == [None, None]
        for mine, theirs in zip(seen[0], seen[1], strict=True):
            assert sorted(mine + theirs) == list(range(1030))
        assert seen[0][0] != seen[0][1], "another order in each epoch"
        assert (together.last().samples, together.last().samples_per_epoch) == (2060, 1030.0)

    def test_one_loader_for_all_epochs_has_another_order_in_each_too(self, kit: Kit) -> None:
        torch = pytest.importorskip("torch")
        run = kit.rank(1)
        loader = run.data_loader(torch.utils.data.TensorDataset(torch.arange(600)), shuffle=True)
        passes = [
            [x for (batch,) in loader.loader for x in batch.tolist()]
            for _ in range(2)
            if iter(loader)
        ]
        assert sorted(passes[0]) != sorted(passes[1])
        assert len(passes[0]) == 300

    def test_what_only_iterates_divides_itself(
        self, kit: Kit, caplog: pytest.LogCaptureFixture
    ) -> None:
        torch = pytest.importorskip("torch")

        class Mine(torch.utils.data.IterableDataset):
            def __iter__(self) -> Any:
                return iter(range(10))

        run = kit.rank(0)
        assert [len(batch) for _ in range(2) for batch in run.data_loader(Mine()).loader] == [
            10,
            10,
        ]
        assert (
            caplog.text.count("each of 2 processes goes over all of the iterable data set, unless")
            == 1
        )
        caplog.clear()
        kit.run().data_loader(Mine())
        assert not caplog.text, "one process alone"

    def test_a_loader_over_all_of_the_data_is_warned_about_once(
        self, kit: Kit, caplog: pytest.LogCaptureFixture
    ) -> None:
        torch = pytest.importorskip("torch")
        run = kit.rank(0)
        data = torch.utils.data.TensorDataset(torch.arange(600))
        for _ in range(2):
            run.data_loader(torch.utils.data.DataLoader(data, batch_size=run.local_batch_size))
        assert caplog.text.count("each of 2 processes") == 1
        with pytest.raises(JobSpecError, match=r"run\.local_batch_size"):
            run.data_loader(torch.utils.data.DataLoader(data, batch_size=run.batch_size))

    def test_a_loader_whose_batches_are_divided_is_not_warned_about(
        self, kit: Kit, caplog: pytest.LogCaptureFixture
    ) -> None:
        """As Accelerate divides them: by a sampler of batches,
        around the one of all of the data.
        """
        torch = pytest.importorskip("torch")
        data = torch.utils.data.TensorDataset(torch.arange(512))

        class Mine(torch.utils.data.BatchSampler):
            def __iter__(self) -> Any:
                return (batch for index, batch in enumerate(super().__iter__()) if index % 2)

        run = kit.rank(0)
        mine = Mine(torch.utils.data.SequentialSampler(data), run.local_batch_size, drop_last=False)
        run.data_loader(torch.utils.data.DataLoader(data, batch_sampler=mine))
        own = torch.utils.data.DistributedSampler(data, 2, 0)
        whole = torch.utils.data.BatchSampler(own, run.local_batch_size, drop_last=False)
        run.data_loader(data, batch_sampler=whole)
        assert "each of 2 processes" not in caplog.text
