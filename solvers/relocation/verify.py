"""The checker of relocations: every number from scratch, in plain Python and NumPy, with no code of the solver."""

import itertools
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike

from solvers._checking import require
from solvers.arguments import as_costs, as_int64
from solvers.relocation.types import RelocationResult
from solvers.types import SolveStatus

_MOST_WHOLE = 32
_PARTS_OF_A_CAP = range(2, 9)
Lies = list[dict[int, int]]  # per item: rank -> volume
Limits = list[
    tuple[list[int], list[int]]
]  # weights of items, and what each rank holds of them; costs first, counts last


def check_relocation(
    costs: ArrayLike,
    home_rank: ArrayLike | None,
    node_of_rank: ArrayLike,
    result: RelocationResult,
    *,
    volumes: ArrayLike | None = None,
    affinity: tuple[ArrayLike, ArrayLike, ArrayLike] | None = None,
    cap: int | None = None,
    equal_counts: bool = False,
    sizes: ArrayLike | None = None,
    caps: ArrayLike | None = None,
) -> None:
    """Check a relocation against what it was made from; return nothing if all holds.

    Loads, constraints, volumes and both bounds are recomputed; nothing is believed.

    Parameters
    ----------
    costs, home_rank, node_of_rank, volumes, affinity, equal_counts, sizes, caps
        As given to :func:`relocate`.
    result : RelocationResult
    cap : int, optional
        The cap that was asked for; by default, ``result.cap`` is taken as it is.

    Raises
    ------
    CertificateError
        Naming the first violated rule.

    Notes
    -----
    O(n log n) where volumes are not costs, in Python; meant for tests and debugging.

    Examples
    --------
    >>> import solvers
    >>> result = solvers.relocate([3, 2, 1], [0, 0, 1], [0, 1])
    >>> check_relocation([3, 2, 1], [0, 0, 1], [0, 1], result)
    """
    array = as_costs(costs)[0]
    nodes = as_int64("node_of_rank", node_of_rank).tolist()
    ranks = result.rank_of_item
    require(ranks.shape == array.shape and ranks.dtype == np.int32, f"rank_of_item must be int32[{len(array)}]")
    require(bool(((ranks >= 0) & (ranks < len(nodes))).all()), f"every rank must be within 0..{len(nodes) - 1}")
    loads = np.zeros(len(nodes), dtype=np.int64)
    np.add.at(loads, ranks, array)
    require(np.array_equal(loads, result.loads), "loads must be the sums of the costs on each rank")
    require(result.makespan == int(loads.max()), f"the largest load is {loads.max()}, not {result.makespan}")
    require(result.makespan <= result.cap, f"the largest load {result.makespan} is over cap = {result.cap}")
    require(cap is None or cap == result.cap, f"the cap is {cap}, not {result.cap}")
    limits = [(array.tolist(), [result.cap] * len(nodes))]
    if sizes is not None and caps is not None:
        size, room = as_costs(sizes, "sizes")[0], np.broadcast_to(np.asarray(caps), (len(nodes),))
        held = np.zeros(len(nodes), dtype=np.int64)
        np.add.at(held, ranks, size)
        over = held > room
        require(not over.any(), f"rank {int(np.argmax(over))} holds more than its token cap")
        limits.append((size.tolist(), room.tolist()))
    if equal_counts:
        few, longer = divmod(len(array), len(nodes))
        counts = np.bincount(ranks, minlength=len(nodes))
        require(bool((counts >= few).all() and (counts <= few + (longer > 0)).all()), "counts must be equal")
        limits.append(([1] * len(array), [few + (longer > 0)] * len(nodes)))
    lies = _where_it_lies(array, home_rank, volumes, affinity)
    _check_volumes(lies, ranks.tolist(), nodes, result)
    _check_bounds(lies, nodes, limits, len(array) % len(nodes) if equal_counts else None, result)


