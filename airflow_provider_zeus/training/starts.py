"""The start of a training: the earlier model's weights in the fresh model, as they are or shrunk.

Shrunk is *shrink and perturb* (Ash and Adams, NeurIPS 2020): half of the earlier weights and a
tenth of the fresh ones. torch, JAX and numpy are never imported here: only what the author has
loaded is looked at.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_provider_zeus.airflow_compat import masked
from airflow_provider_zeus.log_guard import guarded_log
from airflow_provider_zeus.model.job_checks import Start
from airflow_provider_zeus.model.size_bounds import truncated
from airflow_provider_zeus.model.trial import START_UNSEEN, WHY_COLD, Observation

# A warm start alone generalises worse; weights that are shrunk, with fresh noise, mend that.
OLD = 0.5
FRESH = 0.1
UNSEEN = (
    f"{START_UNSEEN}: call run.start(model, state) after the model is built, or run.started(...)"
)

log = guarded_log(__name__)


@dataclass
class Taken:
    """The start that the models of an attempt took, and how the earlier model served."""

    planned: Start | None
    starts: set[Start] = field(default_factory=set)
    why_cold: str | None = None  # stays: one cold model of several makes the start a cold one
    served: float | None = None  # only new data show whether the earlier start was worth it

    def take(self, start: Start, why_cold: str | None = None) -> None:
        """Note the start of a model."""
        self.starts.add(start)
        self.why_cold = self.why_cold or why_cold
        planned = self.planned or Start.COLD
        if start is planned:
            log.info("Zeus: this training starts %s.", start)
        else:
            why = why_cold or "the run says so"
            log.warning(
                "Zeus: this training starts %s, and not %s as planned: %s.", start, planned, why
            )

    def end(self, *, trained: bool) -> None:
        """The attempt has ended: one that trained and said nothing of its start counts as cold."""
        if self.planned is None or self.starts:
            return
        if trained:
            self.starts = {Start.COLD}
            self.why_cold = UNSEEN
            log.warning("Zeus: %s. This run counts as a cold start.", UNSEEN)

    def put_into(self, seen: Observation) -> Observation:
        """The observation with the start that was taken, or the reason why there is none."""
        start = next(iter(self.starts), None)
        reasons = dict(seen.reasons)
        if len(self.starts) > 1:
            start = None
            reasons["start"] = "its models started differently"
        if self.why_cold is not None:
            reasons[WHY_COLD] = self.why_cold
        return replace(seen, start=start, served=self.served, reasons=reasons)


class NotTakenError(Exception):
    """Why a model starts cold, with the remedy if there is one."""


def start(model: Any, state: Any, planned: Start) -> str | None:
    """Give the model its planned start; return why it starts cold instead, or None. Raises nothing.

    :param model: a torch module, or a dict of arrays, whose entries are replaced. If it starts cold
        it is unchanged.
    :param state: of the earlier model: a state_dict or a dict of arrays, or a function that loads
        it.
    """
    try:
        if is_sharded(model):
            raise NotTakenError(
                "the model is sharded (FSDP, DTensor): call run.start() before it is sharded, or "
                "start cold"
            )
        if planned is Start.COLD:
            return None  # before the state: loading it could take long or fail, for nothing
        entries = _entries_of(state)
        if hasattr(model, "load_state_dict"):
            _start_module(model, entries, planned)
        elif isinstance(model, MutableMapping):
            # All are made before the first one is replaced: a model that starts cold is unchanged.
            for part, name, value in list(_entries(model, entries, planned, "")):
                part[name] = value
        else:
            raise NotTakenError(
                f"a {type(model).__name__} is neither a torch module nor a dict of arrays that can "
                "be changed: start it by run.planned_start, and say run.started(...)"
            )
    except NotTakenError as why:
        return str(why)
    except Exception as error:  # of the state's or the model's own code: the training goes on cold
        return truncated(
            masked(f"the earlier model cannot be loaded: {type(error).__name__}: {error}"), 500
        )
    return None


def _entries_of(state: Any) -> Mapping[Any, Any]:
    """The entries of an earlier model's state, loaded if it is a function."""
    if callable(state) and not hasattr(state, "state_dict"):  # a torch module is callable, too
        state = state()
    if state is None:
        raise NotTakenError("there is no earlier model: run.start() got None")
    if hasattr(state, "state_dict"):
        state = state.state_dict()
    if isinstance(state, Mapping):
        return state
    raise NotTakenError(
        f"the state is a {type(state).__name__}: give a state_dict, or a dict of arrays"
    )


def is_sharded(model: Any) -> bool:
    """Whether this process holds only a part of a torch model's weights."""
    kinds: set[str] = set()
    if callable(getattr(model, "modules", None)):
        for module in model.modules():
            kinds |= {kind.__name__ for kind in type(module).__mro__}
    if callable(getattr(model, "load_state_dict", None)):
        kinds |= {type(parameter).__name__ for parameter in model.parameters()}
    return not kinds.isdisjoint(
        ("FullyShardedDataParallel", "FSDPModule", "DTensor", "ShardedTensor")
    )


