"""Routes without processes: their ends fit together, and bytes come where they say and back."""

import pytest

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402
from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from balancer import Placement  # noqa: E402
from balancer.executor import payload as payloads  # noqa: E402
from balancer.executor.memory import Memory  # noqa: E402
from balancer.executor.payload import Payload, exchange_payloads  # noqa: E402
from balancer.plan.exchange import rank_exchange  # noqa: E402
from balancer.plan.route import Route, RouteEnd, arriving, leaving  # noqa: E402
from balancer.plan.stream import Stream  # noqa: E402

CPU = torch.device("cpu")
seeds = st.integers(0, 2**16)


def routes_of(stream, size):
    return [Route(leaving(stream, rank), arriving(stream, rank), rank) for rank in range(size)]


def stream_of(rng, size):
    items = int(rng.integers(0, 20))
    ranks, order = (rng.integers(0, size, (2, items)).astype(np.int32), rng.permutation(items))
    source = Placement.by_sample_order(ranks[0], size)
    target = Placement.by_slots(ranks[1], order.astype(np.int32), size, max(1, items))
    lengths = rng.integers(0, 5, items)
    return Stream("a", source, target, lengths, lengths)


def moved(routes, values):
    """What every rank has after, the all-to-all done here."""
    sent = {}

    def of(rank, deliver):
        def all_to_all(outgoing, sends, receives, arrived, meanwhile):
            sent[rank] = outgoing.split(sends)
            if deliver:
                arrived.copy_(torch.cat([sent[other][rank] for other in range(len(routes))]))
            meanwhile()

        one = Payload(routes[rank], torch.int32, (), False, values[rank])
        return exchange_payloads([one], all_to_all, Memory(), CPU)[1][0]

    for rank in range(len(routes)):
        of(rank, False)
    return [of(rank, True) for rank in range(len(routes))]


@given(seeds, st.integers(1, 4))
def test_a_route_is_the_exchange_of_the_plan(seed, size):
    stream = stream_of(np.random.default_rng(seed), size)
    for rank, route in enumerate(routes_of(stream, size)):
        exchange = rank_exchange(stream.source, stream.target, stream.lengths, rank)
        assert route.sending.order.tolist() == exchange.send_order.tolist()
        assert route.receiving.order[exchange.receive_order].tolist() == list(range(len(exchange.receive_order)))
        assert route.sending.elements.tolist() == exchange.input_split_elements.tolist()
        assert route.receiving.elements.tolist() == exchange.output_split_elements.tolist()


@pytest.mark.parametrize(("order", "all_of_them"), [([0, 1, 2], True), ([0, 2], False), ([1, 0, 2], False)])
def test_rows_in_order_are_sent_as_they_lie_if_none_stays_behind(order, all_of_them):
    end = RouteEnd.of_rows(np.array([len(order)]), np.array(order), np.array([1, 2, 3]))
    assert end.in_order == all_of_them


@pytest.mark.parametrize("on_host", [True, False])
@given(seeds, st.integers(1, 4))
def test_forth_and_back_is_the_identity(on_host, seed, size):
    rng = np.random.default_rng(seed)
    stream = stream_of(rng, size)
    routes = routes_of(stream, size)
    if rng.random() < 0.5:  # among padding
        places = [rng.permutation(40)[: len(route.receiving.order)] for route in routes]
        routes = [_padded(route, np.sort(at) * 5) for route, at in zip(routes, places, strict=True)]
    numbers = iter(range(1, 1000))
    values = [torch.tensor([next(numbers) for _ in range(route.sending.total)], dtype=torch.int32) for route in routes]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(payloads, "_on_host", lambda memory: on_host)
        there = moved(routes, values)
        for route, found in zip(routes, there, strict=True):
            assert len(found) == route.receiving.total
            assert int((found != 0).sum()) == int(route.receiving.sizes.sum())
        back = moved([route.back for route in routes], there)
    assert [row.tolist() for row in back] == [row.tolist() for row in values]


def _padded(route, starts):
    """The same route to places of five elements each, of which some are padding."""
    sizes = route.receiving.lengths
    elements = np.concatenate([np.empty(0, int), *(s + np.arange(n) for s, n in zip(starts, sizes, strict=True))])
    if not (sizes > 0).all():  # runs of nothing have no place
        return Route(route.sending, route.receiving.parts(), route.own)
    return Route(route.sending, route.receiving.parts(elements, 200), route.own)
