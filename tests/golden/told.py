"""Results as JSON documents: numbers as they are, arrays as digests, nothing of the clock and of paths."""

import hashlib
from dataclasses import fields, is_dataclass
from enum import Enum

import numpy as np

EXCHANGE = (
    "input_split_sizes", "output_split_sizes", "input_split_elements", "output_split_elements",
    "send_order", "receive_order", "restore_order",
)  # fmt: skip


def sha(*parts):
    """SHA-256, in hex and cut to 16 digits, of bytes, text, numbers, arrays and lists of such."""
    digest = hashlib.sha256()
    for part in parts:
        _absorb(digest, part)
    return digest.hexdigest()[:16]


def _absorb(digest, part):
    if isinstance(part, bytes):
        digest.update(b"b%d:" % len(part) + part)
    elif isinstance(part, np.ndarray):
        array = np.ascontiguousarray(part)
        if array.dtype.kind in "iub":
            array = array.astype("<i8")
        digest.update(repr(("array", array.shape)).encode() + array.tobytes())
    elif isinstance(part, list | tuple):
        digest.update(b"(%d" % len(part))
        for entry in part:
            _absorb(digest, entry)
    else:
        digest.update(repr(part).encode())


def attempted(function):
    """Return what a call gives, or what it raises."""
    try:
        return function()
    except Exception as error:
        return {"raises": kinds_of(error), "message": str(error).splitlines()}


def kinds_of(error):
    """Tell what can be caught as: the nearest class of Python's own, and those of solvers that callers tell apart.

    So a class may be renamed, or derived from a class of ours in between.
    """
    names = [kind.__name__ for kind in type(error).__mro__]
    of_python = next(kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "builtins")
    return [name for name in names if name in ("ContradictionError", "InfeasibleError", "SolverError")] + [of_python]


def rounded(value):
    """Return a JSON value with its floats cut to 10 digits: the last few are the processor's."""
    if isinstance(value, float):
        return float(f"{value:.10g}")
    if isinstance(value, dict):
        return {key: rounded(entry) for key, entry in value.items()}
    return [rounded(entry) for entry in value] if isinstance(value, list | tuple) else value


def of_solver(result):
    """Tell of a solver's result: every field but its seconds."""
    return {
        spec.name: _plain(getattr(result, spec.name))
        for spec in fields(result)
        if spec.name not in ("runtime_s", "costs")
    }


def _plain(value):
    if isinstance(value, np.ndarray):
        return sha(value)
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value):
        return of_solver(value)
    return value.item() if isinstance(value, np.generic) else value


def of_plan(plan):
    """Tell of a dispatch plan: placement, certificate, what moves."""
    return {
        "digest": plan.digest(),
        "inverse": plan.inverse().digest(),
        "makespan": plan.makespan,
        "lower_bound": plan.lower_bound,
        "bound_name": plan.bound_name,
        "status": plan.status.value,
        "placement": plan.placement,
        "fell_back": plan.fell_back,
        "method": plan.method,
        "volumes": [plan.inter_node_volume, plan.intra_node_volume, plan.inter_node_bound],
        "imbalance_ratio": repr(plan.imbalance_ratio),
        "home_imbalance_ratio": repr(plan.home_imbalance_ratio),
        "loads": sha(plan.loads, plan.home_loads),
        "slots": [plan.num_slots, sha(plan.slot_of_sample)],
        "binding_sample": plan.binding_sample,
        "exchange": of_exchange(plan.exchange(plan.num_ranks - 1)),
    }


def of_exchange(exchange):
    """Tell of what one rank sends and receives."""
    return sha(*(getattr(exchange, name) for name in EXCHANGE))


def of_step(plan):
    """Tell of a step of several phases: each phase, each stream, how samples are put together."""
    return {
        "digest": plan.digest(),
        "mode": plan.mode,
        "strategy": plan.strategy,
        "num_slots": plan.num_slots,
        "encoders_first": plan.encoders_first,
        "phases": {name: of_plan(phase.plan) for name, phase in plan.phases.items()},
        "streams": {name: _of_traffic(stream.traffic(plan.topology)) for name, stream in plan.streams.items()},
        "parts": {
            name: [list(parts.streams), sha(parts.stream_of_part, parts.item_of_part, parts.sample_of_part)]
            for name, parts in plan.parts.items()
        },
        "inputs": {name: of_exchange(plan.inputs_of(name).exchange(0)) for name in plan.parts},
        "empty_ranks": {
            name: [phase.plan.empty_ranks(slot).tolist() for slot in range(min(phase.plan.num_slots, 9))]
            for name, phase in plan.phases.items()
        },
    }


def _of_traffic(traffic):
    return [getattr(traffic, name) for name in ("total", "inter_node", "intra_node", "largest_send", "largest_receive")]


def first_difference(recorded, found, path=""):
    """Say where two documents differ first; None where they agree. A plan file may have gained columns."""
    if isinstance(recorded, dict) and isinstance(found, dict):
        gained = set() if path.endswith("/columns") else set(found) - set(recorded)
        for key in sorted(set(recorded) | gained):
            if key not in found or key not in recorded:
                return f"{path}/{key}: {'is gone' if key not in found else 'is new'}"
            if (difference := first_difference(recorded[key], found[key], f"{path}/{key}")) is not None:
                return difference
        return None
    if isinstance(recorded, list) and isinstance(found, list) and len(recorded) == len(found):
        pairs = enumerate(zip(recorded, found, strict=True))
        told = (first_difference(was, now, f"{path}/{index}") for index, (was, now) in pairs)
        return next((difference for difference in told if difference is not None), None)
    if type(recorded) is type(found) and recorded == found:
        return None
    return f"{path}:\n  recorded {recorded!r}\n  found    {found!r}"
