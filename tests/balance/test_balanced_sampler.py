"""Balanced batches from lengths alone: every entry of an epoch's order once, whatever the sampler is asked for."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from nightly import examples

from balancer.compat import BalancedBatchSampler, huggingface, step_grid
from balancer.problem.shuffle import shuffled

LENGTHS = np.random.default_rng(0).lognormal(5, 1.2, 203).astype(int) + 1


@pytest.fixture
def cheap(monkeypatch):
    """What is asked for here is counts, not balance."""
    monkeypatch.setattr(step_grid, "BUDGET", 1e-6)


def plan_of(batch, ranks, lengths=LENGTHS, **options):
    """[step][micro-step][rank] -> rows"""
    return list(BalancedBatchSampler(lengths, batch, ranks, 0, **options).plan())


def rows_in(nested):
    return [row for each in nested for row in rows_in(each)] if isinstance(nested, list) else [nested]


def over_even(grid, costs, sync):
    """Time until the slowest rank is done, where they wait, over that of even ranks."""
    loads = np.array([[[costs[batch].sum() for batch in slot] for slot in step] for step in grid], dtype=float)
    slowest = loads.sum(1).max(1) if sync == "step" else loads.max(2).sum(1)
    return slowest.sum() / loads.sum(1).mean(1).sum()


# Every entry of the order once.


class Asked:
    """A random setting of the sampler, and what is right for it, worked out by itself."""

    def __init__(self, seed):
        random = np.random.default_rng(seed)
        self.random, self.count = random, int(random.integers(1, 120))
        self.lengths = np.minimum(random.lognormal(4, 1, self.count).astype(int), 4000)
        self.batch, self.ranks, self.slots = (int(random.integers(1, 5)) for _ in range(3))
        self.window = int(random.choice([0, 0, 1, 3, 9]))
        costs = "linear", "padded", "quadratic:a=100,b=1", "convolution:a=3,c=2", random.random(self.count)
        self.options = {
            "gradient_accumulation_steps": self.slots, "sync": str(random.choice(["step", "micro_batch"])),
            "window": self.window, "cost": costs[random.integers(len(costs))], "shuffle": bool(random.integers(2)),
            "drop_last": bool(random.integers(2)), "seed": seed,
        }  # fmt: skip
        if random.integers(3) == 0 and self.window:
            self.options["step_tokens_within"] = 0.3
        self.order = np.arange(self.count)
        if self.options["shuffle"]:
            self.order = shuffled(self.order, self.count, seed, 0)
        if random.integers(3) == 0:  # some rows never, some again and again
            self.order = random.integers(0, self.count, int(random.integers(1, 150)))
            self.options["order"] = self.order.tolist()
        self.size = self.batch * self.ranks * self.slots

    def sampler(self, rank="all", **other):
        shape = {"batch": self.batch, "ranks": self.ranks} | other
        batch, ranks = shape.pop("batch"), shape.pop("ranks")
        options = self.options | shape
        if not options["window"]:
            options.pop("step_tokens_within", None)
        return BalancedBatchSampler(self.lengths, batch, ranks, rank, **options)


def check_epoch(asked, batches):
    """Whole steps have the rows of their window and equal counts; what is left over comes with the fewest repeats."""
    total, size, ranks = len(asked.order), asked.size, asked.ranks
    steps = [batches[i : i + asked.slots * ranks] for i in range(0, len(batches), asked.slots * ranks)]
    whole = total // size
    for first in range(0, whole, asked.window + 1):
        block = steps[first : min(first + asked.window + 1, whole)]
        assert all(len(batch) == asked.batch for step in block for batch in step)
        drawn = asked.order[first * size : (first + len(block)) * size]
        assert sorted(row for step in block for batch in step for row in batch) == sorted(drawn.tolist())
    rest = asked.order[whole * size :].tolist()
    if asked.options["drop_last"] or not rest:
        assert len(steps) == whole
        return
    (last,) = steps[whole:]
    again = [int(asked.order[i % total]) for i in range(-len(rest) % (ranks * asked.slots))]
    assert sorted(row for batch in last for row in batch) == sorted(rest + again)
    assert len({len(batch) for batch in last}) == 1


def check_resumed(asked, state, seen, batches):
    """On other ranks, in other steps and windows: what had not run comes once."""
    random = asked.random
    ranks, other = int(random.integers(1, 5)), {"window": int(random.choice([0, 2, 5]))}
    other |= {"batch": int(random.integers(1, 5)), "gradient_accumulation_steps": int(random.integers(1, 4))}
    groups = ranks * other["gradient_accumulation_steps"]
    if asked.options["drop_last"] and len(asked.order) < groups * other["batch"]:
        return
    samplers = [asked.sampler(rank, ranks=ranks, **other) for rank in range(ranks)]
    rest = []
    for sampler in samplers:
        sampler.load_state_dict(state)
        told = len(sampler)
        rest.append(list(sampler))
        assert told == batches + len(rest[-1])
        assert sampler.epoch == 1
    assert len({tuple(map(len, of_rank)) for of_rank in rest}) == 1, "as many micro-batches, as many samples in each"
    wanted = np.bincount(asked.order, minlength=asked.count)
    found = np.bincount(rows_in([seen, rest]), minlength=asked.count)
    left = max(0, len(asked.order) - len(rows_in(seen)))
    if asked.options["drop_last"]:
        assert (found <= wanted).all()
        assert left - len(rows_in(rest)) == left % (groups * other["batch"])
    else:
        assert (found >= wanted).all()
        assert len(rows_in(rest)) == left + -left % groups


@pytest.mark.usefixtures("cheap")
@pytest.mark.more_by_night
def test_random_settings():
    for seed in range(min(examples(40), 3000)):
        asked = Asked(seed)
        if asked.options["drop_last"] and len(asked.order) < asked.size:
            with pytest.raises(ValueError, match=f"must have at least {asked.size} rows, a step, with drop_last"):
                list(asked.sampler())
            continue
        sampler = asked.sampler()
        told, batches = len(sampler), list(sampler)
        assert told == len(batches)
        check_epoch(asked, batches)
        per_step = asked.slots * asked.ranks
        done = int(asked.random.integers(0, len(batches) // per_step + 1)) * asked.slots
        seen = batches[: done * asked.ranks]
        state = json.loads(json.dumps(sampler.state_dict(batches=done)))
        again = asked.sampler(rank := int(asked.random.integers(asked.ranks)))
        again.load_state_dict(state)
        assert list(again) == batches[rank :: asked.ranks][done:], "on as many ranks as if it had not stopped"
        check_resumed(asked, state, seen, done)


@pytest.mark.usefixtures("cheap")
def test_epochs_go_on_by_themselves():
    sampler = BalancedBatchSampler(LENGTHS, 4, 2, 0)
    first, second = list(sampler), list(sampler)
    assert first != second
    assert sorted(map(tuple, first)) != sorted(map(tuple, second))
    assert sampler.epoch == 2
    sampler.set_epoch(0)
    assert next(iter(sampler)) == first[0]
    assert list(sampler) == first, "an epoch that was left is begun anew"
    sampler.set_epoch(1)  # which comes anyway
    assert list(sampler) == second
    assert list(BalancedBatchSampler(LENGTHS, 4, 2, 0, seed=1)) != first


def test_without_shuffling_a_step_holds_the_next_rows():
    steps = plan_of(4, 2, shuffle=False)
    assert [sorted(rows_in(step)) for step in steps[:3]] == [list(range(first, first + 8)) for first in (0, 8, 16)]


@pytest.mark.usefixtures("cheap")
@pytest.mark.parametrize("given", [{}, {"step_tokens_within": 0.5}])
def test_long_samples_have_no_place_of_their_own(given):
    """Steps of a window run in random order: lengths do not drift, neither in a window nor in the epoch."""
    lengths = np.random.default_rng(3).lognormal(5, 1, 4_000).astype(int) + 1
    for window in 9, 499:
        sampler = BalancedBatchSampler(lengths, 4, 2, 0, window=window, **given)
        blocks = [block for _, block in sampler._blocks(sampler._at)]  # ranks do not matter here
        means = [lengths[block.order.rows(step)].mean() for block in blocks for step in block.steps]
        for places in np.arange(500), np.arange(500) % (window + 1):
            assert abs(np.corrcoef(places, means)[0, 1]) < 0.15


# Balance: figures of plans beside what is possible.


@pytest.mark.parametrize(
    ("given", "most"),
    [
        ({}, 1.012), ({"window": 4}, 1.002), ({"sync": "micro_batch"}, 1.25),
        ({"sync": "micro_batch", "window": 4}, 1.07), ({"window": 4, "step_tokens_within": 0.1}, 1.012),
    ],
)  # fmt: skip
def test_ranks_are_even_where_they_wait(given, most):
    """Accumulation over 4 micro-steps of 2 on 8 ranks; as drawn 1.57 once a step, and 2.16 in every micro-step."""
    lengths = np.clip(np.random.default_rng(31).lognormal(6.5, 0.8, 3968), 32, 8192).astype(int)
    grid = plan_of(2, 8, lengths=lengths, gradient_accumulation_steps=4, **given)
    assert over_even(grid, lengths, given.get("sync", "step")) < most
    # A wrong guess of where ranks wait costs little: long micro-batches meet.
    assert over_even(grid, lengths, "micro_batch") < 1.30


@pytest.mark.parametrize(("given", "most"), [({"sync": "micro_batch"}, 1.215), ({"cost": "padded", "window": 4}, 1.15)])
def test_who_has_the_heaviest_of_one_micro_step_has_less_in_others(given, most):
    """If ranks took micro-batches as they come: 1.231 and 1.218."""
    lengths = np.clip(np.random.default_rng(31).lognormal(6.5, 0.8, 3968), 32, 8192).astype(int)
    grid = plan_of(2, 8, lengths=lengths, gradient_accumulation_steps=4, **given)
    padded = [
        [[len(b) * lengths[b].max() if "cost" in given else lengths[b].sum() for b in s] for s in g] for g in grid
    ]
    of_ranks = np.array(padded, dtype=float).sum(axis=1)
    assert of_ranks.max(axis=1).sum() / of_ranks.mean(axis=1).sum() < most


def test_one_sample_a_rank_meets_its_like():
    """As drawn 3.2."""
    lengths = np.clip(np.random.default_rng(28).lognormal(8.5, 0.8, 1600), 256, 60_000).astype(np.int64)
    costs = lengths * 24576 + lengths**2
    for window, most in (4, 1.88), (49, 1.21):
        grid = plan_of(1, 8, lengths=lengths, cost="quadratic:a=24576,b=1", window=window)
        assert over_even(grid, costs, "step") < most


def test_padded_batches_are_sorted_cut_and_dealt():
    """1,600 sequences of a published run; sorted within 50 batches 1.8 % are padding, at random far more."""
    lengths = np.clip(np.random.default_rng(33).lognormal(5.0, 1.0, 1600), 16, 1024).astype(int)
    for window, most in (7, 0.063), (24, 0.019):
        grid = plan_of(8, 2, lengths=lengths, gradient_accumulation_steps=2, cost="padded", window=window)
        area = sum(len(batch) * lengths[batch].max() for step in grid for slot in step for batch in slot)
        assert 1 - lengths.sum() / area < most


@pytest.mark.parametrize("each", [4, 16])
def test_tokens_of_a_step_are_limited(each):
    lengths = np.clip(np.random.default_rng(5).lognormal(7, 0.6, 8 * each * 20), 64, 16_384).astype(np.int64)
    drawn, free, limited = (
        [lengths[rows_in(step)].sum() for step in plan_of(each, 8, lengths=lengths, **given)]
        for given in ({}, {"window": 9}, {"window": 9, "step_tokens_within": "5%"})
    )
    assert max(free) > 1.5 * np.mean(free)
    for first in range(0, 20, 10):  # in a window: all kept, or none moved
        block = np.array(limited[first : first + 10])
        kept = (abs(block - block.mean()) <= 0.05 * block.mean()).all()
        assert kept or block.tolist() == drawn[first : first + 10]
    assert (max(limited) < 1.1 * np.mean(limited)) == (each == 16)


# Whose order it is.


class Rows:
    """A sampler as torch's are."""

    def __init__(self, rows):
        self.rows, self.epoch = rows, None

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return iter(np.roll(self.rows, self.epoch).tolist())


