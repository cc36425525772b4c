"""Context shards: counts that are exact, bounds below all layouts of tiny packs, caps kept, and bad input told."""

import dataclasses

import numpy as np
import pytest
from context_oracles import least_received, measured, must_travel
from nightly import examples

import solvers
from solvers.context import check_context_shards, context_shards
from solvers.context._measure import Rows, measure
from solvers.context._problem import as_problem
from solvers.context.layouts import RULES

MASKS = [
    {"full": 1}, {"window2": 1}, {"window3": 2, "full": 1}, {"chunk3": 1},
    {"full": 1, "chunk2": 3}, {"window2": 1, "chunk3": 1},
]  # fmt: skip


def as_oracle(masks):
    named = [(name.rstrip("0123456789"), name.lstrip("abcdefghijklmnopqrstuvwxyz"), n) for name, n in masks.items()]
    return [(kind, int(size or 0), n) for kind, size, n in named]


def pack(tokens, seed, longest=None):
    """Documents with a long tail."""
    rng, lengths = np.random.default_rng(seed), []
    while sum(lengths) < tokens:
        drawn = min(int(rng.lognormal(7, 1.7)) + 1, longest or tokens)
        lengths.append(min(drawn, tokens - sum(lengths)))
    return lengths


@pytest.mark.parametrize("seed", range(min(examples(30), 2000)))
def test_bound_optimum_and_layout_of_tiny_packs(seed):
    rng = np.random.default_rng(seed)
    ranks = int(rng.integers(2, 4))
    tokens = {2: 8, 3: 6}[ranks]
    lengths = []
    while sum(lengths) < tokens:
        lengths.append(int(min(rng.choice([1, 2, 4, 7, 9]), tokens - sum(lengths))))
    masks, slack = MASKS[seed % len(MASKS)], int(seed % 5 == 4)
    asked = {"masks": masks, "block": 1, "token_slack": slack, "eps": [0, 0.1, 0.5][seed % 3]}
    found = context_shards(lengths, ranks, time_budget=1e-4, **asked)
    check_context_shards(lengths, found, num_ranks=ranks, **asked)
    within = tokens // ranks - slack, tokens // ranks + slack
    optimum = least_received(lengths, as_oracle(masks), ranks, within, found.caps.tolist())
    assert found.lower_bound <= optimum <= found.total_received
    assert found.lower_bound == must_travel(lengths, as_oracle(masks), ranks, within, found.caps.tolist())


@pytest.mark.parametrize("masks", MASKS)
@pytest.mark.parametrize("slack", [0, 2])
def test_bounds_are_those_of_a_count_key_by_key(masks, slack):
    lengths = [41, 1, 17, 9, 4]
    found = context_shards(
        lengths, 6, masks=masks, ranks_per_node=3, block=1, token_slack=slack, eps=0, time_budget=1e-4
    )
    within, caps = (12 - slack, 12 + slack), found.caps
    assert found.lower_bound == must_travel(lengths, as_oracle(masks), 6, within, caps.tolist())
    of_nodes = must_travel(lengths, as_oracle(masks), 2, (3 * within[0], 3 * within[1]), (3 * caps).tolist())
    assert found.bound_crossing == (of_nodes if found.crossing else 0)


@pytest.mark.parametrize("masks", MASKS)
def test_counts_are_those_of_sets_of_keys(masks):
    lengths = [5, 1, 17, 9]
    found = context_shards(lengths, 4, masks=masks, block=1, time_budget=1e-4)
    owner, offset = [0] * 32, np.cumsum(lengths) - lengths
    for r, d, start, stop in zip(found.rank, found.document, found.start, found.stop, strict=True):
        owner[offset[d] + start : offset[d] + stop] = [r] * (stop - start)
    for k, (kind, size, _) in enumerate(as_oracle(masks)):
        work, received = measured(lengths, kind, size, owner, 4)
        assert (found.work[k].tolist(), found.received[k].tolist()) == (work, received)


@pytest.mark.parametrize(("masks", "node"), [(None, None), ({"full": 1, "window256": 5}, 4), ({"chunk1024": 1}, 4)])
def test_packs_are_even_checked_and_better_than_rules(masks, node):
    lengths = pack(16_384, 3, longest=5_000)
    asked = {"masks": masks, "ranks_per_node": node}
    found = context_shards(lengths, 8, **asked)
    check_context_shards(lengths, found, num_ranks=8, **asked)
    assert found.imbalance_ratio <= 1.021
    problem = as_problem(lengths, 8, node, 128, masks, 0, False)
    even = measure(problem, RULES["per_document"](problem))
    assert 3 * found.total_received < int((found.weights @ even.received).sum())
    assert context_shards(lengths, 8, **asked) == found


def test_nodes_come_first():
    lengths = pack(65_536, 5, longest=30_000)
    flat, on_nodes = (context_shards(lengths, 16, ranks_per_node=node, block=64) for node in (None, 4))
    check_context_shards(lengths, on_nodes, num_ranks=16, ranks_per_node=4, block=64)
    problem = as_problem(lengths, 16, 4, 64, None, 0, False)
    rows = Rows(flat.rank, flat.document, flat.start, flat.stop)
    assert 4 * on_nodes.crossing < 3 * measure(problem, rows).crossing
    assert on_nodes.bound_crossing <= on_nodes.crossing


