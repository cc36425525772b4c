"""measure_layout: what a layout takes, beside the solver's own count and the independent checker's."""

import numpy as np
import pytest

import solvers
from solvers.context import measure_layout
from solvers.errors import ArgumentError

MASKS = {"full": 1, "window64": 5}


@pytest.mark.parametrize(("ranks", "seed"), [(2, 0), (8, 1)])
def test_counts_what_the_checker_has_counted(ranks, seed):
    lengths = np.random.default_rng(seed).lognormal(5, 1.2, 12).astype(np.int64) + 1
    found = solvers.context_shards(lengths, ranks, ranks_per_node=ranks // 2, masks=MASKS, pad=True, block=16)
    solvers.check_context_shards(
        lengths, found, num_ranks=ranks, ranks_per_node=ranks // 2, masks=MASKS, pad=True, block=16
    )
    all_rows = found.rank, found.document, found.start, found.stop
    mine = np.flatnonzero(found.document < len(lengths))
    mixed = np.random.default_rng(0).permutation(mine)
    for rows in (all_rows, [each[mine] for each in all_rows], [each[mixed] for each in all_rows]):
        given = measure_layout(lengths, ranks, rows, ranks_per_node=ranks // 2, masks=MASKS, pad=True)
        assert np.array_equal(given.work, found.work)
        assert np.array_equal(given.received, found.received)
        assert np.array_equal(given.sent, found.sent)
        assert given.crossing == found.crossing


@pytest.mark.parametrize("rule", ["head_tail", "per_document", "round_robin"])
def test_rules_give_every_rank_its_share_whatever_the_share(rule):
    """Tiles of 128 need not divide a share: what they cost is that of few tiles, not of a tile a token."""
    lengths = [40_003, 12_345, 777]
    found = measure_layout(lengths, 4, rule, pad=True)
    assert found.work.sum() == sum(n * (n + 1) // 2 for n in lengths)
    assert found.ranges.sum() <= sum(lengths) // 128 + 4 + len(lengths)


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        (([0], [0], [0], [99]), "tile the documents"),
        (([0, 1], [0, 0], [0, 40], [50, 100]), "tile the documents"),
        (([0, 0, 1], [0, 0, 1], [0, 50, 0], [50, 100, 100]), "tile the documents"),
        (([0, 2], [0, 0], [0, 50], [50, 100]), "ranks within 0..1"),
    ],
)
def test_rows_that_are_no_layout(rows, told):
    with pytest.raises(ArgumentError, match=told):
        measure_layout([100], 2, rows)


def test_unknown_rules():
    with pytest.raises(ArgumentError, match="be four arrays, or one of head_tail, per_document, round_robin"):
        measure_layout([100], 2, "magic")