class Dealt(Rows):
    """Of one rank alone, as torch's DistributedSampler."""

    num_replicas = 2


def mixture(epoch):
    """5, 2 and 1 of three sources in every 8."""
    random = np.random.default_rng([14, epoch])
    queues = [random.permutation(np.arange(first, stop)) for first, stop in ((0, 100), (100, 140), (140, 160))]
    parts = [queue[: 20 * count].reshape(20, count) for queue, count in zip(queues, (5, 2, 1), strict=True)]
    return np.concatenate(parts, axis=1).ravel()


@pytest.mark.usefixtures("cheap")
def test_an_order_of_ones_own():
    sampler = BalancedBatchSampler(LENGTHS, 2, 4, 0, order=mixture)
    for epoch in range(2):
        for step, grid in enumerate(sampler.plan(epoch)):
            assert sorted(rows_in(grid)) == sorted(mixture(epoch)[8 * step : 8 * step + 8])
    rows = [3, 3, 3, 1, 0, 3, 9, 1]
    assert sorted(rows_in(plan_of(2, 2, order=rows))) == sorted(rows), "repeats are kept"
    samples = BalancedBatchSampler(LENGTHS, 1, 2, "all", order=Rows(np.arange(10)))
    first, second = (rows_in(list(samples)) for _ in range(2))
    assert [sorted(first[:2]), sorted(second[:2])] == [[0, 1], [0, 9]]


