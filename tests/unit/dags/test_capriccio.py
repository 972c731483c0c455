"""The example of the paper's drifting tweets, on slices of the same form:
a real training of a small BERT.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zeus_capriccio
from zeus_capriccio import JOB, PARAMS, read_slice

from airflow_provider_zeus.model.trial import Phase, PlannedAttempt, State
from airflow_provider_zeus.power.factory import open_device
from airflow_provider_zeus.training.protocol.events import ResultLine
from airflow_provider_zeus.training.protocol.plan import Plan
from airflow_provider_zeus.training.run import ZeusRun
from tests.unit.dags.capriccio import write_model, write_slices

pytestmark = pytest.mark.slow
SLICES = 3


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    """(folder of the slices, folder of the model). Imports transformers, which takes seconds."""
    folder = tmp_path_factory.mktemp("capriccio")
    (folder / "model").mkdir()
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("HF_HUB_OFFLINE", "1")
        for name in ("transformers", "accelerate"):
            pytest.importorskip(
                name, reason=f"{name} is not installed: airflow-provider-zeus[huggingface]"
            )
        yield write_slices(folder, SLICES), write_model(folder / "model", SLICES)


def train(
    places: tuple[Path, Path], number: int, batch_size: int, state_dir: Path
) -> tuple[ResultLine, str]:
    """(end line, folder of the model) of one training by the example's own function."""
    job = replace(JOB, target="accuracy >= 0.84", device="simulated:v100/bert_sa", mode="measure")
    plan = Plan(
        job_id="test",
        ti_id=f"{number}-{batch_size}",
        number=1,
        first_attempt=1,
        spec=job.to_dict(),
        attempts=(PlannedAttempt(batch_size=batch_size, phase=Phase.PINNED, why="Test."),),
        seed=3,
        state_dir=str(state_dir),
    )
    lines: list[ResultLine] = []
    run = ZeusRun.from_plan(
        plan, device=open_device(job.device, state_dir=state_dir), sink=lines.append
    )
    function = zeus_capriccio.zeus_capriccio().get_task("train").python_callable
    params = {name: param.value for name, param in PARAMS.items()}
    params |= {
        "slice": number,
        "folder": str(places[0]),
        "model": str(places[1]),
        "learning_rate": 2e-2,
    }
    kept = run.train(lambda of: function(run=of, params=params))
    return next(line for line in lines if line.kind == "end"), kept


@pytest.mark.parametrize(("number", "batch_size"), [(1, 16), (SLICES, 64)])
def test_a_small_bert_reaches_the_target_of_its_slice(
    places: tuple[Path, Path], number: int, batch_size: int, tmp_path: Path
) -> None:
    from transformers import AutoModelForSequenceClassification

    end, kept = train(places, number, batch_size, tmp_path)
    assert end.state is State.CONVERGED
    seen = end.observation
    assert seen is not None
    assert seen.metric is not None
    assert seen.metric >= 0.84
    assert seen.samples_per_epoch == 320
    assert seen.learning_rate == pytest.approx(2e-2 * (batch_size / 128) ** 0.5)
    assert AutoModelForSequenceClassification.from_pretrained(kept).config.num_labels == 2


def test_slices_are_read_as_the_public_generator_writes_them(places: tuple[Path, Path]) -> None:
    texts, labels = read_slice(str(places[0]), 2, "val")
    assert len(texts) == len(labels) == 80
    assert set(labels) == {0, 4}, "as in Sentiment140"


def test_the_stand_in_drifts(places: tuple[Path, Path]) -> None:
    moods: list[set[str]] = [
        {
            w
            for text in read_slice(str(places[0]), n, "train")[0]
            for w in text.split()
            if not w.startswith("word")
        }
        for n in (1, 2, 3)
    ]
    shared = [len(moods[0] & later) / len(later) for later in moods[1:]]
    assert 0.4 < shared[0] < 0.8
    assert shared[1] < shared[0]


def test_the_folder_comes_from_the_parameter_or_the_variable(
    places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    found: dict[str, Any] = {}
    monkeypatch.setattr(
        zeus_capriccio.Variable, "get", lambda name, default: found.get(name, default)
    )
    with pytest.raises(
        FileNotFoundError,
        match=r"slice = 2: .*2_train\.json.* Set the Variable zeus_capriccio_folder",
    ):
        read_slice("", 2, "train")
    found["zeus_capriccio_folder"] = str(places[0])
    assert len(read_slice("", 2, "train")[0]) == 320


def test_the_job_is_the_papers() -> None:
    """Section 6.4 and the public example: a window of 10, batch sizes 8 to 128, accuracy 84 %."""
    assert (JOB.policy, JOB.window, JOB.default_batch_size, JOB.max_epochs) == ("zeus", 10, 128, 10)
    assert PARAMS["accuracy"].value == 0.84