def _where_it_lies(costs: ArrayLike, home_rank: ArrayLike | None, volumes: ArrayLike | None, affinity: object) -> Lies:
    if affinity is None:
        moved = np.asarray(costs if volumes is None else volumes).tolist()
        return [{int(r): int(v)} for r, v in zip(np.asarray(home_rank).tolist(), moved, strict=True)]
    offsets, ranks, values = (np.asarray(part).tolist() for part in affinity)  # type: ignore[attr-defined]
    lies: Lies = []
    for low, high in itertools.pairwise(offsets):
        row: dict[int, int] = {}
        for j in range(int(low), int(high)):
            row[int(ranks[j])] = row.get(int(ranks[j]), 0) + int(values[j])
        lies.append(row)
    return lies


def _check_volumes(lies: Lies, ranks: list[int], nodes: list[int], result: RelocationResult) -> None:
    inter = intra = 0
    for row, target in zip(lies, ranks, strict=True):
        for rank, volume in row.items():
            if nodes[rank] != nodes[target]:
                inter += volume
            elif rank != target:
                intra += volume
    require(inter == result.inter_node_volume, f"{inter} crosses nodes, not {result.inter_node_volume}")
    require(intra == result.intra_node_volume, f"{intra} moves inside nodes, not {result.intra_node_volume}")


def _least_cut(pairs: list[tuple[int, int]], excess: int) -> int:
    """Least volume of (volume, weight) pairs, the last one cut, that weighs `excess`; rounded up."""
    least = Fraction(0)
    for volume, weight in sorted((p for p in pairs if p[1] > 0), key=lambda p: Fraction(p[0], p[1])):
        if excess <= 0:
            break
        least += volume * Fraction(min(weight, excess), weight)
        excess -= weight
    return -(-least.numerator // least.denominator)


def _least_whole(pairs: list[tuple[int, int]], excess: int) -> int:
    """Least volume of whole pairs that weighs `excess`, from all subsets of each half."""
    halves = []
    for half in (pairs[::2], pairs[1::2]):
        volumes, weights = np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64)
        for volume, weight in half:
            volumes, weights = np.append(volumes, volumes + volume), np.append(weights, weights + weight)
        order = np.argsort(weights)
        halves.append((volumes[order], weights[order]))
    (volumes, weights), (others, other_weights) = halves
    cheapest_from = np.minimum.accumulate(volumes[::-1])[::-1]
    at = np.searchsorted(weights, excess - other_weights)
    reached = at < len(weights)
    return int((others[reached] + cheapest_from[at[reached]]).min())


def _what_leaving_adds(lies: Lies, places: list[int]) -> tuple[int, list[int], list[int | None]]:
    """Return what moves if all stay where most of them lies, what leaving adds at least, and that place.

    `places[r]` is r's node, or r itself.
    """
    base = 0
    extra: list[int] = []
    home: list[int | None] = []
    for row in lies:
        held: dict[int, int] = {}
        for rank, volume in row.items():
            held[places[rank]] = held.get(places[rank], 0) + volume
        best = sorted(held.items(), key=lambda entry: (-entry[1], entry[0]))
        base += sum(held.values()) - (best[0][1] if best else 0)
        extra.append(best[0][1] - (best[1][1] if len(best) > 1 else 0) if best else 0)
        home.append(best[0][0] if best and best[0][1] > 0 else None)
    return base, extra, home


