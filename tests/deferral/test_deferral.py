"""Which items form a step: bounds below what all ways give, plans above, limits kept, and plans that are the same."""

import dataclasses

import numpy as np
import pytest
from deferral_oracles import least_total, makespans, sums
from nightly import examples

import solvers
from solvers.deferral import UNLIMITED, check_deferral, defer, least_makespans, windows


def tiny(seed: int):
    """A few items in two or three steps, with limits of all kinds that the nominal steps keep."""
    rng = np.random.default_rng(seed)
    steps, n, bins = int(rng.integers(2, 4)), int(rng.integers(3, 7)), int(rng.integers(1, 4))
    rows = np.sort(rng.integers(0, steps, n))
    volumes = rng.choice([1, 2, 3, 9, 20], n) * rng.integers(1, 4, n)
    tokens = rng.integers(1, 6, n)
    spans = windows(steps, int(rng.integers(0, 3)), int(rng.integers(0, 3)))
    at_first, counts = (np.array(sums(amounts, rows, steps)) for amounts in (tokens, [1] * n))
    limits = {}
    if seed % 2:
        most = np.maximum(at_first, int(at_first.mean()) + int(rng.integers(0, 3)))
        limits |= {"tokens": tokens, "token_limits": [np.minimum(at_first, most // 2), most]}
    if seed % 3 == 0:
        limits["count_limits"] = [counts, counts]
    elif seed % 3 == 1:
        limits["count_limits"] = [np.maximum(counts - 1, 0), counts + 1]
    if seed % 5 == 0:
        long = np.where(volumes > 9, tokens, 0)
        limits |= {"sizes": [long], "size_limits": [np.maximum(sums(long, rows, steps), 4)]}
    return volumes, rows, spans, bins, limits


def keeps(limits, steps):
    def holds(choice) -> bool:
        for amounts, table in (("tokens", "token_limits"), (None, "count_limits")):
            if table in limits:
                held = sums([1] * len(choice) if amounts is None else limits[amounts], choice, steps)
                if not all(a <= h <= b for a, h, b in zip(limits[table][0], held, limits[table][1], strict=True)):
                    return False
        for size, most in zip(limits.get("sizes", ()), limits.get("size_limits", ()), strict=True):
            if any(h > m for h, m in zip(sums(size, choice, steps), most, strict=True)):
                return False
        return True

    return holds


def test_bound_optimum_and_plan_of_tiny_cases():
    reached, gained, seeds = 0, 0, examples(120)
    for seed in range(seeds):
        volumes, rows, spans, bins, limits = tiny(seed)
        steps = len(spans)
        found = defer(volumes, rows, spans, bins, **limits)
        check_deferral(volumes, rows, spans, found, num_bins=bins, **limits)
        least = makespans(volumes.tolist(), bins)
        sets = [sum(1 << i for i in np.flatnonzero(found.step_of_item == t)) for t in range(steps)]
        planned = sum(least[s] for s in sets)
        optimum = least_total(volumes.tolist(), rows, spans.tolist(), bins, keeps(limits, steps))
        assert found.lower_bound <= optimum <= planned, seed
        assert found.total <= min(planned, found.start_total), seed
        reached += planned == optimum
        gained += found.total < found.start_total
    assert reached > 0.6 * seeds  # a search that finds nothing reaches fewer
    assert gained > 0.2 * seeds


@pytest.mark.parametrize("seed", range(3))
def test_items_that_a_step_must_have_at_least_prove_no_more_than_the_least(seed):
    """Tokens are so dear that most items are not worth theirs, and so a step is paid for each that it must have."""
    rng = np.random.default_rng(seed)
    steps, n, bins = 4, 24, int(rng.integers(1, 4))
    rows, tokens = np.arange(n) * steps // n, rng.integers(1, 40, n)
    held, counts = np.bincount(rows, tokens, steps).astype(int), np.bincount(rows, minlength=steps)
    limits = {"tokens": tokens, "token_limits": [np.zeros_like(held), held], "count_limits": [counts - 1, counts + 2]}
    given = tokens * tokens + tokens, rows, windows(steps, 1, 1)
    found = defer(*given, bins, **limits)
    assert (found.multipliers[1] < 0).any()
    check_deferral(*given, found, num_bins=bins, **limits)


def test_heights_apart_from_volumes():
    for seed in range(60):
        volumes, rows, spans, bins, limits = tiny(seed)
        heights = -(-volumes // bins)  # spread over all bins: then volume alone counts
        found = defer(volumes, rows, spans, bins, heights=heights, **limits)
        check_deferral(volumes, rows, spans, found, num_bins=bins, heights=heights, **limits)
        assert found.total >= found.lower_bound >= -(-volumes.sum() // bins)


def logged(steps: int, bins: int, seed: int = 0):
    """Steps of many lengths with a long tail, about as many tokens in each."""
    lengths = np.minimum(np.random.default_rng(seed).lognormal(7, 1.6, 40 * bins * steps), 200_000).astype(np.int64) + 1
    budget = int(lengths.sum()) // steps + 1
    return lengths, np.cumsum(lengths) // budget


def limits_of(lengths, rows, share=0.05):
    held = np.bincount(rows, lengths).astype(np.int64)
    mean = held.mean()
    return {
        "tokens": lengths,
        "token_limits": [np.minimum(held, int(mean * (1 - share))), np.maximum(held, int(mean * (1 + share)))],
    }


@pytest.mark.parametrize("delay", [1, 4])
def test_close_to_the_bound_where_one_document_set_the_pace(delay):
    lengths, rows = logged(24, 16)
    costs = 30_000 * lengths + lengths * lengths
    limits = limits_of(lengths, rows)
    spans = windows(24, delay, delay)
    found = defer(costs, rows, spans, 16, **limits)
    check_deferral(costs, rows, spans, found, num_bins=16, **limits)
    assert found.total < found.start_total
    assert found.gap < 0.035


def test_exact_counts_and_tokens_within_a_share_together():
    lengths, _ = logged(24, 16, 3)
    rows = np.arange(len(lengths)) * 24 // len(lengths)
    costs = 30_000 * lengths + lengths * lengths
    counts = np.bincount(rows)
    limits = limits_of(lengths, rows) | {"count_limits": [counts, counts]}
    spans = windows(24, 2, 2)
    found = defer(costs, rows, spans, 16, **limits)
    check_deferral(costs, rows, spans, found, num_bins=16, **limits)
    assert (np.bincount(found.step_of_item) == counts).all()
    assert found.start_total - found.total > 0.6 * (found.start_total - found.lower_bound)


def test_items_in_another_order_take_the_same_floors():
    lengths, rows = logged(8, 6)
    order = np.random.default_rng(2).permutation(len(lengths))
    spans = windows(8, 2, 1)
    mine = defer(lengths * lengths, rows, spans, 6)
    other = defer((lengths * lengths)[order], rows[order], spans, 6)
    assert other.lower_bound == mine.lower_bound
    assert other.start_total == mine.start_total
    again = defer(lengths * lengths, rows, spans, 6, start=mine.step_of_item)  # a search that begins elsewhere
    assert again.start_total == mine.total >= again.total


def test_windows_keep_to_their_stage_and_long_logs_are_covered_block_by_block(monkeypatch):
    lengths, rows = logged(40, 4)
    stages = np.arange(40) // 20
    spans = windows(40, 2, 2, stages)
    costs = lengths * lengths
    whole = defer(costs, rows, spans, 4)
    assert (stages[whole.step_of_item] == stages[rows]).all()
    for module in ("bounds", "verify"):
        monkeypatch.setattr(f"solvers.deferral.{module}.MOST_STEPS", 7)
    monkeypatch.setattr("solvers.deferral._search._STRETCH", 16)
    parts = defer(costs, rows, spans, 4)
    check_deferral(costs, rows, spans, parts, num_bins=4)
    assert parts.lower_bound <= whole.lower_bound
    assert parts.total <= 1.05 * whole.total


def test_a_start_that_is_better_is_what_is_returned():
    """What is found is less in bin time, and more once makespans are rounded up."""
    heights, limits = [0, 0, 1, 0, 0], [[3, 2, 0], [5, 2, 1]]
    found = defer([2, 1, 2, 0, 6], [1, 2, 1, 2, 0], [[0, 0], [0, 1], [0, 2]], 4, heights=heights, start=[0, 1, 1, 0, 0],
                  count_limits=limits)  # fmt: skip
    assert (found.start_total, found.total, found.step_of_item.tolist()) == (3, 3, [0, 1, 1, 0, 0])
    rng = np.random.default_rng(0)
    for _ in range(60):
        spans, rows = windows(4, 1, 1), np.sort(rng.integers(0, 4, 8))
        start = [int(rng.integers(first, last + 1)) for first, last in spans[rows]]
        found = defer(
            rng.integers(0, 9, 8), rows, spans, 4, start=start, heights=rng.integers(0, 4, 8), time_budget=1e-3
        )
        assert found.total <= found.start_total


@pytest.mark.parametrize(
    "change",
    [
        {"step_of_item": np.zeros(6, dtype=np.int64)},
        {"floors": np.array([5, 8])},
        {"total": 13},
        {"lower_bound": 15},
        {"multipliers": np.array([[-1, 0], [0, 0]])},
        {"status": solvers.SolveStatus.FEASIBLE},
    ],
)
def test_the_checker_refuses_what_does_not_hold(change):
    given = [9, 1, 2, 3, 9, 3], [0, 0, 0, 1, 1, 1], [[0, 1], [0, 1]]
    found = defer(*given, num_bins=2, tokens=[1] * 6, token_limits=[[0, 0], [6, 4]])
    check_deferral(*given, found, num_bins=2, tokens=[1] * 6, token_limits=[[0, 0], [6, 4]])
    with pytest.raises(solvers.CertificateError):
        check_deferral(
            *given, dataclasses.replace(found, **change), num_bins=2, tokens=[1] * 6, token_limits=[[0, 0], [6, 4]]
        )


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"rows": [0, 2]}, r"rows\[1\] must be within 0..1, got 2"),
        ({"spans": [[0, 1], [1, 0]]}, "spans must be 0 <= first <= last"),
        ({"start": [1, 1], "spans": [[0, 0], [0, 1]]}, r"start\[0\] must be within the window \[0, 0\]"),
        ({"token_limits": [[0, 0], [9, 9]]}, "token_limits needs tokens"),
        ({"tokens": [5, 5], "token_limits": [[0, 0], [9, 4]]}, "must hold what a step has before the search, 5"),
        ({"count_limits": [[2, 0], [2, 2]]}, "must hold what a step has before the search, 1"),
        ({"sizes": [[1, 1]]}, "sizes and size_limits need each other"),
        ({"sizes": [[1, 1]], "size_limits": [[0, 1]]}, "must hold what a step has before the search, 1"),
        ({"costs": [2**61, 2**61]}, "must be < 2\\*\\*62"),
        ({"heights": [1]}, "heights must be one for each of 2"),
    ],
)
def test_errors_name_the_argument(change, error):
    given = {"costs": [3, 4], "rows": [0, 1], "spans": [[0, 1], [0, 1]], "num_bins": 2} | change
    with pytest.raises((ValueError, TypeError), match=error):
        defer(**given)


def test_limits_that_are_none():
    found = defer([3, 4], [0, 1], windows(2, 1, 1), 2, count_limits=[[0, 0], [UNLIMITED, UNLIMITED]])
    assert found.total == 4


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("multipliers", lambda values: values[:, :-1]),
        ("multipliers", lambda _: None),
        ("multiplier_bits", lambda _: -1),
        ("step_of_item", lambda values: values[:, None]),
        ("step_of_item", list),
        ("lower_bound", str),
        ("bound_name", lambda _: "zzz"),
        ("start_total", lambda total: total - 1_000),
    ],
)
def test_a_result_of_other_shapes_or_kinds_is_refused_in_words(name, damage):
    given = [9, 1, 9, 1], [0, 0, 1, 1], [[0, 1], [0, 1]]
    found = solvers.defer(*given, 2)
    with pytest.raises(solvers.CertificateError):
        check_deferral(*given, dataclasses.replace(found, **{name: damage(getattr(found, name))}), num_bins=2)


def test_steps_to_begin_with_may_be_any_of_the_windows():
    rng = np.random.default_rng(3)
    costs, rows = rng.integers(1, 1000, 600), np.arange(600) // 10
    spans = windows(60, 1, 1)
    start = np.clip(rows + rng.integers(-1, 2, 600), 0, 59)
    found = defer(costs, rows, spans, 2, start=start)
    check_deferral(costs, rows, spans, found, num_bins=2)
    assert found.total <= found.start_total == least_makespans(costs, start, 60, 2).sum()