@pytest.mark.usefixtures("cheap")
def test_an_order_is_drawn_once_an_epoch():
    drawn = []

    def order(epoch):
        drawn.append(epoch)
        return np.random.default_rng().permutation(203)

    sampler = BalancedBatchSampler(LENGTHS, 4, 2, 0, order=order)
    assert len(sampler) == 26
    running = iter(sampler)
    next(running)
    state = sampler.state_dict(batches=1)
    assert len([*running]) == 25
    assert drawn == [0]
    sampler.state_dict()  # of the next epoch
    assert sampler.state_dict(batches=1) == state
    assert drawn == [0, 1]
    other = BalancedBatchSampler(LENGTHS, 4, 2, 0, order=order)
    with pytest.raises(ValueError, match="the state is of other batches: its order is"):
        other.load_state_dict(state)


def test_rows_of_the_epoch_that_runs_stay():
    """However an order draws, and whatever else is asked for meanwhile."""
    sampler = BalancedBatchSampler(LENGTHS, 7, 1, 0, order=lambda epoch: np.random.default_rng().permutation(203))
    running = iter(sampler)
    seen = [next(running) for _ in range(9)]
    for epoch in 1, 2:
        sampler.report(epoch)
    assert sorted(rows_in(seen + list(running))) == list(range(203))


