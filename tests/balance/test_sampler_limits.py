"""Limits of a sampler's micro-batches, held against an oracle of plain loops; steps of a fixed and of a free size."""

import json

import numpy as np
import pytest
from nightly import examples

from balancer import CountLimit, Everywhere, Kinds, Limit, PaddedLimit
from balancer.compat import BalancedBatchSampler, step_grid


def rows_in(nested):
    return [row for each in nested for row in rows_in(each)] if isinstance(nested, list) else [nested]


def check_limits(step, lengths, limits):
    """Every limit in each micro-batch, ``[micro-step][rank] -> rows``, and none is empty."""
    for slot in step:
        for rank, batch in enumerate(slot):
            assert batch
            for limit in limits:
                match limit:
                    case Limit(amounts, most):
                        most = most[rank] if isinstance(most, tuple) else most
                        assert sum(int(amounts.array[row]) for row in batch) <= most
                    case CountLimit(most):
                        assert len(batch) <= most
                    case PaddedLimit(most):
                        assert len(batch) * max(lengths[row] for row in batch) <= most
                    case Kinds(values):
                        assert len({values.array[row] for row in batch}) == 1
        for limit in limits:
            if isinstance(limit, Everywhere):
                assert len({any(limit.values.array[row] for row in batch) for batch in slot}) == 1


class Asked:
    """A random setting, and limits that it can keep: nearly what it does without, or one that a step is sure to fit."""

    def __init__(self, seed):
        random = self.random = np.random.default_rng(seed)
        self.count = int(random.integers(20, 160))
        self.lengths = np.minimum(random.lognormal(4, 0.8, self.count).astype(int), 900) + 1
        self.ranks, self.slots, self.batch = (int(random.integers(1, 4)) for _ in range(3))
        self.batch += 1
        images = random.integers(0, 6, self.count) * random.integers(0, 2, self.count)
        most = int(self.batch * self.lengths.mean() * random.uniform(1.5, 3)) + int(self.lengths.max())
        self.limits = [Limit(self.lengths, most)]
        chosen = int(random.integers(6))
        if chosen == 1:
            self.limits += [Limit(images, 5 + 3 * self.batch), CountLimit(3 * self.batch)]
        elif chosen == 2:
            self.limits = [PaddedLimit(2 * most), CountLimit(3 * self.batch)]
        elif chosen == 3:
            self.limits.append(Kinds(random.integers(0, 2, self.count)))
        elif chosen == 4:
            self.limits = [Limit(self.lengths, 2 * most), Everywhere(random.random(self.count) < 0.7)]
        by_rank = chosen == 5
        if by_rank:
            self.limits = [Limit(self.lengths, [most + 100 * rank for rank in range(self.ranks)])]
        self.options = {
            "gradient_accumulation_steps": self.slots, "sync": str(random.choice(["step", "micro_batch"])),
            "window": int(random.choice([0, 0, 2])), "seed": seed, "limits": self.limits,
            "drop_last": bool(random.integers(2)) and self.count >= self.batch * self.ranks * self.slots,
        }  # fmt: skip
        costs = ["linear", "quadratic:a=100,b=1", np.stack([self.lengths, images * 40], axis=1)]
        self.options["cost"] = costs[random.integers(3)]
        if chosen == 2:
            self.options["cost"] = "padded"
        if by_rank and random.integers(2):
            self.options["rank_speeds"] = random.integers(2, 6, self.ranks)

    def sampler(self, rank="all", **other):
        return BalancedBatchSampler(self.lengths, self.batch, self.ranks, rank, **self.options | other)


def check_epoch(asked, sampler):
    """Return the steps; what they hold is checked, how long the epoch is, and that they go on when resumed."""
    told, batches = len(sampler), list(sampler)
    assert told == len(batches)
    per_step = asked.ranks * asked.slots
    assert len(batches) % per_step == 0, "as many micro-batches on every rank"
    steps = [
        [batches[i + slot * asked.ranks : i + (slot + 1) * asked.ranks] for slot in range(asked.slots)]
        for i in range(0, len(batches), per_step)
    ]
    for step in steps:
        check_limits(step, asked.lengths, asked.limits)
    done = int(asked.random.integers(0, len(steps) + 1)) * asked.slots
    state = json.loads(json.dumps(sampler.state_dict(batches=done)))
    return steps, batches[: done * asked.ranks], batches[done * asked.ranks :], state


