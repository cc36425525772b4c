"""Two groups exchange items: the choice that all pairs confirm, and lists that stay in order."""

import numpy as np
from compiled import from_python
from hypothesis import given
from hypothesis import strategies as st

from solvers import _exchange
from solvers._exchange import Window
from solvers.groups import read_only

best_exchange = from_python(_exchange.best_exchange)

COSTS = st.lists(st.tuples(st.integers(0, 12) | st.integers(0, 2**60), st.integers(0, 6)), max_size=6)
NUMBER = st.integers(-3, 15)


@given(COSTS, COSTS, st.tuples(*[NUMBER] * 6), st.booleans())
def test_the_best_exchange_is_the_best_of_all_pairs(give, take, limits, may_move):
    low, high, aim, more, room_given, room_taken = limits
    window = Window(*map(np.int64, (low, high, aim, aim + max(0, more), room_given, room_taken)))
    items = sorted(give, reverse=True) + sorted(take, reverse=True)
    order = sorted(range(len(items)), key=lambda i: -items[i][0])
    costs, sizes = (read_only(np.array([items[i][k] for i in order], dtype=np.int64)) for k in (0, 1))
    place = np.argsort(order, kind="stable").astype(np.int32)
    given_items, taken_items = np.sort(place[: len(give)]), np.sort(place[len(give) :])
    fits = []
    for i, a in enumerate(given_items.tolist()):
        for j, b in enumerate([*taken_items.tolist(), -1][: len(take) + may_move]):
            d, grows = (int(x[a]) - (int(x[b]) if b >= 0 else 0) for x in (costs, sizes))
            if low <= d <= high and grows <= room_taken and -grows <= room_given:
                aim_low, aim_high = (min(max(x, low), high) for x in (window.aim_low, window.aim_high))
                fits.append((max(aim_low - d, d - aim_high, 0), d, i, j))
    d, i, j, steps = best_exchange(costs, sizes, given_items, taken_items, window, may_move)
    assert steps >= len(give) + len(take)
    if not fits:
        assert (d, i, j) == (0, -1, -1)
        return
    assert (d, i, j) in [found[1:] for found in fits]
    off = next(found[0] for found in fits if found[1:] == (d, i, j))
    assert (off, i) == min((fit[0], fit[2]) for fit in fits)


@given(st.integers(1, 4), st.lists(st.integers(0, 3), min_size=1, max_size=20), st.data())
def test_lists_of_items_stay_in_order(num_groups, groups, data):
    groups = np.array([g % num_groups for g in groups], dtype=np.int32)
    members = _exchange.members_of(groups, num_groups, len(groups))
    for _ in range(4):
        g = int(groups[data.draw(st.integers(0, len(groups) - 1))])
        h = data.draw(st.integers(0, num_groups - 1))
        i, j = data.draw(st.integers(0, members.size[g] - 1)), data.draw(st.integers(0, members.size[h]))
        if h != g:
            leaving, entering = _exchange.exchange(members, groups, g, i, h, j)
            assert groups[leaving] == h
            assert entering == _exchange.NOTHING or groups[entering] == g
        for k in range(num_groups):
            assert _exchange.items_of(members, k).tolist() == np.flatnonzero(groups == k).tolist()
            assert _exchange.may_grow(members, k)
