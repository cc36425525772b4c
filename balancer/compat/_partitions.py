"""What the trainers' functions have in common: numbers read, and groups of indices made of the planner's answer."""

import copy
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from types import ModuleType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from balancer.planning.planner import balance
from solvers.arguments import as_int64
from solvers.errors import UsageError, Wording
from solvers.packing.schedule import schedule_micro_batches

__all__ = [
    "Patched",
    "as_lengths",
    "balanced_partitions",
    "cap_called",
    "capped_groups",
    "fewest_groups",
    "fill_empty",
    "inverse",
    "put_in_place",
    "unbalance",
]  # fmt: skip

# As `balance` takes it by default: these functions, too, run once a step.
_BUDGET = 0.01


def cap_called(name: str) -> Wording:
    """Return what a trainer calls a cap, where over-long samples are an error and nothing else."""
    return Wording({"cap": name, "over_long='own'": None})


SCALE = 2**31  # of the largest, for numbers that are no integers


def as_lengths(name: str, values: Any) -> NDArray[np.int64]:
    """Read a list, an array or a CPU tensor of numbers >= 0; fractions are scaled, as only their ratios matter."""
    # tolist() serves tensors and arrays alike, and imports no torch for it.
    array = np.asarray(values.tolist() if hasattr(values, "tolist") else list(values))
    if array.dtype.kind == "f" and array.size and np.isfinite(array).all():
        # Below 2**53 a float holds every whole number exactly; others are only ratios.
        if (array == np.floor(array)).all() and np.abs(array).max() < 2**53:
            return as_int64(name, array.astype(np.int64))
        array = np.rint(array * (SCALE / np.abs(array).max())).astype(np.int64)
    return as_int64(name, array) if array.size else np.empty(0, dtype=np.int64)


def balanced_partitions(seqlen_list: Any, k_partitions: int, equal_size: bool) -> list[list[int]]:
    """Return `k_partitions` lists of indices, each ascending, with sums as even as the planner makes them."""
    lengths = as_lengths("seqlen_list", seqlen_list)
    plan = balance(lengths, k_partitions, equal_counts=bool(equal_size))
    groups = [plan.samples_on_rank(rank).tolist() for rank in range(k_partitions)]
    if not equal_size and len(lengths) >= k_partitions:
        fill_empty(groups)
    return [sorted(group) for group in groups]


def fill_empty(groups: list[list[int]]) -> None:
    """Give every empty group an item, as trainers that step once a group need; no sum exceeds the largest for that."""
    for group in groups:
        if not group:
            group.append(max(groups, key=len).pop())  # an item alone is no more than the group it comes from


def inverse(idx_map: Any) -> Any:
    """Return the inverse of a permutation, in the type in which it came."""
    indices = np.asarray(idx_map.tolist() if hasattr(idx_map, "tolist") else list(idx_map), dtype=np.int64)
    # argsort would answer for repeated indices, too, and samples would be lost in silence.
    if not np.array_equal(np.sort(indices), np.arange(len(indices))):
        raise ValueError(f"idx_map must be a permutation of 0..{len(indices) - 1}, got {indices.tolist()[:10]}")
    back = np.argsort(indices, kind="stable")
    if isinstance(idx_map, Sequence):
        return back.tolist()
    # A copy is filled in place: so a tensor keeps its type and its device.
    found = copy.deepcopy(idx_map)
    for place, index in enumerate(back.tolist()):
        found[place] = index
    return found


def fewest_groups(tokens: NDArray[np.int64], cap: int, at_least: int = 1, multiple_of: int = 1) -> int:
    """Return the fewest groups of at most `cap` tokens each, at least so many and a multiple; InfeasibleError if none.

    Groups may be empty where there are fewer items than were asked for.
    """
    count = at_least
    if len(tokens):
        found = schedule_micro_batches(tokens, tokens, 1, cap, num_slots="fewest", time_budget=_BUDGET)
        count = max(count, int(found.num_slots))
    return -(-count // multiple_of) * multiple_of


def capped_groups(costs: NDArray[np.int64], tokens: NDArray[np.int64], cap: int, count: int) -> list[NDArray[np.int64]]:
    """Return `count` groups of indices of at most `cap` tokens each, the largest cost as small as was found."""
    # More groups than items are asked for where another rank needs more micro-batches than this one has items.
    slots = schedule_micro_batches(
        costs, tokens, 1, cap, sync="pipeline", num_slots=count, allow_empty=count > len(tokens),
        time_budget=_BUDGET,
    ).slot_of_item  # fmt: skip
    return [np.flatnonzero(slots == slot) for slot in range(count)]


def unbalance(lengths: Any, partitions: Sequence[Sequence[int]], prefix: str) -> dict[str, float]:
    """Return the sums of lengths before, as consecutive shares, and after: smallest, largest, difference, mean."""
    values, count = np.asarray(as_lengths("seqlen_list", lengths)), len(partitions)
    share = max(1, len(values) // max(1, count))
    before = [int(values[first : first + share].sum()) for first in range(0, len(values), share)] or [0]
    after = [int(values[list(part)].sum()) for part in partitions] or [0]
    # Names and meanings are verl's: curves of runs before and after must stay comparable.
    return {
        f"{prefix}/min": min(before),
        f"{prefix}/max": max(before),
        f"{prefix}/minmax_diff": max(before) - min(before),
        f"{prefix}/balanced_min": min(after),
        f"{prefix}/balanced_max": max(after),
        f"{prefix}/mean": int(values.sum()) / max(1, count),
    }


class Patched(list[str]):
    """What was replaced, by name; as a context manager, what was there before is put back at the end."""

    def __init__(self) -> None:
        super().__init__()
        self._undone = ExitStack()

    def note(self, name: str, undo: Callable[..., Any], *given: Any) -> None:
        """Take in a name, and what puts back what was there."""
        self.append(name)
        self._undone.callback(undo, *given)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._undone.close()


def put_in_place(package: str, theirs: ModuleType, ours: Mapping[str, Any], names: Iterable[str]) -> Patched:
    """Put our functions in place of theirs, also where modules of the package have imported them already.

    Returns what was replaced, ``module.name``, and undoes it; ValueError where the module lacks one of the names.
    """
    names = list(names)
    if missing := [name for name in names if not hasattr(theirs, name)]:
        raise UsageError(
            "{module} has no {missing}, so this release does not know its version; import from balancer.compat what "
            "you call",
            module=theirs.__name__, missing=", ".join(missing),
        )  # fmt: skip
    originals = {name: getattr(theirs, name) for name in names}
    replaced = Patched()
    # `from module import name` has copied the function, so it is replaced in each module that holds it.
    for title, module in sorted(sys.modules.items()):
        # None stands for a module whose import somebody has blocked.
        if module is None or not (title == package or title.startswith(f"{package}.")):
            continue
        for name in names:
            # The very same function: a module may have another one of this name.
            if vars(module).get(name) is originals[name]:
                setattr(module, name, ours[name])
                replaced.note(f"{title}.{name}", setattr, module, name, originals[name])
    return replaced
