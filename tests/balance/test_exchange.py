"""Exchanges: whatever moves arrives, and comes back."""

import numpy as np
import pytest
from balance_cases import DTYPES, all_to_all, assert_same, dispatch, payload_of, placements, problems, restore
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly import examples

import balancer
from balancer import Placement
from balancer.plan.exchange import rank_exchange

trailing_shapes = st.sampled_from([(), (3,), (2, 0), (1, 2)])
dtypes = st.sampled_from(DTYPES)


def exchanges_of(plan):
    return [plan.exchange(rank) for rank in range(plan.num_ranks)]


def between(source, target, lengths):
    return [rank_exchange(source, target, lengths, rank) for rank in range(source.num_ranks)]


def held(placement, payload):
    return [payload[placement.samples_on_rank(rank)] for rank in range(placement.num_ranks)]


@given(problems(), dtypes, trailing_shapes)
@settings(max_examples=examples(25))
def test_dispatch_puts_every_sample_in_its_place_and_restore_brings_it_home(problem, dtype, trailing):
    plan = balancer.balance(**problem)
    payload = payload_of(plan.num_samples, dtype, trailing)
    exchanges = exchanges_of(plan)
    at_home = held(plan.home, payload)
    dispatched = dispatch(exchanges, at_home)
    assert_same(dispatched, [payload[plan.samples_on_rank(rank)] for rank in range(plan.num_ranks)])
    assert_same(restore(exchanges, dispatched), at_home)
    assert_same(dispatch(exchanges_of(plan.inverse()), dispatched), at_home)


@given(problems())
@settings(max_examples=examples(25))
def test_splits_cover_what_a_rank_holds_before_and_after(problem):
    """In samples and in elements; what crosses nodes is what of these does."""
    plan = balancer.balance(**problem)
    lengths, node, volume = problem["lengths"], plan.topology.node_of_rank, 0
    for rank in range(plan.num_ranks):
        exchange = plan.exchange(rank)
        before, after = (p.samples_on_rank(rank).tolist() for p in (plan.home, plan.target))
        assert exchange.input_split_sizes.sum() == len(exchange.send_order) == len(before)
        assert exchange.output_split_sizes.sum() == len(exchange.receive_order) == len(after)
        for other in range(plan.num_ranks):
            sent = [s for s in before if plan.rank_of_sample[s] == other]
            received = [s for s in after if plan.home.rank_of_sample[s] == other]
            assert exchange.input_split_sizes[other] == len(sent)
            assert exchange.output_split_sizes[other] == len(received)
            assert exchange.input_split_elements[other] == sum(lengths[s] for s in sent)
            assert exchange.output_split_elements[other] == sum(lengths[s] for s in received)
            volume += sum(lengths[s] for s in sent) * (node[rank] != node[other])
    assert plan.inter_node_volume == plan.inverse().inter_node_volume == volume


@given(st.data(), st.integers(0, 16), st.integers(1, 5), dtypes)
@settings(max_examples=examples(25))
def test_composed_exchange_is_the_two_one_after_the_other(data, num_samples, num_ranks, dtype):
    first, second, third = (data.draw(placements(num_samples, num_ranks)) for _ in range(3))
    lengths = np.array(data.draw(st.lists(st.integers(0, 9), min_size=num_samples, max_size=num_samples)), np.int64)
    start = held(first, payload_of(num_samples, dtype, (2,)))
    in_two = dispatch(between(second, third, lengths), dispatch(between(first, second, lengths), start))
    composed = between(first, third, lengths)
    in_one = dispatch(composed, start)
    assert_same(in_one, in_two)
    assert_same(restore(composed, in_one), start)


@given(st.data(), st.integers(0, 16), st.integers(1, 5))
def test_to_the_same_placement_nothing_moves(data, num_samples, num_ranks):
    placement = data.draw(placements(num_samples, num_ranks))
    for rank, exchange in enumerate(between(placement, placement, np.ones(num_samples, np.int64))):
        count = len(placement.samples_on_rank(rank))
        assert exchange.input_split_sizes.tolist() == [count if r == rank else 0 for r in range(num_ranks)]
        for order in (exchange.send_order, exchange.receive_order, exchange.restore_order):
            assert order.tolist() == list(range(count))


def test_orders_of_a_known_case():
    home, target = Placement.checked([0, 0, 0, 1], 2), Placement.checked([1, 0, 1, 1], 2, [2, 0, 0, 1])
    zero, one = between(home, target, np.array([5, 6, 7, 8]))
    assert zero.input_split_sizes.tolist() == [1, 2]
    assert zero.input_split_elements.tolist() == [6, 12]
    assert zero.send_order.tolist() == [1, 0, 2]  # by target rank, then by home position
    assert zero.restore_order.tolist() == [1, 0, 2]
    assert one.output_split_sizes.tolist() == [2, 1]
    assert one.receive_order.tolist() == [1, 2, 0]  # samples 2, 3, 0 out of arrivals 0, 2, 3


def test_element_splits_carry_packed_sequences():
    """Samples of different lengths, concatenated: the same all-to-all with the splits in elements."""
    plan = balancer.balance([5, 3, 0, 9, 2, 6, 1], 3, home_rank=[0, 0, 1, 1, 1, 2, 2])
    tokens = [np.full(length, sample) for sample, length in enumerate(plan.lengths)]
    nothing = np.empty(0, dtype=np.int64)
    exchanges = exchanges_of(plan)
    buffers, expected = [], []
    for rank, exchange in enumerate(exchanges):
        sent = plan.home.samples_on_rank(rank)[exchange.send_order]
        buffers.append(np.concatenate([nothing, *(tokens[s] for s in sent)]))
        arrival_order = np.empty(len(exchange.receive_order), dtype=np.int64)
        arrival_order[exchange.receive_order] = plan.samples_on_rank(rank)
        expected.append(np.concatenate([nothing, *(tokens[s] for s in arrival_order)]))
    arrivals = all_to_all(
        buffers, [e.input_split_elements for e in exchanges], [e.output_split_elements for e in exchanges]
    )
    assert_same(arrivals, expected)


def test_an_exchange_is_read_only_frozen_and_compares_by_content():
    plan = balancer.balance([5, 3, 2, 9], 2)
    exchange = plan.exchange(0)
    for name in exchange.__slots__:
        array = getattr(exchange, name)
        assert array.dtype == np.int64
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    with pytest.raises(AttributeError):
        exchange.send_order = None
    assert exchange == plan.exchange(0)
    assert exchange != plan.exchange(1)
    assert exchange != 0
    with pytest.raises(TypeError):
        hash(exchange)


@pytest.mark.parametrize("rank", [-1, 2, 100])
def test_rank_out_of_range(rank):
    with pytest.raises(ValueError, match=r"rank must be within 0\.\.1, got"):
        balancer.balance([1, 2], 2).exchange(rank)