def _least_leaving(lies: Lies, places: list[int], limits: Limits, longer: int | None, name: str) -> int:
    """Least volume that does not stay at places, by the argument `name` and weaker ones."""
    base, extra, home = _what_leaving_adds(lies, places)
    costs, cap = limits[0][0], limits[0][1][0]
    if name not in ("fractional", "integer"):
        units = [cap // k + 1 for k in _PARTS_OF_A_CAP]
        limits = [([c // unit for c in costs], [cap // unit] * len(places)) for unit in units] + limits
    members: dict[int, list[int]] = {}
    for item, place in enumerate(home):
        if place is not None:
            members.setdefault(place, []).append(item)
    ranks_of: dict[int, list[int]] = {}
    for rank, place in enumerate(places):
        ranks_of.setdefault(place, []).append(rank)
    least = dict.fromkeys(members, 0)
    for place, items in members.items():
        here = ranks_of[place]
        for k, (weight, most) in enumerate(limits):
            room = sum(most[r] for r in here)
            if longer is not None and k == len(limits) - 1 and longer:
                room = len(here) * (most[0] - 1) + min(len(here), longer)
            excess = sum(weight[i] for i in items) - room
            if excess > 0:
                pairs = [(extra[i], weight[i]) for i in items]
                least[place] = max(least[place], _least_cut(pairs, excess))
                if name != "fractional" and len(pairs) <= _MOST_WHOLE:
                    least[place] = max(least[place], _least_whole(pairs, excess))
    total = sum(least.values())
    if longer is not None and name == "exchange":
        room_of = {place: cap * len(here) for place, here in ranks_of.items()}
        over = {place for place in members if sum(costs[i] for i in members[place] if extra[i]) > room_of[place]}
        inside = {i for place in over for i in members[place] if extra[i]}
        need = sum(costs[i] for i in inside) - sum(room_of[place] for place in over)
        slots = len(costs) // len(places) * sum(len(ranks_of[place]) for place in over)
        exchanged = _least_exchanged(costs, extra, inside, need, slots - len(inside))
        if exchanged is not None:
            out, back = exchanged
            total = max(total, max(out, sum(least[place] for place in over)) + back)
    return base + total


def _least_exchanged(
    costs: list[int], extra: list[int], inside: set[int], excess: int, more: int
) -> tuple[int, int] | None:
    """Least volume that leaves the items `inside`, and that comes to them: `more` items than leave.

    What leaves costs `excess` and what comes; None where nothing is known.
    """
    largest = sorted((costs[i] for i in inside), reverse=True)
    others = [i for i in range(len(costs)) if i not in inside]
    smallest = list(itertools.accumulate(sorted(costs[i] for i in others), initial=0))
    for number, gone in enumerate(itertools.accumulate(largest, initial=0)):
        back = max(0, number + more)
        if excess > 0 and back < len(smallest) and gone >= excess + smallest[back]:
            pairs = [(extra[i], costs[i]) for i in inside]
            return _least_cut(pairs, excess + smallest[back]), sum(sorted(extra[i] for i in others)[:back])
    return None


def _check_bounds(lies: Lies, nodes: list[int], limits: Limits, longer: int | None, result: RelocationResult) -> None:
    names = ("fractional", "integer", "rounded", "exchange")
    inter, intra = result.inter_node_volume, result.intra_node_volume
    for name in (result.inter_bound_name, result.intra_bound_name):
        require(name in names, f"a bound is by an unknown argument {name!r}; known are {', '.join(names)}")
    require(0 <= result.inter_bound <= inter, f"inter_bound = {result.inter_bound} must be within 0..{inter}")
    require(0 <= result.intra_bound <= intra, f"intra_bound = {result.intra_bound} must be within 0..{intra}")
    tight = result.inter_bound == inter and result.intra_bound == intra
    require((result.status is SolveStatus.OPTIMAL) == tight, f"status is {result.status.value}, but tight = {tight}")
    across = _least_leaving(lies, nodes, limits, longer, result.inter_bound_name)
    require(result.inter_bound <= across, f"inter_bound = {result.inter_bound}, but {across} is proven at most")
    in_all = _least_leaving(lies, list(range(len(nodes))), limits, longer, result.intra_bound_name)
    proven = max(in_all, across)
    require(result.leave_bound <= proven, f"leave_bound = {result.leave_bound}, but {proven} is proven at most")
    require(
        result.intra_bound <= max(0, proven - inter),
        f"intra_bound = {result.intra_bound}, but {max(0, proven - inter)} is proven at most",
    )
