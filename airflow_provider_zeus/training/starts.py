"""Where a training starts: the earlier model's weights in the fresh model, as they are or shrunk.

Shrunk is *shrink and perturb* (Ash and Adams, NeurIPS 2020): half of the earlier weights and a tenth of the fresh ones.
torch, JAX and numpy are never imported here: only what the author has loaded is looked at.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import replace
from typing import Any

from airflow_provider_zeus.airflow_compat import masked
from airflow_provider_zeus.log_guard import guarded_log
from airflow_provider_zeus.model.job_checks import Start
from airflow_provider_zeus.model.size_bounds import truncated
from airflow_provider_zeus.model.trial import START_UNSEEN, WHY_COLD, Observation

OLD, FRESH = 0.5, 0.1  # shares of the earlier and of the fresh weights in a shrunk start
UNSEEN = f"{START_UNSEEN}: call run.start(model, state) after the model is built, or run.started(...)"

log = guarded_log(__name__)


class Taken:
    """The start that the models of an attempt took, and how the earlier model served.

    :param planned: None: the job chooses no start.
    """

    def __init__(self, planned: Start | None) -> None:
        self.planned, self.starts = planned, set[Start]()
        self.why_cold: str | None = None  # why one of them did not take the planned start
        self.served: float | None = None  # metric of the earlier model on this slice

    def take(self, start: Start, why_cold: str | None = None) -> None:
        """Note the start of a model."""
        self.starts.add(start)
        self.why_cold = self.why_cold or why_cold
        planned = self.planned or Start.COLD
        if start is planned:
            log.info("Zeus: this training starts %s.", start)
        else:
            why = why_cold or "the run says so"
            log.warning("Zeus: this training starts %s, and not %s as planned: %s.", start, planned, why)

    def end(self, *, trained: bool) -> None:
        """The attempt has ended: one that trained and said nothing of its start counts as cold."""
        if self.planned is not None and not self.starts and trained:
            self.starts, self.why_cold = {Start.COLD}, UNSEEN
            log.warning("Zeus: %s. This run counts as a cold start.", UNSEEN)

    def put_into(self, seen: Observation) -> Observation:
        """The observation with the start that was taken, or the reason why there is none."""
        start = next(iter(self.starts)) if len(self.starts) == 1 else None
        reasons = {"start": "its models started differently"} if len(self.starts) > 1 else {}
        reasons |= {} if self.why_cold is None else {WHY_COLD: self.why_cold}
        return replace(seen, start=start, served=self.served, reasons={**seen.reasons, **reasons})


class NotTakenError(Exception):
    """Why a model starts cold, with the remedy where there is one."""


def start(model: Any, state: Any, planned: Start) -> str | None:
    """Give the model its planned start; return why it starts cold instead, or None. Raises nothing.

    :param model: a torch module, or a dict of arrays, whose entries are replaced. Where it starts cold it is unchanged.
    :param state: what the earlier model left: a state_dict or a dict of arrays, or a function that loads it.
    """
    try:
        if is_sharded(model):
            raise NotTakenError(
                "the model is sharded (FSDP, DTensor): call run.start() before it is sharded, or start cold"
            )
        if planned is Start.COLD:
            return None
        if callable(state) and not hasattr(state, "state_dict"):
            state = state()
        if state is None:
            return "there is no earlier model: run.start() got None"
        state = state.state_dict() if hasattr(state, "state_dict") else state
        if not isinstance(state, Mapping):
            raise NotTakenError(f"the state is a {type(state).__name__}: give a state_dict, or a dict of arrays")
        if hasattr(model, "load_state_dict"):
            _start_module(model, state, planned)
        elif isinstance(model, MutableMapping):
            for entries, name, value in list(_entries(model, state, planned, "")):
                entries[name] = value
        else:
            what = f"a {type(model).__name__} is neither a torch module nor a dict of arrays that can be changed"
            raise NotTakenError(f"{what}: start it by run.planned_start, and say run.started(...)")
    except NotTakenError as why:
        return str(why)
    except Exception as error:  # of the state's or the model's own code: the training goes on cold
        return truncated(masked(f"the earlier model cannot be loaded: {type(error).__name__}: {error}"), 500)
    return None


def is_sharded(model: Any) -> bool:
    """Whether this process holds only a part of a torch model's weights."""
    modules = model.modules() if callable(getattr(model, "modules", None)) else ()
    kinds = {kind.__name__ for module in modules for kind in type(module).__mro__}
    parameters = model.parameters() if callable(getattr(model, "load_state_dict", None)) else ()
    kinds |= {type(each).__name__ for each in parameters}
    return not kinds.isdisjoint(("FullyShardedDataParallel", "FSDPModule", "DTensor", "ShardedTensor"))


