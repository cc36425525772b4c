"""Constraints and micro-batches through `balance`: kept, whatever the mix, or refused with the reason."""

import inspect
import itertools
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly import examples
from plan_files import tamper

import balancer
from balancer import MicroBatches, Pipelines
from balancer.described import keys_of
from balancer.errors import InputError, PlanError
from balancer.planner import replay_plan
from balancer.problem.constraints import CONSTRAINTS, TAKERS, Constraints
from balancer.problem.phases import CONSTRAINTS as OF_PHASES
from balancer.problem.problem import Problem
from balancer.problem.settings import PlanSettings
from balancer.step import StepFile
from solvers import InfeasibleError, SolverError

RANKS = 4


def test_constraints_are_declared_once():
    """What must be written out, for help, completion and types, is what is declared."""
    taken = inspect.signature(balancer.balance).parameters
    at, defaults = list(taken), Constraints()
    declared = {name: given.unset for name, given in CONSTRAINTS.items()}
    assert {name: taken[name].default for name in declared} == declared
    assert sorted(declared, key=at.index)[2:] == list(declared)[2:]
    assert [each.name for each in fields(Constraints)] == list(declared)
    assert [getattr(defaults, name) or None for name in declared] == [unset or None for unset in declared.values()]
    assert {each.name for each in fields(balancer.Phase)} >= set(OF_PHASES)
    assert set(OF_PHASES) - {"every_rank_nonempty", "prefix_length"} == set(declared)  # the length beside a prefix
    assert not set().union(*(given.taken_by for given in CONSTRAINTS.values())) - set(TAKERS)
    assert {each.name for each in keys_of(StepFile) if each.table == "phase"} >= set(OF_PHASES)


WORDS = {"padded": "padded", "convolution": "convolution", "micro_batches": "micro-batches",
         "sequence_groups": "sequence groups", "sequence_parallel": "long and short"}  # fmt: skip


@pytest.mark.parametrize("name", CONSTRAINTS)
def test_the_docs_say_what_is_declared(name):
    table = (Path(__file__).parents[2] / "docs/how_to/constraints.md").read_text().split("\n")
    (row,) = (line for line in table if f"`{name} = " in line and line.startswith("|"))
    meaning, option, _, without = (cell.strip() for cell in row.strip("|").split("|"))
    assert meaning == CONSTRAINTS[name].meaning
    assert option.startswith(f"`{name} = ")
    assert {taker for taker, word in WORDS.items() if taker not in CONSTRAINTS[name].taken_by} == {
        taker for taker, word in WORDS.items() if word in without
    }


