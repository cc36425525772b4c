"""The dispatch plan as data: compared, frozen, digested, saved, and taken back."""

import copy
import pickle

import numpy as np
import pytest
from balance_cases import naive_optimum, problems
from hypothesis import example, given, settings
from hypothesis import strategies as st
from nightly import examples

import balancer
from balancer import InputError, Placement, PlanError, Topology, load_plan
from balancer.plan.digest import placements_digest

LENGTHS = [900, 100, 400, 600, 500, 500, 70]


def saved(plan, path):
    plan.save(path)
    return load_plan(path)


# --- equality, freezing, copies --------------------------------------------------------------------------------------


def test_a_plan_compares_by_content_and_has_no_hash():
    plan = balancer.balance(LENGTHS, 3)
    assert plan == balancer.balance(np.array(LENGTHS), 3)
    assert plan != balancer.balance([*LENGTHS[:-1], 71], 3)
    assert plan != balancer.balance(LENGTHS, 3, ranks_per_node=1)
    assert plan != balancer.balance(LENGTHS, 3, home_rank=[2] * 7)
    assert plan != balancer.balance(LENGTHS, 4)
    assert plan != balancer.balance(LENGTHS, 3, cost="linear:a=2")
    assert plan != balancer.balance(LENGTHS, 3, method="karmarkar_karp")
    assert plan != "plan"
    with pytest.raises(TypeError):
        hash(plan)
    again = balancer.balance(LENGTHS, 3)
    object.__setattr__(again, "runtime_s", plan.runtime_s + 1)
    assert (again, again.digest()) == (plan, plan.digest())


def test_no_attribute_can_be_assigned():
    plan = balancer.balance(LENGTHS, 3)
    for name in (*plan.__slots__, "makespan", "gap", "rank_of_sample", "something_new"):
        with pytest.raises((AttributeError, TypeError)):
            setattr(plan, name, 0)
    with pytest.raises((AttributeError, TypeError)):
        del plan.loads


@pytest.mark.parametrize("clone", [copy.copy, copy.deepcopy, lambda p: pickle.loads(pickle.dumps(p))])  # noqa: S301
def test_copies_are_equal(clone):
    plan = balancer.balance(LENGTHS, 3, 1, cost="quadratic:a=3,b=1")
    assert clone(plan) == plan
    assert clone(plan).digest() == plan.digest()


class Tensor:
    """What NumPy sees of a torch CPU tensor, or of any container of somebody's array."""

    def __init__(self, array, as_view):
        self.array, self.as_view = array, as_view

    def __array__(self, dtype=None, copy=None):
        return self.array[:] if self.as_view else self.array


WRAPPERS = {
    "view": lambda array: array[:],
    "tensor of a view": lambda array: Tensor(array, True),
    "memoryview": memoryview,
}


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
@pytest.mark.parametrize("dtype", [np.int64, np.float64])
def test_the_callers_array_stays_theirs(wrap, dtype):
    lengths, homes = np.array(LENGTHS, dtype=dtype), np.array([0, 1, 2, 0, 1, 2, 0], dtype=dtype)
    plan = balancer.balance(wrap(lengths), 3, home_rank=wrap(homes))
    before = plan.digest()
    assert lengths.flags.writeable, "the caller's array was frozen"
    assert homes.flags.writeable, "the caller's homes were frozen"
    assert not np.shares_memory(lengths, plan.lengths)
    lengths[:] = 1
    homes[:] = 0
    assert plan.lengths.tolist() == LENGTHS
    assert plan == balancer.balance(LENGTHS, 3, home_rank=[0, 1, 2, 0, 1, 2, 0])
    assert plan.digest() == before


def test_repr_is_short_and_says_what_counts():
    text = repr(balancer.balance(list(range(10_000)), 64))
    assert len(text) < 200
    for word in ("10000 samples", "64 ranks", "linear", "imbalance", "gap"):
        assert word in text


# --- numbers ---------------------------------------------------------------------------------------------------------


