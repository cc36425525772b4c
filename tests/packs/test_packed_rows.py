"""Rows packed: whatever the settings, each sample is in a pack once, the cap holds, and the bound is one."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import balancer
from balancer.offline.packed_rows import PackSettings, pack_rows
from balancer.problem.limits import CountLimit, Kinds, Limit
from solvers import InfeasibleError
from solvers.errors import UsageError

LENGTHS = st.lists(st.integers(0, 30), max_size=60)


def packs_of(found):
    return [
        [(int(found.rows[i]), int(found.starts[i]), int(found.lengths[i])) for i in range(begin, end)]
        for begin, end in itertools.pairwise(found.offsets.tolist())
    ]


def fewest(lengths, cap, limits=()):
    """The least number of packs, by trying: each item into each open pack, or a new one."""
    caps = [cap, *(most for _, most in limits)]
    of_item = list(zip(lengths, *(amounts for amounts, _ in limits), strict=True))
    best = len(lengths)

    def place(at, held):
        nonlocal best
        if len(held) >= best:
            return
        if at == len(of_item):
            best = len(held)
            return
        for pack in set(held):
            more = tuple(a + b for a, b in zip(pack, of_item[at], strict=True))
            if all(a <= most for a, most in zip(more, caps, strict=True)):
                rest = list(held)
                rest.remove(pack)
                place(at + 1, [*rest, more])
        place(at + 1, [*held, of_item[at]])

    place(0, [])
    return best


def best_fit(lengths, cap):
    """Best fit decreasing, in the plainest words."""
    rooms = []
    for length in sorted(lengths, reverse=True):
        fits = [i for i, room in enumerate(rooms) if room >= length]
        if fits:
            rooms[min(fits, key=lambda i: rooms[i])] -= length
        else:
            rooms.append(cap - length)
    return len(rooms)


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
    found = pack_rows(np.array(lengths, dtype=np.int64), settings)
    packs = packs_of(found)
    wanted = pieces_wanted(lengths, cap, over_long)
    assert sorted(itertools.chain(*packs)) == wanted
    assert all(pack == sorted(pack) for pack in packs)
    for pack, cost in zip(packs, found.costs.tolist(), strict=True):
        assert sum(length for _, _, length in pack) <= cap or len(pack) == 1
        assert cost == sum(24576 * length + length**2 for _, _, length in pack)
    assert found.lower_bound <= len(found.costs)


@given(st.lists(st.integers(1, 20), max_size=8), st.integers(20, 30), st.booleans())
def test_the_bound_is_one_and_few_samples_are_packed_in_the_fewest(lengths, cap, even_cost):
    found = pack_rows(np.array(lengths, dtype=np.int64), PackSettings(cap, even_cost=even_cost))
    assert found.lower_bound <= len(found.costs) == fewest(lengths, cap)


@given(LENGTHS, st.integers(30, 60), st.booleans())
def test_never_more_packs_than_best_fit_decreasing(lengths, cap, even_cost):
    found = pack_rows(np.array(lengths, dtype=np.int64), PackSettings(cap, even_cost=even_cost))
    used = [length for length in lengths if length]
    assert len(found.costs) <= best_fit(used, cap)


@given(st.lists(st.integers(1, 30), max_size=60), st.integers(30, 60), st.integers(1, 9), st.booleans())
def test_steps_are_full_and_no_step_more_than_the_samples_force(lengths, cap, per_step, even_cost):
    settings = PackSettings(cap, even_cost=even_cost, per_step=per_step)
    found = pack_rows(np.array(lengths, dtype=np.int64), settings)
    plain = pack_rows(np.array(lengths, dtype=np.int64), PackSettings(cap))
    full = -(-len(plain.costs) // per_step) * per_step
    assert len(found.costs) == min(full, len(lengths))
    # Packs of a step are neighbours in cost: of two full steps, one costs no less anywhere than the other.
    steps = found.costs[: len(found.costs) // per_step * per_step].reshape(-1, per_step)
    for one, other in itertools.combinations(steps, 2):
        assert one.min() >= other.max() or other.min() >= one.max()


def drift(values):
    """How a number of each pack goes with its place: the correlation."""
    return float(np.corrcoef(np.arange(len(values)), values)[0, 1])


@pytest.mark.parametrize("settings", [{}, {"per_step": 8}], ids=["packs", "steps"])
def test_the_order_of_packs_does_not_drift(settings):
    """A trainer that reads packs in turn sees the same lengths at the end of an epoch as at its beginning."""
    lengths = np.clip(np.random.default_rng(5).lognormal(6.0, 0.85, 240_000), 16, 4096).astype(np.int64)
    packs = balancer.pack(lengths, 4096, **settings)
    assert len(packs) <= packs.lower_bound + 8
    begins, samples = packs.rows.offsets[:-1], np.diff(packs.rows.offsets)
    longest = np.maximum.reduceat(packs.lengths.values, begins)
    for of_pack in (samples, packs.tokens / samples, longest, packs.costs):
        assert abs(drift(of_pack)) < 0.05
    again = balancer.pack(lengths, 4096, **settings)
    assert again.to_arrow().equals(packs.to_arrow())


def test_a_short_step_is_the_last_and_is_said():
    packs = balancer.pack([5, 7, 3, 5, 7], 7, per_step=3)
    assert packs.steps.tolist() == [0, 0, 0, 1, 1]
    assert repr(packs).endswith("2 steps of 3, the last step is short)")
    assert repr(balancer.pack([5, 7, 3, 5, 7, 1], 7, per_step=3)).endswith("2 steps of 3)")


@given(st.lists(st.tuples(st.integers(1, 20), st.integers(0, 5)), max_size=40), st.integers(5, 8), st.integers(1, 5),
       st.none() | st.integers(1, 4))  # fmt: skip
def test_limits_hold_in_every_pack_and_each_sample_is_in_one(samples, most, count, per_step):
    lengths, images = np.array(samples, dtype=np.int64).reshape(-1, 2).T
    packs = balancer.pack(lengths, 25, limits=[Limit(images, most), CountLimit(count)], per_step=per_step)
    rows = packs.rows.to_lists()
    assert sorted(itertools.chain(*rows)) == list(range(len(samples)))
    for pack in rows:
        assert lengths[pack].sum() <= 25
        assert images[pack].sum() <= most
        assert len(pack) <= count
    assert packs.lower_bound <= len(packs)
    if len(samples) <= 6 and per_step is None:
        assert packs.lower_bound <= fewest(lengths.tolist(), 25, [(images.tolist(), most), ([1] * len(samples), count)])


@pytest.mark.parametrize("seed", [6, 60, 61])
def test_few_samples_a_pack_are_as_many_packs_as_the_bound_says(seed):
    lengths = np.random.default_rng(seed).integers(1, 60, 400)
    packs = balancer.pack(lengths, 1500, limits=[CountLimit(50)])
    assert len(packs) == packs.lower_bound == max(8, -(-int(lengths.sum()) // 1500))
    assert np.diff(packs.rows.offsets).max() <= 50


@pytest.mark.parametrize(("settings", "rule"), [
    ({"limits": [Kinds([1, 2])]}, "packs keep Limit and CountLimit; Kinds is for micro-batches alone"),
    ({"limits": [CountLimit(2), CountLimit(3)]}, "limits has two of CountLimit"),
    ({"limits": [CountLimit(2)], "even_cost": True}, "even_cost deals samples out by cost and tokens alone"),
    ({"limits": [Limit([1, 2], 2)], "over_long": "cut"}, "leave unknown which piece has what limits count"),
    ({"limits": [Limit("images", 2)]}, r"limits\[0\].amounts = 'images' is a column, and there are none"),
    ({"limits": [Limit([1, 3], 2)]}, r"no pack can hold row 1: its limits\[0\] 3 is over the limit 2 by 1"),
])  # fmt: skip
def test_a_limit_that_packs_do_not_keep_is_told(settings, rule):
    with pytest.raises((UsageError, InfeasibleError), match=rule):
        balancer.pack([3, 4], 10, **settings)


def test_what_is_over_a_limit_has_its_own_pack_or_is_left_out():
    limits = [Limit([1, 9, 1], 4)]
    assert sorted(balancer.pack([3, 4, 3], 10, limits=limits, over_long="own").rows.to_lists()) == [[0, 2], [1]]
    assert balancer.pack([3, 4, 3], 10, limits=limits, over_long="drop").rows.to_lists() == [[0, 2]]


def test_even_cost_deals_long_samples_out_where_there_is_room():
    lengths = np.array([8, 8, 8, 8] + [1] * 32)  # packed full: two packs of long samples, two of short ones
    plain = pack_rows(lengths, PackSettings(16, cost="quadratic:a=1,b=1"))
    even = pack_rows(lengths, PackSettings(16, cost="quadratic:a=1,b=1", even_cost=True))
    assert len(plain.costs) == len(even.costs) == 4
    assert plain.costs.max() == 144
    assert even.costs.tolist() == [88] * 4


def test_an_over_long_row_is_named_before_anything_is_packed(monkeypatch):
    monkeypatch.setattr("balancer.offline.packed_rows.pack", lambda *_, **__: pytest.fail("packed too early"))
    lengths = np.ones(1003, dtype=np.int64)
    lengths[1001:] = 11, 12
    with pytest.raises(InfeasibleError, match=r"row 1001: its length 11 is over tokens = 10 by 1 \(rows over it: 2\)"):
        balancer.pack(lengths, 10)


def test_a_cost_that_does_not_fit_names_the_row():
    settings = PackSettings(100, cost=f"linear:a={2**62}")
    with pytest.raises(UsageError, match=r"row 1 \(length 2\) must fit int64"):
        pack_rows(np.array([0, 2]), settings)


@pytest.mark.parametrize(("setting", "rule"), [
    ({"tokens": 0}, "tokens must be >= 1, got 0"),
    ({"per_step": 0}, "per_step must be >= 1, got 0"),
    ({"over_long": "split"}, "over_long must be one of 'error', 'own', 'drop', 'cut', got 'split'"),
    ({"cost": "padded"}, "'padded' is no such cost"),
    ({"cost": "attention:a=1,prefix=1"}, "is no such cost"),
])  # fmt: skip
def test_a_setting_that_is_none_is_told(setting, rule):
    with pytest.raises((ValueError, TypeError), match=rule):
        PackSettings(**{"tokens": 10, **setting})
