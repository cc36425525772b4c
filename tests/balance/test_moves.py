"""Moves without processes: they bring what pieces and streams say, both ends agree, and back is the identity."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly import examples

from balancer import Placement
from balancer.executor.moves import Segments
from balancer.plan.exchange import rank_exchange
from balancer.plan.pieces import Pieces, segments
from balancer.plan.stream import Stream
from balancer.problem.ragged import Ragged

MANY = settings(max_examples=examples(100))
seeds = st.integers(0, 2**16)


def placement(rng, items, size):
    ranks, order = rng.integers(0, size, items).astype(np.int32), rng.permutation(items).astype(np.int32)
    return Placement.by_slots(ranks, order, size, max(1, items))


def moved(found, values):
    """What every rank has after a move, run by run as ranks send them: only the rank is known of what comes."""
    moves = [found.on(rank) for rank in range(len(values))]
    after = [np.zeros(move.size, dtype=np.int64) for move in moves]
    for source, one in enumerate(moves):
        for target, other in enumerate(moves):
            sent, came = one.out.ranks == target, other.into.ranks == source
            assert one.out.sizes[sent].tolist() == other.into.sizes[came].tolist()
            ends = zip(one.out.starts[sent], other.into.starts[came], one.out.sizes[sent], strict=True)
            for start, put, size in ends:
                after[target][put : put + size] = values[source][start : start + size]
    return after


def numbered(found):
    """Each rank's elements before, no two alike and none 0."""
    ends = np.cumsum(found.before)
    return [np.arange(end - size, end) + 1 for end, size in zip(ends, found.before, strict=True)]


def rows_of(place, rows, rank):
    return np.concatenate([np.empty(0, int), *(rows[item] for item in place.samples_on_rank(rank))])


@MANY
@given(seeds, st.integers(1, 4), st.integers(0, 20))
def test_items_of_a_stream_go_where_they_are_placed_and_back(seed, size, items):
    rng = np.random.default_rng(seed)
    source, target, lengths = placement(rng, items, size), placement(rng, items, size), rng.integers(0, 5, items)
    found = Segments.of_stream(Stream("a", source, target, lengths, lengths))
    rows = [np.full(length, item + 1) for item, length in enumerate(lengths)]
    values = [rows_of(source, rows, rank) for rank in range(size)]
    there = moved(found, values)
    for rank in range(size):
        assert there[rank].tolist() == rows_of(target, rows, rank).tolist()
        # As the exchange of the plan has it, for those who write their own all-to-all.
        exchange = rank_exchange(source, target, lengths, rank)
        move = found.on(rank)
        sizes = np.bincount(move.out.ranks, move.out.sizes, size).astype(int)
        assert sizes.tolist() == exchange.input_split_elements.tolist()
    back = moved(found.home(), there)
    assert [each.tolist() for each in back] == [each.tolist() for each in values]


@MANY
@given(seeds, st.integers(1, 4), st.integers(0, 9))
def test_rows_go_to_all_ranks_that_list_them_and_one_comes_home(seed, size, items):
    rng = np.random.default_rng(seed)
    home, lengths = placement(rng, items, size), rng.integers(0, 4, items)
    takers = [sorted(rng.choice(size, rng.integers(1, size + 1), replace=False)) for _ in range(items)]
    listed = [rng.permutation([item for item in range(items) if rank in takers[item]]).tolist() for rank in range(size)]
    rows = [np.arange(length) + 10 * item + 1 for item, length in enumerate(lengths)]
    listing = Ragged.of(listed)
    found = Segments.of_rows(home, listing, lengths)
    there = moved(found, [rows_of(home, rows, rank) for rank in range(size)])
    for rank, each in enumerate(listed):
        assert there[rank].tolist() == [value for item in each for value in rows[item]]
    first = np.array([ranks[0] for ranks in takers], dtype=np.int64)
    back = found.home(first[listing.values] == found.target)
    there = [each if rank in first else -each for rank, each in enumerate(there)]
    for rank, each in enumerate(moved(back, there)):
        assert each.tolist() == rows_of(home, rows, rank).tolist()


def tiled(rng, lengths, size, padded=False):
    """Cut items into pieces, place them on ranks, and let the last ones have padding."""
    item, start, stop = [], [], []
    for number, length in enumerate(lengths):
        cuts = sorted({0, *rng.integers(0, length + 1, 2).tolist(), int(length)})
        for begin, end in zip(cuts, [*cuts[1:], None], strict=True):
            if end is not None:
                item.append(number), start.append(begin), stop.append(end + padded * 2 * (end == length))
    arrays = (np.array(each, dtype=np.int64) for each in (item, start, stop))
    return Pieces(*arrays, placement(rng, len(item), size))


def held_by(pieces, rows, rank):
    """What a rank has of items, piece by piece; 0 where there is padding."""
    mine = pieces.place.samples_on_rank(rank)
    cuts = zip(pieces.sample[mine], pieces.start[mine], pieces.stop[mine], strict=True)
    padded = [np.append(rows[item], np.zeros(9, dtype=int))[start:stop] for item, start, stop in cuts]
    return np.concatenate([np.empty(0, int), *padded])


@MANY
@given(seeds, st.integers(1, 4), st.integers(0, 8), st.booleans())
def test_pieces_go_to_pieces_among_padding_and_back(seed, size, items, padded):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 7, items)
    source, target = tiled(rng, lengths, size), tiled(rng, lengths, size, padded)
    found = Segments.of_pieces(segments("a", source, target, lengths), source, target)
    rows = [np.arange(length) + 10 * item + 1 for item, length in enumerate(lengths)]
    values = [held_by(source, rows, rank) for rank in range(size)]
    there = moved(found, values)
    for rank in range(size):
        assert there[rank].tolist() == held_by(target, rows, rank).tolist()
    back = moved(found.home(), there)
    assert [each.tolist() for each in back] == [each.tolist() for each in values]


@MANY
@given(seeds, st.integers(1, 3))
def test_several_moves_in_one(seed, size):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 7, 5)
    first, second, target = tiled(rng, lengths, size), tiled(rng, lengths, size), tiled(rng, lengths, size)
    one, other = (Segments.of_pieces(segments("a", each, target, lengths), each, target) for each in (first, second))
    alone = [moved(each, numbered(each)) for each in (one, other)]
    after = one.after + other.after  # in one buffer, the second's elements behind the first's
    behind = other._replace(target_at=other.target_at + one.after[other.target], after=after)
    found = Segments.one_after_another([one._replace(after=after), behind])
    values = [np.concatenate(pair) for pair in zip(numbered(one), numbered(other), strict=True)]
    for rank, there in enumerate(moved(found, values)):
        assert there.tolist() == [*alone[0][rank], *alone[1][rank]]


def test_elements_of_no_move_are_zeros():
    place = Placement.by_sample_order(np.zeros(1, dtype=np.int32), 1)
    whole = Pieces.whole(place, np.array([3]))
    target = Pieces(np.array([0]), np.array([0]), np.array([5]), place)
    found = Segments.of_pieces(segments("a", whole, target, np.array([3])), whole, target)
    assert moved(found, [np.array([4, 5, 6])])[0].tolist() == [4, 5, 6, 0, 0]
    with pytest.raises(IndexError):
        found.on(0).into.ranks[1]
