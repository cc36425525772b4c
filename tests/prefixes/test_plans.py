"""Plans of samples that share prompts: loads, order, files, command line, samplers, and what is refused."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import balancer
from balancer import Phase
from balancer.compat.sampler import BalancedBatchSampler
from balancer.compat.step_grid import Grid
from balancer.cost import parse_cost
from balancer.offline.load import checked_steps
from balancer.simulate import CLUSTERS, PhaseModel, step_time

RANKS = 8
COST = "quadratic:a=24576,b=1"


def drawn(prompts=24, responses=8, seed=0):
    """Lengths with the prompt, keys and lengths of prompts, shuffled: int64[n] each."""
    rng = np.random.default_rng(seed)
    prompt = rng.integers(500, 4000, prompts)
    key = np.repeat(np.arange(prompts), responses)
    lengths = prompt[key] + rng.lognormal(7, 1, len(key)).astype(np.int64)
    order = rng.permutation(len(key))
    return lengths[order], key[order], prompt[key][order]


LENGTHS, KEYS, PROMPTS = drawn()
SHARED = {"prefix": KEYS, "prefix_length": PROMPTS}
PROMPTED = {"prefix": KEYS, "prefix_length": PROMPTS}  # as samplers call them


def loads_of(lengths, keys, prompts, ranks, num_ranks, cost=COST):
    """Add up loads sample by sample, in plain Python."""
    model, loads, seen = parse_cost(cost), [0] * num_ranks, set()
    for length, key, prompt, rank in zip(*(each.tolist() for each in (lengths, keys, prompts, ranks)), strict=True):
        once, whole = model.exact(prompt), model.exact(length)
        loads[rank] += whole - (once if (rank, key) in seen else 0)
        seen.add((rank, key))
    return loads


@pytest.mark.parametrize("equal", [False, True])
@pytest.mark.parametrize("cost", [COST, "attention:constant=300000,a=24576,full=3,window512=2"])
def test_loads_bound_and_order(equal, cost):
    plan = balancer.balance(LENGTHS, RANKS, cost=cost, equal_counts=equal, **SHARED)
    assert plan.loads.tolist() == loads_of(LENGTHS, KEYS, PROMPTS, plan.rank_of_sample, RANKS, cost)
    assert plan.home_loads.tolist() == loads_of(LENGTHS, KEYS, PROMPTS, plan.home.rank_of_sample, RANKS, cost)
    assert plan.lower_bound <= plan.makespan <= 1.03 * plan.lower_bound
    for rank in range(RANKS):
        keys = KEYS[plan.samples_on_rank(rank)]
        assert np.count_nonzero(np.diff(keys)) == len(np.unique(keys)) - 1  # side by side
        unique = int((LENGTHS - PROMPTS)[plan.samples_on_rank(rank)].sum())
        unique += sum(int(PROMPTS[key == KEYS][0]) for key in np.unique(keys))
        assert plan.unique_tokens()[rank] == unique
    assert plan.prompt_copies.tolist() == [len(np.unique(plan.rank_of_sample[key == KEYS])) for key in range(24)]
    if equal:
        assert np.bincount(plan.rank_of_sample).tolist() == [24] * RANKS


def test_no_prompt_is_as_without():
    plain = balancer.balance(LENGTHS, RANKS, cost="linear")
    none = balancer.balance(LENGTHS, RANKS, cost="linear", prefix=KEYS, prefix_length=np.zeros_like(KEYS))
    assert none.loads.sum() == plain.loads.sum()
    assert none.lower_bound <= plain.makespan


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "log.parquet"
    columns = {"tokens": LENGTHS, "prompt": [f"p{key}" for key in KEYS], "prompt_tokens": PROMPTS}
    pq.write_table(pa.table(columns), path)
    return path


def test_a_log_planned_read_and_reported(log, tmp_path):
    out = tmp_path / "plan.parquet"
    asked = {"num_ranks": RANKS, "batch_per_rank": 12, "length": "tokens", "cost": COST, "prefix": "prompt",
             "prefix_length": "prompt_tokens"}  # fmt: skip
    told = balancer.plan_log(log, out=out, **asked).summary()["phases"]["all"]
    assert 1 <= told["copies_of_a_prompt"] < 3
    (tmp_path / "step.toml").write_text(
        f'ranks = {RANKS}\nbatch_per_rank = 12\n[[phase]]\nlength = "tokens"\ncost = "{COST}"\nprefix = "prompt"\n'
        'prefix_length = "prompt_tokens"\n'
    )
    balancer.plan_log(log, step=tmp_path / "step.toml", out=tmp_path / "same.parquet")
    assert (tmp_path / "same.parquet").read_bytes() == out.read_bytes()
    for t, step in enumerate(checked_steps(out, log)):
        rows = slice(96 * t, 96 * (t + 1))
        homes = np.arange(96) // 12  # a log's samples lie on ranks in its order
        asked = {"cost": COST, "prefix": KEYS[rows], "prefix_length": PROMPTS[rows]}
        alone = balancer.balance(LENGTHS[rows], RANKS, home_rank=homes, **asked)
        assert step["all"] == alone
        assert step["all"].makespan == alone.makespan


def test_the_last_of_several_phases():
    phases = [Phase("vision", "patches"), Phase("llm", "tokens", prefix="uid", prefix_length="prompt", cost=COST)]
    columns = {"patches": LENGTHS // 3, "tokens": LENGTHS, "uid": KEYS, "prompt": PROMPTS}
    plan = balancer.orchestrate(columns, phases, num_ranks=RANKS)
    ranks = plan["llm"].rank_of_sample
    assert plan["llm"].loads.tolist() == loads_of(LENGTHS, KEYS, PROMPTS, ranks, RANKS)


def test_a_sampler_keeps_prompts_side_by_side():
    made = [
        BalancedBatchSampler(LENGTHS, 4, RANKS, rank, cost=COST, shuffle=False, **PROMPTED) for rank in range(RANKS)
    ]
    ran = []
    for batches in zip(*made, strict=True):
        for batch in batches:
            keys = KEYS[batch]
            assert np.count_nonzero(np.diff(keys)) == len(np.unique(keys)) - 1
            ran += batch
    assert sorted(ran) == list(range(len(LENGTHS)))
    accumulated = BalancedBatchSampler(
        LENGTHS, 4, RANKS, 0, cost=COST, shuffle=False, gradient_accumulation_steps=2, **PROMPTED
    )
    (grid, *_) = accumulated.plan()
    rows, placed = np.ravel(grid), np.repeat(np.arange(2 * RANKS), 4)
    expected = loads_of(LENGTHS[rows], KEYS[rows], PROMPTS[rows], placed, 2 * RANKS)
    grid = Grid.cut(rows, (2, RANKS))
    loads = accumulated._planner.loads(grid.rows, grid.batch)
    assert loads.ravel().tolist() == expected
    assert loads.sum(axis=0).max() < 1.2 * loads.sum(axis=0).mean()


WRONG = {
    "prefix and prefix_length need each other: give prefix_length as well": {"prefix": KEYS},
    "prefix and prefix_length need each other: give prefix as well": {"prefix_length": PROMPTS},
    "prefix_length must have a length for each of 192 samples, got 9": {"prefix": KEYS, "prefix_length": PROMPTS[:9]},
    "prefix must have a key for each of 192 samples": {"prefix": KEYS[:3], "prefix_length": PROMPTS},
    "prefix_length[0] must be >= 0": {"prefix": KEYS, "prefix_length": -PROMPTS},
    "prefix_length[0] must be <= the length of its sample": {"prefix": KEYS, "prefix_length": LENGTHS + 1},
    "have one prefix key, and prefix_length of": {"prefix": 0 * KEYS, "prefix_length": PROMPTS},
    "prefix cannot be combined with rank_speeds": {**SHARED, "rank_speeds": [1] * RANKS},
    "prefix cannot be combined with initial_loads": {**SHARED, "initial_loads": [1] * RANKS},
    "prefix cannot be combined with keep_together": {**SHARED, "keep_together": KEYS},
    "prefix cannot be combined with max_tokens_per_rank": {**SHARED, "max_tokens_per_rank": 10**6},
    "sequence_groups cannot be combined with prefix": {**SHARED, "cut": balancer.SequenceGroups((1, 2))},
    "cost 'padded' does not take prefix": {**SHARED, "cost": "padded"},
    "prefix is for method 'auto', not for 'lpt'": {**SHARED, "method": "lpt"},
}  # fmt: skip


@pytest.mark.parametrize("told", WRONG)
def test_wrong_arguments_in_a_line(told):
    with pytest.raises((ValueError, TypeError)) as caught:
        balancer.balance(LENGTHS, RANKS, **WRONG[told])
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_phases_that_cannot_share_prompts():
    with pytest.raises(ValueError, match="prefix needs prefix_length, a column with the length"):
        Phase("llm", "tokens", prefix="uid")
    phases = [Phase("vision", "patches", prefix="uid", prefix_length="prompt"), Phase("llm", "tokens")]
    with pytest.raises(ValueError, match="phase 'vision': prefix and prefix_length are for the last phase"):
        balancer.orchestrate({"patches": [1], "tokens": [2], "uid": [0], "prompt": [1]}, phases, num_ranks=1)


OWN = "attention:constant=300,a=50,window64=2,prefix=3"  # a mask over the first tokens of each sample


def exact(lengths, prefixes):
    """Count pairs in the masks, in plain Python: causal, and all of the prefix for each other."""
    model = parse_cost("attention:constant=300,a=50,window64=2")
    pairs = [length * (length + 1) // 2 + min(p, length) * (min(p, length) - 1) // 2
             for length, p in zip(lengths.tolist(), prefixes.tolist(), strict=True)]  # fmt: skip
    return [model.exact(length) + 3 * count for length, count in zip(lengths.tolist(), pairs, strict=True)]


def test_a_mask_over_the_prefix_of_each_sample(log, tmp_path):
    costs = parse_cost(OWN).sample_costs(LENGTHS, PROMPTS)
    assert costs.tolist() == exact(LENGTHS, PROMPTS)
    plan = balancer.balance(LENGTHS, RANKS, cost=OWN, prefix_length=PROMPTS)
    expected = np.bincount(plan.rank_of_sample, costs).astype(np.int64)
    assert plan.loads.tolist() == expected.tolist()
    assert plan.gap < 0.001
    plan.save(tmp_path / "one.parquet")
    assert balancer.load_plan(tmp_path / "one.parquet") == plan
    asked = {
        "num_ranks": RANKS,
        "batch_per_rank": 24,
        "length": "tokens",
        "cost": OWN,
        "prefix_length": "prompt_tokens",
    }
    balancer.plan_log(log, out=tmp_path / "plan.parquet", **asked)
    (step,) = checked_steps(tmp_path / "plan.parquet", log)
    assert step["all"].makespan == int(np.bincount(step["all"].rank_of_sample, costs).max())
    batch = next(iter(BalancedBatchSampler(LENGTHS, 24, RANKS, 2, cost=OWN, shuffle=False, prefix_length=PROMPTS)))
    assert set(batch) <= set(range(len(LENGTHS)))


def test_shared_prompts_whose_tokens_see_each_other():
    plan = balancer.balance(LENGTHS, RANKS, cost=OWN, **SHARED)
    once, whole = exact(PROMPTS, PROMPTS), exact(LENGTHS, PROMPTS)
    loads, seen = [0] * RANKS, set()
    for i, rank in enumerate(plan.rank_of_sample.tolist()):
        loads[rank] += whole[i] - (once[i] if (rank, KEYS[i]) in seen else 0)
        seen.add((rank, KEYS[i]))
    assert plan.loads.tolist() == loads


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"cost": OWN}, "needs prefix_length: its mask 'prefix' is of each sample's own"),
        ({"cost": OWN, "prefix_length": PROMPTS[:4]}, "prefix_length must have a length for each of 192 samples"),
        ({"cost": OWN, "prefix_length": PROMPTS - 10_000}, r"prefix_length\[0\] must be >= 0"),
        ({"cost": OWN, "prefix_length": PROMPTS, "cut": balancer.SequenceGroups((1, 2))},
         "is of a prefix of each sample, which sequence_groups do not know"),
    ],
)  # fmt: skip
def test_masks_over_prefixes_in_a_line(given, told):
    with pytest.raises(ValueError, match=told):
        balancer.balance(LENGTHS, RANKS, **given)


def test_what_computes_prompts_once_is_not_simulated():
    plan = balancer.balance(LENGTHS, RANKS, cost=COST, **SHARED)
    h100 = CLUSTERS["h100"]
    with pytest.raises(
        ValueError, match="phase 'all' computes prompts once for several samples, which is not simulated"
    ):
        step_time(plan, PhaseModel.on("qwen2-7b", h100.peak_flops, efficiency=0.5), h100)