def test_tokens_stay_exact_however_much_work_is_over():
    lengths = [*pack(3_000, 1), 5_192]  # one document is most of the work, and no layout is even
    for slack in (0, 7):
        found = context_shards(lengths, 16, block=128, eps=0, token_slack=slack)
        check_context_shards(lengths, found, num_ranks=16, eps=0, token_slack=slack)


def test_no_work_above_the_cap_in_packs_of_many_kinds():
    for seed in range(40):
        rng = np.random.default_rng(seed)
        ranks = int(rng.choice([2, 4, 8, 16]))
        lengths = pack(ranks * 2_048, seed, longest=int(rng.choice([300, 5_000, 1 << 20])))
        found = context_shards(lengths, ranks, block=64, time_budget=0.02)
        assert found.imbalance_ratio <= 1.0201, seed


def test_padding_is_a_document_without_work():
    asked = {"pad": True, "block": 1}
    found = context_shards([5, 6], 4, **asked)
    check_context_shards([5, 6], found, num_ranks=4, **asked)
    assert found.document.max() == 2
    assert found.work.sum() == 15 + 21


def test_a_checker_that_sees_what_is_wrong():
    lengths = pack(4_096, 1)
    found = context_shards(lengths, 4)
    check_context_shards(lengths, found, num_ranks=4)
    stop = found.stop.copy()
    stop[0] -= 1
    wrong = {
        "lower_bound": found.lower_bound + 1, "crossing": 1, "work": found.work + 1, "received": found.received + 1,
        "sent": found.sent + 1, "caps": found.caps + 1, "bound_work": found.bound_work + 1, "stop": stop,
        "ranges": found.ranges + 1, "total_received": found.total_received + 1, "rank": found.rank[::-1].copy(),
    }  # fmt: skip
    for name, value in wrong.items():
        with pytest.raises(solvers.CertificateError):
            check_context_shards(lengths, dataclasses.replace(found, **{name: value}), num_ranks=4)


def test_rows_held_are_capped_or_refused():
    lengths = [4_096]
    free = context_shards(lengths, 4)
    with pytest.raises(solvers.InfeasibleError, match="some rank holds 1024 rows of its own"):
        context_shards(lengths, 4, max_rows_held=1_023)
    with pytest.raises(solvers.SolverError, match="no layout was found") as caught:
        context_shards(lengths, 4, max_rows_held=1_024)
    assert not isinstance(caught.value, solvers.InfeasibleError)  # which nothing has proven
    context_shards(lengths, 4, max_rows_held=free.max_rows_held)


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"lengths": [5, 6]}, "lengths must sum up to a multiple of the 4 ranks, got 11; pad=True adds the 1 tokens"),
        ({"lengths": [0, 4]}, r"lengths\[0\] must be >= 1, got 0"),
        ({"lengths": []}, "lengths must hold a document at least"),
        ({"ranks_per_node": 3}, "ranks_per_node must divide the 4 ranks, got 3"),
        ({"masks": {"window0": 1}}, "masks must have a size of 1"),
        ({"masks": {}}, "masks must name a mask at least"),
        ({"masks": {"mamba": 1}}, "its state runs along the sequence"),
        ({"masks": {"full": 0}}, "have a number of layers >= 1"),
        ({"masks": {"bidirectional": 1}}, "masks must be full, windowN or chunkN, got 'bidirectional'"),
    ],
)
def test_bad_input_is_told_in_a_line(asked, told):
    with pytest.raises(ValueError, match=told) as caught:
        context_shards(**({"lengths": [12, 4], "num_ranks": 4} | asked))
    assert "\n" not in str(caught.value)


def test_a_block_is_a_16th_of_what_a_rank_has_or_less():
    for tokens, block in ((2_047, 64), (2_048, 128), (31, 1), (100_000, 128)):
        assert as_problem([tokens] * 3, 3, None, None, None, 0, False).block == block
        assert as_problem([tokens] * 3, 3, None, 7, None, 0, False).block == 7


@pytest.mark.parametrize(("asked", "status"), [({"block": 128}, "feasible"), ({"block": 1}, "optimal")])
def test_a_status_speaks_of_work_as_well(asked, status):
    """With cuts at multiples of 128 alone, one rank has 18 % more work than the mean: nothing is optimal there."""
    found = context_shards([4, 12], 2, **asked)
    assert (found.status, found.total_received) == (status, found.lower_bound)
    check_context_shards([4, 12], found, num_ranks=2, **asked)
    other = solvers.SolveStatus.OPTIMAL if status == "feasible" else solvers.SolveStatus.FEASIBLE
    with pytest.raises(solvers.CertificateError, match="status is"):
        check_context_shards([4, 12], dataclasses.replace(found, status=other), num_ranks=2, **asked)


def test_work_that_no_layout_evens_out_is_no_reason_to_say_less():
    """One query sees all of the keys that there are to a rank: its work is proven to be the least."""
    found = context_shards([3], 3, block=1)
    assert found.work.max() == found.bound_work[0] == 3
    assert found.status == "optimal"


@pytest.mark.parametrize(("lengths", "ranks", "node"), [([1], 4, 2), ([2], 6, 2), ([1, 1, 1], 6, 3), ([3], 4, 1)])
@pytest.mark.parametrize("asked", [{"token_slack": 2, "pad": True}, {"pad": True}])
def test_nodes_may_be_empty(lengths, ranks, node, asked):
    found = context_shards(lengths, ranks, ranks_per_node=node, time_budget=1e-4, **asked)
    check_context_shards(lengths, found, num_ranks=ranks, ranks_per_node=node, **asked)