@st.composite
def constrained(draw):
    """Lengths, and any mix of constraints on four ranks."""
    n = draw(st.integers(0, 20))
    lengths = draw(st.lists(st.integers(0, 50), min_size=n, max_size=n))
    numbers = st.lists(st.integers(0, 9), min_size=n, max_size=n)
    mask = st.lists(st.lists(st.booleans(), min_size=RANKS, max_size=RANKS), min_size=n, max_size=n)
    choices = {
        "equal_counts": st.booleans(),
        "max_tokens_per_rank": st.integers(max(1, sum(lengths) // RANKS), sum(lengths) + 50),
        "min_samples_per_rank": st.integers(0, 2),
        "max_samples_per_rank": st.integers(-(-n // RANKS) or 1, n + 1),
        "keep_together": numbers,
        "caps": st.tuples(numbers, st.integers(1, 60)).map(lambda pair: {"blocks": pair}),
        "allowed_ranks": mask.map(lambda rows: np.array(rows, dtype=bool).reshape(n, RANKS)),
        "initial_loads": st.lists(st.integers(0, 40), min_size=RANKS, max_size=RANKS),
        "rank_speeds": st.lists(st.integers(1, 3), min_size=RANKS, max_size=RANKS),
    }
    names = draw(st.lists(st.sampled_from(sorted(choices)), unique=True, max_size=4))
    home = draw(st.none() | st.lists(st.integers(0, RANKS - 1), min_size=n, max_size=n))
    return lengths, {name: draw(choices[name]) for name in names}, home


def broken_rules(lengths, ranks, given_constraints):
    """What a placement breaks, in the most naive way."""
    held = [[s for s, r in enumerate(ranks) if r == rank] for rank in range(RANKS)]
    for name, value in given_constraints.items():
        counts = [len(samples) for samples in held]
        if name == "equal_counts" and value and max(counts) - min(counts) > 1:
            yield name
        if name == "max_tokens_per_rank" and max(sum(lengths[s] for s in samples) for samples in held) > value:
            yield name
        if name == "min_samples_per_rank" and min(counts) < value:
            yield name
        if name == "max_samples_per_rank" and max(counts) > value:
            yield name
        if name == "keep_together":
            yield from (
                name for s, r in enumerate(ranks) for t, q in enumerate(ranks) if value[s] == value[t] and r != q
            )
        if name == "caps":
            amounts, limit = value["blocks"]
            yield from (name for samples in held if sum(amounts[s] for s in samples) > limit)
        if name == "allowed_ranks":
            yield from (name for s, r in enumerate(ranks) if not value[s][r])


@given(constrained())
@settings(max_examples=examples(25))
def test_every_mix_is_kept_or_refused(case):
    lengths, kept, home = case
    try:
        plan = balancer.balance(lengths, RANKS, 2, home_rank=home, **kept)
    except (SolverError, ValueError) as error:
        assert str(error)  # noqa: PT017 (either outcome is legal)
        return
    ranks = plan.rank_of_sample.tolist()
    assert list(broken_rules(lengths, ranks, kept)) == []
    loads = list(kept.get("initial_loads", [0] * RANKS))
    for sample, rank in enumerate(ranks):
        loads[rank] += lengths[sample]
    assert plan.loads.tolist() == loads
    speeds = kept.get("rank_speeds", [1] * RANKS)
    assert plan.makespan == max(-(-load // speed) for load, speed in zip(loads, speeds, strict=True))
    assert plan.lower_bound <= plan.makespan


@given(constrained(), st.lists(st.integers(0, RANKS - 1), min_size=20, max_size=20))
@settings(max_examples=examples(25))
def test_violations_are_found_in_any_placement(case, ranks):
    lengths, kept, _ = case
    ranks = ranks[: len(lengths)]
    constraints = Constraints.from_given(len(lengths), RANKS, **kept)
    tokens = np.array([sum(lengths[s] for s, r in enumerate(ranks) if r == rank) for rank in range(RANKS)])
    found = constraints.violation(np.array(ranks, dtype=np.int32), tokens)
    assert (found is not None) == bool(list(broken_rules(lengths, ranks, kept)))


@pytest.mark.parametrize(
    ("constraint", "error", "message"),
    [
        ({"keep_together": [1, 2]}, ValueError, "keep_together must have a key for each of 3 samples"),
        ({"caps": {"kv": ([1, 2], 5)}}, ValueError, r"caps\['kv'\] must have an amount for each of 3 samples"),
        ({"caps": {"kv": ([1, -2, 3], 5)}}, ValueError, r"caps\['kv'\]\[1\] must be >= 0, got -2"),
        ({"allowed_ranks": [[1, 0]]}, ValueError, r"allowed_ranks must have a list of ranks, or None, for each of 3"),
        ({"cut": MicroBatches(9), "keep_together": [0, 0, 0]}, InfeasibleError, "with any number of micro-batches"),
        ({"caps": {"kv": 5}}, TypeError, r"caps\['kv'\] must be a pair"),
        ({"allowed_ranks": [[1], None, [2]]}, ValueError, r"allowed_ranks\[2\] must be ranks within 0..1, got 2"),
        ({"allowed_ranks": [[1], None, 0]}, TypeError, r"allowed_ranks\[2\] must be a list of ranks, or None for all"),
        ({"allowed_ranks": np.ones((2, 2), bool)}, ValueError, r"allowed_ranks must be bool of shape \(3, 2\)"),
        ({"initial_loads": [1]}, ValueError, "initial_loads must have a number for each of 2 ranks, got 1"),
        ({"rank_speeds": [1, 0]}, ValueError, r"rank_speeds\[1\] must be >= 1, got 0"),
        ({"max_samples_per_rank": 0}, ValueError, "max_samples_per_rank must be >= 1, got 0"),
        ({"allowed_ranks": np.zeros((3, 2), bool)}, InfeasibleError, "sample 0"),
        ({"cut": MicroBatches(9), "rank_speeds": [1, 2]}, ValueError, "cannot be combined with rank_speeds"),
        ({"cut": MicroBatches(9), "max_tokens_per_rank": 5}, InfeasibleError, "max_tokens_per_rank = 5"),
        ({"placement": "teleport"}, ValueError, "placement must be one of relocate, rearrange, any, got 'teleport'"),
    ],
)  # fmt: skip
def test_bad_constraints(constraint, error, message):
    with pytest.raises(error, match=message):
        balancer.balance([3, 6, 2], 2, **constraint)


# --- micro-batches ---------------------------------------------------------------------------------------------------


@given(
    st.lists(st.integers(0, 40), max_size=24),
    st.sampled_from(["micro_batch", "step", "pipeline"]),
    st.integers(1, 2),
    st.sampled_from(["any", "rearrange", "relocate"]),
)
@settings(max_examples=examples(40))
def test_micro_batches(lengths, sync, multiple, placement):
    rules = MicroBatches(50, sync, multiple_of=multiple, allow_empty=True, pipeline_stages=3 if sync[0] == "p" else 1)
    plan = balancer.balance(
        lengths, RANKS, 2, cost="quadratic:a=7,b=1", cut=rules, placement=placement, time_budget=0.001
    )
    assert plan.num_slots % multiple == 0
    costs = [7 * length + length * length for length in lengths]
    cells = [[plan.samples_in_slot(r, k).tolist() for k in range(plan.num_slots)] for r in range(RANKS)]
    assert sorted(s for row in cells for cell in row for s in cell) == list(range(len(lengths)))
    for rank, row in enumerate(cells):
        assert all(sum(lengths[s] for s in cell) <= 50 for cell in row)
        assert plan.samples_on_rank(rank).tolist() == [s for cell in row for s in cell], "slot after slot"
    loads = [[sum(costs[s] for s in cell) for cell in row] for row in cells]
    assert plan.slot_loads.tolist() == loads
    value = {
        "micro_batch": sum(max(row[k] for row in loads) for k in range(plan.num_slots)),
        "step": max(sum(row) for row in loads),
        "pipeline": (plan.num_slots + 2) * max(max(row) for row in loads),
    }[sync]
    assert plan.makespan == value >= plan.lower_bound


@given(
    constrained(),
    st.sampled_from(["micro_batch", "step", "pipeline"]),
    st.sampled_from(["own", "error"]),
    st.booleans(),
    st.sampled_from(["any", "rearrange"]),
)
@settings(max_examples=examples(25))
def test_micro_batches_under_every_mix_of_constraints(case, sync, over_long, allow_empty, placement):
    lengths, kept, home = case
    kept = {name: value for name, value in kept.items() if name not in ("initial_loads", "rank_speeds")}
    rules = MicroBatches(45, sync, over_long=over_long, allow_empty=allow_empty)
    asked = {"cost": "quadratic:a=7,b=1", "placement": placement, "time_budget": 0.001, "cut": rules, **kept}
    try:
        plan = balancer.balance(lengths, RANKS, 2, home_rank=home, **asked)
    except (SolverError, ValueError) as error:
        assert str(error)  # noqa: PT017 (either outcome is legal)
        return
    cells = [[plan.samples_in_slot(rank, slot).tolist() for slot in range(plan.num_slots)] for rank in range(RANKS)]
    rank_of = {s: rank for rank, row in enumerate(cells) for cell in row for s in cell}
    assert sorted(rank_of) == list(range(len(lengths)))
    for cell in (cell for row in cells for cell in row):
        assert cell or allow_empty
        assert sum(lengths[s] for s in cell) <= 45 or len(cell) == 1
    assert list(broken_rules(lengths, [rank_of[s] for s in range(len(lengths))], kept)) == []
    assert plan.lower_bound <= plan.makespan


@pytest.mark.parametrize("sync", ["micro_batch", "step", "pipeline"])
def test_the_bound_on_constrained_micro_batches_holds(sync):
    """Every way to lay six samples out on two ranks of two slots."""
    rng = np.random.default_rng(7)
    for _ in range(8):
        lengths = rng.integers(1, 9, 6).tolist()
        keys = rng.integers(0, 4, 6).tolist()
        rules = MicroBatches(16, sync, count=2, pipeline_stages=2 if sync == "pipeline" else 1)
        values = []
        for cells in itertools.product(range(4), repeat=6):
            loads = np.bincount(cells, weights=lengths, minlength=4).astype(np.int64).reshape(2, 2)
            ranks = [cell // 2 for cell in cells]
            apart = any(keys[s] == keys[t] and ranks[s] != ranks[t] for s in range(6) for t in range(s))
            if len(set(cells)) == 4 and loads.max() <= 16 and ranks.count(0) == 3 and not apart:
                values.append(rules.makespan(loads))
        asked = {"cut": rules, "keep_together": keys, "equal_counts": True}
        if not values:
            with pytest.raises(SolverError):
                balancer.balance(lengths, 2, **asked)
            continue
        plan = balancer.balance(lengths, 2, **asked)
        assert plan.lower_bound <= min(values) <= plan.makespan <= 1.4 * min(values)


def test_where_the_fewest_slots_have_no_room_more_are_taken():
    plan = balancer.balance([6, 4, 6, 4, 6, 4], 1, cut=MicroBatches(10))
    assert plan.num_slots == 3
    asked = {"cut": MicroBatches(10), "keep_together": [0, 1, 0, 1, 0, 1]}
    plan = balancer.balance([6, 4, 6, 4, 6, 4], 2, **asked)  # three of six cannot share two micro-batches of ten
    assert plan.num_slots == 3
    assert sorted(plan.samples_on_rank(0).tolist() + plan.samples_on_rank(1).tolist()) == list(range(6))
    with pytest.raises(InfeasibleError, match="with 2 micro-batches a rank: "):
        balancer.balance([6, 4, 6, 4, 6, 4], 2, cut=MicroBatches(10, count=2), keep_together=[0, 1, 0, 1, 0, 1])


def test_the_bound_on_the_fewest_slots_is_on_as_many_as_there_are():
    """Without constraints two slots would do, and take longer."""
    rules = MicroBatches(10, "pipeline", count="fewest", pipeline_stages=10)
    plan = balancer.balance([6, 4, 6, 4, 6, 4], 2, cut=rules, max_samples_per_rank=3,
                            caps={"six": ([1, 0, 1, 0, 1, 0], 3)}, keep_together=[0, 1, 0, 1, 0, 1])  # fmt: skip
    assert (plan.num_slots, plan.makespan) == (3, 12 * 6)
    assert plan.lower_bound <= plan.makespan


def test_shares_that_cannot_be_cut_prove_nothing():
    """The evenest partition gives one rank five fours, of which two fit a micro-batch."""
    lengths = [4, 4, 4, 4, 4, 7, 7, 3, 3]
    plan = balancer.balance(lengths, 2, cut=MicroBatches(11, count=2), max_samples_per_rank=9)
    assert plan.slot_loads.max() <= 11
    keys = [0, 1, 2, 3, 4, 5, 6, 7, 7]
    with pytest.raises(SolverError) as caught:
        balancer.balance([4, 4, 4, 4, 4, 7, 7, 3, 3], 2, cut=MicroBatches(11, count=2), keep_together=keys,
                         allowed_ranks=np.array([[1, 0]] * 5 + [[0, 1]] * 4, bool))  # fmt: skip
    assert "cut" in str(caught.value)


@pytest.mark.parametrize(("sync", "count"), [("micro_batch", None), ("step", "fewest"), ("pipeline", None)])
def test_many_more_slots_than_without_constraints(sync, count):
    allowed = np.zeros((20, 5), dtype=bool)
    allowed[:, 3] = True
    rules = MicroBatches(10, sync, count=count, allow_empty=True)
    plan = balancer.balance([10] * 20, 5, cut=rules, allowed_ranks=allowed)
    assert (plan.num_slots, plan.makespan, plan.gap) == (20, 200, 0)
    with pytest.raises(InfeasibleError, match="sample 3 may be in no rank"):
        balancer.balance([10] * 20, 5, cut=rules, allowed_ranks=allowed & (np.arange(20) != 3)[:, None])


def test_empty_slots_are_no_work(monkeypatch):
    parts, of_samples = [], Problem.of_samples
    monkeypatch.setattr(Problem, "of_samples", lambda *of: parts.append(of) or of_samples(*of))
    rules = MicroBatches(100, count=1000, allow_empty=True)
    batch = {"patches": [10, 20, 30, 40], "tokens": [50, 30, 20, 40]}
    plan = balancer.orchestrate(batch, {"vision": "patches", "llm": "tokens"}, 2, cut=rules, placement="rearrange")
    assert [plan[name].num_slots for name in ("vision", "llm")] == [1000, 1000]
    assert 2 <= len(parts) <= 8  # some of either phase, and no more than there are samples


@pytest.mark.parametrize("field", ["count", "at_least", "multiple_of"])
def test_more_slots_than_can_be_written_down_are_refused(field):
    with pytest.raises(ValueError, match=f"cut.{field} must be <= 1048576, got 16777216"):
        MicroBatches(100, allow_empty=True, **{field: 2**24})
    with pytest.raises(ValueError, match=f"cut.{field} must be <= 4096 with stages, got 8192"):
        Pipelines(100, stages=balancer.PipelineStages.of(2), **{field: 2**13})


def test_an_over_long_sample_gets_a_micro_batch_of_its_own():
    rules = MicroBatches(10, over_long="own")
    plan = balancer.balance([25, 4, 4, 4], 2, cut=rules)
    alone = int(plan.slot_of_sample[0])
    assert plan.samples_in_slot(int(plan.rank_of_sample[0]), alone).tolist() == [0]


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ([25, 4, 11, 4, 10, 7, 99, 1],
         "3 samples are longer than cut.tokens = 10 (the longest, sample 6: 99); leave them out beforehand "
         "(lengths <= 10), raise the cap, over_long='own' gives each a micro-batch of its own"),
    ],
)  # fmt: skip
def test_samples_over_the_cap_are_counted_with_what_to_do(lengths, message):
    with pytest.raises(InfeasibleError) as caught:
        balancer.balance(lengths, 2, cut=MicroBatches(10))
    assert str(caught.value) == message
    assert caught.value.certificate.items == [s for s, length in enumerate(lengths) if length > 10]


@pytest.mark.parametrize("seed", range(8, 11))
def test_no_bound_of_costs_alone_is_one_of_ranks_of_unlike_speed(seed):
    """Neither as planned nor of samples that were placed elsewhere."""
    random = np.random.default_rng(seed)
    lengths, speeds = random.integers(1, 40, random.integers(4, 14)), random.integers(2, 6, random.integers(2, 5))
    plan = balancer.balance(lengths, len(speeds), rank_speeds=speeds, time_budget=1e-4)
    assert plan.lower_bound <= plan.makespan
    assert replay_plan(plan, PlanSettings()).lower_bound <= plan.makespan


def test_a_plan_whose_samples_do_not_stand_in_order_of_their_slots_is_refused(tmp_path):
    """Though each micro-batch holds as much as before, and the slots are neighbours."""
    balancer.balance([5, 5, 5, 5], 1, cut=MicroBatches(10)).save(tmp_path / "plan.parquet")

    def change(rows):
        rows.sort(key=lambda row: row["position"])
        assert [row["slot"] for row in rows] == [0, 0, 1, 1]
        rows[1]["slot"], rows[2]["slot"] = 1, 0

    tamper(tmp_path / "plan.parquet", rows=change)
    with pytest.raises(PlanError, match="a rank's samples must stand in order of their slots"):
        balancer.load_plan(tmp_path / "plan.parquet")


SAVED = [
    {"cut": MicroBatches(35, over_long="own")},
    {"cut": MicroBatches(35, over_long="own"), "keep_together": [0, 0, 1, 1, 2, 2, 3, 3] * 2},
    {"cut": MicroBatches(999, count=9, allow_empty=True)},
    {"cut": MicroBatches(999, "step", multiple_of=7, allow_empty=True), "equal_counts": True},
    {"rank_speeds": [1, 2, 1, 2]},
    {"initial_loads": [9, 0, 0, 0]},
    {"min_samples_per_rank": 3, "equal_counts": True},
]


@pytest.mark.parametrize("constraint", SAVED)
def test_a_saved_plan_is_the_plan(constraint, tmp_path):
    lengths = np.random.default_rng(3).integers(1, 40, 16)
    plan = balancer.balance(lengths, 4, 2, home_rank=np.arange(16) % 4, **constraint)
    plan.save(tmp_path / "plan.parquet")
    loaded = balancer.load_plan(tmp_path / "plan.parquet")
    assert loaded.digest() == plan.digest()
    what = ("makespan", "lower_bound", "bound_name", "status", "num_slots", "cut")
    assert [getattr(loaded, name) for name in what] == [getattr(plan, name) for name in what]
    assert np.array_equal(loaded.slot_of_sample, plan.slot_of_sample)
    assert loaded.constraints.names() == plan.constraints.names()


def test_a_file_says_which_samples_stay_together(tmp_path):
    asked = {"keep_together": ["a", "b", "a", "c"], "caps": {"kv": ([1, 1, 1, 1], 3)}}
    plan, path = balancer.balance([6, 5, 4, 3], 2, **asked), tmp_path / "plan.parquet"
    assert plan.rank_of_sample.tolist() == [0, 1, 0, 1]
    assert (plan.makespan, plan.lower_bound) == (10, 10)  # 9 would do if samples could be apart
    plan.save(path)
    loaded = balancer.load_plan(path)
    assert loaded.constraints.names() == ("keep_together",)
    assert (loaded.lower_bound, loaded.bound_name, loaded.status) == (10, plan.bound_name, "optimal")
    tamper(path, description=lambda said: said["saved"]["all"].update(keys=[0, 0, 1, 2]))
    with pytest.raises(PlanError, match="samples 0 and 1 have one keep_together key, but run on two ranks"):
        balancer.load_plan(path)
    tamper(path, description=lambda said: said["saved"]["all"].update(keys=[0, 1, 0]))
    with pytest.raises(InputError, match="phase 'all' must have a key for each of its 4 items"):
        balancer.load_plan(path)


def test_slots_are_part_of_the_digest():
    lengths = [5, 5, 5, 5]
    one, two = (balancer.balance(lengths, 1, cut=MicroBatches(20, count=k)) for k in (1, 2))
    assert one.digest() != two.digest()