def test_iterators_have_places_of_their_own():
    sampler = BalancedBatchSampler(LENGTHS, 4, 2, 0)
    whole = list(sampler.plan())
    of_rank = [batch[0] for step in whole for batch in step]
    first, second = iter(sampler), iter(sampler)
    seen = [next(first)]
    assert list(second) == of_rank
    assert seen + list(first) == of_rank, "though the other ended meanwhile"
    assert sampler.epoch == 1, "which the last that began says"
    sampler.set_epoch(0)
    assert list(zip(sampler, sampler, strict=True)) == list(zip(of_rank, of_rank, strict=True))
    sampler.set_epoch(0)
    old = iter(sampler)
    next(old)
    sampler.load_state_dict(BalancedBatchSampler(LENGTHS, 4, 2, 0).state_dict(batches=9))
    next(old)
    assert sampler.state_dict()["batches"] == 9, "a loader that fetched ahead moves no place that was loaded since"
    assert list(sampler) == of_rank[9:]


@pytest.mark.parametrize(
    ("order", "said"),
    [
        (Dealt([0, 1]), r"rows of all ranks.*Dealt of 2 ranks.*num_replicas=1"),
        (iter([1, 2]), "order must be an array, a sampler or a function of the epoch, and no iterator"),
        (5, "order must be an array, a sampler or a function of the epoch, .* got 5"),
        ({0, 1}, r"and no .* set or mapping, got \{0, 1\}"),
        ("01", "order must be an array"),
        (lambda epoch: None, "order must be an array, .* got None for epoch 0"),
        ([0, 203], r"order\[1\] must name rows 0\.\.202, got 203"),
        ([[0, 1], [2, 3]], "order must be one-dimensional"),
        (lambda epoch: [0.5], r"order\[0\] must be a finite whole number"),
        ([], "order must have at least 1 rows"),
    ],
)
def test_orders_that_cannot_be_an_epochs(order, said):
    with pytest.raises((ValueError, TypeError), match=said):
        list(BalancedBatchSampler(LENGTHS, 4, 2, 0, order=order))


