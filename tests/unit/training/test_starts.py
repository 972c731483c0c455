"""``run.start()``: a model starts cold, warm or shrunk; what does not fit starts cold,
with the reason.
"""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from airflow_provider_zeus.errors import ReportError
from airflow_provider_zeus.model.job_checks import Start
from airflow_provider_zeus.model.trial import WHY_COLD, Observation, Previous, State
from airflow_provider_zeus.operators.external_meter import outcome_of, seen_to_use
from airflow_provider_zeus.training import starts
from airflow_provider_zeus.training.run import ZeusRun
from tests.unit.training.conftest import Kit, explore, incumbent, loop

torch = pytest.importorskip("torch")
GOOD = Previous(returned='"model.pt"')
ALL = ["cold", "shrunk", "warm"]


def net(seed: int, width: int = 4) -> Any:
    torch.manual_seed(seed)
    layers = torch.nn.Linear(3, width), torch.nn.BatchNorm1d(width), torch.nn.Linear(width, 1)
    model = torch.nn.Sequential(*layers)
    model[1].running_mean += seed
    model[1].num_batches_tracked += seed
    return model


def planned(start: str | None, size: int = 256) -> Any:
    return replace(incumbent(size), start=None if start is None else Start(start))


def weights(model: Any) -> dict[str, Any]:
    return {name: value.clone() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("start", ALL)
def test_a_torch_model_takes_its_planned_start(kit: Kit, start: str) -> None:
    old = weights(net(1))
    fresh = weights(net(2))
    model = net(2)

    def train(run: ZeusRun) -> int:
        assert run.planned_start == start
        assert run.start(model, old) == start
        return loop(run, epochs=2)

    kit.run(planned(start), previous=GOOD, starts=ALL).train(train)
    share = {"cold": (0.0, 1.0), "shrunk": (0.5, 0.1), "warm": (1.0, 0.0)}[start]
    for name, value in model.state_dict().items():
        expected = share[0] * old[name] + share[1] * fresh[name]
        if "running" in name or "tracked" in name:  # buffers and integers
            expected = fresh[name] if start == "cold" else old[name]
        assert torch.allclose(value, expected.to(value.dtype)), name
    seen = kit.last()
    assert (seen.start, seen.reasons.get(WHY_COLD)) == (start, None)


def test_a_retry_under_the_same_plan_trains_the_usual_start_alone(kit: Kit) -> None:
    warm = replace(planned("warm"), bound_epochs=2.0, bound_cost=1.0)
    alone = kit.plan(warm, planned("cold"), starts=ALL).for_retry()
    assert ([str(a.start) for a in alone.attempts], alone.first_attempt) == (["warm"], 1)
    tried = kit.plan(explore(64), incumbent(256)).for_retry()
    assert ([a.batch_size for a in tried.attempts], tried.first_attempt) == ([256], 2)


def test_a_loop_outside_of_train_runs_the_usual_start_to_its_end(kit: Kit) -> None:
    bounded = replace(planned("warm"), bound_epochs=1.0)
    run = kit.run(bounded, planned("cold"), previous=GOOD, starts=ALL)
    assert (run.planned_start, run.batch_size) == ("warm", 256)
    run.started("warm")
    assert loop(run, epochs=3) == 256, "three epochs, though one is its bound"
    assert kit.last().epochs == 3


def test_tied_weights_are_shrunk_once_and_frozen_ones_are_kept() -> None:
    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.out = torch.nn.Embedding(5, 3), torch.nn.Linear(3, 5, bias=False)
            self.out.weight = self.inner.weight
            self.frozen = torch.nn.Linear(2, 2).requires_grad_(False)

    old = Tied()
    model = Tied()
    before = model.out.weight.detach().clone()
    assert starts.start(model, old, Start.SHRUNK) is None, "a module tells its own state"
    assert torch.allclose(model.out.weight, 0.5 * old.out.weight + 0.1 * before)
    assert model.out.weight is model.inner.weight
    assert torch.equal(model.frozen.weight, old.frozen.weight)


@pytest.mark.parametrize("saved", ["compiled", "parallel", "plain"])
@pytest.mark.parametrize("given", ["compiled", "plain"])
def test_the_names_that_a_wrapper_adds_do_not_count(saved: str, given: str) -> None:
    before = {"compiled": "_orig_mod.", "parallel": "module.", "plain": ""}[saved]
    state = {before + name: value for name, value in net(1).state_dict().items()}
    model = net(2)
    target = torch.compile(model) if given == "compiled" else model
    assert starts.start(target, state, Start.WARM) is None
    assert torch.equal(model[0].weight, net(1)[0].weight)


def nan_state() -> Any:
    state = weights(net(1))
    state["0.weight"][0, 0] = float("nan")
    return state


def sharded_state() -> Any:
    state = weights(net(1))
    state["0.weight"].full_tensor = None  # as a DTensor has
    return state


def broken() -> Any:
    raise FileNotFoundError("model.pt")


class Sharded(torch.nn.Linear):
    """Stands for a model of FSDP, which needs several processes."""


Sharded.__name__ = "FullyShardedDataParallel"


@pytest.mark.parametrize(
    ("model", "state", "why"),
    [
        (net(2), None, "no earlier model"),
        (net(2), net(1, width=5), r"0.weight has the shape \(4, 3\), and \(5, 3\)"),
        (net(2), {"model": {}}, "0.weight is not in the earlier model"),
        (net(2), {**weights(net(1)), "more": torch.ones(1)}, "has other names"),
        (net(2), nan_state(), "0.weight of the earlier model is not finite"),
        (net(2), sharded_state(), "0.weight of the earlier model is sharded.*full_tensor"),
        (net(2), broken, "cannot be loaded: FileNotFoundError"),
        (net(2), [1, 2], "the state is a list"),
        (torch.nn.Sequential(Sharded(2, 2)), net(1), "sharded.*before it is sharded"),
        (torch.nn.Linear(2, 2, device="meta"), torch.nn.Linear(2, 2), "no weights yet"),
        (torch.nn.LazyLinear(2), torch.nn.Linear(2, 2), "weights yet|cannot be loaded"),
        (object(), {}, "neither a torch module nor a dict"),
        ({"w": np.ones(3)}, {"w": np.ones(2)}, "w has the shape"),
        ({"w": np.ones(3)}, {"v": np.ones(3)}, "w is not in the earlier model"),
        (
            {"w": np.ones(3)},
            {"w": np.array([1, np.inf, 0])},
            "w of the earlier model is not finite",
        ),
        ({"w": [1.0]}, {"w": [1.0]}, "w is a list"),
    ],
)
@pytest.mark.parametrize("start", [Start.WARM, Start.SHRUNK])
def test_what_does_not_fit_starts_cold_with_the_reason(
    kit: Kit, model: Any, state: Any, why: str, start: Start
) -> None:
    has_weights = hasattr(model, "state_dict") and not isinstance(model, torch.nn.LazyLinear)
    before = weights(model) if has_weights else None
    found = starts.start(model, state, start)
    assert found is not None
    assert re.search(why, found), found
    if before is not None and not any(v.is_meta for v in before.values()):
        assert all(torch.equal(v, before[n]) for n, v in model.state_dict().items()), "as it was"


def test_a_module_that_refuses_its_state_is_as_it_was() -> None:
    class Odd(torch.nn.Linear):
        def _load_from_state_dict(self, *args: Any) -> None:
            super()._load_from_state_dict(*args)
            if self.weight.sum() == 6:
                raise RuntimeError("not this one")

    model = Odd(2, 3)
    state = {"weight": torch.ones(3, 2), "bias": torch.zeros(3)}
    before = weights(model)
    assert "not this one" in (starts.start(model, state, Start.WARM) or "")
    assert torch.equal(model.weight, before["weight"])


def test_a_dict_of_arrays_gets_new_entries_and_the_state_stays() -> None:
    old = {
        "a": {"w": np.full(3, 2.0), "n": np.array([7])},
        "b": np.array([True, False]),
        "c": np.float32(4.0),
    }
    model: dict[str, Any] = {
        "a": {"w": np.full(3, 1.0, np.float32), "n": np.array([1])},
        "b": np.array([True, True]),
        "c": np.float32(2.0),
    }
    assert starts.start(model, old, Start.SHRUNK) is None
    assert model["a"]["w"].tolist() == pytest.approx([1.1] * 3)
    assert (model["a"]["w"].dtype, model["a"]["n"].tolist(), model["b"].tolist()) == (
        np.float32,
        [7],
        [True, False],
    )
    assert float(model["c"]) == pytest.approx(2.2)
    model["a"]["w"][:] = 0.0
    assert starts.start(model, old, Start.WARM) is None
    assert model["a"]["w"].tolist() == [2.0] * 3
    model["a"]["w"][:] = 0.0
    assert old["a"]["w"].tolist() == [2.0] * 3, "a training in place does not change the state"  # type: ignore[index]


def test_the_next_attempt_gets_a_fresh_model_and_the_same_previous(kit: Kit) -> None:
    given: list[tuple[str, Any, float]] = []

    def train(run: ZeusRun) -> int:
        model = net(2)
        taken = run.start(model, weights(net(1)))
        given.append((taken, run.previous, model[0].weight[0, 0].item()))
        with torch.no_grad():
            model[0].weight += 1.0
        return loop(run, epochs=4)

    tried = replace(explore(1024, bound_epochs=1.0), start=Start.WARM)
    kit.run(tried, planned("cold"), previous=GOOD, starts=ALL).train(train)
    assert given == [
        ("warm", "model.pt", net(1)[0].weight[0, 0].item()),
        ("cold", "model.pt", net(2)[0].weight[0, 0].item()),
    ]
    assert [(e.state, e.observation.start) for e in kit.ends()] == [
        (State.GIVEN_UP, "warm"),
        (State.CONVERGED, "cold"),
    ]


def test_a_start_that_is_not_seen_counts_as_cold_with_the_remedy(kit: Kit, caplog: Any) -> None:
    kit.run(planned("warm"), previous=GOOD, starts=ALL).train(loop, epochs=2)
    seen = kit.last()
    assert seen.start is Start.COLD
    assert "not seen to be used: call run.start(model, state)" in seen.reasons[WHY_COLD]
    assert "not seen to be used" in caplog.text


def test_a_job_that_asks_for_no_starts_says_nothing_of_them(kit: Kit) -> None:
    kit.run(planned(None)).train(loop, epochs=2)
    assert (kit.last().start, WHY_COLD in kit.last().reasons) == (None, False)


def test_authors_who_start_it_themselves_say_so(kit: Kit) -> None:
    def train(run: ZeusRun) -> int:
        run.started("shrunk")
        with pytest.raises(ReportError, match="no such start"):
            run.started("hot")
        run.served(acc=0.7)
        trained = loop(run, epochs=2)
        with pytest.raises(ReportError, match="trains already"):
            run.started("warm")
        return trained

    kit.run(planned("warm"), previous=GOOD, starts=ALL).train(train)
    assert (kit.last().start, kit.last().served) == ("shrunk", 0.7)


def test_two_models_that_start_differently_teach_no_start(kit: Kit) -> None:
    def train(run: ZeusRun) -> int:
        assert run.start(net(2), net(1)) == "warm"
        assert run.start(net(2), None) == "cold"
        return loop(run, epochs=2)

    kit.run(planned("warm"), previous=GOOD, starts=ALL).train(train)
    assert kit.last().start is None
    assert "differently" in kit.last().reasons["start"]


def test_still_good_keeps_the_metric_of_the_earlier_model_also_below_the_target(kit: Kit) -> None:
    def train(run: ZeusRun) -> int:
        assert not run.still_good(acc=0.6)
        return loop(run, epochs=2)

    kit.run(previous=GOOD).train(train)
    assert (kit.last().served, kit.last().metric) == (0.6, 0.9)


@pytest.mark.parametrize(
    ("text", "line", "start", "is_seen"),
    [
        ("train.py", '{"acc": 0.95}', "cold", False),
        ("train.py --start $ZEUS_START", '{"acc": 0.95}', "warm", True),
        ("train.py", '{"acc": 0.95, "start": "shrunk", "served": 0.5}', "shrunk", True),
    ],
)
def test_a_command_tells_its_start(
    kit: Kit, tmp_path: Path, text: str, line: str, start: str, is_seen: bool
) -> None:
    job = kit.plan(starts=ALL).job
    _, _, seen = outcome_of(job, line, Observation())
    seen = seen_to_use(seen, planned("warm"), ["bash", "-c", text], str(tmp_path))
    assert seen.start == start
    assert (WHY_COLD not in seen.reasons) == is_seen
    assert seen.served == (0.5 if "served" in line else None)


def test_starts_imports_no_framework() -> None:
    code = (
        "import sys, airflow_provider_zeus.training.starts; print({'torch', 'numpy', 'jax'} &"
        " set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
