"""How many samples a batch has: by the sampler that makes it, or by what it looks like."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence, pad_sequence
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler

from airflow_provider_zeus.training.drawn_batches import BatchCount
from airflow_provider_zeus.training.samples import samples_in
from tests.unit.training.conftest import Kit


@pytest.mark.parametrize(
    ("batch", "samples"),
    [
        (torch.zeros(7, 3), 7),
        ([torch.zeros(5, 2), torch.zeros(5)], 5),
        ((torch.zeros(4), {"y": 1}), 4),
        ({"x": torch.zeros(3, 2), "name": ["a", "b", "c"]}, 3),
        (UserDict({"input_ids": torch.zeros(6, 128)}), 6),
        (["a", "bc", "def"], 3),
        ([[torch.zeros(9), torch.zeros(9)], torch.zeros(9)], 9),
        ([1, 2, 3, 4], 4),
        (
            {
                "inputs": {"ids": torch.zeros(8, 10), "mask": torch.zeros(8, 10)},
                "labels": torch.zeros(8),
            },
            8,
        ),
        ([{"x": torch.zeros(7), "y": 1}] * 32, 32),
        ([(torch.zeros(5), 1)] * 32, 32),
        (tuple(zip(*[(torch.zeros(3, 8, 8), {"boxes": torch.zeros(2, 4)})] * 32, strict=True)), 32),
        ((torch.zeros(79, 32, 8), torch.zeros(32)), 32),
        ((torch.zeros(79, 20, 8), torch.zeros(20)), None),
        (pack_sequence([torch.zeros(9, 2), torch.zeros(5, 2)]), None),
        (torch.zeros(40), None),
        (torch.tensor(1.0), None),
        (torch.zeros(0, 3), 0),
        (object(), None),
        ({}, None),
    ],
)
def test_what_a_batch_tells_of_its_samples(batch: Any, samples: int | None) -> None:
    assert samples_in(batch, 32) == samples


class Sequences(Dataset):
    """100 sequences, of 20 to 79 steps."""

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> Any:
        return torch.zeros(20 + index * 7 % 60, 8), index % 2


class Stream(IterableDataset):
    def __iter__(self) -> Iterator[Any]:
        return (Sequences()[index] for index in range(100))


class Indices:
    """A sampler of batches of the user's own."""

    batch_size = 32

    def __iter__(self) -> Iterator[list[int]]:
        return iter([list(range(32)), list(range(32, 64))])


def time_first(items: list[Any]) -> Any:
    return pad_sequence([x for x, _ in items]), torch.tensor([y for _, y in items])


COLLATE: dict[str, Callable[[list[Any]], Any]] = {
    "detection": lambda items: tuple(zip(*items, strict=True)),
    "time first": time_first,
    "packed": lambda items: pack_sequence([x for x, _ in items], enforce_sorted=False),
    "list of samples": list,
    "nested": lambda items: {"inputs": {"x": time_first(items)[0]}, "labels": time_first(items)[1]},
}
LOADERS: dict[str, tuple[Any, dict[str, Any], list[int]]] = {
    "data set": (Sequences(), {"batch_size": 32, "shuffle": True}, [32, 32, 32, 4]),
    "drop_last": (Sequences(), {"batch_size": 32, "drop_last": True}, [32, 32, 32]),
    "batch sampler": (
        Sequences(),
        {"batch_sampler": BatchSampler(range(70), 32, drop_last=False)},
        [32, 32, 6],
    ),
    "part": (Sequences(), {"batch_size": 32, "sampler": RandomSampler(range(40))}, [32, 8]),
    "own batches": (Sequences(), {"batch_sampler": Indices()}, [32, 32]),
    "stream": (Stream(), {"batch_size": 32, "drop_last": True}, [32, 32, 32]),
}


@pytest.mark.parametrize("collate", COLLATE)
@pytest.mark.parametrize("kind", LOADERS)
def test_a_batch_counts_as_it_is_whatever_it_looks_like(kind: str, collate: str) -> None:
    data, options, sizes = LOADERS[kind]
    loader = DataLoader(data, collate_fn=COLLATE[collate], **options)
    for _ in range(2):
        count = BatchCount(loader)
        assert [count(batch) for batch in loader] == sizes


def test_what_is_no_torch_loader_has_the_size_that_is_given() -> None:
    assert BatchCount([1, 2], 16)([torch.zeros(16), torch.zeros(4)]) == 16
    assert BatchCount([1, 2], 16)([torch.zeros(7), torch.zeros(4)]) == 16
    assert BatchCount([1, 2])(object()) == 0, "not known"


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("even", [False, True])
def test_the_share_of_each_process_that_accelerate_makes_counts(
    kit: Kit, split: bool, even: bool
) -> None:
    """With ``split_batches`` the loader is built with the batch size of all processes."""
    parts = pytest.importorskip("accelerate.data_loader")
    for rank in (0, 1):
        run = kit.rank(rank)
        whole = BatchSampler(
            range(600), run.batch_size if split else run.local_batch_size, drop_last=False
        )
        mine = parts.BatchSamplerShard(whole, 2, rank, split_batches=split, even_batches=even)
        told: list[int] = []
        run.progress.step = told.append  # type: ignore[method-assign, assignment]
        sizes = [
            len(batch)
            for batch in run.data_loader(parts.DataLoaderShard(range(600), batch_sampler=mine))
        ]
        assert told == sizes
        assert sizes[0] == 128