# A cost of one's own.


def test_a_cost_is_one_number_a_sample():
    random = np.random.default_rng(12)
    tokens = np.clip(random.lognormal(7, 0.9, 512), 64, 16_384).astype(int)
    seconds = tokens * random.beta(2, 5, 512)
    for costs in seconds, (seconds + 1).astype(int):
        grid = plan_of(8, 16, lengths=tokens, cost=costs, gradient_accumulation_steps=4)
        assert over_even(grid, np.asarray(costs), "step") < 1.01
        assert over_even(grid, tokens, "step") > 1.05
    for factor in 1e-9, 3.7, 1e12:
        assert plan_of(8, 16, lengths=tokens, cost=seconds * factor) == plan_of(8, 16, lengths=tokens, cost=seconds)
    smallest = plan_of(2, 2, lengths=[3, 4, 5], cost=[5e-324] * 3)
    assert set(rows_in(smallest)) == {0, 1, 2}
    whole = (seconds + 1).astype(int)
    assert plan_of(8, 16, lengths=tokens, cost=whole.astype(float)) == plan_of(8, 16, lengths=tokens, cost=whole)


# Arguments.


@pytest.mark.parametrize(
    ("arguments", "given", "said"),
    [
        (([], 2, 2, 0), {}, "lengths must have at least 1 rows, got 0"),
        (([3, -1], 2, 2, 0), {}, r"lengths\[1\] must be >= 0, got -1"),
        (([3], 1, 2, 2), {}, r"rank must be within 0\.\.1, or \"all\", got 2"),
        (([3], 1, 1, 0), {"gradient_accumulation_steps": 0}, "gradient_accumulation_steps must be >= 1"),
        (([3], 1, 1, 0), {"sync": "pipeline"}, "sync must be one of step, micro_batch, got 'pipeline'"),
        (([3], 1, 1, 0), {"step_tokens_within": -0.1}, "step_tokens_within must be >= 0"),
        (
            ([3], 1, 1, 0),
            {"step_tokens_within": "20", "window": 4},
            "must be a share such as '20%', at most 1, got '20'",
        ),
        (([3], 1, 1, 0), {"step_tokens_within": 0.2}, "step_tokens_within needs window >= 1"),
        (([3], 1, 1, 0), {"shuffle": "False"}, "shuffle must be True or False, got 'False'"),
        ((None, 1, 1, 0), {}, "lengths must be one number a sample, got None, a NoneType"),
        (([3, 4], 2**30, 2**30, 0), {}, r"accumulation_steps must be <= the 2 samples.*got 1073741824"),
        (([3, 4], 1, 1, 0), {"cost": [[1], [1, 2]]}, "cost must be one number a sample: .*inhomogeneous"),
        (
            (np.ones(4000, int), 4, 8, 0),
            {"cost": [*[1] * 3900, *[2**62] * 100]},
            r"cost\[3900\] must fit int64 when 32",
        ),
        (
            ([1000, 5 * 10**9], 4, 8, 0),
            {"cost": "quadratic:a=24576,b=1"},
            r"cost\[1\] must fit int64 when 32 samples are summed, with lengths\[1\] = 5000000000, got 25000",
        ),
        (([2**62, 1], 1, 2, 0), {"cost": [1, 1]}, r"lengths\[0\] must fit int64 when 2 samples"),
        (
            ([5, 6], 1, 1, 0),
            {"cost": "attention:a=1,prefix=8", "prefix_length": [3, 7]},
            r"prefix_length\[1\] must be <= the length of its sample, got 7",
        ),
        (([5, 6], 1, 1, 0), {"cost": "attention:a=1,prefix=8"}, "needs prefix_length, as its mask has each sample's"),
        (([3], 1, 1, 0), {"cost": [1, 2]}, r"cost must have one number for each of 1 samples, got shape \(2,\)"),
        (([3, 4], 1, 1, 0), {"cost": [-1, 2]}, r"cost\[0\] must be finite and >= 0, got -1"),
        (([3], 1, 1, 0), {"cost": "cubic"}, "unknown cost 'cubic'"),
        (([3], 1, 1, 0), {"prefix": ["a"]}, "prefix and prefix_length need each other: give prefix_length"),
        (([3], 1, 1, 0), {"prefix": ["a"], "prefix_length": [4]}, r"prefix_length\[0\] must be <= the length"),
        (([3], 1, 1, 0), {"prefix": ["a"], "prefix_length": [1], "window": 2}, "prefix is for window=0"),
        (([3], 1, 1, 0), {"prefix": ["a"], "prefix_length": [1], "cost": "padded"}, "prefix is for window=0 and a"),
    ],
)
def test_errors_name_what_is_wrong(arguments, given, said):
    with pytest.raises((ValueError, TypeError), match=said):
        BalancedBatchSampler(*arguments, **given)