def _unwrapped(name: str) -> str:
    """The name of a weight without what DDP and torch.compile put before it, or before a part of it."""
    *modules, weight = name.split(".")
    return ".".join([*(module for module in modules if module not in ("module", "_orig_mod")), weight])


def _start_module(model: Any, state: Mapping[str, Any], planned: Start) -> None:
    """Load the state into a torch module, trained weights shrunk where that is planned."""
    torch = sys.modules["torch"]
    fresh = model.state_dict()
    if fresh.keys() != state.keys():  # saved from, or given as, a wrapped model
        plain = {_unwrapped(str(name)): value for name, value in state.items()}
        names = {name: _unwrapped(name) for name in fresh}
        if sorted(names.values()) == sorted(plain):
            state = {name: plain[own] for name, own in names.items()}
    _check_names(fresh, state)
    # tied weights stand under several names; those that are not trained are as in the earlier model, like buffers
    every = model.named_parameters(remove_duplicate=False)
    trained = {name for name, p in every if p.requires_grad and (p.is_floating_point() or p.is_complex())}
    new = dict(state)
    for name, value in fresh.items():
        if not isinstance(value, torch.Tensor):
            continue
        if value.is_meta or type(value).__name__ == "UninitializedParameter":
            raise NotTakenError(f"{name} has no weights yet: call run.start() after the model is built on its device")
        if hasattr(state[name], "full_tensor"):
            raise NotTakenError(f"{name} of the earlier model is sharded (DTensor): save its full_tensor()")
        old = torch.as_tensor(state[name]).detach()
        _check_shape(name, tuple(value.shape), tuple(old.shape))
        if name in trained:
            _check_finite(name, torch.isfinite(old).all())
            if planned is Start.SHRUNK:
                new[name] = OLD * old.to(value.device, value.dtype) + FRESH * value.detach()
    kept = {name: v.detach().clone() if isinstance(v, torch.Tensor) else v for name, v in fresh.items()}
    try:
        model.load_state_dict(new)
    except Exception:
        model.load_state_dict(kept)
        raise


def _entries(
    model: Mapping[Any, Any], state: Mapping[Any, Any], planned: Start, path: str
) -> Iterator[tuple[Any, Any, Any]]:
    """(dict, name, new value) of each entry, those of inner dicts too. The state's own arrays are copied."""
    _check_names(model, state, path)
    for name, value in model.items():
        at, old = f"{path}{name}", state[name]
        if isinstance(value, Mapping):
            if not isinstance(value, MutableMapping) or not isinstance(old, Mapping):
                raise NotTakenError(f"{at} is no dict that can be changed: give plain dicts (flax: unfreeze(params))")
            yield from _entries(value, old, planned, f"{at}.")
            continue
        if isinstance(value, list | tuple) or not hasattr(value, "dtype"):
            raise NotTakenError(f"{at} is a {type(value).__name__}: give dicts whose entries are arrays")
        asarray = _asarray_of(value)
        old = asarray(old, value.dtype)
        _check_shape(at, tuple(value.shape), tuple(old.shape))
        if any(kind in str(value.dtype) for kind in ("float", "complex")):
            _check_finite(at, abs(old).max(initial=0.0) < float("inf"))
            if planned is Start.SHRUNK:
                old = asarray(OLD * old + FRESH * value, value.dtype)
        yield model, name, old


def _asarray_of(value: Any) -> Callable[[Any, Any], Any]:
    """What makes a new array of the same kind: of JAX, else of numpy."""
    if type(value).__module__.partition(".")[0] in ("jax", "jaxlib"):
        jax: Any = sys.modules["jax"]
        return lambda array, dtype: jax.numpy.array(array, dtype=dtype)
    numpy: Any = sys.modules["numpy"]
    return lambda array, dtype: numpy.array(array, dtype=dtype)


def _check_names(fresh: Mapping[Any, Any], state: Mapping[Any, Any], path: str = "") -> None:
    if fresh.keys() == state.keys():
        return
    name = next((n for n in fresh if n not in state), None)
    what = f"{path}{name} is not in the earlier model" if name is not None else "the earlier model has other names"
    raise NotTakenError(f"{what}: it was built otherwise, or the state is not the model's own; change job_version then")


def _check_shape(name: str, fresh: tuple[int, ...], old: tuple[int, ...]) -> None:
    if fresh != old:
        raise NotTakenError(f"{name} has the shape {fresh}, and {old} in the earlier model")


def _check_finite(name: str, ok: Any) -> None:
    if not bool(ok):
        raise NotTakenError(f"{name} of the earlier model is not finite")