@given(problems())
@settings(max_examples=examples(25))
def test_ratios_against_their_definition_and_arrays_nobody_can_write_to(problem):
    plan = balancer.balance(**problem)
    for loads, ratio in ((plan.loads, plan.imbalance_ratio), (plan.home_loads, plan.home_imbalance_ratio)):
        values = loads.tolist()
        total = sum(values) if plan.cost.additive else min(sum(plan.loads.tolist()), sum(plan.home_loads.tolist()))
        assert ratio == pytest.approx(max(values) * len(values) / total if total else 1.0, rel=1e-12)
        assert ratio >= 1.0
    assert (plan.imbalance_ratio <= plan.home_imbalance_ratio) == (plan.makespan <= max(plan.home_loads.tolist()))
    assert plan.makespan == max(plan.loads.tolist())
    if plan.makespan == plan.lower_bound:
        assert plan.gap == 0.0
    else:
        assert plan.gap == pytest.approx((plan.makespan - plan.lower_bound) / plan.lower_bound)
    arrays = [plan.lengths, plan.loads, plan.home_loads, plan.rank_of_sample, plan.topology.node_of_rank]
    for placement in (plan.home, plan.target):
        arrays += [placement.rank_of_sample, placement.position_of_sample, placement.samples, placement.offsets]
    assert not any(array.flags.writeable for array in [*arrays, plan.samples_on_rank(0)])


@given(st.integers(1, 9), st.integers(1, 2**59))
@example(3, 26340695580188889)  # sums past 2**53, which floats round: down and
@example(3, 21238881483001062)  # up
def test_equal_loads_are_perfect_however_large(num_ranks, load):
    """1.0 is perfect; a ratio below it, or idle time below 0, is none that a report should show."""
    assert balancer.balance([load] * num_ranks, num_ranks).imbalance_ratio == 1.0


@pytest.mark.parametrize(("lengths", "binding"), [([9, 1, 1], 0), ([1, 1, 9, 9], None), ([1, 9, 1], 1), ([2, 2], None)])
def test_binding_sample(lengths, binding):
    assert balancer.balance(lengths, 2).binding_sample == binding


# --- digest ----------------------------------------------------------------------------------------------------------


def test_digest_is_of_placements_and_topology_only():
    plan = balancer.balance(LENGTHS, 4, 2)
    assert plan.digest() == balancer.balance([2 * length for length in LENGTHS], 4, 2, cost="linear:a=5").digest()
    assert plan.digest() != balancer.balance(LENGTHS, 4, 1).digest()
    assert plan.digest() != balancer.balance(LENGTHS, 4, 2, home_rank=[0] * 7).digest()
    assert plan.digest() != balancer.balance(LENGTHS[::-1], 4, 2).digest()
    assert plan.digest() != plan.inverse().digest()
    home = Placement.checked([0, 1, 2, 3], 4)  # what is kept of homes that were digested last is of their nodes, too
    together, apart = (placements_digest(Topology(nodes), home, home) for nodes in ((4,), (2, 2)))
    assert together != apart


def test_position_counts_in_the_digest():
    topology, home = Topology((2,)), Placement.checked([0, 0, 1], 2)
    swapped = Placement.checked([0, 0, 1], 2, [1, 0, 0])
    assert placements_digest(topology, home, home) != placements_digest(topology, home, swapped)


def test_plans_of_different_shape_never_share_a_digest():
    """Without counts in front, the node sizes of one plan read as the ranks of another."""
    one_sample, none = Placement.checked([1], 2), Placement.checked([], 4)
    assert placements_digest(Topology((2,)), one_sample, one_sample) != placements_digest(
        Topology((2, 1, 1)), none, none
    )


# --- the way back ----------------------------------------------------------------------------------------------------


@given(
    problems(
        lengths=st.lists(st.integers(0, 12), max_size=6), costs=("linear", "padded", "convolution:a=9,b=1,c=40,p=1")
    )
)
@settings(max_examples=examples(25))
def test_bound_of_the_way_back_is_one(problem):
    """No placement under the inverse plan's own constraints beats its lower bound."""
    back = balancer.balance(**problem).inverse()
    best = naive_optimum(problem["lengths"], back.num_ranks, problem["cost"], back.constraints.equal_counts)
    assert back.lower_bound <= best


# --- files -----------------------------------------------------------------------------------------------------------