def test_it_says_what_it_is():
    sampler = BalancedBatchSampler(LENGTHS, 4, 2, 1, cost="padded", gradient_accumulation_steps=3, window=5)
    assert repr(sampler) == (
        "BalancedBatchSampler(203 samples, batch_size=4, num_replicas=2, rank=1, cost='padded', "
        "gradient_accumulation_steps=3, sync='step', window=5)"
    )
    assert "cost=of each sample" in repr(BalancedBatchSampler(LENGTHS, 4, 2, 1, cost=LENGTHS))


def test_without_a_process_group_ranks_must_be_given():
    with pytest.raises(ValueError, match=r"no process group yet.*give both.*init_process_group"):
        BalancedBatchSampler([3], 1)


def test_batches_of_a_rank_are_not_dealt_out_again():
    with pytest.raises(ValueError, match=r"rank 1's already.*use_distributed_sampler=False.*rank='all'.*prepare"):
        BalancedBatchSampler(LENGTHS, 4, 2, 1).batch_size  # noqa: B018 (reading it is what deals out)
    assert not hasattr(BalancedBatchSampler(LENGTHS, 4, 2, "all"), "batch_size")  # so Accelerate refuses to split them


# What the epoch will hold, before it is trained.


@pytest.mark.usefixtures("cheap")
@pytest.mark.parametrize("sync", ["step", "micro_batch"])
@pytest.mark.parametrize("given", [{"window": 5}, {"cost": "padded", "window": 3}, {"drop_last": True}])
def test_a_report_adds_up_to_what_batches_hold(sync, given):
    sampler = BalancedBatchSampler(LENGTHS, 2, 3, 1, gradient_accumulation_steps=2, sync=sync, shuffle=False, **given)
    report, whole = sampler.report(), 203 // 12 * 12
    drawn = np.arange(whole) if "drop_last" in given else np.concatenate([np.arange(203), np.arange(-203 % 6)])
    steps = np.split(drawn, range(12, len(drawn), 12))
    as_drawn = [step.reshape(2, 3, -1).tolist() for step in steps]
    works = []
    for figures, grid in (report.drawn, as_drawn), (report.planned, list(sampler.plan())):
        padded = [len(batch) * max(LENGTHS[batch]) for step in grid for slot in step for batch in slot]
        tokens = [int(LENGTHS[rows_in(step)].sum()) for step in grid]
        assert figures.tokens == tokens
        assert (figures.largest_padded, figures.padded) == (max(padded), sum(padded))
        assert figures.largest == max(LENGTHS[batch].sum() for step in grid for slot in step for batch in slot)
        assert figures.padding == pytest.approx(1 - sum(tokens) / sum(padded))
        loads = np.array([[[len(batch) * max(LENGTHS[batch]) if "cost" in given else LENGTHS[batch].sum()
                            for batch in slot] for slot in step] for step in grid])  # fmt: skip
        slowest = loads.sum(1).max(1).sum() if sync == "step" else loads.max(2).sum()
        works.append(loads.sum())
        assert figures.imbalance == pytest.approx(slowest * 3 / report.planned.worked)
        weights = np.concatenate([np.full(count, 1 / count) for count in tokens])
        assert figures.weight_spread == pytest.approx(weights.std() / weights.mean())
    assert report.drawn.worked == report.planned.worked == min(works), "one mean: a gain is a smaller ratio"
    assert report.gain == pytest.approx(1 - report.planned.spent / report.drawn.spent)
    assert str(report).startswith(f"{len(as_drawn)} steps, ranks wait in every {sync}: ")
    assert ("give cost='padded'" in str(report)) == ("cost" not in given)
    assert report.numbers() == {"balancer/imbalance_before": report.drawn.imbalance,
                                "balancer/imbalance": report.planned.imbalance}  # fmt: skip
    assert sampler.state_dict()["batches"] == 0, "nothing was yielded"