def _unwrapped(name: str) -> str:
    """The name of a weight without the prefix of DDP and torch.compile, or before a part of it."""
    *modules, weight = name.split(".")
    own = [module for module in modules if module not in ("module", "_orig_mod")]
    return ".".join([*own, weight])


def _start_module(model: Any, state: Mapping[str, Any], planned: Start) -> None:
    """Load the state into a torch module, trained weights shrunk if that is planned."""
    torch = sys.modules["torch"]
    fresh = model.state_dict()
    # DDP and torch.compile put prefixes before the names: wrapped or not, it is the same model.
    plain = {_unwrapped(str(name)): value for name, value in state.items()}
    names = {name: _unwrapped(name) for name in fresh}
    if fresh.keys() != state.keys() and sorted(names.values()) == sorted(plain):
        state = {name: plain[own] for name, own in names.items()}
    _check_names(fresh, state)
    # With duplicates removed, the second name of a tied weight would load it unshrunk.
    every = model.named_parameters(remove_duplicate=False)
    # Frozen weights stay as in the earlier model, like buffers. What requires gradients is of a
    # floating-point or complex type, and so can be shrunk.
    trained = {name for name, parameter in every if parameter.requires_grad}
    new = dict(state)
    kept = dict(fresh)
    for name, value in fresh.items():
        if not isinstance(value, torch.Tensor):  # a module's get_extra_state() may give anything
            continue
        old = _earlier_tensor(name, state[name], value)
        kept[name] = value.detach().clone()
        if name in trained:
            _check_finite(name, torch.isfinite(old).all())
            if planned is Start.SHRUNK:
                new[name] = OLD * old.to(value.device, value.dtype) + FRESH * value.detach()
    try:
        model.load_state_dict(new)
    except Exception:
        # It may have replaced some weights before it failed.
        model.load_state_dict(kept)
        raise


def _earlier_tensor(name: str, old: Any, fresh: Any) -> Any:
    """The earlier model's weight for a fresh one. Raises NotTakenError: it does not fit."""
    if fresh.is_meta or type(fresh).__name__ == "UninitializedParameter":
        raise NotTakenError(
            f"{name} has no weights yet: call run.start() after the model is built on its device"
        )
    if hasattr(old, "full_tensor"):
        raise NotTakenError(
            f"{name} of the earlier model is sharded (DTensor): save its full_tensor()"
        )
    tensor = sys.modules["torch"].as_tensor(old).detach()
    _check_shape(name, tuple(fresh.shape), tuple(tensor.shape))
    return tensor


def _entries(
    model: Mapping[Any, Any], state: Mapping[Any, Any], planned: Start, path: str
) -> Iterator[tuple[Any, Any, Any]]:
    """(dict, name, new value) of each entry, those of inner dicts too.

    The state's own arrays are copied.
    """
    _check_names(model, state, path)
    for name, value in model.items():
        at = f"{path}{name}"
        old = state[name]
        if isinstance(value, Mapping):
            if not isinstance(value, MutableMapping) or not isinstance(old, Mapping):
                raise NotTakenError(
                    f"{at} is no dict that can be changed: give plain dicts (flax: "
                    "unfreeze(params))"
                )
            yield from _entries(value, old, planned, f"{at}.")
            continue
        if isinstance(value, list | tuple) or not hasattr(value, "dtype"):
            raise NotTakenError(
                f"{at} is a {type(value).__name__}: give dicts whose entries are arrays"
            )
        asarray = _asarray_of(value)
        old = asarray(old, value.dtype)
        _check_shape(at, tuple(value.shape), tuple(old.shape))
        # By the name: numpy's kind of JAX's bfloat16 is that of raw bytes.
        if any(kind in str(value.dtype) for kind in ("float", "complex")):
            # NaN is not below infinity either; an empty array has no maximum of its own.
            _check_finite(at, abs(old).max(initial=0.0) < float("inf"))
            if planned is Start.SHRUNK:
                old = asarray(OLD * old + FRESH * value, value.dtype)
        yield model, name, old


def _asarray_of(value: Any) -> Callable[[Any, Any], Any]:
    """The function that makes a new array of the same kind: of JAX, else of numpy."""
    if type(value).__module__.partition(".")[0] in ("jax", "jaxlib"):
        jax: Any = sys.modules["jax"]
        return lambda array, dtype: jax.numpy.array(array, dtype=dtype)
    numpy: Any = sys.modules["numpy"]
    return lambda array, dtype: numpy.array(array, dtype=dtype)


def _check_names(fresh: Mapping[Any, Any], state: Mapping[Any, Any], path: str = "") -> None:
    if fresh.keys() == state.keys():
        return
    difference = "the earlier model has other names"
    missing = [name for name in fresh if name not in state]
    if missing:
        difference = f"{path}{missing[0]} is not in the earlier model"
    raise NotTakenError(
        f"{difference}: it was built otherwise, or the state is not the model's own; change "
        "job_version then"
    )


def _check_shape(name: str, fresh: tuple[int, ...], old: tuple[int, ...]) -> None:
    if fresh != old:
        raise NotTakenError(f"{name} has the shape {fresh}, and {old} in the earlier model")


def _check_finite(name: str, ok: Any) -> None:
    if not bool(ok):
        raise NotTakenError(f"{name} of the earlier model is not finite")
