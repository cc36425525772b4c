"""Shares cut to targets: promises kept for any targets, and no single exchange left that would help."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from solvers import check_shares
from solvers.packing import cut_shares

SAMPLES = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 30), st.integers(0, 2)), min_size=1, max_size=24)


def excess_of(costs, ranks, result, targets):
    """By rank and slot: how far above its target each micro-batch is."""
    above = [[-target for target in targets] for _ in range(3)]
    for cost, rank, slot in zip(costs, ranks, result.slot_of_item.tolist(), strict=True):
        above[rank][slot] += cost
    return above


def exchanges(items, slots, worst, cap):
    """Every way to take from slot `worst`: cost that leaves it, the slot it goes to."""
    used, counts = {}, {}
    for (_, tokens), slot in zip(items, slots, strict=True):
        used[slot] = used.get(slot, 0) + tokens
        counts[slot] = counts.get(slot, 0) + 1
    mine = [item for item, slot in zip(items, slots, strict=True) if slot == worst and item[1] <= cap]
    for cost, tokens in mine:
        for slot in set(range(max(slots) + 1)) - {worst}:
            if counts[worst] > 1 and used.get(slot, 0) + tokens <= cap:
                yield cost, slot
        for (other_cost, other_tokens), slot in zip(items, slots, strict=True):
            more = tokens - other_tokens
            fits = slot != worst and used[slot] + more <= cap and used[worst] - more <= cap
            if fits and cost > other_cost:
                yield cost - other_cost, slot


@given(SAMPLES, st.integers(8, 60), st.lists(st.integers(0, 120), min_size=1, max_size=5), st.booleans())
def test_no_single_exchange_helps(samples, cap, targets, allow_empty):
    costs, tokens, ranks = (list(column) for column in zip(*samples, strict=True))
    targets = sorted(targets, reverse=True)
    try:
        rules = {"num_slots": len(targets), "allow_empty": allow_empty, "over_long": "own"}
        result = cut_shares(costs, tokens, ranks, 3, cap, targets=targets, **rules)
    except Exception as error:
        with pytest.raises(type(error)):  # the targets are wishes: what fits without them fits with them
            cut_shares(costs, tokens, ranks, 3, cap, **rules)
        return
    check_shares(costs, tokens, ranks, result, num_ranks=3, cap=cap, **rules)
    for rank, above in enumerate(excess_of(costs, ranks, result, targets)):
        worst = above.index(max(above))
        mine = [i for i in range(len(costs)) if ranks[i] == rank]
        items, slots = [(costs[i], tokens[i]) for i in mine], result.slot_of_item[mine].tolist()
        if above[worst] > 0:  # (which never took more exchanges than a rank has items)
            for moved, slot in exchanges(items, slots, worst, cap):
                assert max(above[worst] - moved, above[slot] + moved) >= above[worst]


def test_uneven_targets():
    """As high as the slots of another rank, where all wait for a long sample anyway."""
    costs = np.random.default_rng(0).integers(1, 50, 200)
    total = int(costs.sum())
    targets = [total // 2 + 3, total // 3 + 3, total // 6 + 3]
    result = cut_shares(costs, costs, [0] * 200, 1, total, num_slots=3, targets=targets)
    assert (result.slot_loads[0] <= targets).all()


@pytest.mark.parametrize(
    ("targets", "complaint"),
    [
        ([5], "targets must be one for each of num_slots = 2, got 1"),
        ([5, 6], "targets must descend"),
        ([2**63 - 5, 0], "must fit int64"),
    ],
)
def test_bad_targets(targets, complaint):
    with pytest.raises(ValueError, match=complaint):
        cut_shares([3, 4, 5], [1, 1, 1], [0, 0, 0], 1, 9, num_slots=2, targets=targets)
    with pytest.raises(ValueError, match="targets must be one for each of num_slots = None, got 2"):
        cut_shares([3, 4, 5], [1, 1, 1], [0, 0, 0], 1, 9, targets=[2, 1])