# In Hugging Face's Trainer.


def trainer_like(world_size=2, counted=True, averaged=True, dataset=(1, 2), **sizes):
    """What the mixin looks at."""
    return SimpleNamespace(
        args=SimpleNamespace(world_size=world_size, average_tokens_across_devices=averaged), compute_loss_func=None,
        model_accepts_loss_kwargs=counted, train_dataset=dataset,
        accelerator=SimpleNamespace(parallelism_config=SimpleNamespace(**sizes)),
    )  # fmt: skip


def test_losses_that_would_change_are_refused():
    for trainer, equal in (trainer_like(), False), (trainer_like(counted=False), True):
        huggingface._check_loss(trainer, equal)
    huggingface._check_loss(trainer_like(1, counted=False), False)
    with pytest.raises(ValueError, match="takes no num_items_in_batch"):
        huggingface._check_loss(trainer_like(counted=False), False)
    with pytest.raises(ValueError, match="average_tokens_across_devices must be True"):
        huggingface._check_loss(trainer_like(averaged=False), True)


def test_datasets_and_ranks_that_cannot_be_balanced_are_refused():
    huggingface._check(trainer_like(tp_size=1, cp_size=None))
    with pytest.raises(ValueError, match="cp_size of parallelism_config must be 1"):
        huggingface._check(trainer_like(cp_size=2))
    for dataset in (None, iter([1])):
        with pytest.raises(ValueError, match=r"train_dataset must have a length.*PrefetchDispatcher"):
            huggingface._check(trainer_like(dataset=dataset))


@pytest.mark.parametrize(
    ("kind", "stage", "sync"),
    [("NO", None, "step"), ("MULTI_GPU", None, "step"), ("FSDP", None, "micro_batch"), ("DEEPSPEED", 1, "step"),
     ("DEEPSPEED", 2, "micro_batch"), ("DEEPSPEED", 3, "micro_batch")],
)  # fmt: skip
def test_where_ranks_wait_is_read_from_the_trainer(kind, stage, sync):
    plugin = None if stage is None else SimpleNamespace(zero_stage=stage)
    state = SimpleNamespace(distributed_type=f"DistributedType.{kind}", deepspeed_plugin=plugin)
    assert huggingface._where_ranks_wait(SimpleNamespace(accelerator=SimpleNamespace(state=state))) == sync