def check_same(asked, state, rest, sampler):
    sampler.load_state_dict(state)
    assert list(sampler) == rest, "as if it had not stopped"


def fixed_size(seed):
    asked = Asked(seed)
    try:
        steps, seen, rest, state = check_epoch(asked, asked.sampler())
    except ValueError as error:
        if "do not fit" not in str(error):
            raise
        return False
    size, total = asked.batch * asked.ranks * asked.slots, asked.count
    assert all(len(rows_in(step)) == size for step in steps[: total // size])
    counts = np.bincount(rows_in(steps), minlength=total)
    left = total % size
    if asked.options["drop_last"]:
        assert counts.max() == 1
        assert total - counts.sum() == left
    else:
        again = max(0, asked.ranks * asked.slots - left) if left else 0
        assert counts.min() == 1
        # More of those that all ranks are to have, if they are too few.
        more = asked.ranks if any(isinstance(limit, Everywhere) for limit in asked.limits) else 1
        assert 0 <= counts.sum() - total - again < more
    check_same(asked, state, rest, asked.sampler())
    # On other ranks, without limits: what had not run comes once.
    other = BalancedBatchSampler(asked.lengths, 3, 2, "all", seed=asked.options["seed"])
    other.load_state_dict(state)
    found = np.bincount(rows_in([seen, list(other)]), minlength=total)
    assert found.min() == 1
    assert found.sum() <= max(total, len(rows_in(seen))) + 1
    return True


def free_size(seed):
    asked = Asked(seed)
    if step_tokens := asked.random.integers(2):
        mean = int(asked.lengths.mean()) * asked.ranks * asked.slots
        step_tokens = int(asked.lengths.max()) * asked.ranks * asked.slots + int(asked.random.integers(2 * mean))
    asked.batch = None
    given = {"step_tokens": step_tokens or None}
    try:
        steps, seen, rest, state = check_epoch(asked, asked.sampler(**given))
    except ValueError as error:
        if "do not fit" not in str(error):
            raise
        return False
    total, batches = asked.count, asked.ranks * asked.slots
    if step_tokens:
        padded = isinstance(asked.options["cost"], str) and asked.options["cost"] == "padded"
        for step in steps:
            of = [asked.lengths[batch] for slot in step for batch in slot]
            assert sum(len(each) * max(each) if padded else sum(each) for each in of) <= step_tokens
    counts = np.bincount(rows_in(steps), minlength=total)
    if asked.options["drop_last"]:
        # Those for all ranks, while they are too few, fill no micro-batches.
        waits = asked.ranks if any(isinstance(limit, Everywhere) for limit in asked.limits) else 1
        assert counts.max() == 1
        assert total - counts.sum() < batches + waits - 1
    else:
        assert counts.min() == 1
        assert counts.sum() < total + batches, "repeats fill the last step alone"
        assert np.bincount(rows_in(steps[:-1]), minlength=total).max() <= 1
    check_same(asked, state, rest, asked.sampler(**given))
    other = BalancedBatchSampler(asked.lengths, 3, 2, "all", seed=asked.options["seed"])
    other.load_state_dict(state)
    found = np.bincount(rows_in([seen, list(other)]), minlength=total)
    assert found.min() == 1
    assert found.sum() <= max(total, len(rows_in(seen))) + 1
    return True


@pytest.mark.more_by_night
def test_random_limits(monkeypatch):
    monkeypatch.setattr(step_grid, "BUDGET", 1e-4)
    seeds = min(examples(6), 600)
    for run in fixed_size, free_size:
        assert sum(run(seed) for seed in range(seeds)) >= seeds / 2, "most settings can be kept"


# Cases of users: what limits cost.


def loads_of(grid, costs):
    """float[step, micro-step, rank]"""
    return np.array([[[costs[batch].sum() for batch in slot] for slot in step] for step in grid], dtype=float)


def images_and_text():
    """256 samples, 20 of them with an image."""
    random = np.random.default_rng(8)
    image = np.zeros(256, dtype=bool)
    image[random.permutation(256)[:20]] = True
    patches = np.where(image, random.integers(256, 4096, 256), 0)
    return image, np.clip(random.lognormal(6, 0.8, 256), 16, 4096).astype(int) + patches // 4


def test_images_are_on_all_ranks_of_a_micro_step_or_on_none():
    image, tokens = images_and_text()
    given = {"sync": "micro_batch", "gradient_accumulation_steps": 8, "shuffle": False}
    limits = [Limit(tokens, 4096)]
    taken, mixed = [], []
    for more in [], [Everywhere(image)]:
        grid = list(BalancedBatchSampler(tokens, 4, 8, 0, limits=limits + more, **given).plan())
        taken.append(loads_of(grid, tokens).max(axis=2).sum())
        mixed.append(sum(len({bool(image[batch].any()) for batch in slot}) == 2 for step in grid for slot in step))
    assert mixed[0] > 0
    assert mixed[1] == 0
    assert taken[1] < 1.002 * taken[0]


def test_samples_that_are_too_few_for_all_ranks_wait_within_the_window():
    image, tokens = images_and_text()
    given = {"gradient_accumulation_steps": 2, "shuffle": False, "limits": [Everywhere(image)], "sync": "micro_batch"}
    for batch, window in (4, 3), (1, 15):
        if batch == 1:  # 16 samples a step, one in each micro-batch
            given["limits"] = [Everywhere(np.arange(256) % 64 < 2)]
        for step in BalancedBatchSampler(tokens, batch, 8, 0, window=window, **given).plan():
            check_limits(step, tokens, given["limits"])
    given["limits"] = [Everywhere(image)]
    with pytest.raises(
        ValueError, match=r"step 0 of epoch 0: its 64 samples do not fit 16 micro-batches: 4 of them are to be on all 8"
    ):
        list(BalancedBatchSampler(tokens, 4, 8, 0, **given))


@pytest.mark.parametrize(("sync", "most"), [("step", 1.001), ("micro_batch", 1.01)])
def test_a_cost_of_ones_own_under_a_limit_on_other_tokens(sync, most):
    random = np.random.default_rng(12)
    physical = np.clip(random.lognormal(7, 0.9, 512), 64, 16_384).astype(int)
    counted = np.maximum(1, (physical * random.beta(2, 5, 512)).astype(int))
    grid = list(
        BalancedBatchSampler(
            physical, 8, 16, 0, cost=counted, limits=[Limit(physical, 20_000)], gradient_accumulation_steps=4, sync=sync
        ).plan()
    )
    loads = loads_of(grid, counted)
    slowest = loads.sum(1).max(1) if sync == "step" else loads.max(2).sum(1)
    assert slowest.sum() < most * counted.sum() / 16
    assert loads_of(grid, physical).max() <= 20_000


def test_a_limit_helps_balance():
    """Accumulation over 4 micro-steps of 2 on 8 ranks; without a limit 1.25 in every micro-step, and up to 9,511."""
    lengths = np.clip(np.random.default_rng(31).lognormal(6.5, 0.8, 960), 32, 8192).astype(int)
    given = {"gradient_accumulation_steps": 4, "sync": "micro_batch", "limits": [Limit(lengths, 8192)]}
    loads = loads_of(BalancedBatchSampler(lengths, 2, 8, 0, **given).plan(), lengths)
    assert loads.max(2).sum() < 1.03 * loads.mean(2).sum()
    assert loads.max() <= 8192


def test_a_window_whose_sorted_steps_do_not_fit_is_mixed_until_they_do():
    lengths = np.array([8, 1, 8, 1, 8, 1, 8, 1])
    given = {"window": 1, "shuffle": False}
    for most, sums in (16, [4, 32]), (9, [18, 18]):
        grid = list(BalancedBatchSampler(lengths, 2, 2, 0, limits=[Limit(lengths, most)], **given).plan())
        assert sorted(int(lengths[rows_in(step)].sum()) for step in grid) == sums
    lengths = np.array([8, 1, 1, 1, 7, 2, 1, 1])
    limits = [Limit(np.isin(np.arange(8), apart).astype(int), 1) for apart in ([0, 4, 5], [0, 4, 6])]
    grid = list(BalancedBatchSampler(lengths, 2, 2, 0, limits=limits, **given).plan())
    assert [sorted(rows_in(step)) for step in grid] == [[0, 1, 2, 3], [4, 5, 6, 7]], "as it was drawn"


@pytest.mark.parametrize(("sync", "batch"), [("step", 2), ("micro_batch", 8)])
def test_cards_of_unlike_memory_and_speed(sync, batch):
    """If each micro-step were evened by itself, two samples a rank and micro-step: 1.06."""
    lengths = np.clip(np.random.default_rng(7).lognormal(6, 0.7, 256), 16, 4096).astype(int)
    speeds, most = np.array([5, 5, 4, 2]), [9000, 9000, 7000, 4100]
    given = {"rank_speeds": speeds, "limits": [Limit(lengths, most)], "gradient_accumulation_steps": 2, "sync": sync}
    grid = list(BalancedBatchSampler(lengths, batch, 4, 0, **given).plan())
    for step in grid:
        check_limits(step, lengths, given["limits"])
    loads = loads_of(grid, lengths)
    times = (loads.sum(axis=1, keepdims=True) if sync == "step" else loads) / speeds
    assert times.max(axis=2).sum() < 1.03 * lengths.sum() / speeds.sum()
    given |= {"rank_speeds": None, "window": 1}
    for step in BalancedBatchSampler(lengths, None, 4, 0, **given).plan():
        check_limits(step, lengths, given["limits"])


ONES = np.ones(4, dtype=int)


@pytest.mark.parametrize(
    ("limits", "given", "said"),
    [
        (
            [Limit([3, 9, 4, 4], 5)],
            {},
            r"no micro-batch can hold sample 1: its limits\[0\] is 9, over the limit 5 by 4",
        ),
        ([PaddedLimit(6)], {}, "no micro-batch can hold sample 3: its PaddedLimit is 7, over the limit 6 by 1"),
        ([Limit("images", 5)], {}, r"limits\[0\].amounts = 'images' is a column, and there are none: give an array"),
        ([Limit([1, 2], 5)], {}, r"limits\[0\].amounts must have a value for each of 4 samples"),
        ([Limit(ONES, [5, 5, 5])], {}, "be one number, or one for each of 2 ranks"),
        (
            [Kinds(ONES)],
            {"rank_speeds": [1, 2]},
            "rank_speeds and limits with a number for each rank go with Limit and",
        ),
        ([Limit(ONES, 5)], {"prefix": ONES, "prefix_length": ONES}, "limits, .* cannot be combined with prefix"),
        ([3], {}, r"limits\[0\] must be one of Limit, CountLimit"),
        (
            CountLimit(1),
            {},
            "its 4 samples do not fit 2 micro-batches: CountLimit lets them hold 2; give a higher limit",
        ),
        ([Kinds([0, 1, 2, 3])], {}, "they are of 4 kinds, and a micro-batch holds one"),
    ],
)
def test_limits_that_cannot_be(limits, given, said):
    with pytest.raises(Exception, match=said) as caught:
        list(BalancedBatchSampler([4, 5, 6, 7], 2, 2, 0, limits=limits, **given))
    assert type(caught.value).__module__ == "solvers.errors"


# Steps of free size.


LONG = np.clip(np.random.default_rng(4).lognormal(6.5, 0.8, 2000), 32, 8192).astype(int)


@pytest.mark.parametrize(
    ("limits", "given", "window", "full"),
    [
        ([Limit(LONG, 8192)], {}, 3, 0.99), ([], {"step_tokens": 16 * 8192}, 0, 0.99),
        ([Limit(LONG, 8192), CountLimit(9)], {}, 0, 0.92), ([PaddedLimit(8192)], {"cost": "padded"}, 3, 0.75),
        ([Limit(LONG, 8192), Kinds(np.arange(2000) % 3)], {}, 3, 0.93),
    ],
)  # fmt: skip
def test_steps_are_as_full_as_limits_permit(limits, given, window, full):
    """On 8 ranks of 2 micro-batches; the last step is what is left."""
    given = given | {"gradient_accumulation_steps": 2, "window": window, "limits": limits}
    steps = list(BalancedBatchSampler(LONG, None, 8, 0, **given).plan())
    assert {len(rows_in(step)) for step in steps} != {len(rows_in(steps[0]))}
    for step in steps:
        check_limits(step, LONG, limits)
    whole = [LONG[rows_in(step)].sum() / (16 * 8192) for step in steps[: -window - 1]]
    assert np.mean(whole) > full
    if "step_tokens" in given:
        assert max(whole) <= 1
    if len(limits) < 2 and given.get("cost") != "padded":
        loads = loads_of(steps[: -window - 1], LONG)
        assert loads.max(2).sum() < 1.01 * loads.mean(2).sum(), "ranks are even"


def test_who_found_no_place_comes_next():
    """Two large samples fill a step; the third goes first in the next."""
    lengths = np.array([6, 6, 6, 7, 7, 3, 10])
    sampler = BalancedBatchSampler(lengths, None, 2, 0, limits=[Limit(lengths, 10)], shuffle=False)
    assert [sorted(rows_in(step)) for step in sampler.plan()] == [[0, 1], [2, 3], [4, 5, 6]]


def test_no_micro_batch_is_empty_though_all_fits_into_one():
    given = {"limits": [Limit([5] * 10, 100)], "cost": [0] * 10, "gradient_accumulation_steps": 2}
    (step,) = BalancedBatchSampler([5] * 10, None, 2, 0, **given).plan()
    check_limits(step, [5] * 10, given["limits"])


def test_ranks_are_even_by_a_cost_that_no_limit_is_on():
    """Packed, not planned anew: 1.16."""
    costs = LONG * (LONG + 100)
    given = {"limits": [Limit(LONG, 8192)], "cost": "quadratic:a=100,b=1", "gradient_accumulation_steps": 4}
    steps = list(BalancedBatchSampler(LONG, None, 8, 0, **given).plan())[:-1]
    loads = loads_of(steps, costs).sum(axis=1)
    assert loads.max(axis=1).sum() < 1.1 * loads.mean(axis=1).sum()


@pytest.mark.parametrize("size", [4, None])
def test_a_last_step_is_filled_up_with_what_all_ranks_are_to_have(size):
    """3 of such samples, on 4 ranks of 2 micro-batches, are left."""
    flags = np.isin(np.arange(37), [0, 1, 2, 3, 33, 35, 36])
    given = {"limits": [Everywhere(flags), CountLimit(4)], "gradient_accumulation_steps": 2, "shuffle": False}
    steps = list(BalancedBatchSampler(np.arange(37) + 5, size, 4, 0, **given).plan())
    for step in steps:
        check_limits(step, np.arange(37) + 5, given["limits"])
    assert set(rows_in(steps)) == set(range(37))
    assert len(set(rows_in(steps[-1]))) == len(rows_in(steps[-1])) == 8
    assert sum(flags[row] for row in rows_in(steps[-1])) == 4


def test_samples_for_all_ranks_wait_for_more_of_their_like():
    image, tokens = images_and_text()
    limits = [Limit(tokens, 4096), Everywhere(image)]
    steps = list(BalancedBatchSampler(tokens, None, 8, 0, limits=limits, shuffle=False).plan())
    for step in steps:
        check_limits(step, tokens, limits)
        assert len(rows_in(step)) >= 8
    assert sorted(rows_in(steps[:-1])) == sorted(set(rows_in(steps[:-1])))
    assert set(rows_in(steps)) == set(range(256))
    few = [Limit(tokens, 4096), Everywhere(np.arange(256) % 64 == 0)]
    with pytest.raises(ValueError, match=r"step \d+ of epoch 0.*4 of them are to be on all 8 ranks"):
        len(BalancedBatchSampler(tokens, None, 8, 0, limits=few, shuffle=False))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "batch_size=None needs limits or step_tokens"),
        ({"step_tokens": 9, "batch_size": 2}, "step_tokens is for batch_size=None"),
        ({"step_tokens": 9, "window": 1, "step_tokens_within": 0.2}, "step_tokens_within is for a batch_size"),
        (
            {"step_tokens": 8},
            "step 0 of epoch 0: .* step_tokens = 8, and one sample in each of 2 micro-batches makes 9",
        ),
        (
            {"step_tokens": 90, "drop_last": True, "num_replicas": 5},
            "must have at least 5 rows, a step, with drop_last",
        ),
    ],
)
def test_free_steps_that_cannot_be(given, said):
    given = {"batch_size": None, "num_replicas": 2, "rank": 0, "shuffle": False} | given
    with pytest.raises(ValueError, match=said):
        list(BalancedBatchSampler([4, 5, 6, 7], **given))
