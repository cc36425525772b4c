"""One window: whatever the settings, each sample is in a pack once, the cap holds, and the bound is one."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.offline.pack_window import PackSettings, pack_window
from solvers import InfeasibleError
from solvers.errors import UsageError

LENGTHS = st.lists(st.integers(0, 30), max_size=60)


def packs_of(window):
    return [
        [(int(window.rows[i]), int(window.starts[i]), int(window.lengths[i])) for i in range(begin, end)]
        for begin, end in itertools.pairwise(window.offsets.tolist())
    ]


def fewest(lengths, cap):
    """The least number of packs, by trying: each item into each open pack, or a new one."""
    best = len(lengths)

    def place(at, rooms):
        nonlocal best
        if len(rooms) >= best:
            return
        if at == len(lengths):
            best = len(rooms)
            return
        for room in set(rooms):
            if room >= lengths[at]:
                rest = list(rooms)
                rest.remove(room)
                place(at + 1, [*rest, room - lengths[at]])
        place(at + 1, [*rooms, cap - lengths[at]])

    place(0, [])
    return best


def greedy(lengths, cap, choose):
    """First fit or best fit decreasing, in the plainest words."""
    rooms = []
    for length in sorted(lengths, reverse=True):
        fits = [i for i, room in enumerate(rooms) if room >= length]
        at = choose(fits, rooms) if fits else None
        if at is None:
            rooms.append(cap - length)
        else:
            rooms[at] -= length
    return len(rooms)


def first_fit(lengths, cap):
    return greedy(lengths, cap, lambda fits, rooms: fits[0])


def best_fit(lengths, cap):
    return greedy(lengths, cap, lambda fits, rooms: min(fits, key=lambda i: rooms[i]))


def pieces_wanted(lengths, cap, over_long):
    """What must be in packs, each once."""
    wanted = []
    for row, length in enumerate(lengths):
        if length > cap and over_long == "drop":
            continue
        step = cap if over_long == "cut" else max(length, 1)
        wanted += [(row, start, min(step, length - start)) for start in range(0, length, step)]
    return sorted(wanted)


@given(LENGTHS, st.integers(1, 40), st.sampled_from(["own", "drop", "cut"]), st.booleans(),
       st.none() | st.integers(1, 9))  # fmt: skip
def test_every_piece_is_in_one_pack_and_the_cap_holds(lengths, cap, over_long, even_cost, per_step):
    settings = PackSettings(cap, over_long=over_long, even_cost=even_cost, per_step=per_step)
    window = pack_window(np.array(lengths, dtype=np.int64), settings, 100)
    packs = packs_of(window)
    wanted = pieces_wanted(lengths, cap, over_long)
    assert sorted((row - 100, start, length) for pack in packs for row, start, length in pack) == wanted
    assert all(pack == sorted(pack) for pack in packs)
    for pack, tokens, cost in zip(packs, window.tokens.tolist(), window.costs.tolist(), strict=True):
        assert tokens == sum(length for _, _, length in pack)
        assert tokens <= cap or len(pack) == 1
        assert cost == sum(24576 * length + length**2 for _, _, length in pack)
    assert window.lower_bound <= window.num_packs
    assert window.empty == lengths.count(0)
    assert window.over_long == sum(length > cap for length in lengths)


@given(st.lists(st.integers(1, 20), max_size=8), st.integers(20, 30), st.booleans())
def test_the_bound_is_one_and_few_samples_are_packed_in_the_fewest(lengths, cap, even_cost):
    window = pack_window(np.array(lengths, dtype=np.int64), PackSettings(cap, even_cost=even_cost))
    assert window.lower_bound <= window.num_packs == fewest(lengths, cap)


@given(LENGTHS, st.integers(30, 60), st.booleans())
def test_never_more_packs_than_first_fit_or_best_fit_decreasing(lengths, cap, even_cost):
    window = pack_window(np.array(lengths, dtype=np.int64), PackSettings(cap, even_cost=even_cost))
    used = [length for length in lengths if length]
    assert window.num_packs <= min(first_fit(used, cap), best_fit(used, cap))


@given(st.lists(st.integers(1, 30), max_size=60), st.integers(30, 60), st.integers(1, 9), st.booleans())
def test_steps_are_full_and_no_step_more_than_the_samples_force(lengths, cap, per_step, even_cost):
    settings = PackSettings(cap, even_cost=even_cost, per_step=per_step)
    window = pack_window(np.array(lengths, dtype=np.int64), settings)
    plain = pack_window(np.array(lengths, dtype=np.int64), PackSettings(cap))
    full = -(-plain.num_packs // per_step) * per_step
    assert window.num_packs == min(full, len(lengths))
    assert window.steps.tolist() == [i // per_step for i in range(window.num_packs)]
    # Packs of a step are neighbours in cost: of two full steps, one costs no less anywhere than the other.
    steps = window.costs[: len(window.costs) // per_step * per_step].reshape(-1, per_step)
    for one, other in itertools.combinations(steps, 2):
        assert one.min() >= other.max() or other.min() >= one.max()


def test_packs_come_in_the_order_of_their_first_rows():
    window = pack_window(np.array([6, 6, 6, 4, 4, 4]), PackSettings(10))
    assert [pack[0][0] for pack in packs_of(window)] == [0, 1, 2]


def test_even_cost_deals_long_samples_out_where_there_is_room():
    lengths = np.array([8, 8, 8, 8] + [1] * 32)  # packed full: two packs of long samples, two of short ones
    plain = pack_window(lengths, PackSettings(16, cost="quadratic:a=1,b=1"))
    even = pack_window(lengths, PackSettings(16, cost="quadratic:a=1,b=1", even_cost=True))
    assert plain.num_packs == even.num_packs == 4
    assert plain.costs.max() == 144
    assert even.costs.tolist() == [88] * 4


def test_one_cut_sample_is_pieces_of_the_cap_and_a_rest():
    window = pack_window(np.array([25]), PackSettings(10, over_long="cut"))
    assert sorted(itertools.chain(*packs_of(window))) == [(0, 0, 10), (0, 10, 10), (0, 20, 5)]


def test_an_over_long_row_is_named_as_the_log_numbers_it():
    with pytest.raises(InfeasibleError, match=r"row 1001: its length 11 is over tokens = 10 by 1 \(rows over it: 2\)"):
        pack_window(np.array([3, 11, 12]), PackSettings(10), 1000)


def test_a_cost_that_does_not_fit_names_the_row():
    settings = PackSettings(100, cost=f"linear:a={2**62}")
    with pytest.raises(UsageError, match=r"row 7 \(length 2\) must fit int64"):
        pack_window(np.array([0, 2]), settings, 6)


@pytest.mark.parametrize("lengths", [[], [0, 0]])
@pytest.mark.parametrize("per_step", [None, 4])
def test_nothing_to_pack_makes_no_packs(lengths, per_step):
    settings = PackSettings(10, per_step=per_step, even_cost=True)
    window = pack_window(np.array(lengths, dtype=np.int64), settings)
    assert (window.num_packs, window.lower_bound, window.empty) == (0, 0, len(lengths))


@pytest.mark.parametrize(("setting", "rule"), [
    ({"tokens": 0}, "tokens must be >= 1, got 0"),
    ({"window_rows": 0}, "window_rows must be >= 1, got 0"),
    ({"per_step": 0}, "per_step must be >= 1, got 0"),
    ({"over_long": "split"}, "over_long must be one of 'error', 'own', 'drop', 'cut', got 'split'"),
    ({"cost": "padded"}, "'padded' is no such cost"),
    ({"cost": "attention:a=1,prefix=1"}, "is no such cost"),
])  # fmt: skip
def test_a_setting_that_is_none_is_told(setting, rule):
    with pytest.raises((ValueError, TypeError), match=rule):
        PackSettings(**{"tokens": 10, **setting})