@given(problem=problems())
@settings(max_examples=examples(20))
def test_file_round_trip_there_and_of_the_way_back(problem, tmp_path_factory):
    plan = balancer.balance(**problem)
    path = tmp_path_factory.mktemp("plans") / "plan.parquet"
    found = saved(plan, path)
    assert found == plan
    assert found.digest() == plan.digest()
    assert found.binding_sample == plan.binding_sample
    assert [found.exchange(r) for r in range(plan.num_ranks)] == [plan.exchange(r) for r in range(plan.num_ranks)]
    back = plan.inverse()
    assert (back.home, back.target) == (plan.target, plan.home)
    assert (back.loads.tolist(), back.home_loads.tolist()) == (plan.home_loads.tolist(), plan.loads.tolist())
    assert (back.status == "optimal") == (back.makespan == back.lower_bound)
    assert back.inverse().digest() == plan.digest()
    assert saved(back, path) == back


@pytest.mark.parametrize(
    "make",
    [
        lambda: balancer.balance([], 3),
        lambda: balancer.balance([5], 8, 4),
        lambda: balancer.balance(
            [20, 19, 18, 17, 16, 15, 14, 13, 3], 4, method="exact", time_budget=5.0, equal_counts=True
        ),
        lambda: balancer.balance(LENGTHS, 3, max_tokens_per_rank=1100),
        lambda: balancer.balance(list(range(3000)), 97, method="lpt", time_budget=1e-9, equal_counts=True),
    ],
)
def test_file_round_trip_of(make, tmp_path):
    plan = make()
    found = saved(plan, tmp_path / "plan.parquet")
    assert found == plan
    assert found.digest() == plan.digest()
    assert (found.status, found.lower_bound, found.bound_name) == (plan.status, plan.lower_bound, plan.bound_name)


@pytest.mark.parametrize(("stop_at", "status"), [("0.1%", "feasible"), ("20%", "within"), (0, "feasible")])
def test_a_plan_says_what_is_proven_of_it_also_out_of_a_file(stop_at, status, tmp_path):
    """LPT is 4 % over the bound here, whatever gap is small enough."""
    plan = balancer.balance([30, 29, 28, 27, 26, 25, 24], 2, method="lpt", stop_at=stop_at)
    assert 0.001 < plan.gap < 0.2
    found = saved(plan, tmp_path / "plan.parquet")
    assert plan.status == found.status == status
    assert (found.stop_at, found.placement) == (plan.stop_at, "any")


def test_saving_replaces_and_leaves_nothing_else(tmp_path):
    path = tmp_path / "plan.parquet"
    balancer.balance([1, 2, 3], 2).save(path)
    plan = balancer.balance([4, 5], 2)
    assert saved(plan, str(path)) == plan
    assert [entry.name for entry in tmp_path.iterdir()] == ["plan.parquet"]


def test_home_positions_that_a_file_cannot_tell_are_refused(tmp_path):
    plan = balancer.balance([1, 2, 3], 2)
    object.__setattr__(plan.problem.batch, "home", Placement.checked([0, 0, 1], 2, [1, 0, 0]))
    with pytest.raises(PlanError, match="home must be in sample order"):
        plan.save(tmp_path / "plan.parquet")
    assert list(tmp_path.iterdir()) == []


def test_unwritable_path_is_named(tmp_path):
    with pytest.raises(InputError, match="nowhere"):
        balancer.balance([1], 1).save(tmp_path / "nowhere" / "plan.parquet")


def test_a_plan_that_fell_back_is_copied_with_its_reason():
    lengths = np.random.default_rng(0).lognormal(7, 1, 512).clip(1, 20_000).astype(int)
    kept = {"cut": balancer.MicroBatches(20_000), "keep_together": np.arange(512) // 4}
    plan = balancer.balance(lengths, 16, 4, np.arange(512) // 32, "quadratic:a=24576,b=1", **kept)
    for again in pickle.loads(pickle.dumps(plan)), copy.deepcopy(plan):  # noqa: S301 (its own)
        assert again == plan
        assert again.fell_back == plan.fell_back
        assert again.fell_back.around == plan.fell_back.around
